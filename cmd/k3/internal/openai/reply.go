package openai

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/tokenizer"
)

// Head is what the chunks and the object of one reply have in common.
type Head struct {
	ID          string // 24 hexadecimal digits; the prefix of the endpoint goes before them
	Created     int64  // seconds since 1970
	Fingerprint string // of weights and settings; "" for none
}

// Logprob is the natural logarithm of the probability of an id.
type Logprob struct {
	ID    int
	Value float64
}

// Token is one id of a text. Logprob and Top are looked at only if the request asked for them.
type Token struct {
	ID      int
	Logprob float64
	Top     []Logprob // the most probable ids, best first; those beyond Request.TopLogprobs are left out
}

// FinishReason says why a text ended, as far as the engine tells. A Choice itself knows of stop texts and of calls.
type FinishReason string

// The reasons that the engine may have.
const (
	FinishStop   FinishReason = "stop"   // the model chose an id that ends the text, which was not given to Push
	FinishLength FinishReason = "length" // max_tokens, or the context is full
)

const finishToolCalls FinishReason = "tool_calls"

// Counts are the tokens of one choice.
type Counts struct {
	Prompt     int // as Request.PromptTokens has them
	Cached     int // those of the prompt that were not computed
	Completion int // generated, with those that show nothing
}

// Usage is what an answer says of its tokens.
type Usage struct {
	PromptTokens        int `json:"prompt_tokens"`
	CompletionTokens    int `json:"completion_tokens"`
	TotalTokens         int `json:"total_tokens"`
	PromptTokensDetails struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionTokensDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// Stats are figures of k3's own, in the field "k3" of an answer.
type Stats struct {
	QueueSeconds    float64 `json:"queue_s"`
	PrefillSeconds  float64 `json:"prefill_s"`
	SecondsPerToken float64 `json:"s_per_token"`
	Passes          int     `json:"passes"`
	GBRead          float64 `json:"gb_read"`
	HitRate         float64 `json:"hit_rate"`
	Drafted         int     `json:"drafted"`
	Accepted        int     `json:"accepted"`
	SchemaValid     *bool   `json:"schema_valid,omitempty"`
	CacheMiss       string  `json:"cache_miss,omitempty"` // why nothing of the prompt was kept
}

// Reply is the answer to a request: Request.N choices for each prompt, those of the first prompt first. Each may be written by a
// goroutine of its own; Body, Usage and UsageChunk are for when all of them have finished.
type Reply struct {
	// Stats, if set before the last choice finishes, is a part of the answer.
	Stats *Stats

	request *Request
	tok     *tokenizer.Tokenizer
	head    Head
	choices []*Choice
}

// NewReply begins the answer to a request.
func NewReply(r *Request, tok *tokenizer.Tokenizer, head Head) (*Reply, error) {
	reply := &Reply{request: r, tok: tok, head: head}
	for i := range max(len(r.Prompts), 1) * r.N {
		stopper, err := sample.NewStopper(r.Stop)
		if err != nil {
			return nil, err
		}
		c := &Choice{reply: reply, index: i, stopper: stopper, decoder: tok.NewDecoder()}
		if r.Endpoint == ChatCompletions {
			c.parser = chat.NewParser(tok, r.Chat.StartsThinking())
		}
		reply.choices = append(reply.choices, c)
	}
	return reply, nil
}

// Choice returns the choice with that index; the prompt it continues is the one with index i / Request.N.
func (r *Reply) Choice(i int) *Choice { return r.choices[i] }

// Usage returns the tokens of all choices. A prompt counts once.
func (r *Reply) Usage() Usage {
	var u Usage
	for i, c := range r.choices {
		one := c.usage()
		if i%r.request.N == 0 {
			u.PromptTokens += one.PromptTokens
			u.PromptTokensDetails.CachedTokens += one.PromptTokensDetails.CachedTokens
		}
		u.CompletionTokens += one.CompletionTokens
		u.CompletionTokensDetails.ReasoningTokens += one.CompletionTokensDetails.ReasoningTokens
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// Choice is one text of a reply. Its methods return what a stream sends: chunks, each one JSON object, or nothing where the
// request wants no stream.
type Choice struct {
	reply   *Reply
	index   int
	parser  *chat.Parser       // of chat completions
	decoder *tokenizer.Decoder // of completions
	stopper *sample.Stopper
	started bool
	finish  FinishReason // once the text has ended
	closing bool         // the engine gives no more ids

	content, reasoning strings.Builder
	calls              []*call
	whole              int  // calls that are complete
	boundary           bool // the end of thinking is still to be told
	thought            int  // ids of reasoning
	fed, characters    int  // content, told or held back
	last               []int
	counts             Counts

	waiting  []logprobs // of ids whose text is held back
	logprobs []logprobs // of the others
	pending  []int      // ids that no chunk has told yet
	chunks   [][]byte
}

type call struct {
	id, name  string
	arguments strings.Builder
}

// logprobs are the log-probabilities at one position.
type logprobs struct {
	Token
	unknown   bool // the first id of a prompt has none
	start     int  // of its text, in bytes
	character int  // the same in characters
}

// Start returns the chunk that begins a stream, which can be sent before anything is computed. Push and Finish call it otherwise.
func (c *Choice) Start() [][]byte {
	c.start()
	return c.take()
}

func (c *Choice) start() {
	if c.started {
		return
	}
	c.started = true
	if c.parser != nil {
		c.send(delta{Role: "assistant", Content: new(string)}, nil)
	}
}

func (c *Choice) take() [][]byte {
	chunks := c.chunks
	c.chunks = nil
	return chunks
}

// Echo puts a prompt in front of the text of completions, with the log-probabilities of all its ids but the first.
func (c *Choice) Echo(prompt []Token) [][]byte {
	var whole strings.Builder
	add := func(text string) {
		c.count(text)
		whole.WriteString(text)
	}
	for i, t := range prompt {
		text, known := c.decode(t.ID)
		if known {
			c.wait(t, i == 0)
		}
		add(text)
	}
	add(c.decoder.Flush())
	c.say(whole.String())
	return c.take()
}

// Push adds an id that was generated. Once done is true the text has ended, because of a stop text or of what the model wrote,
// and further ids change nothing.
func (c *Choice) Push(t Token) (chunks [][]byte, done bool) {
	if c.finish != "" {
		return nil, true
	}
	c.start()
	if c.reply.request.IncludeInternalContent {
		c.pending = append(c.pending, t.ID)
	}
	if c.last = append(c.last, t.ID); len(c.last) > utf8.UTFMax {
		c.last = c.last[1:]
	}
	if c.parser == nil {
		text, known := c.decode(t.ID)
		if known {
			c.wait(t, false)
		}
		c.feed(text)
	} else {
		events := c.parser.Push(t.ID)
		if t.ID < c.reply.tok.Ranks() {
			switch c.parser.Section() {
			case chat.ReasoningDelta:
				c.thought++
			case chat.ContentDelta:
				c.wait(t, false)
			}
		}
		c.events(events)
	}
	return c.take(), c.finish != ""
}

// decode returns the text of completions that is complete with id; ids that are not text are left out.
func (c *Choice) decode(id int) (text string, ok bool) {
	if id >= c.reply.tok.Ranks() {
		return "", false
	}
	return c.decoder.Push(id), true
}

// wait keeps the log-probabilities of an id until its text is told.
func (c *Choice) wait(t Token, unknown bool) {
	if r := c.reply.request; r.Logprobs {
		t.Top = slices.Clone(t.Top[:min(len(t.Top), r.TopLogprobs)])
		c.waiting = append(c.waiting, logprobs{t, unknown, c.fed, c.characters})
	}
}

// count counts text that is about to be told or held back.
func (c *Choice) count(text string) {
	c.fed += len(text)
	c.characters += utf8.RuneCountInString(text)
}

// Finish ends the text, for the engine's reason unless it had one of its own.
func (c *Choice) Finish(reason FinishReason, counts Counts) [][]byte {
	c.start()
	c.counts = counts
	if c.finish == "" {
		if eos, ok := c.reply.tok.EOS(); ok && reason == FinishStop && c.parser != nil {
			c.events(c.withoutCut(c.parser.Push(eos))) // closes what the model left open
		}
		c.closing = true
		if c.parser != nil {
			c.events(c.withoutCut(c.parser.Finish()))
		} else if text := c.decoder.Flush(); !c.cut() {
			c.feed(text)
		}
		if c.finish == "" {
			c.say(c.stopper.Flush())
			c.finish = reason
		}
	}
	if c.finish == FinishStop && c.whole > 0 {
		c.finish = finishToolCalls
	}
	c.end()
	return c.take()
}

// cut reports whether the ids end in the middle of a character.
func (c *Choice) cut() bool {
	text, err := c.reply.tok.Decode(c.last)
	for n := 1; err == nil && n < utf8.UTFMax && n <= len(text); n++ {
		if end := text[len(text)-n:]; utf8.RuneStart(end[0]) {
			return !utf8.FullRune(end)
		}
	}
	return false
}

// withoutCut leaves the beginning of a character out of the last events, of which it would be U+FFFD.
func (c *Choice) withoutCut(events []chat.Event) []chat.Event {
	for i := len(events) - 1; i >= 0 && c.cut(); i-- {
		if text, ok := strings.CutSuffix(events[i].Text, string(utf8.RuneError)); ok {
			events[i].Text = text
			break
		}
	}
	return events
}

// events adds what a piece of a reply in markup says.
func (c *Choice) events(events []chat.Event) {
	for _, e := range events {
		if c.finish != "" {
			return
		}
		switch e.Kind {
		case chat.ReasoningDelta:
			if e.Text != "" {
				c.boundary = c.boundary || c.reasoning.Len() == 0
				c.reasoning.WriteString(e.Text)
				c.send(delta{ReasoningContent: &e.Text}, nil)
			}
		case chat.ContentDelta:
			c.feed(e.Text)
		case chat.CallStart:
			c.say(c.stopper.Flush())
			c.endThinking()
			n := len(c.calls)
			made := &call{id: cmp.Or(e.Name, "call") + "_" + strconv.Itoa(c.reply.request.FirstCall+n), name: e.Name}
			c.calls = append(c.calls, made)
			c.send(delta{ToolCalls: []callDelta{{Index: n, ID: made.id, Type: "function", Function: functionDelta{Name: &made.name}}}}, nil)
		case chat.ArgumentsDelta:
			n := len(c.calls) - 1
			c.calls[n].arguments.WriteString(e.Text)
			if e.Text != "" {
				c.send(delta{ToolCalls: []callDelta{{Index: n, Function: functionDelta{Arguments: e.Text}}}}, nil)
			}
		case chat.CallEnd:
			if c.whole++; c.reply.request.SingleCall {
				c.finish = finishToolCalls
			}
		case chat.Done:
			if !c.closing {
				c.say(c.stopper.Flush())
				c.finish = FinishStop
			}
		}
	}
}

// endThinking tells, once, that the reasoning has ended.
func (c *Choice) endThinking() {
	if c.boundary {
		c.boundary = false
		c.send(delta{ReasoningContent: new(string)}, nil)
	}
}

// feed adds content that may hold a stop text.
func (c *Choice) feed(text string) {
	if text == "" {
		return
	}
	c.count(text)
	text, stopped := c.stopper.Feed(text)
	c.say(text)
	if stopped {
		c.finish = FinishStop
	}
}

// say adds content, and the log-probabilities of the ids that it came with.
func (c *Choice) say(text string) {
	if text == "" {
		return
	}
	c.endThinking()
	c.content.WriteString(text)
	n := 0
	for n < len(c.waiting) && c.waiting[n].start < c.content.Len() {
		n++
	}
	told := c.waiting[:n]
	c.waiting = c.waiting[n:]
	c.logprobs = append(c.logprobs, told...)
	c.send(delta{Content: &text}, told)
}

func (c *Choice) usage() (u Usage) {
	u.PromptTokens, u.CompletionTokens = c.counts.Prompt, c.counts.Completion
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	u.PromptTokensDetails.CachedTokens = c.counts.Cached
	u.CompletionTokensDetails.ReasoningTokens = c.thought
	return u
}

// Message returns the text of chat completions as the client has been told it, with the ids of its calls.
func (c *Choice) Message() chat.Message {
	m := chat.Message{Role: "assistant", Reasoning: c.reasoning.String()}
	if c.content.Len() > 0 {
		m.Content = chat.Text(c.content.String())
	}
	for _, made := range c.calls {
		m.ToolCalls = append(m.ToolCalls, chat.ToolCall{ID: made.id, Name: made.name, Arguments: made.arguments.String()})
	}
	return m
}

// lowest stands for log-probabilities that JSON cannot write, as in OpenAI's answers.
const lowest = -9999

// finite is a log-probability for JSON.
func finite(x float64) float64 {
	if math.IsNaN(x) {
		return lowest
	}
	return max(x, lowest)
}
