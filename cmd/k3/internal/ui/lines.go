package ui

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// lineReader reads lines of up to so many bytes.
type lineReader struct {
	in   *bufio.Reader
	most int64
}

func NewLineReader(r io.Reader, most int64) *lineReader { return &lineReader{bufio.NewReader(r), most} }

// ErrLongLine says that a line has more bytes than are read.
var ErrLongLine = errors.New("the line is too long")

// Next returns the next line without its end, which may be missing at the end of the file; io.EOF says that there is none.
func (l *lineReader) Next() (string, error) {
	var line []byte
	for {
		part, err := l.in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case int64(len(line)) > l.most:
			return "", fmt.Errorf("%w: more than %d bytes", ErrLongLine, l.most)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) > 0, err == nil:
			return strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r"), nil
		}
		return "", err
	}
}
