// Package strictjson reads JSON to the letter of RFC 8259: exact keys, valid UTF-8, no duplicates where it keeps values, a
// bounded stack. encoding/json is too lax for a checkpoint's files: it folds the case of keys, keeps the last of two equal
// ones, fills an array of two from a list of three and replaces invalid UTF-8.
//
// Reader is a pull reader over a window of a file, so that a header of 100 MB needs no 100 MB; Parse builds a small tree.
package strictjson

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"
)

const (
	maxDepth  = 64      // open objects and arrays: real files have fewer than ten
	maxNumber = 1024    // bytes of one number
	maxWindow = 1 << 18 // bytes read at a time
)

// SyntaxError says what is wrong and at which byte of the input.
type SyntaxError struct {
	Offset int64
	Msg    string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.Msg, e.Offset) }

// Reader reads one JSON text. After the first error every method does nothing and returns zero values; Err has that error.
// Byte slices it hands out are valid until the next call.
type Reader struct {
	buf     []byte // a window of the input
	pos     int    // next byte of buf
	off     int64  // offset of buf[0] in the input
	end     int64  // offset of the input's end
	window  int    // bytes to read at a time
	read    func(p []byte, off int64) error
	key     []byte
	scratch []byte
	depth   int
	err     error
}

// New reads data.
func New(data []byte) *Reader { return &Reader{buf: data, end: int64(len(data))} }

// Reset starts on the bytes [from, to) of a file, of which read fills p from offset off. The window is kept for reuse.
func (r *Reader) Reset(read func(p []byte, off int64) error, from, to int64) {
	*r = Reader{buf: r.buf[:0], off: from, end: to, window: maxWindow, read: read, key: r.key, scratch: r.scratch}
}

// Err is the first error: a *SyntaxError, or what reading the file gave.
func (r *Reader) Err() error { return r.err }

// Fail records a fault at the current place, unless there is one already.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		r.err = &SyntaxError{r.off + int64(r.pos), fmt.Sprintf(format, args...)}
	}
}

// more gets the next piece of the input behind what is left from pos on, and reports whether there was any.
func (r *Reader) more() bool {
	left := r.end - r.off - int64(len(r.buf))
	if left <= 0 || r.err != nil {
		return false
	}
	n := copy(r.buf, r.buf[r.pos:])
	r.off += int64(r.pos)
	r.pos = 0
	r.buf = r.buf[:n]
	m := int(min(left, int64(max(r.window, n)))) // n is large when a token goes on for long
	r.buf = slices.Grow(r.buf, m)
	r.buf = r.buf[:n+m]
	if err := r.read(r.buf[n:], r.off+int64(n)); err != nil {
		r.err = err
		r.buf = r.buf[:n]
		return false
	}
	return true
}

// peek skips white space and gives the next byte, or false at the end of the input.
func (r *Reader) peek() (byte, bool) {
	for r.err == nil {
		for r.pos < len(r.buf) {
			switch c := r.buf[r.pos]; c {
			case ' ', '\t', '\n', '\r':
				r.pos++
			default:
				return c, true
			}
		}
		if !r.more() {
			break
		}
	}
	return 0, false
}

// unexpected records that something other than want comes next.
func (r *Reader) unexpected(want string) {
	if c, ok := r.peek(); !ok {
		r.Fail("the text ends where %s is needed", want)
	} else {
		r.Fail("%q where %s is needed", c, want)
	}
}

// Kind is the sort of a value.
type Kind uint8

