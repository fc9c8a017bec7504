//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A run that is killed at any moment goes on from its last checkpoint as if nothing had happened: the same text, and in the end
// the same state, bit for bit, also with another backend, other threads and other passes.
func TestAKilledRunGoesOnFromItsCheckpoint(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	k3 := program(t)
	for _, c := range []struct {
		name string
		args []string
	}{
		{"text", []string{"--prompt", "Once upon a time", "--temperature", "1.3", "--seed", "5", "--ignore-eos"}},
		{"bytes and stop texts", []string{"--prompt", "\u00e9", "--temperature", "3", "--ignore-eos", "--stop", "e e e e e e"}},
		{"a reply", []string{"--chat", "--prompt", "Tell me a story.", "--temperature", "1.1", "--ignore-eos"}},
	} {
		dir := t.TempDir()
		whole, half := filepath.Join(dir, "whole"), filepath.Join(dir, "half")
		sampling := c.args[2:]
		if c.args[0] == "--chat" {
			sampling = c.args[3:]
		}
		const tokens = "150"
		run := func(args ...string) string {
			t.Helper()
			var out, err bytes.Buffer
			cmd := exec.Command(k3, append([]string{"run", "-q"}, args...)...)
			cmd.Stdout, cmd.Stderr = &out, &err
			if e := cmd.Run(); e != nil {
				t.Fatalf("%s: %v: %s", c.name, e, err.String())
			}
			return out.String()
		}
		text := run(append(c.args, "--max-tokens", tokens, "--save-session", whole)...)

		killed := exec.Command(k3, append([]string{"run", "-q", "--max-tokens", tokens, "--save-session", half, "--checkpoint-every", "3",
			"--threads", "1", "--backend", "generic"}, c.args...)...)
		if err := killed.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if _, err := os.Stat(half); err == nil {
				break
			}
		}
		time.Sleep(20 * time.Millisecond)
		killed.Process.Kill()
		killed.Wait()

		n, _, err := readSession(half)
		if err != nil {
			t.Fatal(err)
		}
		all, _, err := readSession(whole)
		if err != nil {
			t.Fatal(err)
		}
		if n >= all {
			t.Fatalf("%s: killed too late, after %d of %d tokens", c.name, n, all)
		}
		rest := run(append(sampling, "--load-session", half, "--max-tokens", strconv.Itoa(all-n), "--save-session", half, "--prefill-chunk", "2")...)
		if !strings.HasSuffix(text, rest) || rest == "" {
			t.Errorf("%s: after %d of %d tokens it goes on with %q, but the text is %q", c.name, n, all, rest, text)
		}
		a, err := os.ReadFile(whole)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(half)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: killed after %d of %d tokens, the session in the end is another", c.name, n, all)
		}
	}
}
