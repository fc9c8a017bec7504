//go:build unix

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
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

// A run that is told to end, whose terminal goes or whose reader goes away ends before the token in flight is done, and saves a
// session that goes on as if nothing had happened, whatever of its state was lost.
func TestARunThatIsToldToEndSavesItsSession(t *testing.T) {
	// Tests that were started by nohup would pass on to theirs that SIGHUP is ignored.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	k3, dir := program(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	const tokens = 120
	sampling := []string{"run", "-q", "--temperature", "1.3", "--seed", "5", "--ignore-eos"}
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(k3, append(slices.Clone(sampling), args...)...).Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return string(out)
	}
	text := run("--prompt", "Once upon", "--max-tokens", strconv.Itoa(tokens), "--save-session", at("whole"))
	beginning := run("--prompt", "Once upon", "--max-tokens", "10", "--save-session", at("beginning"))
	whole, err := os.ReadFile(at("whole"))
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := readSession(at("whole"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		signal os.Signal // nil: the reader goes away
		code   int
		args   []string
	}{
		{"SIGTERM", syscall.SIGTERM, ui.ExitInterrupted, []string{"--prompt", "Once upon"}},
		{"SIGHUP", syscall.SIGHUP, ui.ExitInterrupted, []string{"--prompt", "Once upon"}},
		{"SIGTERM with checkpoints", syscall.SIGTERM, ui.ExitInterrupted, []string{"--prompt", "Once upon", "--checkpoint-every", "3"}},
		{"SIGTERM in what goes on", syscall.SIGTERM, ui.ExitInterrupted, []string{"--load-session", at("beginning")}},
		{"a reader that goes away", nil, ui.ExitPipe, []string{"--prompt", "Once upon"}},
	} {
		half, report := at("half"), at("report")
		os.Remove(half)
		os.Remove(report)
		cmd := exec.Command(k3, append(append(slices.Clone(sampling), "--max-tokens", "4000", "--threads", "1", "--backend", "generic",
			"--save-session", half, "--report", report), c.args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(stdout, make([]byte, 20)); err != nil {
			t.Fatal(err)
		}
		if c.signal == nil {
			stdout.Close()
		} else if err := cmd.Process.Signal(c.signal); err != nil {
			t.Fatal(err)
		} else if _, err := io.Copy(io.Discard, stdout); err != nil {
			t.Fatal(err)
		}
		if code := exitOf(cmd.Wait()); code != c.code {
			t.Errorf("%s: exit code %d: %s", c.name, code, &stderr)
		}
		if !strings.Contains(stderr.String(), half+" has all ") || strings.Contains(stderr.String(), "interrupted") != (c.signal != nil) {
			t.Errorf("%s: it says %q", c.name, &stderr)
		}
		if data, err := os.ReadFile(report); err != nil || !strings.Contains(string(data), `"stop_reason":"interrupted"`) {
			t.Errorf("%s: the report is %.100q, %v", c.name, data, err)
		}
		n, _, err := readSession(half)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if n >= all {
			t.Fatalf("%s: it ended too late, after %d of %d tokens", c.name, n, all)
		}
		rest := run("--load-session", half, "--max-tokens", strconv.Itoa(all-n), "--save-session", half)
		if rest == "" || !strings.HasSuffix(text, rest) || !strings.HasPrefix(text, beginning) {
			t.Errorf("%s: after %d of %d tokens it goes on with %q, but the text is %q", c.name, n, all, rest, text)
		}
		if got, err := os.ReadFile(half); err != nil || !bytes.Equal(got, whole) {
			t.Errorf("%s: after %d of %d tokens the session in the end is another, %v", c.name, n, all, err)
		}
	}
}

// nohup protects a run from SIGHUP.
func TestAnIgnoredHangupEndsNothing(t *testing.T) {
	cmd := exec.Command("sh", "-c", `trap '' HUP; exec "$0" run -q --prompt Once --max-tokens 60 --threads 1 --backend generic`, program(t))
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, stdout); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// A conversation whose answer is cut by SIGTERM is saved with what there is of it.
func TestAChatThatIsToldToEndSavesTheConversation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "chat.k3s")
	cmd := exec.Command(program(t), "chat", "-q", "--thinking", "off", "--temperature", "1.5", "--threads", "1", "--backend", "generic",
		"--save", path, "--transcript", path+".jsonl")
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	io.WriteString(in, "Tell me a long story, please.\n")
	if _, err := io.ReadFull(out, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(cmd.Wait()); code != ui.ExitInterrupted {
		t.Errorf("exit code %d", code)
	}
	if n, _, err := readSession(path); err != nil || n == 0 {
		t.Errorf("%d tokens, %v", n, err)
	}
	if data, err := os.ReadFile(path + ".jsonl"); err != nil || strings.Count(string(data), "\n") != 2 {
		t.Errorf("%s, %v", data, err)
	}
}

// A checkpoint that cannot be written is said once, and the text goes on; the report is written even if the session never can be.
func TestACheckpointThatFailsEndsNothing(t *testing.T) {
	k3, dir := program(t), t.TempDir()
	folder := filepath.Join(dir, "folder")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, back := range []bool{true, false} {
		report := filepath.Join(dir, "report")
		os.Remove(report)
		// When the first text has come, the folder of the session goes.
		cmd := exec.Command(k3, "run", "--prompt", "Once", "--max-tokens", "100", "--ignore-eos", "--threads", "1", "--backend", "generic",
			"--save-session", filepath.Join(folder, "s.k3s"), "--checkpoint-every", "2", "--report", report)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err := errors.Join(err, cmd.Start()); err != nil {
			t.Fatal(err)
		}
		one := make([]byte, 1)
		if _, err := io.ReadFull(out, one); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(folder, folder+".away"); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 100) // tokens enough for several checkpoints
		if _, err := io.ReadFull(out, text); err != nil {
			t.Fatal(err)
		}
		if back {
			if err := os.Rename(folder+".away", folder); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Fatal(err)
		}
		code := exitOf(cmd.Wait())
		if back && code != -1 || !back && code != ui.ExitFailed {
			t.Errorf("back %v: exit code %d: %s", back, code, &stderr)
		}
		if n := strings.Count(stderr.String(), "k3: the session is not saved on the way: "); n != 1 {
			t.Errorf("back %v: said %d times: %s", back, n, &stderr)
		}
		data, err := os.ReadFile(report)
		if err != nil || strings.Contains(string(data), `"error"`) != !back || !strings.Contains(string(data), `"stop_reason":"max tokens"`) {
			t.Errorf("back %v: report %v", back, err)
		}
		if !back {
			if err := os.Rename(folder+".away", folder); err != nil {
				t.Fatal(err)
			}
		}
	}
}
