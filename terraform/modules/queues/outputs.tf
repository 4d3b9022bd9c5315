output "pools" {
  description = "Names of the shared queues, sorted by their place in the topology."
  value       = [for name in sort(keys(local.shared)) : google_cloud_tasks_queue.this[name].name if local.shared[name].role == "pool"]
}

output "control" {
  description = "Name of the queue of our own tasks."
  value       = one([for name, q in local.shared : google_cloud_tasks_queue.this[name].name if q.role == "control"])
}

output "endpoints" {
  description = "Names of the declared endpoints' queues, by the endpoint's id."
  value       = { for name, q in local.own : q.endpoint => google_cloud_tasks_queue.this[name].name }
}

output "concurrency" {
  description = "How many dispatches all these queues may have under way at once."
  value       = sum([for q in values(local.queues) : q.concurrency])
}
