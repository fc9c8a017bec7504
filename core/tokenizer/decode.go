package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Decoder decodes ids one at a time into valid UTF-8. A character whose bytes are spread over several ids comes out whole, with
// the last of them; bytes that cannot become a character come out as U+FFFD at once, one for each longest beginning of a
// character among them.
type Decoder struct {
	tokenizer *Tokenizer
	pending   []byte // the beginning of a character
}

// NewDecoder returns a Decoder at the start of a text.
func (t *Tokenizer) NewDecoder() *Decoder { return &Decoder{tokenizer: t} }

// Push returns the text that is complete with id. Ids of a model's rows beyond the vocabulary come out like reserved ones.
func (d *Decoder) Push(id int) string { return d.PushBytes(d.tokenizer.bytesOf(id)) }

// PushBytes is Push for bytes that are no token, or only a part of one.
func (d *Decoder) PushBytes(p []byte) string {
	d.pending = append(d.pending, p...)
	var out strings.Builder
	rest := replaceInvalid(&out, d.pending)
	d.pending = append(d.pending[:0], rest...)
	return out.String()
}

// Flush ends the text: it returns U+FFFD if a character is incomplete.
func (d *Decoder) Flush() string {
	if len(d.pending) == 0 {
		return ""
	}
	d.pending = d.pending[:0]
	return string(utf8.RuneError)
}

// ReplaceInvalid returns text with U+FFFD in the place of what is not UTF-8, one for each longest beginning of a character.
func ReplaceInvalid(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var d Decoder
	return d.PushBytes([]byte(text)) + d.Flush()
}

// replaceInvalid writes p as valid UTF-8 but for an incomplete character at its end, which it returns.
func replaceInvalid(out *strings.Builder, p []byte) (rest []byte) {
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		if r == utf8.RuneError && size == 1 {
			if !utf8.FullRune(p) {
				return p
			}
			for size < len(p) && !utf8.FullRune(p[:size+1]) {
				size++
			}
		}
		out.WriteRune(r)
		p = p[size:]
	}
	return nil
}
