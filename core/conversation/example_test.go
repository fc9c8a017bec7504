package conversation_test

import (
	"context"
	"fmt"
	"log"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/chat"
	"github.com/k3infer/k3/core/conversation"
	_ "github.com/k3infer/k3/policies"
	"github.com/k3infer/k3/presets/demo"
)

// A second question computes only what it adds to the conversation.
func Example() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Options{Files: demo.Files(), Sequences: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	stop, err := engine.StopIDs()
	if err != nil {
		log.Fatal(err)
	}
	states := engine.NewPrefixes(64 << 20)
	defer states.Close()
	c, err := conversation.New(engine, engine, states, conversation.Settings{
		Generate: core.GenerateOptions{MaxTokens: 100, Stop: stop},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for _, text := range []string{"What is the capital of France?", "What is the capital of Japan?"} {
		turn, err := c.Ask(ctx, chat.Message{Role: "user", Content: chat.Text(text)}, func(e chat.Event) error {
			if e.Kind == chat.ContentDelta {
				fmt.Print(e.Text)
			}
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf(" (%d of %d tokens were kept)\n", turn.Kept, turn.Total)
	}
	// Output:
	// The capital of France is Paris. (0 of 44 tokens were kept)
	// The capital of Japan is Tokyo. (43 of 91 tokens were kept)
}
