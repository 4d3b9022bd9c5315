// Package schema owns the JSON Schemas of event types: draft 2020-12, compiled at
// start, applied to payloads as they are.
//
// It refuses to fetch anything: a schema that refers beyond itself is a fault of the
// configuration. It never says what a payload holds, only where it breaks which rule.
package schema
