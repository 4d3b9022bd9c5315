package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of reading JSON.
const (
	maxPaths     = 16   // values read in one pass
	maxJSONDepth = 1000 // deeper texts count as not JSON
)

// path leads to a value in a JSON text: object keys and array indexes.
type path []string

// parsePath reads a JSON Pointer (RFC 6901), which starts with '/', or a dotted
// path ("data.id", "items.0.id").
func parsePath(s string) (path, error) {
	pointer := strings.HasPrefix(s, "/")
	segments := strings.Split(s, ".")
	if pointer {
		segments = strings.Split(s[1:], "/")
	}
	if len(segments) > 32 {
		return nil, fmt.Errorf("path %q has more than 32 segments", clip(s))
	}
	for i, seg := range segments {
		if pointer {
			if rest := strings.NewReplacer("~0", "", "~1", "").Replace(seg); strings.Contains(rest, "~") {
				return nil, fmt.Errorf("path %q: '~' must be written ~0", clip(s))
			}
			segments[i] = strings.ReplaceAll(strings.ReplaceAll(seg, "~1", "/"), "~0", "~")
		} else if seg == "" {
			return nil, fmt.Errorf("path %q has an empty segment", clip(s))
		}
	}
	return segments, nil
}

// picked are the raw texts of the values found, in the order of the paths; nil
// where there is none.
type picked [maxPaths][]byte

// pick reads the values at up to sixteen paths in one pass over a JSON text,
// without decoding anything else: numbers keep the digits they were sent with.
//
// Nothing is found in a text that is not wholly valid JSON or nests deeper than
// 1,000. A key that occurs twice in one object counts as absent, because readers
// disagree about which of the two is meant.
func pick(body []byte, paths ...path) picked {
	p := picker{b: body, paths: paths}
	return p.pick()
}

// pickSigned reads values that are signed one by one. clean is false if a key on
// the way to one of them occurs twice, or in another case as well: what is
// verified and what a reader takes could then differ.
func pickSigned(body []byte, paths ...path) (values picked, clean bool) {
	p := picker{b: body, paths: paths, fold: true}
	values = p.pick()
	return values, p.twice == 0 && !p.alike
}

func (p *picker) pick() picked {
	work(len(p.b))
	p.space()
	if p.i == len(p.b) || (p.b[p.i] != '{' && p.b[p.i] != '[') { // forms and texts: say so early
		return picked{}
	}
	if !p.value(0, 1<<len(p.paths)-1, 0) {
		return picked{}
	}
	if p.space(); p.i != len(p.b) {
		return picked{}
	}
	for i := range p.paths {
		if p.twice&(1<<i) != 0 {
			p.out[i] = nil
		}
	}
	return p.out
}

type picker struct {
	b     []byte
	i     int
	paths []path
	out   picked
	twice uint16 // paths on which some key occurred twice
	fold  bool   // look for keys that differ from a path's in case only
	alike bool   // there is one
}

// value reads one value. Every path in active has led here in level segments.
func (p *picker) value(depth int, active uint16, level int) bool {
	if p.i == len(p.b) || depth > maxJSONDepth {
		return false
	}
	start := p.i
	ok := false
	switch c := p.b[p.i]; {
	case c == '{':
		ok = p.object(depth, active, level)
	case c == '[':
		ok = p.array(depth, active, level)
	case c == '"':
		ok = p.text()
	case c == 't':
		ok = p.literal("true")
	case c == 'f':
		ok = p.literal("false")
	case c == 'n':
		ok = p.literal("null")
	default:
		ok = p.number()
	}
	for i := 0; ok && active != 0 && i < len(p.paths); i++ {
		if active&(1<<i) != 0 && len(p.paths[i]) == level {
			p.out[i] = p.b[start:p.i]
		}
	}
	return ok
}

func (p *picker) object(depth int, active uint16, level int) bool {
	p.i++
	var seen uint16
	for first := true; ; first = false {
		p.space()
		if first && p.eat('}') {
			return true
		}
		start := p.i
		if p.i == len(p.b) || p.b[p.i] != '"' || !p.text() {
			return false
		}
		var below uint16
		if active != 0 {
			below = p.next(active, level, p.b[start:p.i])
			p.twice |= seen & below
			seen |= below
		}
		if p.space(); !p.eat(':') {
			return false
		}
		p.space()
		if !p.value(depth+1, below, level+1) {
			return false
		}
		p.space()
		if p.eat('}') {
			return true
		}
		if !p.eat(',') {
			return false
		}
	}
}

