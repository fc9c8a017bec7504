package session

import (
	"os"
	"path/filepath"
	"testing"
)

// openFiles counts the files this process has open, where the system tells.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

func TestAFileThatIsNoSessionIsClosedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("no session"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := openFiles(t)
	for range 10 {
		if _, err := Open(path); err == nil {
			t.Fatal("it was opened")
		}
	}
	if after := openFiles(t); after >= before+10 {
		t.Errorf("%d files were open, and %d are", before, after)
	}
}
