//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/conversation"
)

// What a terminal is told about pasted text, and how that begins and ends.
const (
	pasteIsOn  = "\x1b[?2004h"
	pasteIsOff = "\x1b[?2004l"
	pasteBegin = "\x1b[200~"
	pasteDone  = "\x1b[201~"
)

// program is this test as k3 itself.
func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "k3")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// terminal is k3 on a terminal of its own.
type terminal struct {
	t    *testing.T
	pty  *os.File
	cmd  *exec.Cmd
	mu   sync.Mutex
	seen bytes.Buffer
	from int // what follows was not expected yet
	done chan struct{}
}

func startTerminal(t *testing.T, env []string, args ...string) *terminal {
	t.Helper()
	return startTerminalOf(t, 80, env, args...)
}

// startTerminalOf is startTerminal with so many columns; 0 is a terminal whose size nobody knows.
func startTerminalOf(t *testing.T, columns uint16, env []string, args ...string) *terminal {
	t.Helper()
	cmd := exec.Command(program(t), args...)
	cmd.Env = append(append(os.Environ(), "TERM=xterm", "NO_COLOR=", "XDG_CONFIG_HOME="+t.TempDir()), env...)
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: columns})
	if err != nil {
		t.Skipf("no terminal here: %v", err)
	}
	x := &terminal{t: t, pty: f, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(x.done)
		buffer := make([]byte, 4096)
		for {
			n, err := f.Read(buffer)
			x.mu.Lock()
			x.seen.Write(buffer[:n])
			x.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		f.Close()
		<-x.done
	})
	return x
}

// expect waits for text that matches, and returns all since the last expected.
func (x *terminal) expect(pattern string) string {
	x.t.Helper()
	want := regexp.MustCompile(pattern)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		x.mu.Lock()
		text := string(x.seen.Bytes()[x.from:])
		x.mu.Unlock()
		if at := want.FindStringIndex(text); at != nil {
			x.from += at[1]
			return text[:at[1]]
		}
		if time.Now().After(end) {
			x.t.Fatalf("the terminal shows %q, nothing that matches %q", text, pattern)
		}
	}
}

func (x *terminal) send(text string) {
	x.t.Helper()
	if _, err := io.WriteString(x.pty, text); err != nil {
		x.t.Fatal(err)
	}
}

func (x *terminal) resize(columns uint16) {
	x.t.Helper()
	if err := pty.Setsize(x.pty, &pty.Winsize{Rows: 24, Cols: columns}); err != nil {
		x.t.Fatal(err)
	}
}

// exits waits for the end of the program and returns its exit code.
func (x *terminal) exits() int {
	x.t.Helper()
	timer := time.AfterFunc(time.Minute, func() { x.cmd.Process.Kill() })
	defer timer.Stop()
	x.cmd.Wait()
	return x.cmd.ProcessState.ExitCode()
}

func TestChatAtATerminal(t *testing.T) {
	history := filepath.Join(t.TempDir(), "new", "history")
	transcript := filepath.Join(t.TempDir(), "talk.jsonl")
	x := startTerminal(t, nil, "chat", "--history", history, "--transcript", transcript)
	x.expect("Ctrl-D ends it all")
	x.expect("> ")
	x.send("What is the capital of Frankreich?" + strings.Repeat("\x7f", len("kreich?")) + "ce?\r")
	x.expect("\x1b\\[2mThe\x1b")
	x.expect("\nThe capital of France is Paris.")
	x.expect("> ")
	x.send("/st\t\r")
	x.expect(`conversation +\d+ tokens, 1 answer`)
	x.expect("> ")
	x.send("/thikn hide\r")
	x.expect("did you mean /think")
	x.expect("> ")
	x.send("/think hide\r")
	x.expect("> ")
	// A pasted text of several lines is one message.
	x.send(pasteBegin + "What is\r\tthe capital of 日本?\r" + pasteDone + "\r")
	if shown := x.expect("(?s)> .*\n.*> "); strings.Contains(shown, "The user") {
		t.Errorf("hidden thoughts are shown: %q", shown)
	}
	// Ctrl-C takes the line back, and the next ends the conversation only if nothing comes between.
	x.send("never sent\x03")
	x.expect("Ctrl-C again")
	x.expect("> ")
	x.send("\x1b[A\r") // the line before
	x.expect("(?s)日本.*\n.*> ")
	x.send("\x03")
	x.expect("Ctrl-C again")
	x.expect("> ")
	x.send("\x04")
	if code := x.exits(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	data, err := os.ReadFile(history)
	if err != nil || !strings.HasPrefix(string(data), "What is the capital of France?\n/stats\n") ||
		!strings.Contains(string(data), "What is␤␉the capital of 日本?\n") || strings.Contains(string(data), "never") {
		t.Errorf("history %q, %v", data, err)
	}
	if info, err := os.Stat(history); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others can read what was typed: %v, %v", info.Mode(), err)
	}
	data, err = os.ReadFile(transcript)
	if err != nil || strings.Count(string(data), `"content":"What is\n\tthe capital of 日本?"`) != 2 {
		t.Errorf("transcript %s, %v", data, err)
	}
}

func TestChatShowsWhereItGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "talk.k3s")
	if _, err := k3(t, "What is the capital of France?\n", "chat", "-q", "--save", path); err != nil {
		t.Fatal(err)
	}
	x := startTerminal(t, nil, "chat", "--no-history", "--resume", path)
	x.expect("(?s)> What is the capital of France\\?.*The capital of France is Paris.*\n.*> ")
	x.send("/stats\r")
	x.expect("since the start +computed 0 tokens")
}

func TestChatTwoCtrlCEndIt(t *testing.T) {
	x := startTerminal(t, nil, "chat", "-q", "--no-history")
	x.expect("> ")
	x.send("\x03")
	x.expect("> ")
	x.send("\x03")
	if code := x.exits(); code != ui.ExitInterrupted {
		t.Errorf("exit code %d", code)
	}
}

func TestChatATerminatedProgramRestoresTheTerminal(t *testing.T) {
	x := startTerminal(t, nil, "chat", "-q", "--no-history")
	x.expect("> ")
	x.cmd.Process.Signal(syscall.SIGTERM)
	if code := x.exits(); code != ui.ExitInterrupted {
		t.Errorf("exit code %d", code)
	}
	x.expect(regexp.QuoteMeta(pasteIsOff))
}

func TestChatWithoutColours(t *testing.T) {
	x := startTerminal(t, []string{"NO_COLOR=1"}, "chat", "-q", "--no-history")
	x.expect("> ")
	x.send("What is the capital of France?\r")
	if shown := x.expect("is Paris"); strings.Contains(shown, "\x1b[2m") || !strings.Contains(shown, "| The user") {
		t.Errorf("%q", shown)
	}
	x = startTerminal(t, []string{"TERM=dumb"}, "chat", "-q", "--no-history")
	x.expect("> ")
	x.send("What is the capital of France?\r")
	if shown := x.expect("is Paris"); strings.Contains(shown, "\x1b") {
		t.Errorf("%q", shown)
	}
}

