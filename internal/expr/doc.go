// Package expr owns the one CEL environment of Sealpost
// (https://cel.dev, https://github.com/google/cel-spec): the expressions that
// operators write to name an event or to choose among events.
//
// An expression sees these variables, and nothing else of the event or the machine:
//
//	id        string               the event's id, by its provider or publisher
//	type      string               its type; the function type(x) works beside it
//	source    string               where it came from
//	subject   string               what it is about, often empty
//	time      timestamp            when it happened; the epoch if nobody said
//	headers   map(string, string)  header values by lower-case name
//	body      dyn                  the JSON payload; null if it is not JSON
//
// In body, whole numbers are int (uint beyond 2^63) and exact, all others double;
// numbers too large for either are double. A payload is JSON here only if no reader
// could see another one in it: valid UTF-8, no object with the same name twice, no
// half of a surrogate pair, nesting of at most 200 levels and at most 200,000
// values. It is read when an expression first asks for it, and not at all if none does.
//
// Available are CEL's standard functions and macros, and optional values
// (body.?data.?id.orValue("")). Absent fields are errors: has(body.data.id) asks
// first. There is no clock and no I/O, so that an expression gives the same
// answer for the same event at any time.
//
// It refuses what could cost too much, at compilation where that shows, else while
// it runs: texts beyond 4 KiB, deep nesting, more than two loops inside one
// another, regular expressions that are no literals, and more work than a fixed
// number of steps. Regular expressions are RE2's, and match texts of up to 32 KiB.
package expr
