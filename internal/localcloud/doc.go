// Package localcloud is Google Cloud on one machine, for `sealpost dev` and for
// tests: Google's own Spanner and Pub/Sub emulators as child processes, our
// Cloud Tasks and Secret Manager emulators in this process, and the topology
// (topics, subscriptions, queues) that Terraform creates in the real cloud, read
// from the same file.
//
// It owns how emulators are found, started, watched and ended, and every
// work-around that an emulator needs; above all the [SpannerProxy]. It refuses to
// let any of that leak: production code uses the ordinary Google clients at their
// newest versions and knows of the local cloud by nothing but the four variables
// of [Cloud.Env]. Only services/sealpost, tests and the tools of scripts/ import it.
//
// Nothing started here outlives its parent: children end in [Emulator.Close], and
// where a parent is killed before it gets there, by the kernel (Linux) or by a
// watchdog (elsewhere).
package localcloud
