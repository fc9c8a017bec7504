package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrRequest says that a chat request cannot be rendered; the message names the field.
var ErrRequest = errors.New("not a valid chat request")

// DefaultEffort is the thinking effort of a conversation whose user chose none. Render itself has no default: without Effort it
// says nothing about it, like the reference.
const DefaultEffort = "max"

// Request is a conversation and what is asked of the model's next message.
type Request struct {
	Messages []Message
	// Tools is a JSON array of tool declarations, empty for none.
	Tools json.RawMessage
	// ToolChoice is "required" or "none"; "auto" and "" say nothing to the model.
	ToolChoice string
	// ResponseFormat is the API's response_format object, empty for none.
	ResponseFormat json.RawMessage
	// Thinking gives assistant messages, past and next, a think section.
	Thinking bool
	// Effort is "low", "high", "max" or, to say nothing about it, "". It has no effect without Thinking.
	Effort string
	// AddGenerationPrompt opens the assistant's next message.
	AddGenerationPrompt bool
	// Partial says that the last message, an assistant's, is the beginning of the next one: the model goes on where its text
	// ends, at the end of the content or, if there is none, of the reasoning. It takes the place of the generation prompt.
	Partial bool
	// ImagePrompts replace the image parts, in order. They may contain control tokens, so they must not come from a stranger.
	ImagePrompts []string
}

// Message is one turn of a conversation.
type Message struct {
	Role      string // "system", "user", "assistant" or "tool"
	Name      string
	Content   []Part
	Reasoning string     // assistant
	ToolCalls []ToolCall // assistant
	// Tools, in a system message, is a JSON array of declarations that come in addition; the content is then not rendered.
	Tools json.RawMessage
	// ToolCallID, in a tool message, is the ID of the call it answers, Tool that call's function. Either may be empty.
	ToolCallID, Tool string
}

// Part is a piece of a message's content: text, or an image.
type Part struct {
	Text  string
	Image bool
}

// StartsThinking reports whether what the model adds begins inside a think section: what NewParser asks.
func (r Request) StartsThinking() bool {
	if !r.Partial || len(r.Messages) == 0 {
		return r.Thinking
	}
	last := r.Messages[len(r.Messages)-1]
	return last.Reasoning != "" && last.Plain() == ""
}

// Text makes the content of a message, Message.Content, that is one piece of text and no image.
func Text(text string) []Part { return []Part{{Text: text}} }

// ToolCall is a function the assistant calls.
type ToolCall struct {
	ID, Name string
	// Arguments is the text of a JSON object, or whatever the model wrote instead of one.
	Arguments string
}

// User is the request that asks for an answer to text.
func User(text string, thinking bool) Request {
	return Request{
		Messages:            []Message{{Role: "user", Content: Text(text)}},
		Thinking:            thinking,
		Effort:              DefaultEffort,
		AddGenerationPrompt: true,
	}
}

// ParseRequest reads a request in the form of OpenAI's chat completions: messages, tools, tool_choice and response_format, plus
// thinking (default true), thinking_effort, add_generation_prompt (default true) and image_prompts. Other fields are another's
// business. A tool_choice that names a function says nothing to the model. Errors match ErrRequest.
func ParseRequest(data []byte) (Request, error) {
	r := Request{Thinking: true, AddGenerationPrompt: true}
	v, err := parseJSON(data)
	if err != nil {
		return r, fmt.Errorf("%w: %v", ErrRequest, err)
	}
	top, ok := v.(object)
	if !ok {
		return r, bad("", "not an object")
	}
	messages, ok := top.get("messages").([]any)
	if !ok {
		return r, bad("messages", "not a list")
	}
	for i, m := range messages {
		message, err := parseMessage(fmt.Sprintf("messages[%d]", i), m)
		if err != nil {
			return r, err
		}
		r.Messages = append(r.Messages, message)
	}
	if r.Tools, err = parseTools("tools", top.get("tools")); err != nil {
		return r, err
	}
	switch choice := top.get("tool_choice").(type) {
	case nil:
	case string:
		if choice != "auto" && choice != "none" && choice != "required" {
			return r, bad("tool_choice", "%q is none of auto, none, required", choice)
		}
		r.ToolChoice = choice
	case object:
		if f, ok := choice.get("function").(object); !ok || choice.get("type") != "function" || !isText(f.get("name")) {
			return r, bad("tool_choice", "an object must name a function")
		}
	default:
		return r, bad("tool_choice", "not a string or an object")
	}
	if format := top.get("response_format"); format != nil {
		r.ResponseFormat = json.RawMessage(argument.text(format))
	}
	for _, f := range []struct {
		name string
		to   *bool
	}{{"thinking", &r.Thinking}, {"add_generation_prompt", &r.AddGenerationPrompt}} {
		if v := top.get(f.name); v != nil {
			if *f.to, ok = v.(bool); !ok {
				return r, bad(f.name, "not true or false")
			}
		}
	}
	if r.Effort, err = optionalText("thinking_effort", top.get("thinking_effort")); err != nil {
		return r, err
	}
	if prompts := top.get("image_prompts"); prompts != nil {
		list, ok := prompts.([]any)
		if !ok {
			return r, bad("image_prompts", "not a list")
		}
		r.ImagePrompts = []string{}
		for i, p := range list {
			if !isText(p) {
				return r, bad(fmt.Sprintf("image_prompts[%d]", i), "not a string")
			}
			r.ImagePrompts = append(r.ImagePrompts, p.(string))
		}
	}
	return r, nil
}

