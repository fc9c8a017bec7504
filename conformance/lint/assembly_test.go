package lint

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// architectures are those that have assembly, in backends/ARCH, written by backends/_gen/ARCH.
var architectures = []string{"amd64", "arm64"}

// assemblyOf returns the assembly files of a folder.
func assemblyOf(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.s"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no assembly in %s: %v", dir, err)
	}
	return files
}

func TestTheAssemblyIsWhatTheGeneratorWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the go command")
	}
	for _, arch := range architectures {
		dir, made := filepath.Join(root, "backends", arch), t.TempDir()
		generators := filepath.Join(root, "backends", "_gen")
		if out, err := exec.Command("go", "run", "-C", generators, "./"+arch, made).CombinedOutput(); err != nil {
			t.Fatalf("generate the assembly of %s: %v\n%s", dir, err, out)
		}
		want := assemblyOf(t, dir)
		if n := len(assemblyOf(t, made)); n != len(want) {
			t.Errorf("%s has %d assembly files, the generator writes %d", dir, len(want), n)
		}
		for _, path := range append(want, filepath.Join(dir, "stubs_"+arch+".go")) {
			a, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(made, filepath.Base(path))); err != nil || !bytes.Equal(a, b) {
				t.Errorf("%s is not what the generator writes: run go generate ./backends/%s (%v)", path, arch, err)
			}
		}
	}
}

// Who reads the assembly of a function, as in a debugger or a profile, sees what loop it is.
func TestAssemblyIsExplained(t *testing.T) {
	const most = 24 // instructions without a comment
	for _, arch := range architectures {
		for _, path := range assemblyOf(t, filepath.Join(root, "backends", arch)) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			bare, explained := 0, false
			for i, line := range strings.Split(string(text), "\n") {
				switch instruction, indented := strings.CutPrefix(line, "\t"); {
				case strings.HasPrefix(line, "TEXT"):
					if !explained {
						t.Errorf("%s:%d: the function has no comment", path, i+1)
					}
					bare = 0
				case strings.HasPrefix(strings.TrimSpace(line), "//"):
					bare, explained = 0, true
				case indented && instruction != "":
					if bare++; bare == most+1 {
						t.Errorf("%s:%d: more than %d instructions without a comment", path, i+1, most)
					}
				case line == "":
					explained = false
				}
			}
		}
	}
}
