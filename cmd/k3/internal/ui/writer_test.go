package ui

import (
	"bytes"
	"testing"

	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/tokenizer"
	"github.com/k3infer/k3/presets/demo"
)

func TestACallIsShownAsAnAnswer(t *testing.T) {
	tok, err := tokenizer.Load(demo.Files())
	if err != nil {
		t.Fatal(err)
	}
	calls := []chat.ToolCall{{Name: "weather", Arguments: `{"city": "Paris"}`}, {Name: "time", Arguments: `{}`}}
	for _, c := range []struct {
		content, want string
	}{
		{content: "", want: "[calls weather {\"city\": \"Paris\"}]\n[calls time {}]\n"},
		{content: "Wait.", want: "Wait.\n[calls weather {\"city\": \"Paris\"}]\n[calls time {}]\n"},
	} {
		m := chat.Message{Role: "assistant", Reasoning: "hm", ToolCalls: calls}
		if c.content != "" {
			m.Content = chat.Text(c.content)
		}
		var ids [2][]int
		for i, r := range []chat.Request{{Thinking: true, AddGenerationPrompt: true}, {Thinking: true, Messages: []chat.Message{m}}} {
			segments, err := chat.Render(r)
			if err != nil {
				t.Fatal(err)
			}
			if ids[i], err = chat.Encode(tok, segments); err != nil {
				t.Fatal(err)
			}
		}
		var out, reasoning bytes.Buffer
		w, err := NewWriter(&out, &Progress{}, tok, []string{"never said"}, false)
		if err != nil {
			t.Fatal(err)
		}
		w.Parser, w.ReasoningTo = chat.NewParser(tok, true), &reasoning
		for _, id := range ids[1][len(ids[0]):] {
			if err := w.Token(id); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.End(nil); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want || reasoning.String() != "hm\n" || string(w.Text) != c.content {
			t.Errorf("%q and %q, the text is %q", out.String(), reasoning.String(), w.Text)
		}
	}
}
