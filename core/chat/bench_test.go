package chat_test

import (
	"testing"

	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/tokenizer"
)

// conversation is one of many turns, with a call of a tool in each.
func conversation() chat.Request {
	r := chat.Request{Thinking: true, AddGenerationPrompt: true}
	for range 100 {
		r.Messages = append(r.Messages,
			chat.Message{Role: "user", Content: chat.Text("What is the weather in Paris, and what should I wear?")},
			chat.Message{
				Role: "assistant", Content: chat.Text("I shall look."), Reasoning: "The tool knows.",
				ToolCalls: []chat.ToolCall{{ID: "weather:0", Name: "weather", Arguments: `{"city":"Paris","days":[1,2]}`}},
			},
			chat.Message{Role: "tool", ToolCallID: "weather:0", Tool: "weather", Content: chat.Text("rain")})
	}
	return r
}

func BenchmarkRender(b *testing.B) {
	r := conversation()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := chat.Render(r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	t, err := tokenizer.Load(disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		b.Fatal(err)
	}
	segments, err := chat.Render(conversation())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := chat.Encode(t, segments); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParser(b *testing.B) {
	pieces := []string{"The sky ", "is blue", ".<|close|>", "think<|se", "p|><|open|>", "response<|sep|>"}
	for range 1000 {
		pieces = append(pieces, "some words, ")
	}
	pieces = append(pieces, "<|close|>response<|sep|>")
	b.ReportAllocs()
	for b.Loop() {
		p := chat.NewParser(nil, true)
		for _, piece := range pieces {
			p.Write(piece)
		}
		p.Finish()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(pieces)), "ns/piece")
}
