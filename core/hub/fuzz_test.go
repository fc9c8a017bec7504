package hub

import (
	"bytes"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Whatever an endpoint says, no name leads out of the directory, and no size or checksum is one that cannot be.
func FuzzMetadata(f *testing.F) {
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseSnapshot("a/b", data)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("not one line: %q", err)
			}
			return
		}
		if !isHex(s.Commit, 40) || len(s.Files) == 0 {
			t.Errorf("commit %q, %d files", s.Commit, len(s.Files))
		}
		for _, file := range s.Files {
			if !filepath.IsLocal(filepath.FromSlash(file.Name)) || strings.ContainsAny(file.Name, "\\:\x00") || strings.EqualFold(strings.Split(file.Name, "/")[0], Folder) {
				t.Errorf("name %q", file.Name)
			}
			if file.Size < -1 || file.Size > maxFile || file.SHA256 != "" && !isHex(file.SHA256, 64) || file.GitSHA1 != "" && !isHex(file.GitSHA1, 40) {
				t.Errorf("%+v", file)
			}
		}
	})
}

// Whatever is in the notes of a partial file, no block is believed that cannot be there, and what is kept of them reads the same.
func FuzzBlocks(f *testing.F) {
	f.Fuzz(func(t *testing.T, notes []byte, size int64) {
		read := func(notes []byte) (*partial, int64) {
			p := &partial{file: File{Size: 2500}, block: 1000, sum: make([]uint32, 3), have: make([]bool, 3)}
			return p, p.load(bytes.NewReader(notes), size)
		}
		p, end := read(notes)
		if end < 0 || end > int64(len(notes)) || end > 0 && notes[end-1] != '\n' {
			t.Fatalf("ends at %d of %d", end, len(notes))
		}
		for b, have := range p.have {
			if have && int64(b)*1000+p.length(b) > size {
				t.Errorf("block %d is believed of a file of %d bytes", b, size)
			}
		}
		q, again := read(notes[:end])
		if again != end || len(q.have) != len(p.have) || q.have[0] != p.have[0] || q.sum != nil && q.sum[2] != p.sum[2] {
			t.Errorf("what was kept reads differently")
		}
	})
}

// The machine may have crashed with a block noted whose bytes never came to the disk: the file is shorter than that.
func TestABlockAfterTheEndOfAPartialFileIsFetchedAgain(t *testing.T) {
	f := File{Size: 2500, SHA256: strings.Repeat("a", 64)}
	for size, want := range map[int64][]bool{0: {false, false, false}, 999: {false, false, false}, 1000: {true, false, false},
		2499: {true, true, false}, 2500: {true, true, true}} {
		path := filepath.Join(t.TempDir(), "file")
		p, err := openPartial(path, f, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for b := range 3 {
			if err := p.note(b, 7); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(p.data.Truncate(size), p.close()); err != nil {
			t.Fatal(err)
		}
		var bytes int64
		for b, have := range want {
			if have {
				bytes += p.length(b)
			}
		}
		if got := stored(path, f, 1000); got != bytes {
			t.Errorf("%d bytes of a file of %d are said to be there, not %d", got, size, bytes)
		}
		if p, err = openPartial(path, f, 1000); err != nil || !slices.Equal(p.have, want) {
			t.Errorf("of a file of %d bytes the blocks %v are believed, not %v; %v", size, p.have, want, err)
		}
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}
}

// A range that is understood is one.
func FuzzContentRange(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		if first, _, total, ok := contentRange(s); ok && (first < 0 || total < -1) {
			t.Errorf("%q is read as from %d of %d", s, first, total)
		}
	})
}

func TestHeadersSayHowLongToWait(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, x := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "7", 7 * time.Second},
		{"Retry-After", "Fri, 02 Jan 2026 03:05:05 GMT", time.Minute},
		{"Retry-After", "Fri, 02 Jan 2026 03:00:00 GMT", 0},
		{"Retry-After", "soon", 0},
		{"Retry-After", "-5", 0},
		{"RateLimit", `"resolvers";r=0;t=55`, 55 * time.Second},
		{"RateLimit", `"resolvers";r=10;t=55`, 0},
		{"RateLimit", `rubbish;=;r`, 0},
	} {
		h := http.Header{}
		h.Set(x.name, x.value)
		if got := retryAfter(h, now); got != x.want {
			t.Errorf("%s: %s is %v, want %v", x.name, x.value, got, x.want)
		}
	}
}
