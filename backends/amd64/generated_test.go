package amd64_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestTheAssemblyIsWhatTheGeneratorWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the go command")
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "run", "./_gen", dir).CombinedOutput(); err != nil {
		t.Fatalf("go run ./_gen: %v\n%s", err, out)
	}
	want, err := filepath.Glob("*_amd64.s")
	if err != nil || len(want) == 0 {
		t.Fatal("no assembly here", err)
	}
	made, _ := filepath.Glob(filepath.Join(dir, "*_amd64.s"))
	if len(made) != len(want) {
		t.Errorf("%d assembly files, the generator writes %d", len(want), len(made))
	}
	for _, name := range append(want, "stubs_amd64.go") {
		a, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s is not what the generator writes: run go generate (%v)", name, err)
		}
	}
}
