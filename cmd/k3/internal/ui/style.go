package ui

import (
	"os"
	"strings"
)

// Style says how to write on a terminal.
type Style struct {
	Escapes bool // the terminal knows escape sequences
	color   bool // and they may change how text looks
}

// NewStyle is the style of a terminal; NO_COLOR forbids to change how text looks.
func NewStyle(f *os.File) Style {
	s := Style{Escapes: understandsEscapes(f)}
	s.color = s.Escapes && os.Getenv("NO_COLOR") == ""
	return s
}

// Dim returns text as it looks when it matters less.
func (s Style) Dim(text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[2m" + text + "\x1b[22m"
}

// Printable returns text without what would make a terminal do things: control characters other than line breaks and tabs.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r':
			return -1
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return '\uFFFD'
		}
		return r
	}, text)
}
