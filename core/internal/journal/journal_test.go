package journal

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestAJournalGoesOnAfterItsLastGoodLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	for _, c := range []struct {
		text string
		want []string
	}{
		{"", nil}, {"one", nil}, {"one\n", []string{"one"}}, {"one\ntwo\nthr", []string{"one", "two"}}, {"one\nbad\ntwo\n", []string{"one"}},
		{"\none\n", []string{"", "one"}},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		read := func() (lines []string, end int64) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			end, err = Read(f, func(line []byte) bool {
				if string(line) == "bad" {
					return false
				}
				lines = append(lines, string(line))
				return true
			})
			if err != nil {
				t.Error(err)
			}
			return lines, end
		}
		lines, end := read()
		if !slices.Equal(lines, c.want) {
			t.Errorf("%q: %q, want %q", c.text, lines, c.want)
		}
		w, err := Append(path, end)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Add([]byte("more")), w.Sync(), w.Close()); err != nil {
			t.Error(err)
		}
		if lines, _ := read(); !slices.Equal(lines, append(c.want, "more")) {
			t.Errorf("%q and one more: %q", c.text, lines)
		}
	}
	if _, err := Append(filepath.Join(path, "below"), 0); err == nil {
		t.Error("a journal below a file")
	}
	end, err := Read(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("a\nb\n"))), func([]byte) bool { return true })
	if end != 0 || !errors.Is(err, iotest.ErrTimeout) {
		t.Errorf("%d, %v", end, err)
	}
}
