package main

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/k3infer/k3/core/chat"
)

func TestAnAnswerIsShownAsItComes(t *testing.T) {
	think := func(text string) chat.Event { return chat.Event{Kind: chat.ReasoningDelta, Text: text} }
	answer := func(text string) chat.Event { return chat.Event{Kind: chat.ContentDelta, Text: text} }
	call := []chat.Event{{Kind: chat.CallStart, Name: "f"}, {Kind: chat.ArgumentsDelta, Text: "{}"}, {Kind: chat.CallEnd}, {Kind: chat.Done}}
	both := []chat.Event{think("It "), think("asks.\n"), think("Well"), answer("Yes\x1b[2J"), answer(".")}
	for _, c := range []struct {
		name     string
		terminal bool
		style    style
		hide     bool
		failed   bool
		events   []chat.Event
		out, err string
	}{
		{"a pipe", false, style{}, false, false, both, "Yes\x1b[2J.\n", "It asks.\nWell\n"},
		{"a pipe, hidden", false, style{}, true, false, both, "Yes\x1b[2J.\n", ""},
		{"a pipe, a line ends the answer", false, style{}, false, false, []chat.Event{answer("a\n")}, "a\n", ""},
		{"a pipe, no answer", false, style{}, false, false, []chat.Event{think("a")}, "\n", "a\n"},
		{"a pipe, nothing", false, style{}, false, false, nil, "\n", ""},
		{"a pipe, failed", false, style{}, false, true, nil, "", ""},
		{"a pipe, a call", false, style{}, false, false, call, "[calls f {}]\n", ""},
		{"a pipe, hidden, a call", false, style{}, true, false, call, "[calls f {}]\n", ""},
		{"a pipe, an answer and a call", false, style{}, false, false, slices.Concat(both, call), "Yes\x1b[2J.\n[calls f {}]\n", "It asks.\nWell\n"},
		{"a pipe, a call that was cut", false, style{}, false, false, call[:2], "[calls f {}\n", ""},
		{"a terminal, a call", true, style{true, true}, true, false, call, "[calls f {}]\n\n", ""},
		{"a terminal", true, style{true, true}, false, false, both,
			"\x1b[2mIt \x1b[22m\x1b[2masks.\n\x1b[22m\x1b[2mWell\x1b[22m\n\nYes\uFFFD[2J.\n\n", ""},
		{"a terminal, hidden", true, style{true, true}, true, false, both, "Yes\uFFFD[2J.\n\n", ""},
		{"a terminal without colours", true, style{true, false}, false, false, both, "| It asks.\n| Well\n\nYes\uFFFD[2J.\n\n", ""},
		{"a terminal, nothing", true, style{true, true}, false, true, nil, "", ""},
	} {
		var out, err bytes.Buffer
		v := &view{out: &out, aside: &err, line: &progress{}, style: c.style, terminal: c.terminal}
		if c.terminal {
			v.aside = &out
		}
		if c.hide {
			v.aside = nil
		}
		for _, e := range c.events {
			if err := v.show(e); err != nil {
				t.Fatal(err)
			}
		}
		if e := v.end(!c.failed); e != nil {
			t.Fatal(e)
		}
		if out.String() != c.out || err.String() != c.err {
			t.Errorf("%s: %q and %q, want %q and %q", c.name, out.String(), err.String(), c.out, c.err)
		}
	}
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestWhatCannotBeShownEndsTheAnswer(t *testing.T) {
	v := &view{out: fullDisk{}, aside: fullDisk{}, line: &progress{}}
	for _, e := range []chat.Event{{Kind: chat.ContentDelta, Text: "a"}, {Kind: chat.ReasoningDelta, Text: "a"}} {
		if err := v.show(e); !errors.Is(err, errFull) {
			t.Errorf("%v", err)
		}
	}
}
