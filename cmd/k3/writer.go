package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/tokenizer"
)

// writer writes generated tokens as they come: as text, as the answer in a chat, or as ids.
type writer struct {
	out         io.Writer
	line        *progress
	ids         bool
	written     int                // ids
	decoder     *tokenizer.Decoder // nil without a tokenizer
	parser      *chat.Parser       // nil unless in a chat
	reasoningTo io.Writer          // nil: nowhere
	stopper     *sample.Stopper
	text        []byte // all text so far; in a chat, the answer's
	reasoning   []byte
	thinking    bool // the last that was written is reasoning
	calls       bool // a call was written
	middle      bool // what was written does not end a line
}

func newWriter(out io.Writer, line *progress, tok *tokenizer.Tokenizer, stops []string, ids bool) (*writer, error) {
	w := &writer{out: out, line: line, ids: ids || tok == nil}
	var err error
	if tok != nil {
		w.decoder = tok.NewDecoder()
		w.stopper, err = sample.NewStopper(stops)
	}
	return w, err
}

// token takes the next id; core.ErrStop says that a stop text is complete.
func (w *writer) token(id int) error {
	w.line.clear()
	if w.ids {
		if err := w.writeID(id); err != nil {
			return err
		}
	}
	switch {
	case w.decoder == nil:
		return nil
	case w.parser != nil:
		return w.events(w.parser.Push(id))
	}
	return w.feed(w.decoder.Push(id))
}

func (w *writer) writeID(id int) error {
	separator := ","
	if w.written == 0 {
		separator = ""
	}
	w.written++
	_, err := fmt.Fprintf(w.out, "%s%d", separator, id)
	return err
}

// events takes what the parser found in the reply.
func (w *writer) events(events []chat.Event) error {
	for _, e := range events {
		var err error
		switch e.Kind {
		case chat.ReasoningDelta:
			w.reasoning = append(w.reasoning, e.Text...)
			if w.reasoningTo != nil {
				w.thinking = true
				_, err = io.WriteString(w.reasoningTo, e.Text)
			}
		case chat.ContentDelta:
			err = w.feed(e.Text)
		default:
			err = w.call(callText(e))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// call writes text that shows a call, on lines of its own. It is no part of the text.
func (w *writer) call(text string) error {
	if text == "" {
		return nil
	}
	if err := w.show(w.stopper.Flush()); err != nil {
		return err
	}
	if err := w.endReasoning(); err != nil || w.ids {
		return err
	}
	if w.middle && !w.calls {
		text = "\n" + text
	}
	w.calls, w.middle = true, !endsLine(text)
	_, err := io.WriteString(w.out, text)
	return err
}

// feed takes text in which stop texts end the text.
func (w *writer) feed(text string) error {
	text, stopped := w.stopper.Feed(text)
	if err := w.show(text); err != nil {
		return err
	}
	if stopped {
		return core.ErrStop
	}
	return nil
}

func (w *writer) show(text string) error {
	w.text = append(w.text, text...)
	if text == "" {
		return nil
	}
	if err := w.endReasoning(); err != nil || w.ids {
		return err
	}
	w.middle = !endsLine(text)
	_, err := io.WriteString(w.out, text)
	return err
}

// endReasoning begins a new line after reasoning.
func (w *writer) endReasoning() error {
	if !w.thinking {
		return nil
	}
	w.thinking = false
	_, err := fmt.Fprintln(w.reasoningTo)
	return err
}

// end writes what was held back, and the ids that were not shown because they end the text.
func (w *writer) end(ids []int) error {
	if w.decoder != nil {
		var err error
		if w.parser != nil {
			err = w.events(w.parser.Finish())
		} else {
			err = w.feed(w.decoder.Flush())
		}
		if err == nil {
			err = w.show(w.stopper.Flush())
		}
		if err == nil || errors.Is(err, core.ErrStop) {
			err = w.endReasoning()
		}
		if err != nil {
			return err
		}
	}
	newline := w.line.shared && w.middle // so that the report begins on a line of its own
	if w.ids {
		for _, id := range ids[min(w.written, len(ids)):] {
			if err := w.writeID(id); err != nil {
				return err
			}
		}
		newline = w.written > 0
	}
	if newline {
		_, err := fmt.Fprintln(w.out)
		return err
	}
	return nil
}
