package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// An object is a JSON object whose keys keep their order, which arguments of tool calls need: the maps of
// encoding/json would lose it, and its structs match keys in any case. The other parsed values are nil, bool, string,
// json.Number and []any.
type object []member

type member struct {
	key   string
	value any
}

// get returns the value of a key, nil if it is absent or null.
func (o object) get(key string) any {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// parseJSON reads one value. Of two values for one key the last counts, at the place of the first, as in Python.
func parseJSON(data []byte) (any, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("not valid UTF-8")
	}
	var checked json.RawMessage // refuses what a token reader lets pass, such as a second value
	if err := json.Unmarshal(data, &checked); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return readValue(d)
}

func readValue(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := readValue(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	case json.Delim('{'):
		o := object{}
		places := map[string]int{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := readValue(d)
			if err != nil {
				return nil, err
			}
			name := key.(string)
			if i, ok := places[name]; ok {
				o[i].value = v
				continue
			}
			places[name] = len(o)
			o = append(o, member{name, v})
		}
		_, err = d.Token()
		return o, err
	}
	return token, nil
}

// jsonStyle is one of the two ways in which the reference writes JSON.
type jsonStyle struct {
	comma, colon string
	sorted       bool
}

var (
	declaration = jsonStyle{",", ":", true}    // of tools and schemas
	argument    = jsonStyle{", ", ": ", false} // of a call
)

func (s jsonStyle) text(v any) string {
	var b strings.Builder
	s.write(&b, v)
	return b.String()
}

func (s jsonStyle) write(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case json.Number:
		b.WriteString(number(string(v)))
	case string:
		quote(b, v)
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteString(s.comma)
			}
			s.write(b, e)
		}
		b.WriteByte(']')
	case object:
		if s.sorted {
			v = slices.Clone(v)
			slices.SortFunc(v, func(x, y member) int { return strings.Compare(x.key, y.key) })
		}
		b.WriteByte('{')
		for i, m := range v {
			if i > 0 {
				b.WriteString(s.comma)
			}
			quote(b, m.key)
			b.WriteString(s.colon)
			s.write(b, m.value)
		}
		b.WriteByte('}')
	}
}

// FormatArguments returns the text of a call's arguments that are a JSON value, as the reference writes it.
func FormatArguments(value json.RawMessage) (string, error) {
	v, err := parseJSON(value)
	if err != nil {
		return "", fmt.Errorf("%w: %v", ErrRequest, err)
	}
	return argument.text(v), nil
}

// quote writes s as a JSON string with nothing escaped that need not be; encoding/json escapes U+2028 and more.
func quote(b *strings.Builder, s string) {
	b.WriteByte('"')
	escape(b, s)
	b.WriteByte('"')
}

func escape(b *strings.Builder, s string) {
	for i := range len(s) {
		switch c := s[i]; c {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case '\n':
			b.WriteString(`\n`)
		case '\r':
			b.WriteString(`\r`)
		case '\t':
			b.WriteString(`\t`)
		case '\b':
			b.WriteString(`\b`)
		case '\f':
			b.WriteString(`\f`)
		default:
			if c < 0x20 {
				fmt.Fprintf(b, `\u%04x`, c)
			} else {
				b.WriteByte(c)
			}
		}
	}
}

// number writes a number as the reference does, which has parsed it: whole ones as they are, others as Python's repr of a float64.
func number(literal string) string {
	if !strings.ContainsAny(literal, ".eE") {
		if literal == "-0" {
			return "0"
		}
		return literal
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil { // out of range
		return literal
	}
	if abs := math.Abs(f); abs != 0 && abs < 1e-4 || abs >= 1e16 {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// splitArguments reads the text of a call's arguments one level deep: each argument's key, type and, for anything but a string,
// the very text of its value. It fails if the text is no JSON object.
func splitArguments(text string) (arguments []argumentText, ok bool) {
	if !utf8.ValidString(text) || !json.Valid([]byte(text)) {
		return nil, false
	}
	d := json.NewDecoder(strings.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return nil, false
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, false
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, false
		}
		a := argumentText{key: key.(string), kind: kindOf(raw), value: string(raw)}
		if a.kind == "string" {
			if err := json.Unmarshal(raw, &a.value); err != nil {
				return nil, false
			}
		}
		arguments = append(arguments, a)
	}
	return arguments, true
}

type argumentText struct{ key, kind, value string }

// kindOf returns the type attribute for a value's JSON text.
func kindOf(raw []byte) string {
	switch raw[0] {
	case '"':
		return "string"
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}
