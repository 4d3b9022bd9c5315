// Package secretmanager is an in-process emulator of Google Secret Manager,
// served as the real gRPC service google.cloud.secretmanager.v1, for local
// development, tests and simulations. Production code reaches it with the
// ordinary client of cloud.google.com/go/secretmanager/apiv1 through
// option.WithEndpoint, option.WithoutAuthentication and insecure transport
// credentials.
//
// It owns secrets, their versions and payloads, in memory until Close. It
// refuses nothing for want of rights and encrypts nothing: no real secret
// belongs in it. Payloads are never logged.
//
// # Like the real service
//
//   - Versions are numbered from 1. `latest` is the version created last,
//     whatever its state: once it is disabled or destroyed, access to `latest`
//     fails with FAILED_PRECONDITION although older versions are enabled.
//   - Access and GetSecretVersion take a number, `latest` or an alias;
//     changing a version takes its number.
//   - A given etag must be the current one, else FAILED_PRECONDITION. Every
//     change renews it, also one that changes nothing.
//   - A payload has 1 to 65,536 bytes; a CRC-32C given with it is checked, and
//     access answers with one always.
//   - Lists show the newest first.
//   - Only access by number is consistent: Options.Lag hides what is newer
//     from `latest` and the lists.
//   - Expiry (ttl, expire_time) and version_destroy_ttl take effect by
//     Options.Now.
//
// # Unlike the real service
//
//   - Resource names in answers keep the project as it was given; the real
//     service answers with the project's number, so names must not be compared.
//   - Regional secrets (projects/*/locations/*) are served on the same address.
//   - Filters understand only terms name:TEXT, labels.KEY=VALUE and
//     state:STATE, joined by AND.
//   - Topics, rotation, replication and encryption keys are stored and have no
//     effect; there are no quotas. The IAM and managed-rotation methods answer
//     UNIMPLEMENTED.
package secretmanager
