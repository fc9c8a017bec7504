package core_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/sample"
	_ "github.com/k3infer/k3/policies"
)

// Generate goes on from a prompt, emitting each token as it is chosen.
func ExampleEngine_Generate() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Options{Files: disk.Dir("../presets/demo/checkpoint")})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	words, err := engine.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	prompt, err := words.Encode("The capital of France is")
	if err != nil {
		log.Fatal(err)
	}
	sequence, err := engine.NewSequence()
	if err != nil {
		log.Fatal(err)
	}
	defer sequence.Close()
	text := words.NewDecoder()
	out, err := engine.Generate(ctx, sequence, prompt, core.GenerateOptions{MaxTokens: 4}, func(id int) error {
		fmt.Print(text.Push(id))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("(%s after %d passes)\n", out.Reason, out.Prefill.Passes+out.Decode.Passes)
	// Output:
	//  Paris.
	// (max tokens after 4 passes)
}

// A pass carries rows of several sequences; each weight is read once for all of them.
func ExampleEngine_Pass() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Options{Files: disk.Dir("../presets/demo/checkpoint"), Sequences: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	words, err := engine.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	var rows []core.Row
	var sequences []*core.Sequence
	for _, prompt := range []string{"The capital of Japan is", "The capital of Peru is"} {
		s, err := engine.NewSequence()
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		ids, err := words.Encode(prompt)
		if err != nil {
			log.Fatal(err)
		}
		for i, id := range ids {
			rows = append(rows, core.Row{Sequence: s, Token: id, Logits: i == len(ids)-1})
		}
		sequences = append(sequences, s)
	}
	logits, err := engine.Pass(ctx, rows)
	if err != nil {
		log.Fatal(err)
	}
	greedy, _ := sample.New(sample.Params{})
	for i, s := range sequences {
		id, err := greedy.Next(logits[i], s.IDs())
		if err != nil {
			log.Fatal(err)
		}
		word, _ := words.Decode([]int{id})
		fmt.Printf("%q\n", word)
	}
	// Output:
	// " T"
	// " L"
}

// A guess gets logits like any row but leaves no trace unless it is accepted.
func ExampleSequence_Accept() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Options{Files: disk.Dir("../presets/demo/checkpoint")})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	s, err := engine.NewSequence()
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if _, err := engine.Pass(ctx, []core.Row{{Sequence: s, Token: 5}, {Sequence: s, Token: 6, Tentative: true}, {Sequence: s, Token: 7, Tentative: true}}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.IDs())
	if err := s.Accept(1); err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.IDs())
	// Output:
	// [5]
	// [5 6]
}

// Two texts share each pass over the weights, and are what they would be alone.
func ExampleScheduler() {
	ctx := context.Background()
	engine, err := core.Open(ctx, core.Options{Files: disk.Dir("../presets/demo/checkpoint"), Sequences: 2, Context: 64})
	if err != nil {
		log.Fatal(err)
	}
	defer engine.Close()
	words, err := engine.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}
	scheduler := engine.NewScheduler(core.SchedulerOptions{})
	defer scheduler.Close()
	prompts := []string{"The capital of Japan is", "The capital of Peru is"}
	answers := make([]string, len(prompts))
	var texts sync.WaitGroup
	for i, prompt := range prompts {
		texts.Go(func() {
			ids, err := words.Encode(prompt)
			if err != nil {
				log.Fatal(err)
			}
			s, err := scheduler.Sequence(ctx, core.People, ids, len(ids)+4)
			if err != nil {
				log.Fatal(err)
			}
			defer s.Close()
			out, err := scheduler.Generate(ctx, core.People, s, nil, core.GenerateOptions{MaxTokens: 4}, nil)
			if err != nil {
				log.Fatal(err)
			}
			text, _ := words.Decode(out.IDs)
			answers[i] = string(text)
		})
	}
	texts.Wait()
	fmt.Printf("%q\n", answers)
	// Output:
	// [" Tokyo" " Lima.\n"]
}
