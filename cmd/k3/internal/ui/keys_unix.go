//go:build unix

package ui

import (
	"bytes"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/peterh/liner"
)

// keys stands between the terminal and what reads it, the line editor above all, which knows nothing of text that is
// pasted: line breaks in it, and those typed as Ctrl-J or Alt-Enter, become signs inside the line.
type keys struct {
	in      *os.File
	out     io.Writer
	pasting bool
	held    []byte // the beginning of a sequence

	mu    sync.Mutex
	to    *os.File    // what is read instead of the terminal
	plain bool        // what comes is passed on as it is
	typed atomic.Bool // something other than Ctrl-C came since begin
}

const (
	pasteOn    = "\x1b[?2004h"
	pasteOff   = "\x1b[?2004l"
	pasteStart = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

func openKeys(in *os.File, out io.Writer) *keys { return &keys{in: in, out: out} }

// reader returns what is to be read instead of the terminal from now on; whoever still reads what it returned before is
// at the end of that. With plain, nothing is made of what comes.
func (k *keys) reader(plain bool) *os.File {
	from, to, err := os.Pipe()
	if err != nil {
		return k.in // without what keys is for
	}
	k.mu.Lock()
	before := k.to
	k.to, k.plain = to, plain
	k.mu.Unlock()
	if before != nil {
		before.Close()
	} else {
		// A read from a terminal cannot be called back, so this ends with the program.
		go k.pump()
	}
	return from
}

// openLiner opens a line editor that reads the keys.
func (k *keys) openLiner() *liner.State {
	os.Stdin = k.reader(false) // where it looks once
	defer func() { os.Stdin = k.in }()
	return liner.NewLiner()
}

// begin is called before a line is edited, end after it.
func (k *keys) begin() { k.typed.Store(false); io.WriteString(k.out, pasteOn) }
func (k *keys) end()   { io.WriteString(k.out, pasteOff) }

// interrupt has the line editor see a Ctrl-C; false says that it cannot.
func (k *keys) interrupt() bool {
	to, _ := k.reads()
	_, err := to.Write([]byte{ctrlC})
	return err == nil
}

const ctrlC = 0x03

// reads returns what is read instead of the terminal, and whether plainly.
func (k *keys) reads() (to *os.File, plain bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.to, k.plain
}

func (k *keys) pump() {
	buffer := make([]byte, 4096)
	for {
		n, err := k.in.Read(buffer)
		to, plain := k.reads()
		data := buffer[:n]
		if !plain {
			data = k.translate(data)
		}
		if len(bytes.Trim(data, string(rune(ctrlC)))) > 0 {
			k.typed.Store(true)
		}
		to.Write(data) // fails if there is another reader by now
		if err != nil {
			to.Close()
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
