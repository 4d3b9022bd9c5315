# All that is needed. Scripts give the image; secrets are filled with gcloud, see
# terraform/README.md.
project_id = "my-project"
region     = "europe-west1"

sources = {
  stripe = { scheme = "stripe", secret_versions = [1] }
  github = { scheme = "github" } # its secret is made; list a version once it holds one
}
