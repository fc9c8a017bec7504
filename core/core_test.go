package core_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/speculate"
	"github.com/k3infer/k3/presets/demo"
)

func open(t testing.TB, o core.Options) *core.Engine {
	t.Helper()
	if o.Files == nil {
		o.Files = disk.Dir("../conformance/testdata/tiny-mx")
	}
	e, err := core.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if left := e.Memory(); len(left) != 0 {
			t.Errorf("memory left: %v", left)
		}
	})
	return e
}

func sequence(t testing.TB, e *core.Engine) *core.Sequence {
	t.Helper()
	s, err := e.NewSequence()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

var prompt = []int{5, 9, 2, 33, 21, 8, 8, 1, 30, 4, 17}

// The ids, and every logit on the way, are the same whatever the chunks and threads.
func TestGenerateGivesTheSameTextAtEveryChunkSizeAndThreadCount(t *testing.T) {
	type result struct {
		ids    []int
		logits []float32
	}
	run := func(o core.Options) result {
		e := open(t, o)
		var r result
		out, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{
			MaxTokens: 12, Sample: sample.Params{Temperature: 1, Seed: 7},
			OnLogits: func(position int, logits []float32) error {
				if position != len(r.logits)/len(logits) {
					t.Errorf("logits of position %d come as number %d", position, len(r.logits)/len(logits))
				}
				r.logits = append(r.logits, logits...)
				return nil
			},
		}, func(id int) error {
			r.ids = append(r.ids, id)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(out.IDs, r.ids) || out.Reason != core.StopLength || len(r.ids) != 12 {
			t.Fatalf("outcome %v, emitted %v", out, r.ids)
		}
		if out.Prefill.Tokens != len(prompt) || out.Decode.Tokens != 11 || out.Decode.Passes != 11 {
			t.Errorf("counted %+v", out)
		}
		return r
	}
	want := run(core.Options{PrefillChunk: 64, Threads: 1})
	for _, o := range []core.Options{{PrefillChunk: 1, Threads: 2}, {PrefillChunk: 3, Threads: 3}, {PrefillChunk: 10, Threads: 8}, {Context: 40}} {
		got := run(o)
		if !slices.Equal(got.ids, want.ids) {
			t.Errorf("%+v: ids %v, not %v", o, got.ids, want.ids)
		}
		for i := range want.logits {
			if math.Float32bits(got.logits[i]) != math.Float32bits(want.logits[i]) {
				t.Fatalf("%+v: logit %d is %g, not %g", o, i, got.logits[i], want.logits[i])
			}
		}
	}
}

// Same model, same ids: the logits under any options whatever.
func TestLogitsAreTheSameUnderRandomOptions(t *testing.T) {
	rng := random.Anew(t, 1, 0)
	backends := []string{}
	for _, d := range kernel.Drivers() {
		if d.Missing() == "" {
			backends = append(backends, d.Name)
		}
	}
	online := []string{}
	for _, name := range experts.Policies() {
		if experts.CheckPolicy(name) == nil {
			online = append(online, name)
		}
	}
	for _, dir := range []string{"tiny-mx", "tiny-plain", "tiny-f16"} {
		var want []float32
		for round := range 12 {
			o := core.Options{Files: disk.Dir("../conformance/testdata/" + dir)}
			if round > 0 {
				o.Backend, o.Policy = backends[rng.IntN(len(backends))], online[rng.IntN(len(online))]
				o.Threads, o.PrefillChunk, o.Readers, o.Buffered = 1+rng.IntN(5), 1+rng.IntN(12), 1+rng.IntN(5), rng.IntN(2) == 0
				o.TileBytes = 1 << (10 + rng.IntN(8))
				o.TrunkMemory, o.ExpertMemory = 320<<10+rng.Int64N(400<<10), 100<<10+rng.Int64N(400<<10)
			}
			e := open(t, o)
			var got []float32
			_, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{
				MaxTokens: 10, Speculate: speculate.Options{Most: rng.IntN(4), Always: true},
				OnLogits: func(_ int, logits []float32) error {
					got = append(got, logits...)
					return nil
				},
			}, nil)
			if err != nil {
				t.Fatalf("%s, %+v: %v", dir, o, err)
			}
			if want == nil {
				want = got
			}
			if !slices.EqualFunc(got, want, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
				t.Fatalf("%s: other logits with %+v", dir, o)
			}
		}
	}
}

// A text that goes on computes only what is new, and is the text generated at once.
func TestGenerateGoesOnWithoutComputingTwice(t *testing.T) {
	e := open(t, core.Options{Sequences: 2})
	whole, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 9}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := sequence(t, e)
	first, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Computed() != len(prompt)+3 || len(s.IDs()) != len(prompt)+4 {
		t.Fatalf("%d computed of %d", s.Computed(), len(s.IDs()))
	}
	second, err := e.Generate(t.Context(), s, nil, core.GenerateOptions{MaxTokens: 5}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Concat(first.IDs, second.IDs); !slices.Equal(got, whole.IDs) || second.Prefill.Tokens != 1 {
		t.Errorf("in two parts %v, at once %v; the second computed %d tokens first", got, whole.IDs, second.Prefill.Tokens)
	}
}

func TestGenerateStops(t *testing.T) {
	e := open(t, core.Options{Context: 15, Sequences: 2})
	greedy, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("at a stop id, which is not emitted", func(t *testing.T) {
		var emitted []int
		out, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 9, Stop: greedy.IDs[2:]}, func(id int) error {
			emitted = append(emitted, id)
			return nil
		})
		if err != nil || out.Reason != core.StopID || len(out.IDs) == 0 || len(emitted) != len(out.IDs)-1 {
			t.Errorf("%+v, %v, emitted %v", out, err, emitted)
		}
	})
	t.Run("when the context is full", func(t *testing.T) {
		s := sequence(t, e)
		out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 9}, nil)
		// 11 of the prompt and 4 more fit, and one more is chosen from the last logits.
		if err != nil || out.Reason != core.StopContext || len(out.IDs) != 5 || s.Computed() != 15 {
			t.Errorf("%+v, %v, %d computed", out, err, s.Computed())
		}
		if _, err := e.Generate(t.Context(), s, nil, core.GenerateOptions{MaxTokens: 1}, nil); !errors.Is(err, core.ErrContext) {
			t.Errorf("going on: %v", err)
		}
	})
	t.Run("when emit says so", func(t *testing.T) {
		out, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 9}, func(int) error { return core.ErrStop })
		if err != nil || out.Reason != core.StopCaller || len(out.IDs) != 1 {
			t.Errorf("%+v, %v", out, err)
		}
	})
	t.Run("when interrupted, and goes on later", func(t *testing.T) {
		s, interrupt := sequence(t, e), make(chan struct{})
		out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 3, Interrupt: interrupt}, func(int) error {
			close(interrupt)
			return nil
		})
		if err != nil || out.Reason != core.StopInterrupt || len(out.IDs) != 1 {
			t.Fatalf("%+v, %v", out, err)
		}
		rest, err := e.Generate(t.Context(), s, nil, core.GenerateOptions{MaxTokens: 2}, nil)
		if err != nil || !slices.Equal(slices.Concat(out.IDs, rest.IDs), greedy.IDs) {
			t.Errorf("went on with %v, %v", rest.IDs, err)
		}
	})
	t.Run("with an error of emit", func(t *testing.T) {
		broken := errors.New("broken pipe")
		if _, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 3}, func(int) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("when cancelled, and the sequence is broken", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := sequence(t, e)
		_, err := e.Generate(ctx, s, prompt, core.GenerateOptions{MaxTokens: 3, Progress: func(p core.Progress) {
			if p.Layer == 1 {
				cancel()
			}
		}}, nil)
		if !errors.Is(err, context.Canceled) || !errors.Is(s.Err(), core.ErrBroken) {
			t.Errorf("%v, sequence %v", err, s.Err())
		}
		if _, err := e.Generate(t.Context(), s, nil, core.GenerateOptions{MaxTokens: 1}, nil); !errors.Is(err, core.ErrBroken) {
			t.Errorf("going on: %v", err)
		}
	})
}

