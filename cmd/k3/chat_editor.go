package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/peterh/liner"
	"golang.org/x/term"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/disk"
)

// errAborted says that Ctrl-C was pressed at the prompt.
var errAborted = errors.New("aborted")

// The prompts of a message, and of its lines but the first.
const (
	prompt     = "> "
	promptMore = ". "
)

// minColumns is the narrowest terminal on which a line is edited.
const minColumns = 12

// The signs that stand for line breaks and tabs inside the line that is edited.
const (
	lineSign = "␤"
	tabSign  = "␉"
)

var (
	toSigns   = strings.NewReplacer("\n", lineSign, "\t", tabSign)
	fromSigns = strings.NewReplacer(lineSign, "\n", tabSign, "\t")
)

// editor reads what someone enters at the terminal.
type editor struct {
	entries
	out         *os.File
	lines       *liner.State // nil while lines are read plainly: without a cursor to move, or room for it
	plain       *plainLines  // then
	keys        *keys        // nil on terminals that cannot move the cursor
	past        []byte       // the history, while lines is nil
	history     string       // file, or ""
	interrupted chan os.Signal
	typed       bool // something was typed at the prompt where Ctrl-C was pressed
}

// openEditor makes the terminal ready; escapes says that it knows escape sequences, history is a file, or "" for none.
func openEditor(in, out *os.File, escapes bool, history string) *editor {
	e := &editor{out: out, interrupted: make(chan os.Signal, 1)}
	e.entries = entries{line: e.line, continued: true}
	// All the time, not only at the prompt: between an answer and the prompt, a Ctrl-C must not end the program either.
	signal.Notify(e.interrupted, os.Interrupt)
	if !escapes || !liner.TerminalSupported() {
		e.plain = newPlainLines(in)
		return e
	}
	e.keys, e.history = openKeys(in, out), history
	if history != "" {
		e.past, _ = os.ReadFile(history) // there may be none yet
	}
	return e
}

// close puts the terminal back as it was.
func (e *editor) close() {
	signal.Stop(e.interrupted)
	e.closeLines()
}

// edits makes the terminal ready to edit a line, or if it is too narrow for that, to read it plainly.
func (e *editor) edits() bool {
	columns, _, err := term.GetSize(int(e.out.Fd()))
	switch {
	case e.keys == nil || e.plain != nil && e.plain.waiting():
		return false
	case err != nil || columns < minColumns:
		e.closeLines()
		if e.plain == nil {
			e.plain = newPlainLines(e.keys.reader(true))
		}
		return false
	case e.lines == nil:
		e.plain = nil
		e.openLines()
	}
	return true
}

func (e *editor) openLines() {
	e.lines = e.keys.openLiner()
	e.lines.SetCtrlCAborts(true)
	e.lines.SetMultiLineMode(true)
	e.lines.SetBeep(false)
	e.lines.SetCompleter(completeCommand)
	for line := range strings.Lines(string(e.past)) {
		e.lines.AppendHistory(strings.ToValidUTF8(strings.TrimRight(line, "\r\n"), ""))
	}
}

func (e *editor) closeLines() {
	if e.lines == nil {
		return
	}
	var past bytes.Buffer
	e.lines.WriteHistory(&past) // a buffer takes all
	e.past = past.Bytes()
	e.lines.Close()
	e.lines = nil
}

// help lists the keys.
func (e *editor) help() [][2]string {
	keys := [][2]string{
		{fence, "begins and ends a message of several lines"},
		{`\ at the end`, "the message goes on in the next line"},
	}
	if e.lines == nil {
		return keys
	}
	return append(keys, [2]string{"Up, Ctrl-R", "what was typed before"})
}

// next reads the next entry: io.EOF is its end by Ctrl-D, errAborted by Ctrl-C.
func (e *editor) next() (entry, error) {
	known := e.held != ""
	read, err := e.entries.next()
	if err == nil && !known {
		e.remember(e.whole)
	}
	return read, err
}

// line reads a line.
func (e *editor) line(more bool) (string, error) {
	select {
	case <-e.interrupted: // it stopped the answer
	default:
	}
	prompt := prompt
	if more {
		prompt = promptMore
	}
	for e.edits() {
		text, err := e.edit(prompt)
		e.typed = more || e.keys.typed.Load()
		switch {
		case errors.Is(err, liner.ErrPromptAborted):
			return "", errAborted
		case errors.Is(err, liner.ErrInternal) && !e.edits():
			fmt.Fprintln(e.out) // the terminal has become too narrow
			continue
		}
		return fromSigns.Replace(text), err
	}
	e.typed = more
	fmt.Fprint(e.out, prompt)
	text, err := e.plain.next(e.interrupted)
	if errors.Is(err, errAborted) {
		fmt.Fprintln(e.out) // after ^C, which the terminal shows
	}
	return text, err
}

func (e *editor) edit(prompt string) (string, error) {
	defer e.watch()()
	e.keys.begin()
	defer e.keys.end()
	return e.lines.Prompt(prompt)
}

// watch restores the terminal when a signal ends the program at the prompt, and has a SIGINT do what Ctrl-C does. stop
// ends the watch.
func (e *editor) watch() (stop func()) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-e.interrupted:
				if e.keys.interrupt() {
					continue
				}
			case <-signals:
			case <-done:
				return
			}
			e.keys.end()
			e.lines.Close()
			os.Exit(ui.ExitInterrupted)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// remember puts what was entered into the history. The file is rewritten each time: a crash must not lose it.
func (e *editor) remember(text string) {
	if e.lines == nil || strings.TrimSpace(text) == "" {
		return
	}
	e.lines.AppendHistory(toSigns.Replace(text))
	if e.history == "" {
		return
	}
	// Whatever goes wrong here is not worth an interruption.
	if err := os.MkdirAll(filepath.Dir(e.history), 0o700); err != nil {
		return
	}
	f, err := disk.CreatePrivate(e.history)
	if err != nil {
		return
	}
	defer f.Abandon()
	if _, err := e.lines.WriteHistory(f); err == nil {
		_ = f.Commit()
	}
}

// plainLines reads lines without editing them. A read from a terminal cannot be called back: one that nobody waits for
// any more goes on, and what it reads is the next line.
type plainLines struct {
	from    *lineReader
	read    chan plainLine
	reading bool
}

type plainLine struct {
	text string
	err  error
}

func newPlainLines(in io.Reader) *plainLines {
	return &plainLines{from: newLineReader(in, maxText), read: make(chan plainLine, 1)}
}

// next returns the next line, or errAborted if interrupted comes first.
func (p *plainLines) next(interrupted <-chan os.Signal) (string, error) {
	if !p.reading {
		p.reading = true
		go func() {
			text, err := p.from.next()
			p.read <- plainLine{text, err}
		}()
	}
	select {
	case line := <-p.read:
		p.reading = false
		return line.text, line.err
	case <-interrupted:
		return "", errAborted
	}
}

// waiting reports whether a line is under way.
func (p *plainLines) waiting() bool { return p.reading || p.from.in.Buffered() > 0 }

// historyFile is where the history is, "" for nowhere.
func historyFile(f chatFlags) string {
	if f.noHistory || f.history != "" {
		return f.history
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "k3", "chat_history")
}
