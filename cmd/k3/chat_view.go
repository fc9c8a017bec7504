package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/k3infer/k3/core/chat"
)

// style says how to write on a terminal.
type style struct {
	escapes bool // the terminal knows escape sequences
	color   bool // and they may change how text looks
}

// newStyle is the style of a terminal; NO_COLOR forbids to change how text looks.
func newStyle(f *os.File) style {
	s := style{escapes: understandsEscapes(f)}
	s.color = s.escapes && os.Getenv("NO_COLOR") == ""
	return s
}

// dim returns text as it looks when it matters less.
func (s style) dim(text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[2m" + text + "\x1b[22m"
}

// view shows an answer as it comes: at a terminal what the model thinks is dim, or marked where nothing can be dim; elsewhere it
// goes to stderr.
type view struct {
	out      io.Writer // of the answer
	aside    io.Writer // of what the model thinks; nil: nowhere
	line     *progress
	style    style
	terminal bool
	part     section // the last that came
	middle   bool    // the cursor is inside of a line of it
	thoughts int     // pieces of thinking that were not shown
}

// section is what an answer has.
type section int

const (
	partNone section = iota
	partThinking
	partAnswer
	partCall // belongs to the answer, on lines of its own
)

func (t *talk) newView() *view {
	v := &view{
		out: t.out, style: t.style, terminal: t.editor != nil, line: newProgress(t.out, t.err, t.flags.quiet),
	}
	switch {
	case t.shown == thinkingHide || !v.terminal && t.flags.quiet:
	case v.terminal:
		v.aside = t.out
	default:
		v.aside = t.err
	}
	return v
}

// show takes the next event.
func (v *view) show(e chat.Event) error {
	switch e.Kind {
	case chat.ReasoningDelta:
		if v.aside == nil {
			v.thoughts++
			v.line.show(time.Now(), fmt.Sprintf("thinking, %s", plural(v.thoughts, "piece", "pieces")))
			return nil
		}
		return v.write(partThinking, e.Text)
	case chat.ContentDelta:
		return v.write(partAnswer, e.Text)
	}
	return v.write(partCall, callText(e))
}

// write writes text that belongs to a part.
func (v *view) write(p section, text string) error {
	to := v.out
	if p == partThinking {
		to = v.aside
	}
	if to == nil || text == "" {
		return nil
	}
	v.line.clear()
	if v.part != p {
		if err := v.finish(); err != nil {
			return err
		}
		if v.part != partNone && v.terminal {
			if _, err := io.WriteString(to, "\n"); err != nil {
				return err
			}
		}
	}
	first := v.part != p
	v.part = p
	shown := text
	if v.terminal {
		shown = printable(shown)
	}
	if p == partThinking && v.terminal && !v.style.color {
		shown = v.mark(shown, first || !v.middle)
	}
	v.middle = !endsLine(text)
	if p == partThinking {
		shown = v.style.dim(shown)
	}
	_, err := io.WriteString(to, shown)
	return err
}

// mark puts a sign before each line of text, the first only at its start.
func (v *view) mark(text string, start bool) string {
	const sign = "| "
	body, last := strings.CutSuffix(text, "\n")
	body = strings.ReplaceAll(body, "\n", "\n"+sign)
	if start {
		body = sign + body
	}
	if last {
		body += "\n"
	}
	return body
}

// finish ends the line that is open.
func (v *view) finish() error {
	if !v.middle {
		return nil
	}
	v.middle = false
	to := v.out
	if v.part == partThinking {
		to = v.aside
	}
	_, err := io.WriteString(to, "\n")
	return err
}

// end ends the answer, at a terminal with an empty line. Elsewhere even an empty answer is a line, so that they can be counted.
func (v *view) end(answered bool) error {
	v.line.clear()
	if err := v.finish(); err != nil || v.terminal && v.part == partNone || !v.terminal && (!answered || v.part >= partAnswer) {
		return err
	}
	_, err := io.WriteString(v.out, "\n")
	return err
}

// printable returns text without what would make a terminal do things: control characters other than line breaks and tabs.
func printable(text string) string {
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