func TestGenerateRefusesBeforeComputing(t *testing.T) {
	e := open(t, core.Options{Context: 15, Sequences: 6})
	for name, c := range map[string]struct {
		prompt []int
		o      core.GenerateOptions
		err    error
	}{
		"an empty prompt":    {nil, core.GenerateOptions{MaxTokens: 1}, core.ErrPrompt},
		"no tokens":          {prompt, core.GenerateOptions{}, nil},
		"a long prompt":      {make([]int, 16), core.GenerateOptions{MaxTokens: 1}, core.ErrContext},
		"a strange id":       {[]int{1, 1 << 40}, core.GenerateOptions{MaxTokens: 1}, core.ErrToken},
		"a hot temperature":  {prompt, core.GenerateOptions{MaxTokens: 1, Sample: sample.Params{Temperature: math.Inf(1)}}, sample.ErrParams},
		"a cold temperature": {prompt, core.GenerateOptions{MaxTokens: 1, Sample: sample.Params{Temperature: -1}}, sample.ErrParams},
	} {
		s := sequence(t, e)
		if _, err := e.Generate(t.Context(), s, c.prompt, c.o, nil); err == nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: got %v", name, err)
		}
		if s.Computed() != 0 || len(s.IDs()) != 0 || s.Err() != nil {
			t.Errorf("%s left a trace", name)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		o   core.Options
		err error
	}{
		"an unknown backend":  {core.Options{Files: demo.Files(), Backend: "abacus"}, kernel.ErrBackend},
		"an empty directory":  {core.Options{Files: disk.Dir(t.TempDir())}, checkpoint.ErrFormat},
		"too long a context":  {core.Options{Files: demo.Files(), Context: 4097}, core.ErrContext},
		"a negative chunk":    {core.Options{Files: demo.Files(), PrefillChunk: -1}, nil},
		"a negative context":  {core.Options{Files: demo.Files(), Context: -1}, nil},
		"a negative threads":  {core.Options{Files: demo.Files(), Threads: -1}, nil},
		"a missing directory": {core.Options{Files: disk.Dir("no such place")}, checkpoint.ErrFormat},
	} {
		if e, err := core.Open(t.Context(), c.o); err == nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: got %v", name, err)
			if e != nil {
				e.Close()
			}
		}
	}
}