func TestChatCtrlCAtALongPromptKeepsTheConversation(t *testing.T) {
	x := startTerminal(t, nil, "chat", "-q", "--no-history", "--prefill-chunk", "1")
	x.expect("> ")
	x.send(pasteBegin + strings.Repeat("What is this? ", 300) + pasteDone + "\r")
	x.expect("\r\n" + regexp.QuoteMeta(pasteIsOff))
	time.Sleep(300 * time.Millisecond)
	x.send("\x03")
	x.expect("the message is taken back")
	x.expect("> ")
	x.send("What is the capital of France?\r")
	x.expect("The capital of France is Paris.")
	x.expect("> ")
	x.send("\x04")
	if code := x.exits(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Where a line cannot be edited it is read as it is: the size of the terminal is not known, as in docker exec, or there
// is no room.
func TestChatReadsPlainlyWhereThereIsNoRoomToEdit(t *testing.T) {
	for _, columns := range []uint16{0, 1, 8, 10, 11} {
		x := startTerminalOf(t, columns, nil, "chat", "-q", "--no-history", "--thinking", "off")
		x.expect("> ")
		x.send("What is the capital of France?\r")
		x.expect("The capital of France is Paris.")
		x.expect("> ")
		x.send("\"\"\"\rWhat is the capital\rof Japan?\r\"\"\"\r")
		x.expect("(?s)\\. .*\\. .*The capital of Japan is Tokyo.")
		x.expect("> ")
		x.send("\x03")
		x.expect("Ctrl-C again")
		x.expect("> ")
		x.send("/set top-k\r") // something else comes between
		x.expect("top-k +0")
		x.expect("> ")
		x.send("\x03")
		x.expect("Ctrl-C again")
		x.expect("> ")
		x.send("\x03")
		if code := x.exits(); code != ui.ExitInterrupted {
			t.Errorf("%d columns: exit code %d", columns, code)
		}
	}
}

func TestChatGoesOnWhenTheTerminalChanges(t *testing.T) {
	x := startTerminal(t, nil, "chat", "-q", "--no-history")
	x.expect("> ")
	x.send("/set top-k 3\r")
	x.expect("\n.*> ")
	x.send("lost")
	x.expect("lost")
	x.resize(0) // while a line is edited
	x.expect("\n> ")
	x.send("/set top-k\r")
	x.expect("top-k +3\r\n> ")
	x.resize(80) // while one is read plainly
	x.send("/set top-k\r")
	x.expect("top-k +3\r\n" + regexp.QuoteMeta(pasteIsOn))
	x.send("\x1b[A\r") // what was edited before is still known
	x.expect("(?s)/set top-k 3.*> ")
	x.resize(5)
	x.send("\r") // an edited line ends here, the next is read plainly
	x.expect(regexp.QuoteMeta(pasteIsOff) + "> ")
	x.send("/bye\r")
	if code := x.exits(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestChatCtrlCAfterTypingTakesTheLineBack(t *testing.T) {
	x := startTerminal(t, nil, "chat", "-q", "--no-history")
	for _, typed := range []string{"", "a", "\"\"\"\r", "b"} {
		x.expect("> ")
		x.send(typed)
		if typed != "" {
			x.expect(regexp.QuoteMeta(typed[:1]))
		}
		x.send("\x03")
		x.expect("Ctrl-C again ends the conversation")
	}
	x.expect("> ")
	x.send("\x03")
	if code := x.exits(); code != ui.ExitInterrupted {
		t.Errorf("exit code %d", code)
	}
}

// Between an answer and the prompt a Ctrl-C reaches the program as a signal; it is still no more than a Ctrl-C.
func TestChatASignalAtThePromptIsACtrlC(t *testing.T) {
	x := startTerminal(t, nil, "chat", "-q", "--no-history")
	x.expect("> ")
	x.cmd.Process.Signal(os.Interrupt)
	x.expect("Ctrl-C again")
	x.expect("> ")
	x.cmd.Process.Signal(os.Interrupt)
	if code := x.exits(); code != ui.ExitInterrupted {
		t.Errorf("exit code %d", code)
	}
	x.expect(regexp.QuoteMeta(pasteIsOff))
}

func TestChatTwoCtrlCInOneAnswerEndIt(t *testing.T) {
	// One pass of seconds.
	x := startTerminal(t, nil, "chat", "--no-history", "--backend", "generic", "--threads", "1", "--prefill-chunk", "4000",
		"--system", strings.Repeat("What is this? ", 200))
	x.expect("> ")
	x.send("Hello!\r")
	x.expect("prompt 0/")
	x.send("\x03")
	x.expect("ends after this pass")
	x.send("\x03")
	x.expect("k3: interrupted")
	if code := x.exits(); code != ui.ExitInterrupted {
		t.Errorf("exit code %d", code)
	}
}

func TestChatWhatIsPastedAfterCommandsIsTheMessage(t *testing.T) {
	x := startTerminal(t, nil, "chat", "--no-history")
	x.expect("> ")
	x.send(pasteBegin + "/think off\r/set max-tokens 3\r\r\"\"\"\rWhat is the capital\rof France?\r\"\"\"\r" + pasteDone + "\r")
	x.expect("The capital of\r\n\r\n.*cut after 3 tokens")
	x.expect("> ")
	x.send(pasteBegin + "/load nowhere.k3s\rWhat?" + pasteDone + "\r") // nothing is said to a conversation that is not there
	x.expect("k3: .*nowhere.k3s.*\r\n.*> ")
	x.send("/stats\r")
	x.expect("1 answer\r\n")
}

// The second Ctrl-C ends an answer at once, and what there is of it is saved.
func TestAnAnswerThatIsEndedAtOnceIsSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "talk.k3s")
	x := talking(t, true)
	x.flags, x.out, x.err = chatFlags{save: path, quiet: true}, io.Discard, io.Discard
	signal := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
	}
	err := x.answer(t.Context(), func(ctx context.Context, show func(chat.Event) error) (conversation.Turn, error) {
		events, interrupt := 0, x.Generate.Interrupt
		x.Generate.Interrupt = nil
		return x.Ask(ctx, chat.Message{Role: "user", Content: chat.Text("What is the capital of France?")}, func(e chat.Event) error {
			if events++; events == 4 {
				signal()
				<-interrupt
				signal()
				<-ctx.Done()
			}
			return show(e)
		})
	})
	if !errors.Is(err, ui.ErrInterrupted) {
		t.Fatal(err)
	}
	if err := x.load(path); err != nil || len(x.Messages()) != 2 || x.Messages()[1].Reasoning == "" {
		t.Fatalf("%v, %+v", err, x.Messages())
	}
	says(t, x, "What is the capital of Japan?")
}
