package main

import (
	"os"
	"path/filepath"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
)

// editor reads what someone enters at the terminal.
type editor struct {
	entries
	lines *ui.Editor
}

// openEditor makes the terminal ready; escapes says that it knows escape sequences, history is a file, or "" for none.
func openEditor(in, out *os.File, escapes bool, history string) *editor {
	lines := ui.NewEditor(in, out, ui.EditorOptions{Escapes: escapes, History: history, Most: maxText, Complete: completeCommand})
	return &editor{entries{line: lines.Line, continued: true}, lines}
}

// help lists the keys.
func (e *editor) help() [][2]string {
	keys := [][2]string{
		{fence, "begins and ends a message of several lines"},
		{`\ at the end`, "the message goes on in the next line"},
	}
	if !e.lines.Edited() {
		return keys
	}
	return append(keys, [2]string{"Up, Ctrl-R", "what was typed before"})
}

// next reads the next entry: io.EOF is its end by Ctrl-D, ui.ErrAborted by Ctrl-C.
func (e *editor) next() (entry, error) {
	known := e.held != ""
	read, err := e.entries.next()
	if err == nil && !known {
		e.lines.Remember(e.whole)
	}
	return read, err
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
