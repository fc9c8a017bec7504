package disk_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/fstest"

	"github.com/k3infer/k3/core/disk"
)

func TestHolesAreTheShareThatNoDiskHolds(t *testing.T) {
	dir := t.TempDir()
	full, err := os.Create(filepath.Join(dir, "full"))
	if err == nil {
		_, err = full.Write(bytes.Repeat([]byte("k3"), 1<<19))
	}
	if err == nil {
		err = full.Sync() // a file system may find its blocks no sooner
	}
	sparse, err2 := os.Create(filepath.Join(dir, "sparse"))
	if err2 == nil {
		_, err2 = sparse.WriteAt(bytes.Repeat([]byte("k3"), 1<<19), 3<<20)
	}
	if err2 == nil {
		err2 = sparse.Sync()
	}
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	full.Close()
	sparse.Close()
	share := func(name string) float64 {
		f, err := disk.Dir(dir).Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return disk.Holes(f)
	}
	if got := share("full"); got != 0 {
		t.Errorf("a file without holes: %g", got)
	}
	if got := share("sparse"); runtime.GOOS == "linux" && (got < 0.7 || got > 0.76) {
		t.Errorf("three quarters are holes: %g", got)
	}
	f, err := disk.FS(fstest.MapFS{"a": {Data: make([]byte, 5)}}, "built in").Open("a")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := disk.Holes(f); got != 0 {
		t.Errorf("a file that is on no disk: %g", got)
	}
}
