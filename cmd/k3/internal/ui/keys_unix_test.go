//go:build unix

package ui

import (
	"strings"
	"testing"
)

func TestPastedLinesBecomeOne(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"plain é 你\r", "plain é 你\r"},
		{"\x1b[A\x1b[D\x1b[3~\x03\x04\t\x7f", "\x1b[A\x1b[D\x1b[3~\x03\x04\t\x7f"},
		{"a\nb\x1b\rc\r", "a␤b␤c\r"},
		{pasteStart + "a\r\nb\rc\nd\te" + pasteEnd + "\r", "a␤b␤c␤d␉e\r"},
		{pasteStart + "a\x1b[A\x03\x04\x00\x7f" + pasteEnd + "\x03", "a[A\x03"},
		{pasteStart + pasteStart + "\r" + pasteEnd + pasteEnd, "[200~␤" + pasteEnd},
	} {
		if got := (&keys{}).translate([]byte(c.in)); string(got) != c.out {
			t.Errorf("%q: %q, want %q", c.in, got, c.out)
		}
		for cut := range len(c.in) {
			if strings.HasSuffix(c.in[:cut], "\x1b") || strings.HasSuffix(c.in[:cut], "\r") {
				continue // one key, not the beginning of more
			}
			k := &keys{}
			if got := append(k.translate([]byte(c.in[:cut])), k.translate([]byte(c.in[cut:]))...); string(got) != c.out {
				t.Errorf("%q cut at %d: %q, want %q", c.in, cut, got, c.out)
			}
		}
	}
}
