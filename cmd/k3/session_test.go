package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets/demo"
)

func demoTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(demo.Files())
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// replyIDs are the ids of a question, and of a whole reply with thoughts.
func replyIDs(t *testing.T, tok *tokenizer.Tokenizer) (prompt, reply []int) {
	t.Helper()
	encode := func(r chat.Request) []int {
		segments, err := chat.Render(r)
		if err != nil {
			t.Fatal(err)
		}
		ids, err := chat.Encode(tok, segments)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	r := chat.User("é?", true)
	prompt = encode(r)
	r.AddGenerationPrompt = false
	r.Messages = append(r.Messages, chat.Message{Role: "assistant", Reasoning: "Hm, é.", Content: chat.Text("Là 🙂 oui, où?")})
	return prompt, encode(r)[len(prompt):]
}

// Wherever a run is cut, what was written before a checkpoint and what is written after it are the text: neither characters nor
// stop texts nor markup that were cut show.
func TestACutTextIsWrittenOnAsIfItWereWhole(t *testing.T) {
	tok := demoTokenizer(t)
	prompt, reply := replyIDs(t, tok)
	text, err := tok.Encode("Là 🙂 oui, où?")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		ids   []int
		chat  bool
		stops []string
		want  string
	}{
		{"text", text, false, nil, "Là 🙂 oui, où?"},
		{"text with a stop", text, false, []string{"oui!", "i, o"}, "Là 🙂 ou"},
		{"reply", reply, true, nil, "Là 🙂 oui, où?"},
		{"reply with a stop", reply, true, []string{"i, o"}, "Là 🙂 ou"},
	} {
		writing := func(out io.Writer) *ui.Writer {
			w, err := ui.NewWriter(out, &ui.Progress{}, tok, c.stops, false)
			if err != nil {
				t.Fatal(err)
			}
			if c.chat {
				w.Parser = chat.NewParser(tok, true)
			}
			return w
		}
		all := slices.Concat(prompt, c.ids)
		for cut := range c.ids {
			var out bytes.Buffer
			first := writing(&out)
			stopped := false
			for _, id := range c.ids[:cut] {
				stopped = stopped || errors.Is(first.Token(id), core.ErrStop)
			}
			if stopped {
				continue // it was over
			}
			second := writing(&out)
			second.Resume(all[len(prompt):len(prompt)+cut], true)
			for _, id := range c.ids[cut:] {
				if errors.Is(second.Token(id), core.ErrStop) {
					break
				}
			}
			if err := second.End(nil); err != nil || out.String() != c.want {
				t.Errorf("%s cut after %d of %d: %q, %v", c.name, cut, len(c.ids), out.String(), err)
			}
		}
	}
	// What a run wrote at its end is not written again.
	var out bytes.Buffer
	w, err := ui.NewWriter(&out, &ui.Progress{}, tok, []string{"où? Non"}, false)
	if err != nil {
		t.Fatal(err)
	}
	w.Resume(text, false)
	if err := w.End(nil); err != nil || out.Len() > 0 {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestACutReplyIsClosedBeforeTheNextMessage(t *testing.T) {
	tok := demoTokenizer(t)
	prompt, reply := replyIDs(t, tok)
	all := slices.Concat(prompt, reply)
	run := savedRun{Start: len(prompt), Chat: true}
	for cut := len(prompt); cut <= len(all); cut++ {
		end, err := run.endReply(tok, all[:cut])
		if err != nil {
			t.Fatal(err)
		}
		if cut == len(all) {
			if len(end) > 0 {
				t.Errorf("a whole reply is closed by %v", end)
			}
			break
		}
		p := chat.NewParser(tok, true)
		done := false
		for _, id := range slices.Concat(all[len(prompt):cut], end) {
			for _, e := range p.Push(id) {
				done = done || e.Kind == chat.Done
			}
		}
		// Inside of a character there is no markup that would close it.
		if !done && len(end) > 0 || !done && len(end) == 0 && cut < len(all) && validUTF8(t, tok, all[:cut]) {
			t.Errorf("cut after %d of %d: closed by %v", cut-len(prompt), len(reply), end)
		}
	}
	for _, r := range []savedRun{{Start: len(prompt)}, {Start: 2, Chat: true}, {Start: 20, Chat: true}} {
		if end, err := r.endReply(tok, all[:len(prompt)+4]); err != nil || end != nil {
			t.Errorf("%+v: closed by %v, %v", r, end, err)
		}
	}
}

func validUTF8(t *testing.T, tok *tokenizer.Tokenizer, ids []int) bool {
	t.Helper()
	d := tok.NewDecoder()
	for _, id := range ids {
		d.Push(id)
	}
	return d.Flush() == ""
}

func TestARunThatFailsSavesWhatIsWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text.k3s")
	e, err := core.Open(t.Context(), core.Options{Files: demo.Files()})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	broken := errors.New("broken pipe")
	for _, c := range []struct {
		name  string
		emit  func(int) error
		saved bool
	}{
		{"output", func(int) error { return broken }, true},
		{"pass", func(int) error { cancel(); return nil }, false},
	} {
		os.Remove(path)
		s, err := e.NewSequence()
		if err != nil {
			t.Fatal(err)
		}
		out, failed := e.Generate(ctx, s, []int{1, 2, 3}, core.GenerateOptions{MaxTokens: 5}, c.emit)
		if failed == nil {
			t.Fatal("it does not fail")
		}
		o := outputs{session: path}
		if err := o.commit(&report{IDs: out.IDs}, s, nil, failed); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if n, _, err := readSession(path); (err == nil) != c.saved || c.saved && n != 4 {
			t.Errorf("%s failed: %d tokens saved, %v", c.name, n, err)
		}
	}
}

// A crash costs no more than the interval that was asked for, in a prompt as in the text, and the disk is not worn more
// often either.
func TestACheckpointIsWrittenAtEveryInterval(t *testing.T) {
	engine, err := core.Open(t.Context(), core.Options{Files: demo.Files(), PrefillChunk: 1, Context: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	s, err := engine.NewSequence()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	path := filepath.Join(t.TempDir(), "half")
	c := &checkpoints{path: path, every: 3, sequence: s, notice: func(text string) { t.Error(text) }}
	written := func() bool { return os.Remove(path) == nil }
	var at []int
	o := core.GenerateOptions{MaxTokens: 7, OnPrefill: func() error {
		err := c.prefill()
		if written() {
			at = append(at, s.Computed())
		}
		return err
	}}
	tokens := 0
	_, err = engine.Generate(t.Context(), s, []int{1, 2, 3, 4, 5, 6, 7, 8}, o, func(int) error {
		tokens++
		if c.token(); written() {
			at = append(at, 8+tokens)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{3, 6, 8 + 3, 8 + 6}; !slices.Equal(at, want) {
		t.Errorf("checkpoints after %v ids of 8 + 7, want %v", at, want)
	}
}
