output "instance" {
  description = "Name of the instance."
  value       = google_spanner_instance.this.name
}

output "database" {
  description = "Name of the database."
  value       = google_spanner_database.this.name
}

output "path" {
  description = "projects/P/instances/I/databases/D, as SPANNER_DATABASE wants it."
  value       = "projects/${var.project_id}/instances/${google_spanner_instance.this.name}/databases/${google_spanner_database.this.name}"
}

output "ddl" {
  description = "The schema's statements."
  value       = google_spanner_database.this.ddl
}
