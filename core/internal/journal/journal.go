// Package journal keeps lines in a file that its writer may leave at any moment, killed or not. Whoever comes next reads the lines
// up to the first that was cut off or makes no sense, and goes on after it.
package journal

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
)

// Read calls take for each whole line of r, without its end, until take refuses one. It returns where the lines end that were taken.
// The line is valid during the call.
func Read(r io.Reader, take func(line []byte) bool) (end int64, err error) {
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return end, nil // a line that was cut off has no end
		}
		if err != nil || !take(bytes.TrimSuffix(line, []byte("\n"))) {
			return end, err
		}
		end += int64(len(line))
	}
}

// Writer adds lines to a journal.
type Writer struct{ file *os.File }

// Append opens or creates the journal at path, of which the first end bytes stay.
func Append(path string, end int64) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	w := &Writer{f}
	if err := w.Cut(end); err != nil {
		f.Close()
		return nil, err
	}
	return w, nil
}

// Cut leaves the first end bytes and goes on after them.
func (w *Writer) Cut(end int64) error {
	if err := w.file.Truncate(end); err != nil {
		return err
	}
	_, err := w.file.Seek(end, io.SeekStart)
	return err
}

// Add writes a line, which comes without its end.
func (w *Writer) Add(line []byte) error {
	_, err := w.file.Write(append(bytes.Clone(line), '\n'))
	return err
}

// Sync makes the lines durable.
func (w *Writer) Sync() error { return w.file.Sync() }

// Name is the path of the file.
func (w *Writer) Name() string { return w.file.Name() }

// Close closes the file, which stays.
func (w *Writer) Close() error { return w.file.Close() }
