package core_test

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/disk"
)

// A score is the logarithm of the softmax of the logits it does without, for every storage of lm_head, and the same bits whatever the
// tiles, the chunks, the threads and the company.
func TestScoresAreTheLogitsProbabilities(t *testing.T) {
	for _, dir := range []string{"tiny-mx", "tiny-plain", "tiny-f16"} {
		files := disk.Dir("../conformance/testdata/" + dir)
		e := open(t, core.Options{Files: files, Context: 64, AllLogits: true})
		ids := append(slices.Clone(prompt), 3, 3, 9, 12)
		rows := make([]core.Row, len(ids))
		s := sequence(t, e)
		for i, id := range ids {
			rows[i] = core.Row{Sequence: s, Token: id, Logits: true}
		}
		logits, err := e.Pass(t.Context(), rows)
		if err != nil {
			t.Fatal(err)
		}
		var first []core.Score
		for i, o := range []core.Options{{}, {PrefillChunk: 1}, {PrefillChunk: 4, Threads: 3, TileBytes: 1500}, {TileBytes: 4096, TrunkMemory: 400 << 10}} {
			o.Files, o.Context, o.Sequences = files, 64, 4
			e := open(t, o)
			var company sync.WaitGroup
			scheduler := scheduler(t, e, core.SchedulerOptions{})
			for range 2 {
				company.Go(func() {
					q := sequence(t, e)
					if _, err := scheduler.Generate(t.Context(), core.People, q, prompt, seeded, nil); err != nil {
						t.Error(err)
					}
				})
			}
			q, err := scheduler.Sequence(t.Context(), core.People, ids, 64)
			if err != nil {
				t.Fatal(err)
			}
			defer q.Close()
			got, err := scheduler.Score(t.Context(), core.People, q)
			if err != nil || len(got) != len(ids)-1 {
				t.Fatalf("%d scores of %d ids: %v", len(got), len(ids), err)
			}
			company.Wait()
			if i == 0 {
				first = got
			} else if !slices.Equal(got, first) {
				t.Errorf("%s, %+v: other scores", dir, o)
			}
		}
		for i, score := range first {
			sum, best := 0.0, 0
			for id, l := range logits[i] {
				sum += math.Exp(float64(l) - float64(logits[i][0]))
				if l > logits[i][best] {
					best = id
				}
			}
			want := float64(logits[i][ids[i+1]]) - float64(logits[i][0]) - math.Log(sum)
			if score.Next != ids[i+1] || score.Best != best || math.Abs(score.LogProb-want) > 1e-5 {
				t.Errorf("%s, position %d: %+v, not %g and %d", dir, i, score, want, best)
			}
		}
	}
}

// Rows with logits and rows with scores in one pass, and what is no question.
func TestScoresAndLogitsShareAPass(t *testing.T) {
	e := open(t, core.Options{Sequences: 2, Context: 64, Guesses: 1})
	alone, err := e.Pass(t.Context(), []core.Row{{Sequence: sequence(t, e), Token: 7, Logits: true}})
	if err != nil {
		t.Fatal(err)
	}
	s, q := e, sequence(t, e)
	score := core.Score{Next: 4}
	logits, err := s.Pass(t.Context(), []core.Row{{Sequence: q, Token: 3, Score: &score}, {Sequence: q, Token: 5, Logits: true, Tentative: true}})
	if err != nil || len(logits) != 1 || score.LogProb >= 0 {
		t.Fatal(err, len(logits), score)
	}
	q.Close()
	other := sequence(t, e)
	again := core.Score{Next: 4}
	both, err := e.Pass(t.Context(), []core.Row{{Sequence: other, Token: 7, Logits: true, Score: &again}})
	if err != nil || !slices.Equal(both[0], alone[0]) || again.LogProb == score.LogProb {
		t.Errorf("logits beside a score differ: %v", err)
	}
	other.Close()
	bad := sequence(t, e)
	for _, next := range []int{-1, e.Config().Vocab} {
		if _, err := e.Pass(t.Context(), []core.Row{{Sequence: bad, Token: 7, Score: &core.Score{Next: next}}}); !errors.Is(err, core.ErrToken) || bad.Err() != nil {
			t.Errorf("the score of %d: %v", next, err)
		}
	}
	if _, err := e.Score(t.Context(), bad); !errors.Is(err, core.ErrPrompt) {
		t.Errorf("the scores of nothing: %v", err)
	}
	bad.Append(1)
	if scores, err := e.Score(t.Context(), bad); err != nil || len(scores) != 0 {
		t.Errorf("the scores of one id: %v, %v", scores, err)
	}
}
