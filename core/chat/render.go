// Package chat turns conversations into Kimi K3's markup and replies in that markup back into messages.
package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/k3infer/k3/core/tokenizer"
)

// The control tokens of the markup. An element is <|open|>tag key="value"<|sep|> content <|close|>tag<|sep|>.
const (
	openToken  = "<|open|>"
	closeToken = "<|close|>"
	sepToken   = "<|sep|>"
	endToken   = "<|end_of_msg|>"

	imagePlaceholder = "<|kimi_image_placeholder|>"
)

// ErrNoMarkup says that a tokenizer lacks the control tokens of the chat markup.
var ErrNoMarkup = errors.New("the tokenizer lacks a control token of the chat markup")

// ControlTokens returns the contents of the control tokens that a tokenizer must have for the markup.
func ControlTokens() []string { return slices.Clone(controlTokens) }

// Segment is a piece of a rendered conversation, encoded by itself. Only in special ones are control tokens read as such.
type Segment struct {
	Text    string `json:"text"`
	Special bool   `json:"special"`
}

// Encode returns the ids of segments. No text of a segment that is not special becomes a control token.
func Encode(tok *tokenizer.Tokenizer, segments []Segment) ([]int, error) {
	var ids []int
	for _, s := range segments {
		encode := tok.Encode
		if s.Special {
			if id, ok := tok.Special(s.Text); ok {
				ids = append(ids, id)
				continue
			}
			if slices.Contains(controlTokens, s.Text) {
				return nil, fmt.Errorf("chat: encode: %w: %s", ErrNoMarkup, s.Text)
			}
			encode = tok.EncodeSpecial
		}
		more, err := encode(s.Text)
		if err != nil {
			return nil, fmt.Errorf("chat: encode: %w", err)
		}
		ids = append(ids, more...)
	}
	return ids, nil
}

// Render returns the markup of a request: the declaration of tools, the thinking effort, the conversation, the tool choice, the
// response format and the beginning of the answer. Errors match ErrRequest.
func Render(r Request) ([]Segment, error) {
	w := writer{thinking: r.Thinking, images: r.ImagePrompts, replace: r.ImagePrompts != nil}
	if err := w.tools("tools", r.Tools, "# Tools\nHere are the available tools, described in JSONSchema.\n\n"); err != nil {
		return nil, err
	}
	if r.Thinking && r.Effort != "" {
		if r.Effort != "low" && r.Effort != "high" && r.Effort != "max" {
			return nil, bad("thinking_effort", "%q is none of low, high, max", r.Effort)
		}
		w.internal("thinking-effort", "`thinking_effort` guides on how much to think in your thinking channel "+
			"(not including the response channel), supported values include `low`, `medium`, `high`, and `max`.\n"+
			"Now the system is invoked with `thinking_effort="+r.Effort+"`.")
	}
	messages := inCallOrder(r.Messages)
	var begun Message
	if r.Partial {
		last := len(messages) - 1
		if last < 0 || messages[last].Role != "assistant" || len(messages[last].ToolCalls) > 0 {
			return nil, bad("messages", "the message to go on from must be the assistant's and have no calls")
		}
		messages, begun = messages[:last], messages[last]
	}
	var calls []ToolCall // of the last assistant message
	results := 0         // tool messages since then
	for i, m := range messages {
		field := fmt.Sprintf("messages[%d]", i)
		attributes := attributesOf(m)
		switch {
		case m.Role == "system" && len(m.Tools) > 0:
			if err := w.tools(field+".tools", m.Tools, "## New Tools Available\n"+
				"The system dynamically extends the toolset via lazy-loading.\n"+
				"You have access to all existing and extended tools.\n"+
				"Here are the specs for the extended tools.\n\n"); err != nil {
				return nil, err
			}
			continue
		case m.Role == "tool":
			results++
			if m.Tool == "" && results <= len(calls) {
				m.Tool = calls[results-1].Name
			}
			if m.Tool == "" {
				return nil, bad(field, "a tool message that names no tool and follows no call")
			}
			attributes = append(attributes, "tool", m.Tool, "index", strconv.Itoa(results))
		case m.Role == "system" || m.Role == "user" || m.Role == "assistant":
		default:
			return nil, bad(field+".role", "%q is none of system, user, assistant, tool", m.Role)
		}
		w.open("message", attributes...)
		if m.Role == "assistant" {
			calls, results = m.ToolCalls, 0
			w.assistant(m)
		} else {
			w.content(m.Content)
		}
		w.close("message")
		w.special(endToken)
	}
	switch r.ToolChoice {
	case "required":
		w.internal("tool-choice", "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.")
	case "none":
		w.internal("tool-choice", "The system is invoked with `tool_choice=none`.\nYou MUST NOT call any tools in the next message.")
	}
	if err := w.format(r.ResponseFormat); err != nil {
		return nil, err
	}
	switch {
	case r.Partial:
		w.begun(begun, r.StartsThinking())
	case r.AddGenerationPrompt:
		w.open("message", "role", "assistant")
		w.open(firstSection(r.Thinking))
	}
	if w.missing || len(w.images) > 0 {
		return nil, bad("image_prompts", "%d prompts, but the messages have another number of images", len(r.ImagePrompts))
	}
	return w.segments, nil
}

// attributesOf returns the attributes of a message's element, but for those of a tool's result.
func attributesOf(m Message) []string {
	attributes := []string{"role", m.Role}
	if m.Name != "" && m.Role != "tool" {
		attributes = append(attributes, "name", m.Name)
	}
	return attributes
}

func firstSection(thinking bool) string {
	if thinking {
		return "think"
	}
	return "response"
}

