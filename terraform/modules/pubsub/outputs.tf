output "topics" {
  description = "Topic names; known once dead letters can be forwarded."
  value       = { for name, t in google_pubsub_topic.this : name => t.name }
  depends_on  = [google_pubsub_topic_iam_member.agent]
}

output "subscriptions" {
  description = "Names of the subscriptions that the worker reads, by the kind of source."
  value       = { for name, s in google_pubsub_subscription.this : name => s.name if contains(keys(local.main), name) }
  depends_on  = [google_pubsub_subscription_iam_member.agent]
}

output "dead_letter_subscriptions" {
  description = "Names of the subscriptions that keep dead letters."
  value       = { for name, s in google_pubsub_subscription.this : name => s.name if contains(keys(local.dead), name) }
}

output "direct_subscriptions" {
  description = "Subscription names of the direct sources, by the source's id."
  value       = { for name, s in local.direct : s.id => google_pubsub_subscription.direct[name].name }
}

output "direct_topics" {
  description = "Topics that direct sources publish to, by the source's id."
  value       = { for name, s in local.direct : s.id => google_pubsub_topic.direct[name].name }
}
