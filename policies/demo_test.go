package policies_test

import (
	"testing"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/experts/replay"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/presets/demo"
)

// record is what the demonstration model asks for while it writes some texts, one after the other.
func record(t *testing.T) *replay.Trace {
	var keys []experts.Key
	e, err := core.Open(t.Context(), core.Options{Files: demo.Files(), Routed: func(layer int, ids []int) {
		for _, id := range ids {
			keys = append(keys, experts.Key{Layer: int32(layer), Expert: int32(id)})
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	words, err := e.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	for i, prompt := range []string{"The capital of Norway is", "Once upon a time", "def fibonacci(n):\n", "Count: 4, 5, 6,"} {
		ids, err := words.Encode(prompt)
		if err != nil {
			t.Fatal(err)
		}
		s, err := e.NewSequence()
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.Generate(t.Context(), s, ids, core.GenerateOptions{MaxTokens: 60, Sample: sample.Params{Temperature: 0.8, Seed: uint64(i)}}, nil)
		s.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return replay.New(keys)
}

func TestAdaptiveOnWhatTheDemonstrationModelAsksFor(t *testing.T) {
	trace := record(t)
	for _, capacity := range []int{12, 24, 48, 96, 192, 288} {
		rate := map[string]float64{}
		for _, policy := range []string{"lru", "s3fifo", "adaptive", "belady"} {
			r, err := replay.Run(trace, policy, capacity, 1)
			if err != nil {
				t.Fatal(err)
			}
			rate[policy] = 100 * r.HitRate()
		}
		t.Logf("%d of 384 experts: adaptive %.1f%%, lru %.1f%%, s3fifo %.1f%%, belady %.1f%%", capacity, rate["adaptive"], rate["lru"], rate["s3fifo"], rate["belady"])
		if rate["adaptive"] < max(rate["lru"], rate["s3fifo"])-1 {
			t.Errorf("%d slots: adaptive %.2f%%, lru %.2f%%, s3fifo %.2f%%", capacity, rate["adaptive"], rate["lru"], rate["s3fifo"])
		}
	}
}
