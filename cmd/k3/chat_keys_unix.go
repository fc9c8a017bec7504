//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
)

// keys stands between the terminal and the line editor, which knows nothing of text that is pasted: line breaks in it, and
// those typed as Ctrl-J or Alt-Enter, become signs inside the line.
type keys struct {
	in      *os.File
	out     io.Writer
	to      *os.File // what the editor reads
	from    *os.File
	pasting bool
	held    []byte // the beginning of a sequence
}

const (
	pasteOn    = "\x1b[?2004h"
	pasteOff   = "\x1b[?2004l"
	pasteStart = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

// openKeys begins to read the terminal. The editor to be opened next, until opened is called, reads os.Stdin.
func openKeys(in *os.File, out io.Writer) *keys {
	k := &keys{in: in, out: out}
	from, to, err := os.Pipe()
	if err != nil {
		return k // without what keys is for
	}
	k.from, k.to = from, to
	os.Stdin = from
	// A read from a terminal cannot be called back, so this ends with the program.
	go k.pump()
	return k
}

// opened says that the editor has its input.
func (k *keys) opened() { os.Stdin = k.in }

// begin is called before a line is edited, end after it.
func (k *keys) begin() { io.WriteString(k.out, pasteOn) }
func (k *keys) end()   { io.WriteString(k.out, pasteOff) }

func (k *keys) pump() {
	defer k.to.Close()
	buffer := make([]byte, 4096)
	for {
		n, err := k.in.Read(buffer)
		if _, e := k.to.Write(k.translate(buffer[:n])); err != nil || e != nil {
			return
		}
	}
}

// translate returns what the editor is given for bytes from the terminal.
func (k *keys) translate(in []byte) []byte {
	in = append(k.held, in...)
	k.held = nil
	var out []byte
	for len(in) > 0 {
		end := pasteStart
		if k.pasting {
			end = pasteEnd
		}
		switch {
		case bytes.HasPrefix(in, []byte(end)):
			k.pasting = !k.pasting
			in = in[len(end):]
			continue
		case bytes.HasPrefix([]byte(end), in) && (k.pasting || len(in) > 1): // a lone escape is a key
			k.held = bytes.Clone(in)
			return out
		case k.pasting && bytes.HasPrefix(in, []byte("\r\n")):
			in = in[1:]
			continue
		case in[0] == '\n' || k.pasting && in[0] == '\r':
			out = append(out, lineSign...)
		case bytes.HasPrefix(in, []byte("\x1b\r")):
			out = append(out, lineSign...)
			in = in[2:]
			continue
		case k.pasting && in[0] == '\t':
			out = append(out, tabSign...)
		case k.pasting && (in[0] < ' ' || in[0] == 0x7f):
		default:
			out = append(out, in[0])
		}
		in = in[1:]
	}
	return out
}
