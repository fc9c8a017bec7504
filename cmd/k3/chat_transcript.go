package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/disk"
)

// isTranscript reports whether a conversation is kept under that name as a transcript: text without the model's state.
func isTranscript(path string) bool { return strings.HasSuffix(path, ".jsonl") }

// transcript is where the messages of a conversation are written after each turn: a file, which has all of them, or a stream, which
// gets those that it has not; nil is none.
type transcript struct {
	path    string // of a file
	stream  output // or nil: a file
	written []string
}

// openTranscript makes sure that path can be written to; "" is no transcript, - is stdout.
func openTranscript(path string, stdout io.Writer) (*transcript, error) {
	if path == "" {
		return nil, nil
	}
	if isStdout(path) || disk.IsStream(path) {
		stream, err := createOutput(path, stdout)
		return &transcript{stream: stream}, err
	}
	return &transcript{path: path}, disk.CanCreate(path)
}

// write brings it up to date. A stream gets what differs from what it has, from the first such message on.
func (t *transcript) write(messages []chat.Message) error {
	if t == nil {
		return nil
	}
	if t.stream == nil {
		return writeTranscript(t.path, messages)
	}
	lines, err := transcriptLines(messages)
	if err != nil {
		return err
	}
	same := 0
	for same < min(len(lines), len(t.written)) && lines[same] == t.written[same] {
		same++
	}
	t.written = lines
	if _, err := io.WriteString(t.stream, strings.Join(lines[same:], "")); err != nil {
		return fmt.Errorf("write %s: %w", t.stream.Path(), err)
	}
	return nil
}

// close ends a stream.
func (t *transcript) close() {
	if t != nil && t.stream != nil {
		t.stream.Abandon()
	}
}

// transcriptLines are the messages, one a line.
func transcriptLines(messages []chat.Message) ([]string, error) {
	lines := make([]string, len(messages))
	for i, m := range messages {
		line, err := m.MarshalJSON()
		if err != nil {
			return nil, err
		}
		lines[i] = string(line) + "\n"
	}
	return lines, nil
}

// writeTranscript writes the messages to a file, all or none.
func writeTranscript(path string, messages []chat.Message) error {
	lines, err := transcriptLines(messages)
	if err != nil {
		return err
	}
	f, err := disk.CreatePrivate(path)
	if err != nil {
		return err
	}
	defer f.Abandon()
	if _, err := io.WriteString(f, strings.Join(lines, "")); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Commit()
}

// readTranscript reads the messages of a file, none of which has more than most bytes.
func readTranscript(path string, most int64) ([]chat.Message, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, ui.Inputf("%w", err)
	}
	defer f.Close()
	var messages []chat.Message
	lines := ui.NewLineReader(f, most)
	for number := 1; ; number++ {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return messages, nil
		}
		var m chat.Message
		if err == nil {
			if strings.TrimSpace(line) == "" {
				continue
			}
			err = m.UnmarshalJSON([]byte(line))
		}
		if err == nil && m.Role == "system" && len(messages) > 0 {
			err = errors.New("a system message that is not the first")
		}
		if err != nil {
			return nil, ui.Inputf("%s:%d: %w", path, number, err)
		}
		messages = append(messages, m)
	}
}
