package verify

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/k3infer/k3/core/hub"
	"github.com/k3infer/k3/core/hub/hubtest"
)

func TestChecksumsBesideACheckpointAreCompared(t *testing.T) {
	files := demoFiles(t)
	dir := downloaded(t, files)
	os.RemoveAll(filepath.Join(dir, hub.Folder))
	list := "# made by hand\n"
	for name, data := range files {
		list += hubtest.SHA256(data) + " *" + name + "\r\n"
	}
	sums := filepath.Join(dir, "SHA256SUMS")
	os.WriteFile(sums, []byte(list), 0o644)
	for _, deep := range []bool{false, true} {
		if r := verified(t, dir, Options{Deep: deep}); !r.OK || r.result(shard1) != Right || !strings.Contains(strings.Join(r.Notes, "\n"), "SHA256SUMS") {
			t.Errorf("deep %v: %q, notes %q, %s is %q", deep, r.texts(), r.Notes, shard1, r.result(shard1))
		}
	}
	other := slices.Clone(files[shard1])
	other[len(other)-9] ^= 1
	os.WriteFile(filepath.Join(dir, shard1), other, 0o644)
	if r := verified(t, dir, Options{Deep: true}); !slices.Equal(r.Damaged, []string{shard1}) {
		t.Errorf("%q, damaged %q", r.texts(), r.Damaged)
	}
	// A list that is none says nothing.
	os.WriteFile(sums, []byte("hello\x00"), 0o644)
	if r := verified(t, dir, Options{Deep: true}); !r.OK || r.result(shard1) != Unknown {
		t.Errorf("%q, %s is %q", r.texts(), shard1, r.result(shard1))
	}
}

// Whatever is in a list of checksums, each is one, of a file beside it.
func FuzzSums(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, sum := range parseSums(data) {
			if sum != "" && (len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "") || name == "" || strings.ContainsAny(name, "/\\\n") {
				t.Errorf("%q has %q", name, sum)
			}
		}
	})
}
