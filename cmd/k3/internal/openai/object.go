package openai

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// What the API's objects look like. Fields stand in its order.

type head struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
}

func (r *Reply) object(prefix, object string) head {
	return head{prefix + r.head.ID, object, r.head.Created, r.request.Model}
}

type chatObject struct {
	head
	Choices     []chatChoice `json:"choices"`
	Usage       Usage        `json:"usage"`
	Fingerprint string       `json:"system_fingerprint,omitempty"`
	Stats       *Stats       `json:"k3,omitempty"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  chatMessage   `json:"message"`
	Logprobs *chatLogprobs `json:"logprobs"`
	Finish   FinishReason  `json:"finish_reason"`
}

type chatMessage struct {
	Role             string     `json:"role"`
	Content          *string    `json:"content"`
	ReasoningContent string     `json:"reasoning_content,omitempty"`
	ToolCalls        []toolCall `json:"tool_calls,omitempty"`
	Refusal          *string    `json:"refusal"`
}

type toolCall struct {
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type chatLogprobs struct {
	Content []tokenLogprob `json:"content"`
}

type tokenLogprob struct {
	idLogprob
	Top []idLogprob `json:"top_logprobs"`
}

type idLogprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

type chunk struct {
	head
	Fingerprint string `json:"system_fingerprint,omitempty"`
	Choices     any    `json:"choices"`
	Usage       *Usage `json:"usage,omitempty"`
	Stats       *Stats `json:"k3,omitempty"`
}

type chatChunkChoice struct {
	Index    int           `json:"index"`
	Delta    delta         `json:"delta"`
	Logprobs *chatLogprobs `json:"logprobs,omitempty"`
	Finish   *FinishReason `json:"finish_reason"`
	Usage    *Usage        `json:"usage,omitempty"`
}

type delta struct {
	Role             string           `json:"role,omitempty"`
	Content          *string          `json:"content,omitempty"`
	ReasoningContent *string          `json:"reasoning_content,omitempty"`
	ToolCalls        []callDelta      `json:"tool_calls,omitempty"`
	Internal         *internalContent `json:"internal_content,omitempty"`
}

type internalContent struct {
	TokenIDs []int `json:"token_ids"`
}

type callDelta struct {
	Index    int           `json:"index"`
	ID       string        `json:"id,omitempty"`
	Type     string        `json:"type,omitempty"`
	Function functionDelta `json:"function"`
}

type functionDelta struct {
	Name      *string `json:"name,omitempty"` // in the first piece of a call, even if it is empty
	Arguments string  `json:"arguments"`
}

type textObject struct {
	head
	Choices     []textChoice `json:"choices"`
	Usage       Usage        `json:"usage"`
	Fingerprint string       `json:"system_fingerprint,omitempty"`
	Stats       *Stats       `json:"k3,omitempty"`
}

type textChoice struct {
	Text     string        `json:"text"`
	Index    int           `json:"index"`
	Logprobs *textLogprobs `json:"logprobs"`
	Finish   *FinishReason `json:"finish_reason"`
}

type textLogprobs struct {
	TextOffset    []int      `json:"text_offset"` // in characters
	TokenLogprobs []*float64 `json:"token_logprobs"`
	Tokens        []string   `json:"tokens"`
	TopLogprobs   []topMap   `json:"top_logprobs"`
}

// topMap is an object of log-probabilities by token, the best first.
type topMap []idLogprob

// MarshalJSON keeps the order, and the first of two tokens that read alike.
func (m topMap) MarshalJSON() ([]byte, error) {
	if m == nil {
		return []byte("null"), nil
	}
	var b bytes.Buffer
	seen := map[string]bool{}
	for _, l := range m {
		if seen[l.Token] {
			continue
		}
		seen[l.Token] = true
		key, err := encode(l.Token)
		if err != nil {
			return nil, err
		}
		value, err := encode(l.Logprob)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, ",%s:%s", key, value)
	}
	return fmt.Appendf(nil, "{%s}", bytes.TrimPrefix(b.Bytes(), []byte(","))), nil
}

const (
	chatPrefix, chatName, chatChunkName = "chatcmpl-", "chat.completion", "chat.completion.chunk"
	textPrefix, textName                = "cmpl-", "text_completion"
)

// add puts v among the chunks to return.
func (c *Choice) add(v chunk) {
	data, err := encode(v)
	if err != nil {
		panic(err) // of strings and finite numbers
	}
	c.chunks = append(c.chunks, data)
}

// send makes a chunk of what has been added, if there is a stream.
func (c *Choice) send(d delta, told []logprobs) {
	r := c.reply
	if !r.request.Stream {
		return
	}
	if c.parser == nil {
		choice := textChoice{Text: *d.Content, Index: c.index}
		if r.request.Logprobs {
			choice.Logprobs = c.textLogprobs(told)
		}
		c.add(chunk{head: r.object(textPrefix, textName), Fingerprint: r.head.Fingerprint, Choices: []textChoice{choice}})
		return
	}
	if empty := d.ReasoningContent != nil && *d.ReasoningContent == ""; len(c.pending) > 0 && !empty {
		d.Internal = &internalContent{c.pending}
		c.pending = nil
	}
	choice := chatChunkChoice{Index: c.index, Delta: d}
	if len(told) > 0 {
		choice.Logprobs = c.chatLogprobs(told)
	}
	c.add(chunk{head: r.object(chatPrefix, chatChunkName), Fingerprint: r.head.Fingerprint, Choices: []chatChunkChoice{choice}})
}

// end makes the chunk that says why the text ended.
func (c *Choice) end() {
	r := c.reply
	if !r.request.Stream {
		return
	}
	if c.parser == nil {
		c.add(chunk{head: r.object(textPrefix, textName), Fingerprint: r.head.Fingerprint,
			Choices: []textChoice{{Index: c.index, Finish: &c.finish}}, Stats: r.Stats})
		return
	}
	usage := c.usage()
	c.add(chunk{head: r.object(chatPrefix, chatChunkName), Fingerprint: r.head.Fingerprint,
		Choices: []chatChunkChoice{{Index: c.index, Finish: &c.finish, Usage: &usage}}, Stats: r.Stats})
}

// UsageChunk returns the chunk that follows the last choice of a stream with stream_options.include_usage, nil without that.
func (r *Reply) UsageChunk() []byte {
	if !r.request.Stream || !r.request.IncludeUsage {
		return nil
	}
	usage := r.Usage()
	v := chunk{head: r.object(textPrefix, textName), Fingerprint: r.head.Fingerprint, Choices: []struct{}{}, Usage: &usage}
	if r.request.Endpoint == ChatCompletions {
		v.head = r.object(chatPrefix, chatChunkName)
	}
	data, err := encode(v)
	if err != nil {
		panic(err)
	}
	return data
}

// Body returns the whole answer, a JSON object.
func (r *Reply) Body() []byte {
	var v any
	if r.request.Endpoint == ChatCompletions {
		o := chatObject{head: r.object(chatPrefix, chatName), Usage: r.Usage(), Fingerprint: r.head.Fingerprint, Stats: r.Stats}
		for _, c := range r.choices {
			o.Choices = append(o.Choices, c.chatChoice())
		}
		v = o
	} else {
		o := textObject{head: r.object(textPrefix, textName), Usage: r.Usage(), Fingerprint: r.head.Fingerprint, Stats: r.Stats}
		for _, c := range r.choices {
			choice := textChoice{Text: c.content.String(), Index: c.index, Finish: &c.finish}
			if r.request.Logprobs {
				choice.Logprobs = c.textLogprobs(c.logprobs)
			}
			o.Choices = append(o.Choices, choice)
		}
		v = o
	}
	data, err := encode(v)
	if err != nil {
		panic(err)
	}
	return data
}

func (c *Choice) chatChoice() chatChoice {
	m := chatMessage{Role: "assistant", ReasoningContent: c.reasoning.String()}
	if content := c.content.String(); content != "" || len(c.calls) == 0 {
		m.Content = &content
	}
	for _, made := range c.calls {
		m.ToolCalls = append(m.ToolCalls, toolCall{made.id, "function", function{made.name, made.arguments.String()}})
	}
	choice := chatChoice{Index: c.index, Message: m, Finish: c.finish}
	if c.reply.request.Logprobs {
		choice.Logprobs = c.chatLogprobs(c.logprobs)
	}
	return choice
}

func (c *Choice) chatLogprobs(of []logprobs) *chatLogprobs {
	all := &chatLogprobs{Content: []tokenLogprob{}}
	for _, l := range of {
		t := tokenLogprob{c.idLogprob(l.ID, l.Logprob), []idLogprob{}}
		for _, top := range l.Top {
			t.Top = append(t.Top, c.idLogprob(top.ID, top.Value))
		}
		all.Content = append(all.Content, t)
	}
	return all
}

func (c *Choice) textLogprobs(of []logprobs) *textLogprobs {
	all := &textLogprobs{TextOffset: []int{}, TokenLogprobs: []*float64{}, Tokens: []string{}}
	listed := c.reply.request.TopLogprobs > 0
	if listed {
		all.TopLogprobs = []topMap{}
	}
	for _, l := range of {
		chosen := c.textLogprob(l.ID, l.Logprob)
		all.TextOffset = append(all.TextOffset, l.character)
		all.Tokens = append(all.Tokens, chosen.Token)
		var value *float64
		var top topMap
		if !l.unknown {
			value = &chosen.Logprob
			for _, t := range l.Top {
				top = append(top, c.textLogprob(t.ID, t.Value))
			}
			top = append(top, chosen) // which may be less probable than those
		}
		all.TokenLogprobs = append(all.TokenLogprobs, value)
		if listed {
			all.TopLogprobs = append(all.TopLogprobs, top)
		}
	}
	return all
}

// textLogprob describes an id as completions do, which mark tokens that are not whole characters.
func (c *Choice) textLogprob(id int, logprob float64) idLogprob {
	l := c.idLogprob(id, logprob)
	if strings.HasPrefix(l.Token, `\x`) && len(l.Token) == len(l.Bytes)*len(`\xff`) {
		l.Token = "bytes:" + l.Token
	}
	return l
}

// idLogprob describes an id. A token that is not whole characters reads \xe4\xbd, as in OpenAI's answers.
func (c *Choice) idLogprob(id int, logprob float64) idLogprob {
	l := idLogprob{Logprob: finite(logprob), Bytes: []int{}}
	data, err := c.reply.tok.Decode([]int{id})
	if err != nil {
		return l
	}
	for _, b := range data {
		l.Bytes = append(l.Bytes, int(b))
	}
	if l.Token = string(data); !utf8.Valid(data) {
		l.Token = ""
		for _, b := range data {
			l.Token += fmt.Sprintf(`\x%02x`, b)
		}
	}
	return l
}
