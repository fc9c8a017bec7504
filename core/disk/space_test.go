package disk_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

func TestExistingIsTheNearestDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir: dir, file: dir, filepath.Join(dir, "a", "b"): dir, filepath.Join(file, "below"): dir, "not-there": ".",
	} {
		if got := disk.Existing(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestFreeSpaceOfWhatIsNotThereYet(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "new", "folder")} {
		if free, err := disk.FreeSpace(path); err != nil || free <= 0 {
			t.Errorf("%s: %d, %v", path, free, err)
		}
	}
}
