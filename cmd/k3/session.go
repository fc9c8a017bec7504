package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/conversation"
	"github.com/k3infer/k3/core/session"
	"github.com/k3infer/k3/core/tokenizer"
)

// sessionExtra is what this program has a session file keep, besides the sequence.
type sessionExtra struct {
	Run  *savedRun           `json:"run,omitempty"`
	Chat *conversation.Saved `json:"chat,omitempty"`
}

// savedRun is what a session has of the k3 run that wrote it.
type savedRun struct {
	Start int  `json:"start"`                 // ids in front of those that were generated
	Chat  bool `json:"chat,omitempty"`        // which are a reply in the chat markup
	Plain bool `json:"no_thinking,omitempty"` // which has no section for what the model thinks
	Open  bool `json:"open,omitempty"`        // a checkpoint: what might be the beginning of a stop text or a character was not written yet
}

// readSession returns how many tokens a saved session has, and what is known of its run.
func readSession(path string) (tokens int, r savedRun, err error) {
	s, err := session.Open(path)
	if err != nil {
		return 0, r, ui.Inputf("%w", err)
	}
	tokens, extra := len(s.Header.IDs), s.Header.Extra
	if err := s.Close(); err != nil {
		return 0, r, err
	}
	r, err = parseRun(path, extra, tokens)
	return tokens, r, err
}

// parseRun reads what a session of so many tokens keeps of its run.
func parseRun(path string, extra json.RawMessage, tokens int) (savedRun, error) {
	var x sessionExtra
	var err error
	if len(extra) > 0 {
		err = json.Unmarshal(extra, &x)
	}
	if x.Run == nil {
		x.Run = &savedRun{Start: tokens}
	}
	if err == nil && (x.Run.Start < 0 || x.Run.Start > tokens) {
		err = fmt.Errorf("%d of its %d tokens are the prompt", x.Run.Start, tokens)
	}
	if err != nil {
		return savedRun{}, ui.Inputf("%s: %w: %w", path, core.ErrSession, err)
	}
	return *x.Run, nil
}

// openSequence restores a saved session and what is known of its run, or begins a sequence if path is empty.
func openSequence(e *core.Engine, path string) (*core.Sequence, savedRun, error) {
	if path == "" {
		s, err := e.NewSequence()
		return s, savedRun{}, err
	}
	s, data, err := e.LoadSequence(path)
	if err != nil {
		return nil, savedRun{}, err
	}
	r, err := parseRun(path, data, len(s.IDs()))
	if err != nil {
		s.Close()
	}
	return s, r, err
}

// reply reads the reply which a session ends in, and reports whether it is whole.
func (r savedRun) reply(tok *tokenizer.Tokenizer, ids []int) (p *chat.Parser, ended bool) {
	p = chat.NewParser(tok, !r.Plain)
	for _, id := range ids[r.Start:] {
		for _, e := range p.Push(id) {
			ended = ended || e.Kind == chat.Done
		}
	}
	return p, ended
}

// replyRoom is more tokens than endReply ever returns.
const replyRoom = 64

// endReply returns the ids that complete the reply which a session ends in, if it was cut.
func (r savedRun) endReply(tok *tokenizer.Tokenizer, ids []int) ([]int, error) {
	opening, err := chat.Render(chat.Request{Thinking: !r.Plain, AddGenerationPrompt: true})
	if err != nil {
		return nil, err
	}
	prompt, err := chat.Encode(tok, opening)
	if err != nil || !r.Chat || len(prompt) > r.Start || !slices.Equal(prompt, ids[r.Start-len(prompt):r.Start]) {
		return nil, err
	}
	parser, _ := r.reply(tok, ids)
	parser.Finish()
	whole, err := chat.Render(chat.Request{Messages: []chat.Message{parser.Message()}, Thinking: !r.Plain})
	if err != nil {
		return nil, err
	}
	rest, _ := chat.Rest(tok, whole, ids[r.Start-len(prompt):])
	return rest, nil
}

// checkpoints save a run on its way.
type checkpoints struct {
	path     string
	every    int // tokens
	run      savedRun
	sequence *core.Sequence
	since    int // tokens generated since the last
	saved    int // tokens of the last; 0: there is none
	computed int // how many of them it has the state of
	notice   func(string)
	failed   bool // the last one did: it was said
}

// token is called for each token generated.
func (c *checkpoints) token() {
	if c.since++; c.since >= c.every {
		c.save()
	}
}

// prefill is called between the passes of a prompt.
func (c *checkpoints) prefill() error {
	if c.sequence.Computed()-c.computed >= c.every {
		c.save()
	}
	return nil
}

// save writes a checkpoint. The text goes on without one: there is another try later.
func (c *checkpoints) save() {
	run := c.run
	run.Open = true
	data, err := json.Marshal(sessionExtra{Run: &run})
	if err == nil {
		err = c.sequence.Save(c.path, data)
	}
	c.since = 0
	if err == nil {
		c.saved, c.computed = len(c.sequence.IDs()), c.sequence.Computed()
	} else if !c.failed {
		c.notice(fmt.Sprintf("the session is not saved on the way: %s", ui.OneLine(err)))
	}
	c.failed = err != nil
}
