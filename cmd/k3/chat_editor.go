package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/peterh/liner"
)

// errAborted says that Ctrl-C was pressed at the prompt.
var errAborted = errors.New("aborted")

// The prompts of a message, and of its lines but the first.
const (
	prompt     = "> "
	promptMore = ". "
)

// fence opens and closes a message of several lines.
const fence = `"""`

// The signs that stand for line breaks and tabs inside the line that is edited.
const (
	lineSign = "␤"
	tabSign  = "␉"
)

var (
	toSigns   = strings.NewReplacer("\n", lineSign, "\t", tabSign)
	fromSigns = strings.NewReplacer(lineSign, "\n", tabSign, "\t")
)

// editor reads messages from the terminal.
type editor struct {
	lines   *liner.State // nil on terminals that cannot move the cursor
	plain   *lineReader  // then
	out     io.Writer
	keys    *keys
	history string // file, or ""
}

// openEditor makes the terminal ready; escapes says that it knows escape sequences, history is a file, or "" for none.
func openEditor(in, out *os.File, escapes bool, history string) *editor {
	e := &editor{out: out, history: history}
	if !escapes || !liner.TerminalSupported() {
		e.plain, e.history = newLineReader(in), ""
		return e
	}
	e.keys = openKeys(in, out)
	e.lines = liner.NewLiner()
	e.keys.opened()
	e.lines.SetCtrlCAborts(true)
	e.lines.SetMultiLineMode(true)
	e.lines.SetBeep(false)
	e.lines.SetCompleter(func(line string) (names []string) {
		for _, c := range slashCommands {
			if strings.HasPrefix(c.name, line) && line != "" {
				names = append(names, c.name)
			}
		}
		return names
	})
	if e.history != "" {
		if f, err := os.Open(e.history); err == nil { // there may be none yet
			defer f.Close()
			for scanner := bufio.NewScanner(f); scanner.Scan(); {
				e.lines.AppendHistory(strings.ToValidUTF8(scanner.Text(), ""))
			}
		}
	}
	return e
}

// close puts the terminal back as it was.
func (e *editor) close() {
	if e.lines != nil {
		e.lines.Close()
	}
}

// help lists the keys.
func (e *editor) help() [][2]string {
	keys := [][2]string{{`"""`, "begins and ends a message of several lines"}}
	if e.lines == nil {
		return keys
	}
	return append(keys, [2]string{`\ at the end`, "the message goes on in the next line"}, [2]string{"Up, Ctrl-R", "what was typed before"})
}

// message reads a message, which may have several lines: io.EOF is its end by Ctrl-D, errAborted by Ctrl-C.
func (e *editor) message() (string, error) {
	text, err := e.line(prompt)
	if err != nil {
		return "", err
	}
	fenced := strings.HasPrefix(strings.TrimSpace(text), fence)
	for {
		if fenced {
			body := strings.TrimSpace(text)[len(fence):]
			if end, ok := strings.CutSuffix(strings.TrimRight(body, " \t\n"), fence); ok {
				e.remember(strings.Trim(end, "\n"))
				return strings.Trim(end, "\n"), nil
			}
		} else if _, more := strings.CutSuffix(text, `\`); !more {
			text = strings.TrimRight(text, "\n")
			e.remember(text)
			return text, nil
		}
		next, err := e.line(promptMore)
		if err != nil {
			return "", err
		}
		if !fenced {
			text = strings.TrimSuffix(text, `\`)
		}
		text += "\n" + next
	}
}

// line reads a line.
func (e *editor) line(prompt string) (string, error) {
	if e.lines == nil {
		fmt.Fprint(e.out, prompt)
		return e.plain.next()
	}
	stop := e.watch()
	defer stop()
	e.keys.begin()
	defer e.keys.end()
	text, err := e.lines.Prompt(prompt)
	if errors.Is(err, liner.ErrPromptAborted) {
		return "", errAborted
	}
	return fromSigns.Replace(text), err
}

// watch restores the terminal when a signal ends the program at the prompt. stop ends the watch.
func (e *editor) watch() (stop func()) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case <-signals:
			e.keys.end()
			e.close()
			os.Exit(exitInterrupted)
		case <-done:
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// remember puts a message into the history. The file is rewritten each time: a crash must not lose it.
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
	f, err := os.CreateTemp(filepath.Dir(e.history), ".history.*") // for the user's eyes only
	if err != nil {
		return
	}
	_, err = e.lines.WriteHistory(f)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), e.history)
	}
	if err != nil {
		os.Remove(f.Name())
	}
}

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
