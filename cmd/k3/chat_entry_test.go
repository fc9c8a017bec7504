package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
)

// entered is what entries makes of lines, of which each may have been pasted as several, and how they end.
func entered(continued bool, lines ...string) (all []entry, err error) {
	r := entries{continued: continued, line: func(bool) (string, error) {
		if len(lines) == 0 {
			return "", io.EOF
		}
		line := lines[0]
		lines = lines[1:]
		return line, nil
	}}
	for {
		e, err := r.next()
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
}

func TestLinesBecomeMessagesAndCommands(t *testing.T) {
	text := func(lines ...string) (all []entry) {
		for _, l := range lines {
			all = append(all, entry{text: l})
		}
		return all
	}
	quoted := func(lines ...string) []entry { return []entry{{strings.Join(lines, "\n"), true}} }
	for _, c := range []struct {
		name      string
		continued bool
		lines     []string
		want      []entry
	}{
		{"lines", false, []string{"a", "", "/help", `b\`}, text("a", "", "/help", `b\`)},
		{"a backslash goes on", true, []string{`a\`, `b\`, "c", "d"}, text("a\nb\nc", "d")},
		{"a block", false, []string{`"""`, "a", "", ` b """ c`, `"""`, "d"}, append(quoted("a", "", ` b """ c`), text("d")...)},
		{"a block on one line", false, []string{`"""a"""`}, quoted("a")},
		{"a block begins and ends in its lines", false, []string{`  """a`, `b"""  `}, quoted("a", "b")},
		{"a block keeps backslashes", true, []string{`"""`, `a\`, `"""`}, quoted(`a\`)},
		{"an empty block", false, []string{`""""""`, `"""`, `"""`}, append(quoted(""), quoted("")...)},
		{"a fence inside of a line is text", false, []string{`a """`, "b"}, text(`a """`, "b")},
		{"a system message in a block", false, []string{`/system """`, "a", "/help", `"""`}, text("/system a\n/help")},
		{"no other command takes a block", false, []string{`/save """`, "a"}, text(`/save """`, "a")},
		{"a pasted block", true, []string{"\"\"\"\ndef f():\n\t\"\"\"doc\"\"\"\n\n\"\"\"\n"}, quoted("def f():", "\t\"\"\"doc\"\"\"")},
		{"a pasted text that begins with a quotation", true, []string{"\"\"\"doc\"\"\"\nimport x\n"}, text("\"\"\"doc\"\"\"\nimport x")},
		{"a paste inside of a block", true, []string{`"""`, "a\n\"\"\"doc\"\"\"\nb", `"""`}, quoted("a", `"""doc"""`, "b")},
		{"a pasted block that is not closed", true, []string{"\"\"\"\na", `b"""`}, quoted("a", "b")},
		{"pasted commands", true, []string{"/think off\n/set seed 3\n\nWhat\nis?\n"}, text("/think off", "/set seed 3", "What\nis?")},
		{"pasted commands and a block", true, []string{"/clear\n\"\"\"\na", "b", `"""`}, append(text("/clear"), quoted("a", "b")...)},
		{"a pasted system message", true, []string{"/system a\nb"}, text("/system a\nb")},
		{"a pasted path", true, []string{"/usr/bin/x: not found\n/help"}, text("/usr/bin/x: not found\n/help")},
		{"a pasted comment", true, []string{"// a\nb"}, text("// a\nb")},
	} {
		if got, err := entered(c.continued, c.lines...); !errors.Is(err, io.EOF) || !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
	if got, err := entered(false, "a", `"""`, "b"); !errors.Is(err, errUnclosed) || len(got) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Whatever is entered, nothing of it is lost but fences, backslashes and the white space around them.
func FuzzEntries(f *testing.F) {
	f.Add("a\\\nb\n\"\"\"\nc\n\"\"\"", false)
	f.Add("/think off\n/system \"\"\"\nx\n\"\"\"\ny", true)
	f.Add("\"\"\"a\"\"\"\nb", true)
	f.Fuzz(func(t *testing.T, text string, pasted bool) {
		lines := strings.Split(text, "\n")
		if pasted {
			lines = []string{text}
		}
		got, err := entered(true, lines...)
		if !errors.Is(err, io.EOF) && !errors.Is(err, errUnclosed) {
			t.Fatal(err)
		}
		if err != io.EOF || strings.HasSuffix(text, `\`) {
			return // an entry was not finished
		}
		words := func(s string) string {
			return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune("\\\" \n\t\v\f\r\u0085\u00a0", r) }), "")
		}
		all := ""
		for _, e := range got {
			all += e.text + "\n"
		}
		if words(all) != words(text) {
			t.Errorf("%q became %+v", text, got)
		}
	})
}
