package serve

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Env reads a service's settings from its environment and gathers all that is
// wrong with them, each fault with its variable's name. An empty variable counts
// as unset.
type Env struct {
	getenv func(string) string
	errs   []error
}

// NewEnv reads through getenv.
func NewEnv(getenv func(string) string) *Env { return &Env{getenv: getenv} }

// Fault notes what is wrong with a variable; a nil error is nothing.
func (e *Env) Fault(name string, err error) {
	if err != nil {
		e.errs = append(e.errs, fmt.Errorf("%s: %w", name, err))
	}
}

// Add notes faults that name their variables themselves.
func (e *Env) Add(err error) { e.errs = append(e.errs, err) }

// Err is every fault so far, or nil.
func (e *Env) Err() error { return errors.Join(e.errs...) }

// Text is the variable's value, or otherwise if it is unset.
func (e *Env) Text(name, otherwise string) string {
	if v := e.getenv(name); v != "" {
		return v
	}
	return otherwise
}

// Needed is the value of a variable that must be set.
func (e *Env) Needed(name string) string {
	v := e.getenv(name)
	if v == "" {
		e.Fault(name, errors.New("is not set"))
	}
	return v
}

// List is the comma-separated value of a variable that must be set.
func (e *Env) List(name string) []string { return SplitList(e.Needed(name)) }

// Numbers is a needed comma-separated list of whole numbers from 1.
func (e *Env) Numbers(name string) []int {
	var ns []int
	for _, s := range e.List(name) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			e.Fault(name, fmt.Errorf("%q is not a number from 1", s))
			continue
		}
		ns = append(ns, n)
	}
	return ns
}

// Number is a whole number between least and most, or otherwise if unset.
func (e *Env) Number(name string, otherwise, least, most int64) int64 {
	v := e.getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < least || n > most {
		e.Fault(name, fmt.Errorf("is %q, want a number from %d to %d", v, least, most))
		return otherwise
	}
	return n
}

// Duration is a time such as "90s" between least and most, or otherwise if unset.
func (e *Env) Duration(name string, otherwise, least, most time.Duration) time.Duration {
	v := e.getenv(name)
	if v == "" {
		return otherwise
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < least || d > most {
		e.Fault(name, fmt.Errorf("is %q, want a time from %s to %s", v, least, most))
		return otherwise
	}
	return d
}

// TextOrFile is the value of the variable name, or the content of the file that
// the variable name+"_FILE" names; from says which of the two it was. Both is a
// fault; neither gives empty text.
func (e *Env) TextOrFile(name string) (text []byte, from string) {
	inline, file := e.getenv(name), e.getenv(name+"_FILE")
	switch {
	case inline != "" && file != "":
		e.Fault(name+", "+name+"_FILE", errors.New("are both set"))
	case file != "":
		b, err := os.ReadFile(file)
		e.Fault(name+"_FILE", err)
		return b, name + "_FILE"
	}
	return []byte(inline), name
}

// SplitList is the parts of a comma-separated text, without surrounding space
// and without empty ones.
func SplitList(s string) []string {
	var list []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}
