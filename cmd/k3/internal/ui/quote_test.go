package ui

import (
	"os/exec"
	"strings"
	"testing"
)

func TestArgumentsAreQuotedForTheShell(t *testing.T) {
	for in, want := range map[string]struct{ unix, windows string }{
		"/a/b-1.x": {"/a/b-1.x", "/a/b-1.x"}, "a b": {"'a b'", `"a b"`}, "": {"''", `""`}, "it's": {`'it'\''s'`, `"it's"`},
		"$(x) y": {"'$(x) y'", "'$(x) y'"}, "$it's": {`'$it'\''s'`, "'$it''s'"}, `C:\a`: {`'C:\a'`, `C:\a`}, `C:\a b\`: {`'C:\a b\'`, `"C:\a b\\"`},
		"a;b": {"'a;b'", `"a;b"`}, "~x": {"'~x'", `"~x"`}, "*.json": {"'*.json'", `"*.json"`}, "a\nb": {"'a\nb'", "\"a\nb\""}, "#x!": {"'#x!'", `"#x!"`},
	} {
		if got := quoteFor("linux", in); got != want.unix {
			t.Errorf("%q is quoted as %s, want %s", in, got, want.unix)
		}
		if got := quoteFor("windows", in); got != want.windows {
			t.Errorf("on Windows %q is quoted as %s, want %s", in, got, want.windows)
		}
		sh, err := exec.LookPath("sh")
		if err != nil {
			continue
		}
		if out, err := exec.Command(sh, "-c", "printf %s "+quoteFor("linux", in)).Output(); err != nil || string(out) != in {
			t.Errorf("%q comes out of a shell as %q, %v", in, out, err)
		}
	}
	if got := QuotePath("-x y"); !strings.HasSuffix(strings.Trim(got, `"'`), "./-x y") {
		t.Errorf("a directory that looks like a flag is %s", got)
	}
}
