package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/tokenizer"
)

// conversation is a chat: what was said, and the sequence that remembers it. Between turns the sequence holds the markup of all
// messages, most of it computed, so that a turn computes only what it adds. Where what was said changes, by another try, another
// system message or another way to think, the longest beginning that a kept state covers is not computed again.
type conversation struct {
	engine   *core.Engine
	tok      *tokenizer.Tokenizer
	prefixes *core.Prefixes
	sequence *core.Sequence       // nil before the first turn and after a failure
	options  core.GenerateOptions // of each answer
	thinking bool
	effort   string
	messages []said
	asked    []int  // what the last answer followed
	tries    uint64 // of the last answer, beyond the first
	last     turn
	unkept   error // why states cannot be kept
	turns    int   // that had an answer
	computed int   // tokens
	guesses  core.Guesses
}

// said is a message of a conversation.
type said struct {
	chat.Message
	// ids are the markup as it was computed, which may be cut into other tokens than Encode cuts it; nil: as Encode has it.
	ids      []int
	thinking bool // ids are those of a conversation with thinking
}

// turn is what an answer cost.
type turn struct {
	core.Outcome
	sample sample.Params
	total  int // tokens of the conversation, with the answer
	kept   int // tokens that were computed before
}

// computed is the number of tokens that were computed for the answer.
func (t turn) computed() int { return t.Prefill.Tokens + t.Decode.Tokens }

// errNoAnswer ends a turn that was interrupted before the first token of the answer.
var errNoAnswer = errors.New("interrupted before the answer began: the message is taken back")

// conversationSequences is what the plan must have room for: the conversation, and a kept state of it.
const conversationSequences = 2

func newConversation(e *core.Engine, o core.GenerateOptions, thinking bool, effort string) (*conversation, error) {
	tok, err := e.Tokenizer()
	if err != nil {
		return nil, err
	}
	plan := e.Plan()
	room := (plan.Bytes(memory.State) + plan.Bytes(memory.Latents)) / conversationSequences
	return &conversation{
		engine: e, tok: tok, options: o, thinking: thinking, effort: effort, prefixes: e.NewPrefixes(room),
	}, nil
}

func (c *conversation) close() {
	c.drop()
	c.prefixes.Close()
}

// drop forgets the sequence.
func (c *conversation) drop() {
	if c.sequence != nil {
		c.sequence.Close()
		c.sequence = nil
	}
}

// reset forgets all but the system message.
func (c *conversation) reset() {
	c.messages = c.messages[:len(c.messages)-len(c.spoken())]
}

// spoken is the messages but for the system message.
func (c *conversation) spoken() []said {
	if len(c.messages) > 0 && c.messages[0].Role == "system" {
		return c.messages[1:]
	}
	return c.messages
}

// system returns the system message, "" if there is none.
func (c *conversation) system() string {
	if len(c.spoken()) == len(c.messages) {
		return ""
	}
	return c.messages[0].Plain()
}

// setSystem changes the system message; "" removes it.
func (c *conversation) setSystem(text string) {
	messages := c.spoken()
	if text != "" {
		messages = append([]said{{Message: chat.Message{Role: "system", Content: chat.Text(text)}}}, messages...)
	}
	c.messages = messages
}

// errSame refuses to compute what is known.
var errSame = errors.New("at temperature 0 the answer would be the same; /retry 0.7 draws another one")

// ask says text and has it answered. show is told the answer as it comes. An answer that fails or is interrupted on its way
// stays as far as it came; without a token of it, the conversation is what it was before.
func (c *conversation) ask(ctx context.Context, text string, interrupt <-chan struct{}, show func(chat.Event) error) error {
	before := c.messages
	c.messages = append(slices.Clip(c.messages), said{Message: chat.Message{Role: "user", Content: chat.Text(text)}})
	c.tries = 0
	return c.answer(ctx, before, interrupt, show)
}

