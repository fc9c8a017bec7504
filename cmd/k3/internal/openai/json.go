package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// value is the text of one JSON value inside a body whose syntax has been checked, or nil for one that is absent. It is read
// in place: maps and trees of a hostile body would need many times its size, and encoding/json's structs match keys in any case.
type value []byte

// checkJSON returns the value that data is, and nothing else.
func checkJSON(data []byte) (value, error) {
	if !utf8.Valid(data) {
		at := 0
		for {
			r, size := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && size == 1 {
				return nil, fmt.Errorf("not valid UTF-8 at byte %d", at)
			}
			at += size
		}
	}
	if !json.Valid(data) {
		var none json.RawMessage
		err := json.Unmarshal(data, &none)
		if syntax, ok := err.(*json.SyntaxError); ok {
			return nil, fmt.Errorf("not valid JSON: %v (byte %d)", err, syntax.Offset)
		}
		return nil, fmt.Errorf("not valid JSON: %v", err)
	}
	if at := loneSurrogate(data); at >= 0 {
		return nil, fmt.Errorf(`not valid JSON: \u%s is half of a surrogate pair, which is no character (byte %d)`, data[at+2:at+6], at)
	}
	v, _ := next(data, 0)
	return v, nil
}

// next returns the value that begins at data[i] or after the white space there, and where it ends.
func next(data []byte, i int) (v value, end int) {
	for isSpace(data[i]) {
		i++
	}
	start, depth := i, 0
	for ; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = stringEnd(data, i) - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		default:
			if depth > 0 {
				continue
			}
			for i+1 < len(data) && !isSpace(data[i+1]) && !strings.ContainsRune(",:]}", rune(data[i+1])) {
				i++
			}
		}
		if depth == 0 {
			i++
			break
		}
	}
	return value(data[start:i:i]), i
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// stringEnd returns where the string that begins with the quote at data[i] ends.
func stringEnd(data []byte, i int) int {
	for i++; ; i++ {
		n := bytes.IndexAny(data[i:], `"\`)
		i += n
		if data[i] == '"' {
			return i + 1
		}
		i++ // what is escaped
	}
}

// Kinds of values, named by how they begin.
const (
	absent  = 0 // or null
	object  = '{'
	list    = '['
	text    = '"'
	boolean = 't'
	number  = '0'
)

func (v value) kind() byte {
	if len(v) == 0 {
		return absent
	}
	switch c := v[0]; c {
	case object, list, text:
		return c
	case 'n':
		return absent
	case 't', 'f':
		return boolean
	}
	return number
}

// fields returns those members of an object that are called for. Of two values for one key the last counts.
func (v value) fields(wanted func(key []byte) bool) map[string]value {
	found := map[string]value{}
	for i := 1; ; {
		key, end, ok := element(v, i)
		if !ok {
			return found
		}
		for v[end] != ':' {
			end++
		}
		member, end := next(v, end+1)
		name := []byte(key[1 : len(key)-1])
		if bytes.IndexByte(name, '\\') >= 0 {
			name = []byte(key.text())
		}
		if wanted(name) {
			found[string(name)] = member
		}
		i = end
	}
}

// items calls each with the values of a list until it returns false.
func (v value) items(each func(i int, item value) bool) {
	at := 1
	for i := 0; ; i++ {
		item, end, ok := element(v, at)
		if !ok || !each(i, item) {
			return
		}
		at = end
	}
}

// count returns the number of values in a list.
func (v value) count() (n int) {
	v.items(func(int, value) bool { n++; return true })
	return n
}

// element returns the item of a list or the key of an object that comes after v[i], if there is one.
func element(v value, i int) (item value, end int, ok bool) {
	for isSpace(v[i]) || v[i] == ',' {
		i++
	}
	if v[i] == ']' || v[i] == '}' {
		return nil, i, false
	}
	item, end = next(v, i)
	return item, end, true
}

// text returns what a string says.
func (v value) text() string {
	if inner := v[1 : len(v)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		panic(err) // its syntax was checked
	}
	return s
}

// loneSurrogate returns where in JSON an escape stands that is half of a surrogate pair without the other, or -1.
func loneSurrogate(data []byte) int {
	unit := func(i int) (u rune) {
		if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
			return 0
		}
		for _, c := range data[i+2 : i+6] {
			u = u<<4 | rune(strings.IndexByte("0123456789abcdef", c|0x20))
		}
		return u
	}
	for i := 0; ; {
		n := bytes.IndexByte(data[i:], '\\')
		if n < 0 {
			return -1
		}
		i += n
		switch u := unit(i); {
		case u >= 0xD800 && u < 0xDC00:
			if low := unit(i + 6); low < 0xDC00 || low >= 0xE000 {
				return i
			}
			i += 12
		case u >= 0xDC00 && u < 0xE000:
			return i
		default:
			i += 2
		}
	}
}

// encode writes v as JSON in the way of the API, in which < and & are not escaped.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
