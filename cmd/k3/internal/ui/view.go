package ui

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/k3infer/k3/core/chat"
)

// View shows an answer as it comes: at a terminal what the model thinks is dim, or marked where nothing can be dim; elsewhere it
// goes to stderr.
type View struct {
	out      io.Writer // of the answer
	aside    io.Writer // of what the model thinks; nil: nowhere
	Line     *Progress
	style    Style
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

// NewView shows an answer on out and what the model thinks on aside, which may be nil.
func NewView(out, aside io.Writer, line *Progress, s Style, terminal bool) *View {
	return &View{out: out, aside: aside, Line: line, style: s, terminal: terminal}
}

// Show takes the next event.
func (v *View) Show(e chat.Event) error {
	switch e.Kind {
	case chat.ReasoningDelta:
		if v.aside == nil {
			v.thoughts++
			v.Line.Show(time.Now(), fmt.Sprintf("thinking, %s", Plural(v.thoughts, "piece", "pieces")))
			return nil
		}
		return v.write(partThinking, e.Text)
	case chat.ContentDelta:
		return v.write(partAnswer, e.Text)
	}
	return v.write(partCall, callText(e))
}

// write writes text that belongs to a part.
func (v *View) write(p section, text string) error {
	to := v.out
	if p == partThinking {
		to = v.aside
	}
	if to == nil || text == "" {
		return nil
	}
	v.Line.Clear()
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
		shown = Printable(shown)
	}
	if p == partThinking && v.terminal && !v.style.color {
		shown = v.mark(shown, first || !v.middle)
	}
	v.middle = !EndsLine(text)
	if p == partThinking {
		shown = v.style.Dim(shown)
	}
	_, err := io.WriteString(to, shown)
	return err
}

// mark puts a sign before each line of text, the first only at its start.
func (v *View) mark(text string, start bool) string {
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
func (v *View) finish() error {
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

// End ends the answer, at a terminal with an empty line. Elsewhere even an empty answer is a line, so that they can be counted.
func (v *View) End(answered bool) error {
	v.Line.Clear()
	if err := v.finish(); err != nil || v.terminal && v.part == partNone || !v.terminal && (!answered || v.part >= partAnswer) {
		return err
	}
	_, err := io.WriteString(v.out, "\n")
	return err
}