// retry has the last message answered again, with other draws.
func (c *conversation) retry(ctx context.Context, interrupt <-chan struct{}, show func(chat.Event) error) error {
	before := c.messages
	n := len(c.messages)
	if n == 0 || c.messages[n-1].Role != "assistant" {
		return errors.New("there is no answer yet to try again")
	}
	c.messages = c.messages[:n-1]
	if o := c.options.Sample; o.Temperature == 0 && o == c.last.sample && c.last.Reason == core.StopID {
		if ids, err := c.markup(true); err == nil && slices.Equal(ids, c.asked) {
			c.messages = before
			return errSame
		}
	}
	c.tries++
	return c.answer(ctx, before, interrupt, show)
}

// answer generates the next message, and puts back the messages before it if there is none.
func (c *conversation) answer(ctx context.Context, before []said, interrupt <-chan struct{}, show func(chat.Event) error) error {
	restore := func(err error) error {
		c.messages = before
		return err
	}
	ids, err := c.markup(true)
	if err != nil {
		return restore(err)
	}
	if len(ids) > c.engine.Context() {
		return restore(fmt.Errorf("%w: with this message the conversation has %d tokens, and there is room for %d (--context)",
			core.ErrContext, len(ids), c.engine.Context()))
	}
	if c.goesOn(ids) {
		// Here the message before ended: where another try, or a conversation whose pass failed, goes on from.
		c.keep()
	}
	if err := c.hold(ids); err != nil {
		return restore(err)
	}
	kept := c.sequence.Computed()
	parser := chat.NewParser(c.tok, c.thinking)
	tell := func(events []chat.Event) error {
		for _, e := range events {
			if err := show(e); err != nil {
				return err
			}
		}
		return nil
	}
	o := c.options
	o.Interrupt = interrupt
	o.Sample.Seed += c.tries
	o.OnPrefill = func() error {
		if len(ids)-c.sequence.Computed() <= c.engine.MaxRows() {
			c.keep() // of a long message, another try repeats the last pass only
		}
		return nil
	}
	out, err := c.engine.Generate(ctx, c.sequence, nil, o, func(id int) error { return tell(parser.Push(id)) })
	if len(out.IDs) > 0 {
		if e := tell(parser.Finish()); err == nil {
			err = e
		}
	}
	c.asked = ids
	c.last = turn{Outcome: out, sample: c.options.Sample, total: len(ids) + len(out.IDs), kept: kept}
	c.computed += c.last.computed()
	c.guesses.Proposed += out.Guesses.Proposed
	c.guesses.Accepted += out.Guesses.Accepted
	c.guesses.Saved += out.Guesses.Saved
	if len(out.IDs) == 0 {
		if err == nil {
			err = errNoAnswer
		}
		return restore(err)
	}
	c.turns++
	return errors.Join(err, c.add(parser.Message(), out.IDs))
}

