package ui

import (
	"errors"
	"fmt"
	"io"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/tokenizer"
)

// Writer writes generated tokens as they come: as text, as the answer in a chat, or as ids.
type Writer struct {
	out         io.Writer
	line        *Progress
	Ids         bool
	written     int                // ids
	decoder     *tokenizer.Decoder // nil without a tokenizer
	Parser      *chat.Parser       // nil unless in a chat
	ReasoningTo io.Writer          // nil: nowhere
	stopper     *sample.Stopper
	Text        []byte // all text so far; in a chat, the answer's
	Reasoning   []byte
	thinking    bool // the last that was written is reasoning
	calls       bool // a call was written
	middle      bool // what was written does not end a line
}

func NewWriter(out io.Writer, line *Progress, tok *tokenizer.Tokenizer, stops []string, ids bool) (*Writer, error) {
	w := &Writer{out: out, line: line, Ids: ids || tok == nil}
	var err error
	if tok != nil {
		w.decoder = tok.NewDecoder()
		w.stopper, err = sample.NewStopper(stops)
	}
	return w, err
}

// Token takes the next id; core.ErrStop says that a stop text is complete.
func (w *Writer) Token(id int) error {
	w.line.Clear()
	if w.Ids {
		if err := w.writeID(id); err != nil {
			return err
		}
	}
	switch {
	case w.decoder == nil:
		return nil
	case w.Parser != nil:
		return w.events(w.Parser.Push(id))
	}
	return w.feed(w.decoder.Push(id))
}

func (w *Writer) writeID(id int) error {
	separator := ","
	if w.written == 0 {
		separator = ""
	}
	w.written++
	_, err := fmt.Fprintf(w.out, "%s%d", separator, id)
	return err
}

// events takes what the parser found in the reply.
func (w *Writer) events(events []chat.Event) error {
	for _, e := range events {
		var err error
		switch e.Kind {
		case chat.ReasoningDelta:
			w.Reasoning = append(w.Reasoning, e.Text...)
			if w.ReasoningTo != nil {
				w.thinking = true
				_, err = io.WriteString(w.ReasoningTo, e.Text)
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
func (w *Writer) call(text string) error {
	if text == "" {
		return nil
	}
	if err := w.show(w.stopper.Flush()); err != nil {
		return err
	}
	if err := w.endReasoning(); err != nil || w.Ids {
		return err
	}
	if w.middle && !w.calls {
		text = "\n" + text
	}
	w.calls, w.middle = true, !EndsLine(text)
	_, err := io.WriteString(w.out, text)
	return err
}

// feed takes text in which stop texts end the text.
func (w *Writer) feed(text string) error {
	text, stopped := w.stopper.Feed(text)
	if err := w.show(text); err != nil {
		return err
	}
	if stopped {
		return core.ErrStop
	}
	return nil
}

func (w *Writer) show(text string) error {
	w.Text = append(w.Text, text...)
	if text == "" {
		return nil
	}
	if err := w.endReasoning(); err != nil || w.Ids {
		return err
	}
	w.middle = !EndsLine(text)
	_, err := io.WriteString(w.out, text)
	return err
}

// endReasoning begins a new line after reasoning.
func (w *Writer) endReasoning() error {
	if !w.thinking {
		return nil
	}
	w.thinking = false
	_, err := fmt.Fprintln(w.ReasoningTo)
	return err
}

// End writes what was held back, and the ids that were not shown because they end the text.
func (w *Writer) End(ids []int) error {
	if w.decoder != nil {
		var err error
		if w.Parser != nil {
			err = w.events(w.Parser.Finish())
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
	newline := w.line.Shared && w.middle // so that the report begins on a line of its own
	if w.Ids {
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

// Resume brings the writer to where it was when ids were generated, without writing anything; open says that what might be
// the beginning of a stop text or a character was not written yet.
func (w *Writer) Resume(ids []int, open bool) {
	if w.decoder == nil {
		return
	}
	silent := *w
	silent.out, silent.ReasoningTo, silent.Ids, silent.line = io.Discard, nil, false, &Progress{}
	for _, id := range ids {
		_ = silent.Token(id) // a stop text has ended it before
	}
	if !open {
		silent.decoder.Flush()
		silent.stopper.Flush()
	}
}
