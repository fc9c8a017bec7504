package ui

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

	"github.com/k3infer/k3/core/disk"
)

// ErrAborted says that Ctrl-C was pressed at the prompt.
var ErrAborted = errors.New("aborted")

// The prompts of a message, and of its lines but the first.
const (
	Prompt     = "> "
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

// Editor reads lines that someone enters at the terminal.
type Editor struct {
	out         *os.File
	most        int64                      // bytes of a line
	complete    func(line string) []string // what a line may become
	lines       *liner.State               // nil while lines are read plainly: without a cursor to move, or room for it
	plain       *plainLines                // then
	keys        *keys                      // nil on terminals that cannot move the cursor
	past        []byte                     // the history, while lines is nil
	history     string                     // file, or ""
	interrupted chan os.Signal
	typed       bool // something was typed at the prompt where Ctrl-C was pressed
}

// EditorOptions say how lines are edited.
type EditorOptions struct {
	Escapes  bool                       // the terminal knows escape sequences
	History  string                     // the file that keeps what was entered, or ""
	Most     int64                      // bytes of a line
	Complete func(line string) []string // what a line may become when Tab is pressed
}

// NewEditor makes the terminal ready.
func NewEditor(in, out *os.File, o EditorOptions) *Editor {
	e := &Editor{out: out, most: o.Most, complete: o.Complete, interrupted: make(chan os.Signal, 1)}
	// All the time, not only at the prompt: between an answer and the prompt, a Ctrl-C must not end the program either.
	signal.Notify(e.interrupted, os.Interrupt)
	if !o.Escapes || !liner.TerminalSupported() {
		e.plain = newPlainLines(in, e.most)
		return e
	}
	e.keys, e.history = openKeys(in, out), o.History
	if o.History != "" {
		e.past, _ = os.ReadFile(o.History) // there may be none yet
	}
	return e
}

// Close puts the terminal back as it was.
func (e *Editor) Close() {
	signal.Stop(e.interrupted)
	e.closeLines()
}

// Edited reports whether lines are edited now, so that there is a history to go back to.
func (e *Editor) Edited() bool { return e.lines != nil }

// Typed reports whether something was typed at the prompt where Ctrl-C was pressed.
func (e *Editor) Typed() bool { return e.typed }

// edits makes the terminal ready to edit a line, or if it is too narrow for that, to read it plainly.
func (e *Editor) edits() bool {
	columns, _, err := term.GetSize(int(e.out.Fd()))
	switch {
	case e.keys == nil || e.plain != nil && e.plain.waiting():
		return false
	case err != nil || columns < minColumns:
		e.closeLines()
		if e.plain == nil {
			e.plain = newPlainLines(e.keys.reader(true), e.most)
		}
		return false
	case e.lines == nil:
		e.plain = nil
		e.openLines()
	}
	return true
}

func (e *Editor) openLines() {
	e.lines = e.keys.openLiner()
	e.lines.SetCtrlCAborts(true)
	e.lines.SetMultiLineMode(true)
	e.lines.SetBeep(false)
	e.lines.SetCompleter(e.complete)
	for line := range strings.Lines(string(e.past)) {
		e.lines.AppendHistory(strings.ToValidUTF8(strings.TrimRight(line, "\r\n"), ""))
	}
}

func (e *Editor) closeLines() {
	if e.lines == nil {
		return
	}
	var past bytes.Buffer
	e.lines.WriteHistory(&past) // a buffer takes all
	e.past = past.Bytes()
	e.lines.Close()
	e.lines = nil
}

// Line reads a line; more says that it goes on with what was read before. io.EOF is its end by Ctrl-D, ErrAborted by Ctrl-C.
func (e *Editor) Line(more bool) (string, error) {
	select {
	case <-e.interrupted: // it stopped the answer
	default:
	}
	prompt := Prompt
	if more {
		prompt = promptMore
	}
	for e.edits() {
		text, err := e.edit(prompt)
		e.typed = more || e.keys.typed.Load()
		switch {
		case errors.Is(err, liner.ErrPromptAborted):
			return "", ErrAborted
		case errors.Is(err, liner.ErrInternal) && !e.edits():
			fmt.Fprintln(e.out) // the terminal has become too narrow
			continue
		}
		return fromSigns.Replace(text), err
	}
	e.typed = more
	fmt.Fprint(e.out, prompt)
	text, err := e.plain.next(e.interrupted)
	if errors.Is(err, ErrAborted) {
		fmt.Fprintln(e.out) // after ^C, which the terminal shows
	}
	return text, err
}

func (e *Editor) edit(prompt string) (string, error) {
	defer e.watch()()
	e.keys.begin()
	defer e.keys.end()
	return e.lines.Prompt(prompt)
}

// watch restores the terminal when a signal ends the program at the prompt, and has a SIGINT do what Ctrl-C does. stop
// ends the watch.
func (e *Editor) watch() (stop func()) {
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
			os.Exit(ExitInterrupted)
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// Remember puts what was entered into the history. The file is rewritten each time: a crash must not lose it.
func (e *Editor) Remember(text string) {
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

func newPlainLines(in io.Reader, most int64) *plainLines {
	return &plainLines{from: NewLineReader(in, most), read: make(chan plainLine, 1)}
}

// next returns the next line, or ErrAborted if interrupted comes first.
func (p *plainLines) next(interrupted <-chan os.Signal) (string, error) {
	if !p.reading {
		p.reading = true
		go func() {
			text, err := p.from.Next()
			p.read <- plainLine{text, err}
		}()
	}
	select {
	case line := <-p.read:
		p.reading = false
		return line.text, line.err
	case <-interrupted:
		return "", ErrAborted
	}
}

// waiting reports whether a line is under way.
func (p *plainLines) waiting() bool { return p.reading || p.from.in.Buffered() > 0 }