// add puts the answer that was parsed from generated ids behind the messages.
func (c *conversation) add(m chat.Message, generated []int) error {
	opening, err := c.encode(chat.Request{AddGenerationPrompt: true})
	if err != nil {
		return err
	}
	whole, err := chat.Render(chat.Request{Messages: []chat.Message{m}, Thinking: c.thinking})
	if err != nil {
		return err
	}
	answer := said{Message: m, thinking: c.thinking}
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

// markup returns the ids of the conversation, and of the beginning of the next answer if opening.
func (c *conversation) markup(opening bool) ([]int, error) {
	ids, err := c.encode(chat.Request{Effort: c.effort})
	if err != nil {
		return nil, err
	}
	for _, m := range c.messages {
		more, err := c.idsOf(m)
		if err != nil {
			return nil, err
		}
		ids = append(ids, more...)
	}
	if opening {
		more, err := c.encode(chat.Request{AddGenerationPrompt: true})
		if err != nil {
			return nil, err
		}
		ids = append(ids, more...)
	}
	return ids, nil
}

// idsOf returns the markup of a message.
func (c *conversation) idsOf(m said) ([]int, error) {
	if m.ids != nil && m.thinking == c.thinking {
		return m.ids, nil
	}
	return c.encode(chat.Request{Messages: []chat.Message{m.Message}})
}

// encode returns the ids of a part of the conversation. Parts are rendered one by one: none depends on another.
func (c *conversation) encode(part chat.Request) ([]int, error) {
	part.Thinking = c.thinking
	segments, err := chat.Render(part)
	if err != nil {
		return nil, err
	}
	return chat.Encode(c.tok, segments)
}

// goesOn reports whether the sequence is whole and a beginning of ids, with something left to compute.
func (c *conversation) goesOn(ids []int) bool {
	if c.sequence == nil || c.sequence.Err() != nil || c.sequence.Computed() >= len(ids) {
		return false
	}
	live := c.sequence.IDs()
	return len(live) <= len(ids) && slices.Equal(live, ids[:len(live)])
}

// hold makes the sequence one of ids, as much of it computed as can be had for nothing.
func (c *conversation) hold(ids []int) error {
	if c.goesOn(ids) {
		c.sequence.Append(ids[len(c.sequence.IDs()):]...)
		return nil
	}
	c.drop() // first: there may be no room for two
	s, err := c.prefixes.Sequence(ids)
	if err != nil {
		return err
	}
	c.sequence = s
	return nil
}

// keep remembers the state of the sequence. What cannot be kept is computed again, so that an error ends nothing.
func (c *conversation) keep() {
	if err := c.prefixes.Keep(c.sequence); err != nil {
		c.unkept = err
	}
}

// savedConversation is what a session file has of a conversation, besides its sequence.
type savedConversation struct {
	Thinking bool              `json:"thinking"`
	Effort   string            `json:"effort"`
	Messages []json.RawMessage `json:"messages"`
	Tokens   []int             `json:"tokens"` // of what stands before the messages, then of each
}

// save writes the conversation to a session file.
func (c *conversation) save(path string) error {
	ids, err := c.markup(false)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return errors.New("there is nothing to save yet")
	}
	if err := c.hold(ids); err != nil { // the messages may have changed since the last turn
		return err
	}
	s := savedConversation{Thinking: c.thinking, Effort: c.effort, Tokens: []int{len(ids)}}
	for _, m := range c.messages {
		line, err := messageJSON(m.Message)
		if err != nil {
			return err
		}
		of, err := c.idsOf(m)
		if err != nil {
			return err
		}
		s.Messages = append(s.Messages, line)
		s.Tokens = append(s.Tokens, len(of))
		s.Tokens[0] -= len(of)
	}
	data, err := json.Marshal(sessionExtra{Chat: &s})
	if err != nil {
		return err
	}
	return c.sequence.Save(path, data)
}

// load replaces the conversation by that of a session file. After an error it is what it was.
func (c *conversation) load(path string) error {
	c.prefixes.Close() // there is room for two
	s, data, err := c.engine.LoadSequence(path)
	if file := (*fs.PathError)(nil); errors.As(err, &file) {
		return inputf("%w", err)
	}
	if err != nil {
		return err
	}
	refuse := func(why string) error {
		s.Close()
		return inputf("%s: %w: %s", path, core.ErrSession, why)
	}
	var x sessionExtra
	if len(data) == 0 || json.Unmarshal(data, &x) != nil || x.Chat == nil {
		return refuse("it holds a text, not a conversation: k3 run --load-session goes on with it")
	}
	var messages []said
	ids := s.IDs()
	take := func(n int) (taken []int, ok bool) {
		if n < 0 || n > len(ids) {
			return nil, false
		}
		taken, ids = ids[:n:n], ids[n:]
		return taken, true
	}
	if len(x.Chat.Tokens) != len(x.Chat.Messages)+1 {
		return refuse("its messages do not fit its tokens")
	}
	_, ok := take(x.Chat.Tokens[0])
	for i, line := range x.Chat.Messages {
		m, err := parseMessage(line)
		if err != nil {
			return refuse(err.Error())
		}
		of, fits := take(x.Chat.Tokens[i+1])
		ok = ok && fits
		message := said{Message: m, thinking: x.Chat.Thinking}
		if m.Role == "assistant" {
			message.ids = of
		}
		messages = append(messages, message)
	}
	if !ok || len(ids) > 0 {
		return refuse("its messages do not fit its tokens")
	}
	c.drop()
	c.sequence, c.messages, c.tries, c.last = s, messages, 0, turn{}
	c.thinking, c.effort = x.Chat.Thinking, x.Chat.Effort
	return nil
}