func bad(field, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if field != "" {
		text = field + ": " + text
	}
	return fmt.Errorf("%w: %s", ErrRequest, text)
}

func isText(v any) bool { _, ok := v.(string); return ok }

// optionalText accepts a string, or nil for "".
func optionalText(field string, v any) (string, error) {
	s, ok := v.(string)
	if v != nil && !ok {
		return "", bad(field, "not a string")
	}
	return s, nil
}

func parseTools(field string, v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	list, ok := v.([]any)
	if !ok {
		return nil, bad(field, "not a list")
	}
	for i, tool := range list {
		if _, ok := tool.(object); !ok {
			return nil, bad(fmt.Sprintf("%s[%d]", field, i), "not an object")
		}
	}
	return json.RawMessage(argument.text(list)), nil
}

func parseMessage(field string, v any) (m Message, err error) {
	o, ok := v.(object)
	if !ok {
		return m, bad(field, "not an object")
	}
	switch role := o.get("role"); role {
	case "developer": // the API's newer name for system
		m.Role = "system"
	case "system", "user", "assistant", "tool":
		m.Role = role.(string)
	default:
		return m, bad(field+".role", "none of system, developer, user, assistant, tool")
	}
	if m.Content, err = parseContent(field+".content", o.get("content")); err != nil {
		return m, err
	}
	for _, f := range []struct {
		to    *string
		names []string // the first that is not empty counts
	}{
		{&m.Name, []string{"name"}},
		{&m.Reasoning, []string{"reasoning_content", "reasoning"}},
		{&m.ToolCallID, []string{"tool_call_id", "id"}},
		{&m.Tool, []string{"tool", "name"}},
	} {
		for _, name := range f.names {
			text, err := optionalText(field+"."+name, o.get(name))
			if err != nil {
				return m, err
			}
			if *f.to == "" {
				*f.to = text
			}
		}
	}
	if m.Tools, err = parseTools(field+".tools", o.get("tools")); err != nil {
		return m, err
	}
	calls, ok := o.get("tool_calls").([]any)
	if !ok && o.get("tool_calls") != nil {
		return m, bad(field+".tool_calls", "not a list")
	}
	for i, c := range calls {
		call, err := parseCall(fmt.Sprintf("%s.tool_calls[%d]", field, i), c)
		if err != nil {
			return m, err
		}
		m.ToolCalls = append(m.ToolCalls, call)
	}
	return m, nil
}

func parseContent(field string, v any) ([]Part, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return Text(v), nil
	case []any:
		var parts []Part
		for i, p := range v {
			field := fmt.Sprintf("%s[%d]", field, i)
			o, ok := p.(object)
			if !ok {
				return nil, bad(field, "not an object")
			}
			if kind := o.get("type"); kind == "image_url" || kind == "image" {
				parts = append(parts, Part{Image: true})
				continue
			}
			text, ok := o.get("text").(string)
			if !ok {
				return nil, bad(field, "neither a text nor an image")
			}
			parts = append(parts, Part{Text: text})
		}
		return parts, nil
	}
	return nil, bad(field, "neither a string nor a list of parts")
}

func parseCall(field string, v any) (call ToolCall, err error) {
	o, ok := v.(object)
	if !ok {
		return call, bad(field, "not an object")
	}
	if call.ID, err = optionalText(field+".id", o.get("id")); err != nil {
		return call, err
	}
	if f, ok := o.get("function").(object); ok {
		o = f
		field += ".function"
	}
	if call.Name, ok = o.get("name").(string); !ok {
		return call, bad(field+".name", "not a string")
	}
	switch arguments := o.get("arguments").(type) {
	case nil:
	case string:
		call.Arguments = arguments
	case object:
		call.Arguments = argument.text(arguments)
	default:
		return call, bad(field+".arguments", "neither a string nor an object")
	}
	return call, nil
}

// Plain returns the text of a message's content, images left out.
func (m Message) Plain() string {
	var b strings.Builder
	for _, p := range m.Content {
		b.WriteString(p.Text)
	}
	return b.String()
}
