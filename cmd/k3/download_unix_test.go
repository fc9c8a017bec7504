//go:build unix

package main

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/hub/hubtest"
)

// With the race detector on, this fails if what tells of progress and what tells of finished files get in each other's
// way.
func TestProgressOfADownloadAndItsMessagesShareATerminal(t *testing.T) {
	files := map[string][]byte{"config.json": []byte("{}")}
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		files[name+".safetensors"] = []byte(name)
	}
	h := hubtest.New(files)
	defer h.Close()
	h.SetFault(func(w http.ResponseWriter, r *http.Request, q hubtest.Request) bool {
		if q.CDN {
			time.Sleep(time.Duration(q.File[0]-'a'+1) * 120 * time.Millisecond) // the line is drawn in between
		}
		return false
	})
	x := startTerminal(t, nil, "download", filepath.Join(t.TempDir(), "model"), "--endpoint", h.URL())
	if code := x.exits(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	<-x.done
	seen := x.seen.String()
	if n := strings.Count(seen, ", checksum right\r\n"); n != len(files) || !strings.Contains(seen, "B of ") || strings.Contains(seen, "DATA RACE") {
		t.Errorf("%d messages: %q", n, seen)
	}
}

func TestADirectoryCalledAsARepositoryIsAskedAbout(t *testing.T) {
	h := hubtest.New(map[string][]byte{"config.json": []byte("{}")})
	defer h.Close()
	for answer, code := range map[string]int{"\r": ui.ExitUsage, "no\r": ui.ExitUsage, "y\r": 0} {
		x := startTerminal(t, nil, "download", "--dry-run", h.Repo, "--endpoint", h.URL())
		x.expect(`k3: moonshotai/Kimi-K3 is a repository of http://127.0.0.1:\d+. Fetch moonshotai/Kimi-K3 \(1.56 TB\) into the directory ./moonshotai/Kimi-K3\? \[y/N\] `)
		x.send(answer)
		if got := x.exits(); got != code {
			t.Errorf("%q: exit code %d, want %d", answer, got, code)
		}
	}
}
