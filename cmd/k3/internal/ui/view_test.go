package ui

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
		style    Style
		hide     bool
		failed   bool
		events   []chat.Event
		out, err string
	}{
		{"a pipe", false, Style{}, false, false, both, "Yes\x1b[2J.\n", "It asks.\nWell\n"},
		{"a pipe, hidden", false, Style{}, true, false, both, "Yes\x1b[2J.\n", ""},
		{"a pipe, a line ends the answer", false, Style{}, false, false, []chat.Event{answer("a\n")}, "a\n", ""},
		{"a pipe, no answer", false, Style{}, false, false, []chat.Event{think("a")}, "\n", "a\n"},
		{"a pipe, nothing", false, Style{}, false, false, nil, "\n", ""},
		{"a pipe, failed", false, Style{}, false, true, nil, "", ""},
		{"a pipe, a call", false, Style{}, false, false, call, "[calls f {}]\n", ""},
		{"a pipe, hidden, a call", false, Style{}, true, false, call, "[calls f {}]\n", ""},
		{"a pipe, an answer and a call", false, Style{}, false, false, slices.Concat(both, call), "Yes\x1b[2J.\n[calls f {}]\n", "It asks.\nWell\n"},
		{"a pipe, a call that was cut", false, Style{}, false, false, call[:2], "[calls f {}\n", ""},
		{"a terminal, a call", true, Style{true, true}, true, false, call, "[calls f {}]\n\n", ""},
		{"a terminal", true, Style{true, true}, false, false, both,
			"\x1b[2mIt \x1b[22m\x1b[2masks.\n\x1b[22m\x1b[2mWell\x1b[22m\n\nYes\uFFFD[2J.\n\n", ""},
		{"a terminal, hidden", true, Style{true, true}, true, false, both, "Yes\uFFFD[2J.\n\n", ""},
		{"a terminal without colours", true, Style{true, false}, false, false, both, "| It asks.\n| Well\n\nYes\uFFFD[2J.\n\n", ""},
		{"a terminal, nothing", true, Style{true, true}, false, true, nil, "", ""},
	} {
		var out, err bytes.Buffer
		v := &View{out: &out, aside: &err, Line: &Progress{}, style: c.style, terminal: c.terminal}
		if c.terminal {
			v.aside = &out
		}
		if c.hide {
			v.aside = nil
		}
		for _, e := range c.events {
			if err := v.Show(e); err != nil {
				t.Fatal(err)
			}
		}
		if e := v.End(!c.failed); e != nil {
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
	v := &View{out: fullDisk{}, aside: fullDisk{}, Line: &Progress{}}
	for _, e := range []chat.Event{{Kind: chat.ContentDelta, Text: "a"}, {Kind: chat.ReasoningDelta, Text: "a"}} {
		if err := v.Show(e); !errors.Is(err, errFull) {
			t.Errorf("%v", err)
		}
	}
}