// The kinds of values; Invalid is none of them.
const (
	Invalid Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

func (k Kind) String() string {
	return [...]string{"nothing", "null", "a boolean", "a number", "a string", "a list", "an object"}[k]
}

// Kind is the kind of the value that comes next, judged by its first byte.
func (r *Reader) Kind() Kind {
	c, _ := r.peek()
	switch {
	case c == '{':
		return Object
	case c == '[':
		return Array
	case c == '"':
		return String
	case c == '-' || '0' <= c && c <= '9':
		return Number
	case c == 't' || c == 'f':
		return Bool
	case c == 'n':
		return Null
	}
	return Invalid
}

// is reports whether a value of kind k comes next, and records a fault if not.
func (r *Reader) is(k Kind) bool {
	if r.err == nil && r.Kind() != k {
		r.unexpected(k.String())
	}
	return r.err == nil
}

func (r *Reader) enter(k Kind) bool {
	if !r.is(k) {
		return false
	}
	if r.depth == maxDepth {
		r.Fail("more than %d objects and lists inside each other", maxDepth)
		return false
	}
	r.depth++
	r.pos++
	return true
}

// next reports whether another member follows in an object or list that ends with closing.
func (r *Reader) next(first bool, closing byte) bool {
	c, ok := r.peek()
	switch {
	case ok && c == closing:
		r.pos++
		r.depth--
		return false
	case first:
		return r.err == nil // what is not a value fails when it is read
	case ok && c == ',':
		r.pos++
		return true
	}
	r.unexpected(fmt.Sprintf("a comma or %q", closing))
	return false
}

// Object reads an object, calling member after each key; member must read the value. Whether keys are unique is the
// caller's business.
func (r *Reader) Object(member func(key []byte)) {
	if !r.enter(Object) {
		return
	}
	for first := true; r.next(first, '}'); first = false {
		r.key = append(r.key[:0], r.Str()...) // the window may move before the value
		if c, ok := r.peek(); !ok || c != ':' {
			r.unexpected("a colon")
			return
		}
		r.pos++
		member(r.key)
		if r.err != nil {
			return
		}
	}
}

// Array reads a list, calling item for each value, which item must read.
func (r *Reader) Array(item func()) {
	if !r.enter(Array) {
		return
	}
	for first := true; r.next(first, ']'); first = false {
		item()
		if r.err != nil {
			return
		}
	}
}

const (
	ones = 0x0101010101010101
	high = 0x8080808080808080
)

// Str reads a string and resolves its escapes.
func (r *Reader) Str() []byte {
	if !r.is(String) {
		return nil
	}
	k := 1 // bytes of the string seen, from pos
	ascii, escaped := true, false
	for {
		b := r.buf[r.pos:]
		// Eight bytes at a time while none is a quote, a backslash, a control character or beyond ASCII. The lowest marked
		// byte is exact; a borrow can only mark bytes above one that is marked rightly.
		for k+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[k:])
			quote, back := w^ones*'"', w^ones*'\\'
			mark := ((quote-ones)&^quote | (back-ones)&^back | (w-ones*' ')&^w | w) & high
			if mark != 0 {
				k += bits.TrailingZeros64(mark) / 8
				break
			}
			k += 8
		}
		if k >= len(b) {
			if !r.more() {
				r.Fail("a string without its end")
				return nil
			}
			continue
		}
		switch c := b[k]; {
		case c == '"':
			s := b[1:k]
			if !ascii && !utf8.Valid(s) {
				r.Fail("invalid UTF-8 in a string")
				return nil
			}
			if escaped {
				s = r.unescape(s)
			}
			r.pos += k + 1
			return s
		case c == '\\':
			escaped = true
			k += 2
		case c < ' ':
			r.Fail("a control character in a string")
			return nil
		default:
			ascii = ascii && c < utf8.RuneSelf
			k++
		}
	}
}

func (r *Reader) unescape(s []byte) []byte {
	out := r.scratch[:0]
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		switch s[i] {
		case '"', '\\', '/':
			out = append(out, s[i])
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			u, ok := hex4(s[i+1:])
			i += 4
			if ok && 0xD800 <= u && u < 0xDC00 && i+2 < len(s) && s[i+1] == '\\' && s[i+2] == 'u' {
				var low rune
				if low, ok = hex4(s[i+3:]); ok && 0xDC00 <= low && low < 0xE000 {
					u = (u-0xD800)<<10 + (low - 0xDC00) + 0x10000
					i += 6
				}
			}
			if !ok || 0xD800 <= u && u < 0xE000 {
				r.Fail("an invalid \\u escape in a string")
				return nil
			}
			out = utf8.AppendRune(out, u)
		default:
			r.Fail("an unknown escape in a string")
			return nil
		}
	}
	r.scratch = out
	return out
}

