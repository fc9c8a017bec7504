package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/conversation"
	"github.com/k3infer/k3/presets/demo"
)

// talking returns a talk with the demonstration model.
func talking(t *testing.T, thinking bool) *talk {
	t.Helper()
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, others) })
	e, err := core.Open(t.Context(), core.Options{Files: demo.Files(), Sequences: conversationSequences})
	if err != nil {
		t.Fatal(err)
	}
	generate := core.GenerateOptions{MaxTokens: 100}
	if generate.Stop, err = e.StopIDs(); err != nil {
		t.Fatal(err)
	}
	prefixes := e.NewPrefixes(64 << 20)
	c, err := conversation.New(e, e, prefixes, conversation.Settings{Generate: generate, Thinking: thinking, Effort: chat.DefaultEffort})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		prefixes.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return &talk{Conversation: c, engine: e, prefixes: prefixes}
}

// says asks and returns the answer.
func says(t *testing.T, c *talk, text string) string {
	t.Helper()
	m := chat.Message{Role: "user", Content: chat.Text(text)}
	if _, err := c.Ask(t.Context(), m, func(chat.Event) error { return nil }); err != nil {
		t.Fatal(err)
	}
	return c.Messages()[len(c.Messages())-1].Plain()
}

func TestWhatIsNoConversationIsNotLoaded(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "talk.k3s")
	c := talking(t, false)
	says(t, c, "What is the capital of France?")
	refused := func(name string) {
		t.Helper()
		err := c.load(path)
		if exitCode(err) != ui.ExitInput || len(c.Messages()) != 2 {
			t.Errorf("%s: %v, %d messages", name, err, len(c.Messages()))
		}
	}
	refused("no file")
	s, _, err := c.Save()
	if err != nil {
		t.Fatal(err)
	}
	for _, extra := range []string{
		``, `{}`, `7`, `{"run":{"start":3}}`, `{"chat":{}}`,
		`{"chat":{"messages":[{"role":"user","content":"x"}],"tokens":[0]}}`,
		`{"chat":{"messages":[{"role":"user","content":"x"}],"tokens":[0,5]}}`,
		`{"chat":{"messages":[{"role":"user","content":"x"}],"tokens":[-1,1000]}}`,
		`{"chat":{"messages":[{"role":"nobody","content":"x"}],"tokens":[0,1]}}`,
	} {
		if err := s.Save(path, json.RawMessage(extra)); err != nil {
			t.Fatal(err)
		}
		refused(extra)
	}
	if err := c.save(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2]++
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("damaged")
	if got := says(t, c, "What is the capital of Japan?"); got != "The capital of Japan is Tokyo." {
		t.Error(got)
	}
}

func TestATranscriptReadsBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "talk.jsonl")
	messages := []chat.Message{
		{Role: "system", Content: chat.Text("Be brief.\n")},
		{Role: "user", Content: chat.Text("<|open|> \u2028 & \"é\" 🙂")},
		{Role: "assistant", Reasoning: "hm", Content: chat.Text("yes\tno"),
			ToolCalls: []chat.ToolCall{{Name: "f", Arguments: `{"a": 1e2}`}}},
		{Role: "assistant"},
	}
	if err := writeTranscript(path, messages); err != nil {
		t.Fatal(err)
	}
	read, err := readTranscript(path, maxText)
	if err != nil || len(read) != len(messages) {
		t.Fatalf("%d messages, %v", len(read), err)
	}
	for i, m := range messages {
		r := read[i]
		if r.Role != m.Role || r.Plain() != m.Plain() || r.Reasoning != m.Reasoning || !slices.Equal(r.ToolCalls, m.ToolCalls) {
			t.Errorf("message %d: %+v, not %+v", i, r, m)
		}
	}
	for text, want := range map[string]string{
		"{\"role\":\"user\",\"content\":\"x\"}\n\nnonsense": ":3: ",
		"{\"role\":\"user\"},{\"role\":\"user\"}":           ":1: ",
		"{\"role\":\"king\"}":                               "role",
		"{\"role\":\"user\"}\n{\"role\":\"system\"}":        "not the first",
		"\"x\"": "not an object",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readTranscript(path, maxText); exitCode(err) != ui.ExitInput || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
