// Package conversation holds conversations with the model: what was said, and a sequence that follows it. Between turns the
// sequence has the markup of all messages, most of it computed, so that a turn computes only what it adds. Where what was said
// changes, by another try, another system message or another way to think, the longest beginning that a kept state covers is not
// computed again.
package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/tokenizer"
)

// Generator computes answers: a core.Engine, or whatever lets several conversations share passes.
type Generator interface {
	Generate(ctx context.Context, s *core.Sequence, prompt []int, o core.GenerateOptions, emit func(id int) error) (core.Outcome, error)
}

// Prefixes keeps states of texts, and makes sequences that go on from them: a core.Prefixes, or one with a lock where several
// conversations share it.
type Prefixes interface {
	Keep(s *core.Sequence) error
	Sequence(ids []int) (*core.Sequence, error)
}

// Settings say how the next answers are made. They may change between turns.
type Settings struct {
	Generate core.GenerateOptions // OnPrefill is taken; Sample.Seed is that of a first try, and each further try adds 1
	Thinking bool                 // as chat.Request has it, and the others too
	Effort   string
	Tools    json.RawMessage
	// ToolChoice and ResponseFormat are told to the model for its next answer only.
	ToolChoice     string
	ResponseFormat json.RawMessage
}

// Conversation is a sequence of messages that the model answers. One goroutine may use it at a time.
type Conversation struct {
	Settings
	engine    *core.Engine
	tok       *tokenizer.Tokenizer
	generator Generator
	prefixes  Prefixes
	sequence  *core.Sequence // nil before the first turn and after a failure
	messages  []message
	asked     []int         // what the last answer followed
	drawn     sample.Params // how it was chosen
	ended     bool          // it ended as the model chose
	tries     uint64        // of the last answer, beyond the first
}

// message is a message of a conversation.
type message struct {
	chat.Message
	// ids are the markup as it was computed, which may be cut into other tokens than Encode cuts it; nil: as Encode has it.
	ids      []int
	thinking bool // ids are those of a conversation with thinking
}

// Turn is what an answer cost.
type Turn struct {
	core.Outcome
	Total  int   // tokens of the conversation, with the answer; 0: nothing was generated
	Kept   int   // tokens that were computed before
	Unkept error // why a state could not be kept; what follows from that is time, and nothing else
}

// Computed is the number of tokens that were computed for the answer.
func (t Turn) Computed() int { return t.Prefill.Tokens + t.Decode.Tokens }

var (
	// ErrNoAnswer ends a turn that was interrupted before the first token of the answer.
	ErrNoAnswer = errors.New("interrupted before the answer began: the message is taken back")
	// ErrSame refuses another try that would compute what is known.
	ErrSame = errors.New("at temperature 0 the answer would be the same")
)

// New returns a conversation in which nothing was said. Close frees what it holds.
func New(e *core.Engine, g Generator, p Prefixes, s Settings) (*Conversation, error) {
	tok, err := e.Tokenizer()
	if err != nil {
		return nil, err
	}
	return &Conversation{Settings: s, engine: e, tok: tok, generator: g, prefixes: p}, nil
}

// Close frees the sequence.
func (c *Conversation) Close() {
	if c.sequence != nil {
		c.sequence.Close()
		c.sequence = nil
	}
}

// Release frees the sequence, for the good of others, and has its state kept, so that a next turn can go on from there.
func (c *Conversation) Release() error {
	if c.sequence == nil {
		return nil
	}
	defer c.Close()
	if c.sequence.Err() != nil {
		return nil
	}
	return c.prefixes.Keep(c.sequence)
}

// Messages returns what was said.
func (c *Conversation) Messages() []chat.Message {
	all := make([]chat.Message, len(c.messages))
	for i, m := range c.messages {
		all[i] = m.Message
	}
	return all
}

