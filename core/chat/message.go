package chat

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// EndsMessage reports whether the segment is the end of a message.
func (s Segment) EndsMessage() bool { return s.Special && s.Text == endToken }

// messageJSON is a message in the form that OpenAI's chat completions have.
type messageJSON struct {
	Role       string          `json:"role"`
	Name       string          `json:"name,omitempty"`
	Content    string          `json:"content"`
	Reasoning  string          `json:"reasoning_content,omitempty"`
	ToolCalls  []CallJSON      `json:"tool_calls,omitempty"`
	Tools      json.RawMessage `json:"tools,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	Tool       string          `json:"tool,omitempty"`
}

// CallJSON is a call in the form that OpenAI's chat completions have.
type CallJSON struct {
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type"`
	Function FunctionJSON `json:"function"`
}

// FunctionJSON is the function of a CallJSON.
type FunctionJSON struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// CallsJSON returns calls in the form that OpenAI's chat completions have.
func CallsJSON(calls []ToolCall) []CallJSON {
	var all []CallJSON
	for _, c := range calls {
		all = append(all, CallJSON{c.ID, "function", FunctionJSON{c.Name, c.Arguments}})
	}
	return all
}

// MarshalJSON writes the message in the form of OpenAI's chat completions, which UnmarshalJSON reads. Images are left out.
func (m Message) MarshalJSON() ([]byte, error) {
	line := messageJSON{
		Role: m.Role, Name: m.Name, Content: m.Plain(), Reasoning: m.Reasoning,
		ToolCalls: CallsJSON(m.ToolCalls), Tools: m.Tools, ToolCallID: m.ToolCallID, Tool: m.Tool,
	}
	if m.Role != "tool" {
		line.Tool = "" // where a name is, ParseRequest finds one for all roles
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(line)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// UnmarshalJSON reads a message as ParseRequest does. Errors match ErrRequest.
func (m *Message) UnmarshalJSON(data []byte) error {
	v, err := parseJSON(data)
	if err != nil {
		return fmt.Errorf("%w: %v", ErrRequest, err)
	}
	*m, err = parseMessage("message", v)
	return err
}