func hex4(s []byte) (rune, bool) {
	if len(s) < 4 {
		return 0, false
	}
	var u rune
	for _, c := range s[:4] {
		switch {
		case '0' <= c && c <= '9':
			u = u<<4 + rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			u = u<<4 + rune(c|0x20-'a') + 10
		default:
			return 0, false
		}
	}
	return u, true
}

// Num reads a number and gives it as it is written.
func (r *Reader) Num() []byte {
	if !r.is(Number) {
		return nil
	}
	k := 0
	for {
		b := r.buf[r.pos:]
		for k < len(b) && numeric[b[k]] {
			k++
		}
		if k > maxNumber {
			r.Fail("a number of more than %d characters", maxNumber)
			return nil
		}
		if k < len(b) || !r.more() {
			break
		}
	}
	if r.err != nil {
		return nil
	}
	s := r.buf[r.pos : r.pos+k]
	if !validNumber(s) {
		r.Fail("an invalid number %s", clip(s))
		return nil
	}
	r.pos += k
	return s
}

var numeric = func() (t [256]bool) {
	for _, c := range []byte("0123456789+-.eE") {
		t[c] = true
	}
	return t
}()

func validNumber(s []byte) bool {
	digits := func() bool {
		n := 0
		for n < len(s) && '0' <= s[n] && s[n] <= '9' {
			n++
		}
		s = s[n:]
		return n > 0
	}
	if len(s) > 0 && s[0] == '-' {
		s = s[1:]
	}
	if len(s) > 1 && s[0] == '0' && '0' <= s[1] && s[1] <= '9' {
		return false
	}
	if !digits() {
		return false
	}
	if len(s) > 0 && s[0] == '.' {
		s = s[1:]
		if !digits() {
			return false
		}
	}
	if len(s) > 0 && (s[0] == 'e' || s[0] == 'E') {
		s = s[1:]
		if len(s) > 0 && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return len(s) == 0
}

// Size reads a number that must be an integer from 0 to 2^63-1, written without sign, fraction or exponent.
func (r *Reader) Size() int64 {
	if r.err == nil && r.Kind() == Number {
		s := r.Num()
		if r.err != nil {
			return 0
		}
		var n uint64
		for _, c := range s {
			if c < '0' || c > '9' || n > math.MaxInt64/10 {
				n = math.MaxUint64
				break
			}
			n = n*10 + uint64(c-'0')
		}
		if n <= math.MaxInt64 {
			return int64(n)
		}
		r.pos -= len(s)
		r.Fail("%s where an integer from 0 to 2^63-1 is needed", clip(s))
		return 0
	}
	r.unexpected("an integer")
	return 0
}

func clip(s []byte) string {
	if len(s) > 40 {
		return string(s[:40]) + "..."
	}
	return string(s)
}

// literal reads true, false or null.
func (r *Reader) literal(word string) {
	for len(r.buf)-r.pos < len(word) && r.more() {
	}
	if r.err != nil {
		return
	}
	if len(r.buf)-r.pos < len(word) || string(r.buf[r.pos:r.pos+len(word)]) != word {
		r.Fail("an unknown word where a value is needed")
		return
	}
	r.pos += len(word)
}

// Bool reads true or false.
func (r *Reader) Bool() bool {
	if !r.is(Bool) {
		return false
	}
	if r.buf[r.pos] == 'f' {
		r.literal("false")
		return false
	}
	r.literal("true")
	return r.err == nil
}

// Null reads a null and returns nothing: a null has no value. Anything else in its place is an error, as with Bool.
func (r *Reader) Null() {
	if r.is(Null) {
		r.literal("null")
	}
}

// Skip reads a value of any kind and forgets it; only its syntax is checked.
func (r *Reader) Skip() {
	switch r.Kind() {
	case Object:
		r.Object(func([]byte) { r.Skip() })
	case Array:
		r.Array(r.Skip)
	case String:
		r.Str()
	case Number:
		r.Num()
	case Bool:
		r.Bool()
	case Null:
		r.Null()
	default:
		r.unexpected("a value")
	}
}

// End checks that only white space is left.
func (r *Reader) End() {
	if c, ok := r.peek(); ok {
		r.Fail("%q after the end of the value", c)
	}
}