// SetMessages replaces what was said, to take a turn back, to change the system message, or all. Answers that stay have the tokens
// that they were computed with.
func (c *Conversation) SetMessages(messages []chat.Message) {
	known := c.messages
	c.messages = make([]message, len(messages))
	for i, m := range messages {
		c.messages[i].Message = m
		if at := slices.IndexFunc(known, func(k message) bool { return reflect.DeepEqual(k.Message, m) }); at >= 0 {
			c.messages[i] = known[at]
			known = known[at+1:]
		}
	}
}

// Ask says m and has it answered. An answer that fails or is interrupted on its way stays as far as it came; without a token of
// it, the conversation is what it was before. show is told the answer as it comes.
func (c *Conversation) Ask(ctx context.Context, m chat.Message, show func(chat.Event) error) (Turn, error) {
	before := c.messages
	c.messages = append(slices.Clip(c.messages), message{Message: m})
	c.tries = 0
	return c.answer(ctx, before, show)
}

// Answer has the messages answered as they are, and is Ask otherwise.
func (c *Conversation) Answer(ctx context.Context, show func(chat.Event) error) (Turn, error) {
	c.tries = 0
	return c.answer(ctx, c.messages, show)
}

// Retry has the last message answered again, with other draws. ErrSame says that there are none.
func (c *Conversation) Retry(ctx context.Context, show func(chat.Event) error) (Turn, error) {
	before := c.messages
	n := len(c.messages)
	if n == 0 || c.messages[n-1].Role != "assistant" {
		return Turn{}, errors.New("there is no answer yet to try again")
	}
	c.messages = c.messages[:n-1]
	if o := c.Generate.Sample; o.Temperature == 0 && o == c.drawn && c.ended {
		if ids, err := c.markup(true); err == nil && slices.Equal(ids, c.asked) {
			c.messages = before
			return Turn{}, ErrSame
		}
	}
	c.tries++
	return c.answer(ctx, before, show)
}

// answer generates the next message, and puts back the messages before it if there is none.
func (c *Conversation) answer(ctx context.Context, before []message, show func(chat.Event) error) (turn Turn, err error) {
	defer func() {
		if len(turn.IDs) == 0 {
			c.messages = before
		}
	}()
	ids, err := c.markup(true)
	if err != nil {
		return turn, err
	}
	if len(ids) > c.engine.Context() {
		return turn, fmt.Errorf("%w: with this message the conversation has %d tokens, and there is room for %d",
			core.ErrContext, len(ids), c.engine.Context())
	}
	keep := func() { // what cannot be kept is computed again, so that an error ends nothing
		if err := c.prefixes.Keep(c.sequence); err != nil {
			turn.Unkept = err
		}
	}
	if c.goesOn(ids) {
		// Here the message before ended: where another try, or a conversation whose pass failed, goes on from.
		keep()
	}
	if err := c.hold(ids); err != nil {
		return turn, err
	}
	turn.Kept = c.sequence.Computed()
	parser := chat.NewParser(c.tok, c.Thinking)
	tell := func(events []chat.Event) error {
		for _, e := range events {
			if err := show(e); err != nil {
				return err
			}
		}
		return nil
	}
	o := c.Generate
	o.Sample.Seed += c.tries
	o.OnPrefill = func() error {
		if len(ids)-c.sequence.Computed() <= c.engine.MaxRows() {
			keep() // of a long message, another try repeats the last pass only
		}
		return nil
	}
	turn.Outcome, err = c.generator.Generate(ctx, c.sequence, nil, o, func(id int) error { return tell(parser.Push(id)) })
	if len(turn.IDs) > 0 {
		if e := tell(parser.Finish()); err == nil {
			err = e
		}
	}
	c.asked, c.drawn, c.ended = ids, c.Generate.Sample, turn.Reason == core.StopID
	turn.Total = len(ids) + len(turn.IDs)
	if len(turn.IDs) == 0 {
		if err == nil {
			err = ErrNoAnswer
		}
		return turn, err
	}
	return turn, errors.Join(err, c.add(parser.Message(), turn.IDs))
}

