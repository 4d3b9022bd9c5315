package expr

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a payload that expressions can look into.
const (
	maxNesting = 200
	maxValues  = 200_000
)

var (
	errNotJSON   = errors.New("is not JSON")
	errTwice     = errors.New("holds an object with the same name twice")
	errNested    = errors.New("nests too deep")
	errTooMany   = errors.New("holds too many values")
	errNotUTF8   = errors.New("is not valid UTF-8")
	errNumber    = errors.New("holds a number beyond any double")
	errSurrogate = errors.New("holds half of a surrogate pair")
)

// parse reads one JSON value (RFC 8259) as CEL sees it: map[string]any, []any,
// string, bool, nil, and numbers as int64, uint64 or float64. It is stricter than
// encoding/json, which repairs texts and lets the last of two equal names win:
// what two readers may read in two ways is no identity.
func parse(b []byte) (any, error) {
	if !utf8.Valid(b) {
		return nil, errNotUTF8
	}
	p := parser{b: b}
	p.space()
	v, err := p.value(0)
	if err != nil {
		return nil, err
	}
	if p.space(); p.i != len(b) {
		return nil, errNotJSON
	}
	return v, nil
}

type parser struct {
	b      []byte
	i      int
	values int
}

func (p *parser) value(depth int) (any, error) {
	switch p.values++; {
	case depth > maxNesting:
		return nil, errNested
	case p.values > maxValues:
		return nil, errTooMany
	case p.i == len(p.b):
		return nil, errNotJSON
	}
	switch p.b[p.i] {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		return p.text()
	case 't':
		return p.literal("true", true)
	case 'f':
		return p.literal("false", false)
	case 'n':
		return p.literal("null", nil)
	}
	return p.number()
}

func (p *parser) object(depth int) (any, error) {
	m := map[string]any{}
	p.i++
	if p.space(); p.eat('}') {
		return m, nil
	}
	for {
		if p.space(); p.i == len(p.b) || p.b[p.i] != '"' {
			return nil, errNotJSON
		}
		name, err := p.text()
		if err != nil {
			return nil, err
		}
		if _, twice := m[name]; twice {
			return nil, errTwice
		}
		if p.space(); !p.eat(':') {
			return nil, errNotJSON
		}
		p.space()
		if m[name], err = p.value(depth + 1); err != nil {
			return nil, err
		}
		switch p.space(); {
		case p.eat('}'):
			return m, nil
		case !p.eat(','):
			return nil, errNotJSON
		}
	}
}

func (p *parser) array(depth int) (any, error) {
	list := []any{}
	p.i++
	if p.space(); p.eat(']') {
		return list, nil
	}
	for {
		p.space()
		v, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
		switch p.space(); {
		case p.eat(']'):
			return list, nil
		case !p.eat(','):
			return nil, errNotJSON
		}
	}
}

// text reads a string from its opening quote on.
func (p *parser) text() (string, error) {
	start := p.i
	escaped := false
	for p.i++; p.i < len(p.b); p.i++ {
		switch c := p.b[p.i]; {
		case c < ' ':
			return "", errNotJSON
		case c == '\\':
			escaped = true
			p.i++ // whatever follows is not the closing quote
		case c == '"':
			p.i++
			if raw := p.b[start:p.i]; escaped {
				return unescape(raw)
			}
			return string(p.b[start+1 : p.i-1]), nil
		}
	}
	return "", errNotJSON
}

// unescape leaves the escapes to encoding/json, which makes U+FFFD of what is half
// a character: there must be as many of those as were written.
func unescape(raw []byte) (string, error) {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", errNotJSON
	}
	const replacement = string(utf8.RuneError)
	written := bytes.Count(raw, []byte(replacement)) + writtenEscapes(raw)
	if strings.Count(s, replacement) != written {
		return "", errSurrogate
	}
	return s, nil
}

// writtenEscapes counts U+FFFD written as an escape.
func writtenEscapes(raw []byte) (n int) {
	for i := 0; i < len(raw)-1; i++ {
		if raw[i] != '\\' {
			continue
		}
		if i++; raw[i] == 'u' && i+5 <= len(raw) && strings.EqualFold(string(raw[i+1:i+5]), "fffd") {
			n++
		}
	}
	return n
}

func (p *parser) literal(text string, v any) (any, error) {
	if !bytes.HasPrefix(p.b[p.i:], []byte(text)) {
		return nil, errNotJSON
	}
	p.i += len(text)
	return v, nil
}

func (p *parser) number() (any, error) {
	start := p.i
	p.eat('-')
	if !p.eat('0') && !p.digits() {
		return nil, errNotJSON
	}
	whole := true
	if p.eat('.') {
		if whole = false; !p.digits() {
			return nil, errNotJSON
		}
	}
	if p.eat('e') || p.eat('E') {
		whole = false
		if !p.eat('+') {
			p.eat('-')
		}
		if !p.digits() {
			return nil, errNotJSON
		}
	}
	text := string(p.b[start:p.i])
	if whole && text != "-0" {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return n, nil
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, errNumber
	}
	return f, nil
}

func (p *parser) digits() bool {
	start := p.i
	for p.i < len(p.b) && p.b[p.i] >= '0' && p.b[p.i] <= '9' {
		p.i++
	}
	return p.i > start
}

func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\r', '\n':
			p.i++
		default:
			return
		}
	}
}

func (p *parser) eat(c byte) bool {
	if p.i < len(p.b) && p.b[p.i] == c {
		p.i++
		return true
	}
	return false
}
