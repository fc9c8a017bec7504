// Package counted has a writer that counts.
package counted

import "io"

// Writer writes to W and counts the bytes.
type Writer struct {
	W io.Writer
	N int64
}

// Write writes p to W.
func (w *Writer) Write(p []byte) (int, error) {
	n, err := w.W.Write(p)
	w.N += int64(n)
	return n, err
}
