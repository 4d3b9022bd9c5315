# The overview, to be read from the top: what comes in, what is stored, what goes
# out, what it runs on. In the form in which the API gives it back (no zero
# positions, no defaults), so that a second plan finds nothing to change.

locals {
  chart = {
    for name, c in {
      requests       = { title = "Requests of providers, by status", query = "sum by (status) (rate(${local.prefix}_receiver_requests[$${__interval}]))" }
      refusals       = { title = "Refusals, by source and reason", query = "sum by (source, reason) (rate(${local.prefix}_receiver_requests{reason!=\"\"}[$${__interval}]))" }
      answers        = { title = "How long providers wait, p90 in ms (Slack gives up at 3000, Shopify at 5000, GitHub at 10000)", query = "histogram_quantile(0.9, sum by (le, source) (rate(${local.prefix}_receiver_ms_bucket[$${__interval}])))", threshold = 2400 }
      ingested       = { title = "Events stored, by state and duplicate", query = "sum by (state, duplicate) (rate(${local.prefix}_worker_events[$${__interval}]))" }
      backlog        = { title = "Oldest message that waits, seconds", query = "max by (subscription_id) (pubsub_googleapis_com:subscription_oldest_unacked_message_age{monitored_resource=\"pubsub_subscription\",subscription_id=~\"sealpost-.*\"})", threshold = 300 }
      ingest_age     = { title = "From receipt to commit, p95 in ms", query = "histogram_quantile(0.95, sum by (le) (rate(${local.prefix}_ingest_age_ms_bucket[$${__interval}])))" }
      first_attempts = { title = "First attempts that succeed", query = "sum(rate(${local.prefix}_attempts{attempt=\"1\",class=\"ok\"}[$${__interval}])) / sum(rate(${local.prefix}_attempts{attempt=\"1\"}[$${__interval}]))", threshold = 0.95 }
      attempts       = { title = "Attempts, by what the endpoint did", query = "sum by (class) (rate(${local.prefix}_attempts[$${__interval}]))" }
      delivered_age  = { title = "From receipt to delivery, p50 and p95 in ms", query = "histogram_quantile(0.95, sum by (le) (rate(${local.prefix}_delivered_age_ms_bucket[$${__interval}])))" }
      dead           = { title = "Deliveries that gave up, messages that are dead", query = "sum(rate(${local.prefix}_attempts{outcome=\"dead\"}[$${__interval}])) or sum(rate(${local.prefix}_dead_messages[$${__interval}]))" }
      dead_letters   = { title = "Dead letters that wait", query = "max by (subscription_id) (pubsub_googleapis_com:subscription_num_undelivered_messages{monitored_resource=\"pubsub_subscription\",subscription_id=~\"sealpost-.*-dead-letter\"})", threshold = 1 }
      failures       = { title = "Our own faults: messages and tasks that come again", query = "sum(rate(${local.prefix}_worker_failures[$${__interval}])) or sum(rate(${local.prefix}_task_failures[$${__interval}]))" }
      instances      = { title = "Instances", query = "sum by (service_name) (run_googleapis_com:container_instance_count{monitored_resource=\"cloud_run_revision\",service_name=~\"sealpost-.*\"})" }
      spanner_cpu    = { title = "Spanner's CPU, high priority", query = "sum by (instance_id) (spanner_googleapis_com:instance_cpu_utilization_by_priority{monitored_resource=\"spanner_instance\",instance_id=\"${var.spanner_instance}\",priority=\"high\"})", threshold = 0.65 }
      nat_drops      = { title = "Packets that NAT drops", query = "sum by (reason) (rate(router_googleapis_com:nat_dropped_sent_packets_count{monitored_resource=\"nat_gateway\",gateway_name=\"${var.nat_gateway}\"}[$${__interval}]))" }
      queue_depth    = { title = "Tasks that wait, by queue", query = "topk(10, max by (queue_id) (cloudtasks_googleapis_com:queue_depth{monitored_resource=\"cloud_tasks_queue\"}))" }
    } : name => c
  }

  # Rows of the dashboard, each with what good looks like.
  rows = [
    { text = "**What comes in.** Good: almost all 200; refusals are 401 of strangers; p90 far below the line.", charts = ["requests", "refusals", "answers"] },
    { text = "**What is stored.** Good: commits follow receipts within seconds; nothing waits for minutes.", charts = ["ingested", "backlog", "ingest_age"] },
    { text = "**What goes out.** Good: more than 95 % succeed at the first attempt, delivered within seconds.", charts = ["first_attempts", "attempts", "delivered_age"] },
    { text = "**What went wrong.** Good: empty.", charts = ["dead", "dead_letters", "failures"] },
    { text = "**What it runs on.** Good: CPU below the line, no dropped packet, queues that drain.", charts = ["instances", "spanner_cpu", "nat_drops"] },
    { text = "", charts = ["queue_depth"] },
  ]

  # Of 48 columns; a row is a text of 4 and charts of 14 units of height.
  tiles = flatten([
    for i, row in local.rows : concat(
      row.text == "" ? [] : [{ x = 0, y = i * 18, width = 48, height = 4, widget = { text = { content = row.text, format = "MARKDOWN" } } }],
      [for j, name in row.charts : {
        x      = j * 16
        y      = i * 18 + (row.text == "" ? 0 : 4)
        width  = 16
        height = 14
        widget = {
          title = local.chart[name].title
          xyChart = merge(
            {
              dataSets = [{
                plotType        = "LINE"
                targetAxis      = "Y1"
                timeSeriesQuery = { prometheusQuery = local.chart[name].query }
              }]
              chartOptions = { mode = "COLOR" }
            },
            try({ thresholds = [{ value = local.chart[name].threshold, targetAxis = "Y1" }] }, {}),
          )
        }
      }],
    )
  ])

  overview = {
    displayName = "Sealpost: overview"
    labels      = { sealpost = "" }
    mosaicLayout = {
      columns = 48
      tiles = [for t in local.tiles : merge(
        { width = t.width, height = t.height, widget = t.widget },
        t.x == 0 ? {} : { xPos = t.x },
        t.y == 0 ? {} : { yPos = t.y },
      )]
    }
  }
}

resource "google_monitoring_dashboard" "overview" {
  project        = var.project_id
  dashboard_json = jsonencode(local.overview)

  depends_on = [google_logging_metric.counter, google_logging_metric.distribution]
}

output "dashboards" {
  description = "Links to the dashboards."
  value = {
    overview = "https://console.cloud.google.com/monitoring/dashboards/builder/${reverse(split("/", google_monitoring_dashboard.overview.id))[0]}?project=${var.project_id}"
  }
}

output "alerts" {
  description = "Names of the alerts, which are those of their playbooks too."
  value       = keys(local.alerts)
}
