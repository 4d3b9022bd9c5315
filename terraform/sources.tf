# From the maps of sources and endpoints to the JSON that the services read. Both
# are passed on under the services' own names; a name that is not known, or a value
# of the wrong kind, is refused here rather than at the start of a new revision.

locals {
  # Settings by name, with the first characters that their JSON may have: a string,
  # a number, a truth value, a list, an object.
  kinds = {
    string = "^\""
    number = "^-?[0-9]"
    bool   = "^(true|false)$"
    list   = "^\\["
    object = "^\\{"
  }

  source_settings = {
    scheme           = "string"
    tenant           = "string"
    secret_versions  = "list"
    allow_types      = "list"
    tolerance        = "string"
    body_limit       = "number"
    publish_deadline = "string"
    public_url       = "string"
    on_replay        = "string"
    dedupe           = "string"
    content_types    = "list"
    content_encoding = "string"
    schemas          = "list"
    schema_mode      = "string"
    allow_cidrs      = "list"
    mtls_subject     = "string"
    mtls_san         = "list"
    hmac             = "object"
    token            = "object"
    jwt              = "object"
    webhook_id       = "string"
    topics           = "list"
    verify_token     = "string"
    asana_handshake  = "bool"
  }

  endpoint_settings = {
    url               = "string"
    tenant            = "string"
    description       = "string"
    event_types       = "list"
    rate_per_second   = "number"
    max_concurrency   = "number"
    timeout           = "string"
    retry             = "string"
    filter            = "string"
    record_filtered   = "bool"
    payload_mode      = "string"
    ordering          = "string"
    headers           = "list"
    legacy_signatures = "list"
    health            = "object"
    owner             = "string"
    metadata          = "object"
    api_version       = "string"
  }

  # Schemes whose providers publish their keys, so that a source needs no secret.
  keyless_schemes = ["aws-sns", "google-oidc", "paypal"]

  # Sources with a secret of their own: all but those whose provider publishes keys.
  secret_sources = { for id, s in var.sources : id => s if !contains(local.keyless_schemes, s.scheme) || try(length(s.secret_versions), 0) > 0 }

  # A source is served once it can be verified.
  served_sources = { for id, s in var.sources : id => s if contains(local.keyless_schemes, s.scheme) || try(length(s.secret_versions), 0) > 0 }

  sources_json = jsonencode([
    for id, s in local.served_sources : merge(
      { public_url = "${local.inbound_url}/in/${id}" },
      # The receiver refuses nulls: a setting is given or it is not.
      { for name, v in s : name => v if v != null && name != "secret_versions" && try(local.source_settings[name], "") != "object" },
      { for name, v in s : name => { for k, w in v : k => w if w != null } if v != null && try(local.source_settings[name], "") == "object" },
      { id = id },
      !contains(keys(local.secret_sources), id) ? {} : {
        secrets = [{ name = module.secrets.ids["sealpost-source-${id}"], versions = s.secret_versions }]
      },
    )
  ])

  endpoints = { for id, e in var.endpoints : id => merge(
    { tenant = "default", event_types = ["*"], rate_per_second = 50, max_concurrency = 20 },
    { for name, v in e : name => v if v != null },
    { id = id },
  ) }

  endpoints_json = jsonencode([
    for id, e in local.endpoints : merge(e, { queue = module.queues.endpoints[id] })
  ])

  direct_sources_json = jsonencode([
    for id, s in var.direct_sources : { for k, v in {
      id           = id
      format       = s.format
      tenant       = s.tenant
      dedupe       = s.dedupe
      subscription = module.pubsub.direct_subscriptions[id]
    } : k => v if v != null }
  ])

  schemas_json = jsonencode([for type, schema in var.event_schemas : { type = type, schema = schema }])
}
