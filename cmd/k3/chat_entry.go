package main

import (
	"errors"
	"io"
	"strings"
	"unicode"
)

// fence opens and closes a message of several lines.
const fence = `"""`

// entry is what someone enters: a message, or a command if it begins with a slash and is not quoted.
type entry struct {
	text   string
	quoted bool // it stood between fences: a message, whatever it begins with
}

// entries reads one entry after the other.
type entries struct {
	// line reads a line; more says that it goes on with an entry whose beginning was read. Where several lines were
	// pasted into one, it has line breaks.
	line func(more bool) (string, error)
	// continued says that a line which ends in a backslash goes on in the next.
	continued bool

	whole string // all that the last entry was part of, as it was entered
	held  string // the lines that were pasted after a command
}

// errUnclosed says that the text ends inside of a message of several lines.
var errUnclosed = errors.New(`the """ that begins a message has no other to end it`)

// next reads the next entry. io.EOF says that there is none.
func (r *entries) next() (entry, error) {
	text, pasted := r.held, r.held != ""
	r.held = ""
	if !pasted {
		var err error
		if text, err = r.line(false); err != nil {
			return entry{}, err
		}
		r.whole = strings.TrimRight(text, "\n")
	}
	// Commands are lines; only a text may go on in the next.
	if first, rest, more := strings.Cut(text, "\n"); more {
		if c := findCommand(first); c != nil && !c.text {
			r.held = strings.TrimLeft(rest, "\n")
			return entry{text: first}, nil
		}
	}
	head, body, fenced := cutFence(text)
	if fenced && closesInside(body) {
		head, body, fenced = "", text, false // what was pasted begins with a quotation and has more to say
	}
	for {
		inside, closed := strings.CutSuffix(strings.TrimRightFunc(body, unicode.IsSpace), fence)
		switch {
		case fenced && closed:
			return entry{head + strings.Trim(inside, "\n"), head == ""}, nil
		case fenced:
		case r.continued && strings.HasSuffix(body, `\`):
			body = strings.TrimSuffix(body, `\`)
			r.whole = strings.TrimSuffix(r.whole, `\`)
		default:
			return entry{text: strings.TrimRight(body, "\n")}, nil
		}
		line, err := r.line(true)
		if fenced && errors.Is(err, io.EOF) {
			err = errUnclosed
		}
		if err != nil {
			return entry{}, err
		}
		body += "\n" + line
		r.whole += "\n" + line
	}
}

// cutFence returns what follows the fence that text begins with, or that is all a command is given.
func cutFence(text string) (head, body string, fenced bool) {
	body = strings.TrimLeftFunc(text, unicode.IsSpace)
	if c := findCommand(body); c != nil && c.text {
		name, argument := cutCommand(body)
		head, body = name+" ", argument
	}
	if body, fenced = strings.CutPrefix(body, fence); fenced {
		return head, body, true
	}
	return "", text, false
}

// closesInside reports whether a line other than the last ends in a fence.
func closesInside(body string) bool {
	lines := strings.Split(strings.TrimRightFunc(body, unicode.IsSpace), "\n")
	for _, line := range lines[:len(lines)-1] {
		if strings.HasSuffix(strings.TrimRightFunc(line, unicode.IsSpace), fence) {
			return !strings.HasSuffix(lines[len(lines)-1], fence)
		}
	}
	return false
}