// Several goroutines may share an engine, each with its own sequence.
func TestConcurrentGenerates(t *testing.T) {
	e := open(t, core.Options{Sequences: 5})
	want, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 6}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		s := sequence(t, e)
		all.Go(func() {
			got, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 6}, nil)
			if err != nil || !slices.Equal(got.IDs, want.IDs) {
				t.Errorf("%v, %v, not %v", got.IDs, err, want.IDs)
			}
		})
	}
	all.Wait()
}

// What the demonstration model says, by an independent implementation (presets/demo/said.txt has more).
func TestDemoSays(t *testing.T) {
	e := open(t, core.Options{Files: demo.Files(), Sequences: 5})
	words, err := e.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	stop, err := e.StopIDs()
	if err != nil {
		t.Fatal(err)
	}
	for prompt, want := range map[string]string{
		"The capital of Japan is":    " Tokyo.\nThe capital of the United Kingdom is London.\nThe capital of the United Kingdom is London.",
		"def fibonacci(n):\n":        "    if n <= 1:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n",
		"func Max(a, b int) int {\n": "\tif a > b {\n\t\treturn a\n\t}\n\treturn b\n}\n",
		"3 + 4 =":                    " 7\n7 + 7 = 14\n7 + 7 = 14\n7 + 7 = 14\n7 + 7 = 14",
		"Once upon a time":           " there was a green hen named Pia. Pia was curious. Pia and Pia were friends from that day.",
	} {
		ids, err := words.Encode(prompt)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		decoder := words.NewDecoder()
		out, err := e.Generate(t.Context(), sequence(t, e), ids, core.GenerateOptions{MaxTokens: 100, Stop: stop}, func(id int) error {
			text.WriteString(decoder.Push(id))
			return nil
		})
		text.WriteString(decoder.Flush())
		if err != nil || text.String() != want || out.Reason != core.StopID {
			t.Errorf("%q: %q, %s, %v", prompt, text.String(), out.Reason, err)
		}
	}
}

// What MostContext allows is never less than a plan has room for: it is a reason to refuse a text unread.
func TestNoPlanHasRoomForMoreThanMostContext(t *testing.T) {
	for _, memory := range []int64{80 << 20, 90 << 20, 120 << 20} {
		o := core.Options{Files: demo.Files(), Memory: memory, Context: 1}
		_, c, err := core.MakePlan(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		most, err := core.MostContext(c, o, c.MaxPositions)
		if err != nil || most < 1 {
			t.Fatalf("%d, %v", most, err)
		}
		if o.Context = most + 1; most < c.MaxPositions {
			if _, _, err := core.MakePlan(t.Context(), o); !errors.Is(err, core.ErrNoFit) {
				t.Errorf("%d MiB have room for more than %d tokens: %v", memory>>20, most, err)
			}
		}
	}
}