// add appends the answer that was parsed from generated ids to the messages.
func (c *Conversation) add(m chat.Message, generated []int) error {
	opening, err := c.encode(chat.Request{AddGenerationPrompt: true})
	if err != nil {
		return err
	}
	whole, err := chat.Render(chat.Request{Messages: []chat.Message{m}, Thinking: c.Thinking})
	if err != nil {
		return err
	}
	answer := message{Message: m, thinking: c.Thinking}
	ids := slices.Concat(opening, generated)
	if rest, ok := chat.Rest(c.tok, whole, ids); ok {
		answer.ids = append(ids, rest...)
	}
	c.messages = append(slices.Clip(c.messages), answer)
	if ids, err = c.markup(false); err != nil {
		return err
	}
	return c.hold(ids)
}

// Tokens is the number of tokens of the conversation.
func (c *Conversation) Tokens() (int, error) {
	ids, err := c.markup(false)
	return len(ids), err
}

// markup returns the ids of the conversation, and of the beginning of the next answer if opening.
func (c *Conversation) markup(opening bool) ([]int, error) {
	parts, err := c.parts()
	if err != nil {
		return nil, err
	}
	ids := slices.Concat(parts...)
	if opening {
		more, err := c.encode(chat.Request{ToolChoice: c.ToolChoice, ResponseFormat: c.ResponseFormat, AddGenerationPrompt: true})
		if err != nil {
			return nil, err
		}
		ids = append(ids, more...)
	}
	return ids, nil
}

// parts returns the ids of what stands before the messages, and of each message. They are rendered together, because the result
// of a tool is numbered by the call that it answers.
func (c *Conversation) parts() ([][]int, error) {
	request := chat.Request{Tools: c.Tools, Thinking: c.Thinking, Effort: c.Effort}
	before, err := chat.Render(request)
	if err != nil {
		return nil, err
	}
	request.Messages = c.Messages()
	segments, err := chat.Render(request)
	if err != nil {
		return nil, err
	}
	segments = segments[len(before):]
	first, err := chat.Encode(c.tok, before)
	if err != nil {
		return nil, err
	}
	parts := [][]int{first}
	for _, m := range c.messages {
		if empty(m.Message) {
			parts = append(parts, nil)
			continue
		}
		end := 1 + slices.IndexFunc(segments, chat.Segment.EndsMessage)
		ids := m.ids
		if ids == nil || m.thinking != c.Thinking {
			if ids, err = chat.Encode(c.tok, segments[:end]); err != nil {
				return nil, err
			}
		}
		parts, segments = append(parts, ids), segments[end:]
	}
	return parts, nil
}

// empty reports whether a message has no markup: a system message that brings no tool.
func empty(m chat.Message) bool {
	if m.Role != "system" || len(m.Tools) == 0 {
		return false
	}
	segments, err := chat.Render(chat.Request{Messages: []chat.Message{m}})
	return err == nil && len(segments) == 0
}

// encode returns the ids of a part of the conversation.
func (c *Conversation) encode(part chat.Request) ([]int, error) {
	part.Thinking = c.Thinking
	segments, err := chat.Render(part)
	if err != nil {
		return nil, err
	}
	return chat.Encode(c.tok, segments)
}

// goesOn reports whether the sequence is whole and a beginning of ids, with something left to compute.
func (c *Conversation) goesOn(ids []int) bool {
	if c.sequence == nil || c.sequence.Err() != nil || c.sequence.Computed() >= len(ids) {
		return false
	}
	live := c.sequence.IDs()
	return len(live) <= len(ids) && slices.Equal(live, ids[:len(live)])
}

// hold makes the sequence one of ids, as much of it computed as can be had for nothing.
func (c *Conversation) hold(ids []int) error {
	if c.goesOn(ids) {
		c.sequence.Append(ids[len(c.sequence.IDs()):]...)
		return nil
	}
	c.Close() // first: there may be no room for two
	s, err := c.prefixes.Sequence(ids)
	if err != nil {
		return err
	}
	c.sequence = s
	return nil
}