// inCallOrder puts each run of tool results into the order of the calls they answer and names their tools, if all of them tell.
func inCallOrder(messages []Message) []Message {
	messages = slices.Clone(messages)
	var calls []ToolCall
	for i := 0; i < len(messages); i++ {
		if messages[i].Role == "assistant" {
			calls = messages[i].ToolCalls
		}
		end := i
		for end < len(messages) && messages[end].Role == "tool" {
			end++
		}
		if run := messages[i:end]; len(run) > 0 {
			position := func(m Message) int {
				return slices.IndexFunc(calls, func(c ToolCall) bool { return c.ID != "" && c.ID == m.ToolCallID })
			}
			if !slices.ContainsFunc(run, func(m Message) bool { return position(m) < 0 }) {
				for j := range run {
					run[j].Tool = calls[position(run[j])].Name
				}
				slices.SortStableFunc(run, func(x, y Message) int { return position(x) - position(y) })
			}
			i = end - 1
		}
	}
	return messages
}

// writer collects segments. Empty ones are left out.
type writer struct {
	segments []Segment
	thinking bool
	images   []string // prompts not yet used
	replace  bool     // put them in the place of images; otherwise a placeholder stays
	missing  bool     // there were too few
}

func (w *writer) special(text string) {
	if text != "" {
		w.segments = append(w.segments, Segment{text, true})
	}
}

func (w *writer) plain(text string) {
	if text != "" {
		w.segments = append(w.segments, Segment{text, false})
	}
}

func (w *writer) open(tag string, attributes ...string) {
	w.special(openToken)
	w.plain(tag)
	for i := 0; i < len(attributes); i += 2 {
		w.plain(" " + attributes[i])
		w.plain(`="`)
		w.plain(attributeEscapes.Replace(attributes[i+1]))
		w.plain(`"`)
	}
	w.special(sepToken)
}

var attributeEscapes = strings.NewReplacer("&", "&amp;", `"`, "&quot;")

func (w *writer) close(tag string) {
	w.special(closeToken)
	w.plain(tag)
	w.special(sepToken)
}

// internal writes a message from the engine rather than from the conversation.
func (w *writer) internal(kind, body string) {
	w.open("message", "role", "system", "type", kind)
	w.plain(strings.TrimSpace(body))
	w.close("message")
	w.special(endToken)
}

// text writes text whose image placeholders stand for images, if there are prompts for them.
func (w *writer) text(text string) {
	if !w.replace {
		w.plain(text)
		return
	}
	for i, part := range strings.Split(text, imagePlaceholder) {
		if i > 0 {
			w.image()
		}
		w.plain(part)
	}
}

func (w *writer) image() {
	switch {
	case !w.replace:
		w.special(imagePlaceholder)
	case len(w.images) == 0:
		w.missing = true
	default:
		w.special(w.images[0])
		w.images = w.images[1:]
	}
}

func (w *writer) content(parts []Part) {
	for _, p := range parts {
		if p.Image {
			w.image()
		} else {
			w.text(p.Text)
		}
	}
}

func (w *writer) assistant(m Message) {
	if w.thinking {
		w.open("think")
		w.text(m.Reasoning)
		w.close("think")
	}
	w.open("response")
	w.content(m.Content)
	w.close("response")
	if len(m.ToolCalls) == 0 {
		return
	}
	w.open("tools")
	for i, call := range m.ToolCalls {
		w.open("call", "tool", call.Name, "index", strconv.Itoa(i+1))
		arguments, ok := splitArguments(call.Arguments)
		for _, a := range arguments {
			w.open("argument", "key", a.key, "type", a.kind)
			w.text(a.value)
			w.close("argument")
		}
		if !ok && call.Arguments != "" {
			w.open("json", "type", "object")
			w.text(call.Arguments)
			w.close("json")
		}
		w.close("call")
	}
	w.close("tools")
}

// begun writes a message of the assistant as far as it has got.
func (w *writer) begun(m Message, thinking bool) {
	w.open("message", attributesOf(m)...)
	if m.Reasoning != "" {
		w.open("think")
		w.text(m.Reasoning)
		if thinking {
			return
		}
		w.close("think")
	}
	w.open("response")
	w.content(m.Content)
}

func (w *writer) tools(field string, tools json.RawMessage, title string) error {
	if len(tools) == 0 {
		return nil
	}
	v, err := parseJSON(tools)
	if err != nil {
		return bad(field, "%v", err)
	}
	list, ok := v.([]any)
	if !ok {
		return bad(field, "not a list")
	}
	if len(list) > 0 {
		w.internal("tool-declare", title+"```json\n"+declaration.text(list)+"\n```")
	}
	return nil
}

func (w *writer) format(format json.RawMessage) error {
	if len(format) == 0 {
		return nil
	}
	const field = "response_format"
	v, err := parseJSON(format)
	if err != nil {
		return bad(field, "%v", err)
	}
	o, _ := v.(object)
	kind := v
	if o != nil {
		kind = o.get("type")
	}
	body := fmt.Sprintf("The system is invoked with `response_format=%v`.\n"+
		"Your response must be raw JSON data without markdown code blocks (```json) or any additional formatting.", kind)
	switch kind {
	case nil, "text":
		return nil
	case "json_object":
	case "json_schema":
		schema := o.get("json_schema")
		if schema == nil {
			return bad(field+".json_schema", "missing")
		}
		// The schema itself may be there, or, as the API has it, inside next to its name.
		if outer, ok := schema.(object); ok {
			if inner := outer.get("schema"); inner != nil {
				schema = inner
			} else if inner := outer.get("json_schema"); inner != nil {
				schema = inner
			}
		}
		body += "\nThe JSON data must match the following schema:\n```json\n" + declaration.text(schema) + "\n```"
	default:
		return bad(field+".type", "none of text, json_object, json_schema")
	}
	w.internal("response-format", body)
	return nil
}
