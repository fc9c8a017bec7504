package core_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/speculate"
)

// drafterFunc guesses with a function.
type drafterFunc func(history []int, n int) []int

func (f drafterFunc) Draft(dst, history []int, n int) []int { return append(dst, f(history, n)...) }

// Whatever is guessed, and however well, the text, the logits and the state are those of guessing nothing.
func TestGuessesNeverChangeTheText(t *testing.T) {
	e := open(t, core.Options{Sequences: 14})
	vocab := e.Config().Vocab
	for name, params := range map[string]sample.Params{"greedy": {}, "seeded": {Temperature: 1, Seed: 11, RepetitionPenalty: 1.1}} {
		type result struct {
			out    core.Outcome
			logits []float32
			state  []float32
		}
		run := func(o speculate.Options) result {
			s := sequence(t, e)
			var r result
			var err error
			r.out, err = e.Generate(t.Context(), s, prompt, core.GenerateOptions{
				MaxTokens: 24, Sample: params, Speculate: o,
				OnLogits: func(position int, logits []float32) error {
					if position*vocab != len(r.logits) {
						t.Errorf("logits of position %d come as number %d", position, len(r.logits)/vocab)
					}
					r.logits = append(r.logits, logits...)
					return nil
				},
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			// What the state remembers shows in what comes next.
			_, err = e.Generate(t.Context(), s, []int{3}, core.GenerateOptions{MaxTokens: 1, OnLogits: func(_ int, l []float32) error {
				r.state = append(r.state, l...)
				return nil
			}}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		plain := run(speculate.Options{})
		text := slices.Concat(prompt, plain.out.IDs)
		right := func(history []int, n int) []int {
			return slices.Clone(text[min(len(history), len(text)):min(len(history)+n, len(text))])
		}
		rng := random.New(t, 1, 1)
		for how, draft := range map[string]drafterFunc{
			"right": right,
			"wrong": func(history []int, n int) []int {
				ids := right(history, n)
				for i := range ids {
					ids[i] = (ids[i] + 1) % vocab
				}
				return ids
			},
			"right, then wrong": func(history []int, n int) []int {
				ids := right(history, n)
				if len(ids) > 1 {
					ids[1] = (ids[1] + 1) % vocab
				}
				return ids
			},
			"random": func(history []int, n int) []int {
				ids := right(history, n)
				for i := range ids {
					if rng.IntN(3) == 0 {
						ids[i] = rng.IntN(vocab)
					}
				}
				return ids
			},
			"too many and out of range": func([]int, int) []int { return []int{1, -1, vocab, 2, 3, 4, 5, 6, 7, 8, 9} },
			"nothing":                   func([]int, int) []int { return nil },
		} {
			got := run(speculate.Options{Most: 4, Drafter: draft, Always: true})
			if !slices.Equal(got.out.IDs, plain.out.IDs) || got.out.Reason != plain.out.Reason {
				t.Errorf("%s, %s guesses: %v, not %v", name, how, got.out.IDs, plain.out.IDs)
			}
			for _, x := range []struct{ got, want []float32 }{{got.logits, plain.logits}, {got.state, plain.state}} {
				if len(x.got) != len(x.want) {
					t.Fatalf("%s, %s guesses: %d logits, not %d", name, how, len(x.got), len(x.want))
				}
				for i := range x.want {
					if math.Float32bits(x.got[i]) != math.Float32bits(x.want[i]) {
						t.Fatalf("%s, %s guesses: logit %d differs", name, how, i)
					}
				}
			}
			g := got.out.Guesses
			switch {
			case how == "right" && (g.Accepted != g.Proposed || got.out.Decode.Passes > 6):
				t.Errorf("%s: right guesses: %+v in %d passes", name, g, got.out.Decode.Passes)
			case how == "wrong" && (g.Accepted != 0 || g.Proposed == 0 || got.out.Decode.Passes != 23):
				t.Errorf("%s: wrong guesses: %+v in %d passes", name, g, got.out.Decode.Passes)
			}
		}
	}
}

// A stop in the middle of right guesses ends the text where it ends without them.
func TestGuessesDoNotRunPastAStop(t *testing.T) {
	e := open(t, core.Options{Sequences: 9})
	plain, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 9}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := slices.Concat(prompt, plain.IDs)
	draft := drafterFunc(func(history []int, n int) []int { return text[len(history):min(len(history)+n, len(text))] })
	for stopAt := 1; stopAt < 9; stopAt++ {
		s, n := sequence(t, e), 0
		out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 9, Speculate: speculate.Options{Most: 5, Drafter: draft, Always: true}}, func(int) error {
			if n++; n == stopAt {
				return core.ErrStop
			}
			return nil
		})
		if err != nil || out.Reason != core.StopCaller || !slices.Equal(out.IDs, plain.IDs[:stopAt]) {
			t.Fatalf("stop at %d: %+v, %v", stopAt, out, err)
		}
		rest, err := e.Generate(t.Context(), s, nil, core.GenerateOptions{MaxTokens: 9 - stopAt}, nil)
		if err != nil || !slices.Equal(rest.IDs, plain.IDs[stopAt:]) {
			t.Errorf("after a stop at %d: %v, %v", stopAt, rest.IDs, err)
		}
	}
}

// Guesses that would not fit into the context are not taken along: the text ends where it ends without them.
func TestGuessesDoNotOverrunTheContext(t *testing.T) {
	const context = 20
	e := open(t, core.Options{Sequences: 7, Context: context})
	o := core.GenerateOptions{MaxTokens: 100}
	plain, err := e.Generate(t.Context(), sequence(t, e), prompt, o, nil)
	if err != nil || plain.Reason != core.StopContext || len(plain.IDs) != context-len(prompt)+1 {
		t.Fatalf("without guesses: %d ids, %s, %v", len(plain.IDs), plain.Reason, err)
	}
	text := slices.Concat(prompt, plain.IDs, make([]int, context))
	furthest := 0
	for most := 1; most <= 5; most++ {
		asked := 0
		draft := drafterFunc(func(history []int, n int) []int {
			asked = max(asked, len(history)+n)
			return text[len(history):][:n]
		})
		o.Speculate = speculate.Options{Most: most, Drafter: draft, Always: true}
		out, err := e.Generate(t.Context(), sequence(t, e), prompt, o, nil)
		if err != nil || out.Reason != core.StopContext || !slices.Equal(out.IDs, plain.IDs) {
			t.Errorf("%d guesses: %v, %s, %v; without: %v", most, out.IDs, out.Reason, err, plain.IDs)
		}
		if asked > context {
			t.Errorf("%d guesses: drafted up to position %d of %d", most, asked, context)
		}
		furthest = max(furthest, asked)
	}
	if furthest != context {
		t.Errorf("no draft came nearer to the end than position %d of %d: this shows nothing", furthest, context)
	}
}

// Whatever of the caller fails among right guesses, no guess hangs over the sequence: it goes on with the same text.
func TestAFunctionThatFailsLeavesNoGuesses(t *testing.T) {
	e := open(t, core.Options{Sequences: 12})
	plain, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 9}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := slices.Concat(prompt, plain.IDs)
	draft := drafterFunc(func(history []int, n int) []int { return text[len(history):min(len(history)+n, len(text))] })
	broken := errors.New("broken")
	for at := 2; at < 7; at++ {
		for _, what := range []string{"emit", "OnLogits"} {
			left := at
			fail := func() error {
				if left--; left == 0 {
					return broken
				}
				return nil
			}
			o := core.GenerateOptions{MaxTokens: 9, Speculate: speculate.Options{Most: 5, Drafter: draft, Always: true}}
			emit := func(int) error { return fail() }
			if what == "OnLogits" {
				left += len(prompt)
				o.OnLogits, emit = func(int, []float32) error { return fail() }, nil
			}
			s := sequence(t, e)
			if _, err := e.Generate(t.Context(), s, prompt, o, emit); !errors.Is(err, broken) {
				t.Fatalf("%s %d: %v", what, at, err)
			}
			done := len(s.IDs()) - len(prompt)
			rest, err := e.Generate(t.Context(), s, nil, core.GenerateOptions{MaxTokens: 9 - done}, nil)
			if err != nil || !slices.Equal(rest.IDs, plain.IDs[done:]) {
				t.Errorf("after %s failed in call %d: %v, %v; not %v", what, at, rest.IDs, err, plain.IDs[done:])
			}
			s.Close()
		}
	}
}
