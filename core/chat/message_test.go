package chat

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

func TestMessagesReadBackFromJSON(t *testing.T) {
	for _, m := range []Message{
		{Role: "system", Content: Text("Be brief.\n")},
		{Role: "system", Tools: json.RawMessage(`[{"name":"f"}]`)},
		{Role: "user", Name: "ann", Content: Text("<|open|> \u2028 & \"é\" 🙂")},
		{Role: "assistant", Reasoning: "hm", Content: Text("yes\tno"),
			ToolCalls: []ToolCall{{ID: "f:0", Name: "f", Arguments: `{"a": 1e2}`}, {Name: "g", Arguments: "{"}}},
		{Role: "tool", ToolCallID: "f:0", Tool: "f", Content: Text("3")},
	} {
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var back Message
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if len(m.Content) == 0 {
			m.Content = Text("")
		}
		if m.Role == "tool" {
			back.Name = ""
		} else {
			back.Tool = ""
		}
		again, err := json.Marshal(back)
		if err != nil || string(again) != string(data) || back.Role != m.Role || !reflect.DeepEqual(back.ToolCalls, m.ToolCalls) ||
			back.Plain() != m.Plain() || back.ToolCallID != m.ToolCallID || back.Tool != m.Tool || back.Name != m.Name {
			t.Errorf("%s, %v\n%+v, not\n%+v", again, err, back, m)
		}
	}
	var m Message
	for _, text := range []string{`7`, `{"role":"king"}`, `{"role":"user","content":7}`} {
		if err := json.Unmarshal([]byte(text), &m); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