func (p *picker) array(depth int, active uint16, level int) bool {
	p.i++
	for n := 0; ; n++ {
		p.space()
		if n == 0 && p.eat(']') {
			return true
		}
		var below uint16
		for i := 0; active != 0 && i < len(p.paths); i++ {
			if active&(1<<i) != 0 && len(p.paths[i]) > level && p.paths[i][level] == strconv.Itoa(n) {
				below |= 1 << i
			}
		}
		if !p.value(depth+1, below, level+1) {
			return false
		}
		p.space()
		if p.eat(']') {
			return true
		}
		if !p.eat(',') {
			return false
		}
	}
}

// next is which of the active paths go on with the given key.
func (p *picker) next(active uint16, level int, quoted []byte) uint16 {
	name := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		s, ok := unquote(quoted)
		if !ok {
			return 0
		}
		name = []byte(s)
	}
	var below uint16
	for i, path := range p.paths {
		if active&(1<<i) == 0 || len(path) <= level {
			continue
		}
		if path[level] == string(name) {
			below |= 1 << i
		} else if p.fold && strings.EqualFold(path[level], string(name)) {
			p.alike = true
		}
	}
	return below
}

func (p *picker) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\r', '\n':
			p.i++
		default:
			return
		}
	}
}

func (p *picker) eat(c byte) bool {
	if p.i < len(p.b) && p.b[p.i] == c {
		p.i++
		return true
	}
	return false
}

func (p *picker) literal(s string) bool {
	if !bytes.HasPrefix(p.b[p.i:], []byte(s)) {
		return false
	}
	p.i += len(s)
	return true
}

// text reads a string from its opening quote on.
func (p *picker) text() bool {
	for p.i++; p.i < len(p.b); p.i++ {
		switch c := p.b[p.i]; {
		case c == '"':
			p.i++
			return true
		case c < 0x20:
			return false
		case c == '\\':
			if p.i++; !p.escape() {
				return false
			}
		}
	}
	return false
}

// escape reads what follows a backslash, and stops on its last byte.
func (p *picker) escape() bool {
	if p.i == len(p.b) {
		return false
	}
	switch p.b[p.i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		if len(p.b)-p.i < 5 {
			return false
		}
		for _, c := range p.b[p.i+1 : p.i+5] {
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
				return false
			}
		}
		p.i += 4
		return true
	}
	return false
}

func (p *picker) number() bool {
	p.eat('-')
	if !p.eat('0') && !p.digits() {
		return false
	}
	if p.eat('.') && !p.digits() {
		return false
	}
	if p.eat('e') || p.eat('E') {
		if !p.eat('+') {
			p.eat('-')
		}
		return p.digits()
	}
	return true
}

func (p *picker) digits() bool {
	start := p.i
	for p.i < len(p.b) && p.b[p.i] >= '0' && p.b[p.i] <= '9' {
		p.i++
	}
	return p.i > start
}

// elements are the raw texts of a JSON array's elements, at most most of them. ok
// is false if raw is no valid array or has more.
func elements(raw []byte, most int) (list [][]byte, ok bool) {
	work(len(raw))
	p := picker{b: raw}
	if p.space(); !p.eat('[') {
		return nil, false
	}
	if p.space(); p.eat(']') {
		return nil, true
	}
	for len(list) < most {
		p.space()
		start := p.i
		if !p.value(1, 0, 0) {
			return nil, false
		}
		list = append(list, p.b[start:p.i])
		p.space()
		if p.eat(']') {
			p.space()
			return list, p.i == len(p.b)
		}
		if !p.eat(',') {
			return nil, false
		}
	}
	return nil, false
}

// field is the text that a signed JSON field stands for: that of a string, the
// digits of a number, true or false. Absent and null are the empty text; ok is
// false for objects and arrays.
func field(raw []byte) (text string, ok bool) {
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return "", true
	case raw[0] == '{' || raw[0] == '[':
		return "", false
	case raw[0] == 't' || raw[0] == 'f':
		return string(raw), true
	}
	return scalar(raw), true
}

// scalar is a JSON string's text or a number's digits as sent. Everything else,
// an absent value included, is the empty text.
func scalar(raw []byte) string {
	switch {
	case len(raw) == 0:
		return ""
	case raw[0] == '"':
		s, _ := unquote(raw)
		return s
	case raw[0] == '-' || (raw[0] >= '0' && raw[0] <= '9'):
		return string(raw)
	}
	return ""
}

// str is a JSON string's text, or empty.
func str(raw []byte) string {
	if len(raw) == 0 || raw[0] != '"' {
		return ""
	}
	return scalar(raw)
}

// unquote reads a valid JSON string. A text without escapes keeps its bytes, even
// where they are no UTF-8; with escapes, encoding/json decides.
func unquote(raw []byte) (string, bool) {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), true
	}
	if !utf8.Valid(inner) {
		// Decoding would replace the bad bytes and could make two texts one.
		return string(inner), true
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}
