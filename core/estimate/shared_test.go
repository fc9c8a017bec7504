package estimate

import (
	"errors"
	"math"
	"testing"

	"github.com/k3infer/k3/core/memory"
)

// The table of the released model, as arithmetic has it.
func TestDistinctExpertsOfTheReleasedModel(t *testing.T) {
	w := Weights{Experts: 896, TopK: 16}
	for n, want := range map[int]float64{1: 16, 4: 62, 8: 120, 16: 224, 32: 393, 64: 613, 256: 887} {
		if got := w.Distinct(n); math.Abs(got-want) > 2 {
			t.Errorf("%d rows: %.1f, not %g", n, got, want)
		}
	}
	if (Weights{}).Distinct(3) != 0 {
		t.Error("experts of a model without")
	}
}

// With more texts a pass serves more, until their states take so much memory that it reads more than it serves.
func TestSharingEndsWhereStatesTakeTheWeightsRoom(t *testing.T) {
	series := func(v float64) *Series {
		var s Series
		s.Add(v)
		return &s
	}
	request := func(total int64) memory.Request {
		return memory.Request{
			Total: total, Sequences: 1, Context: 100, State: 10 << 20, Position: 1000, TrunkBytes: 400 << 20, TileBuffer: 1 << 20,
			ExpertSlot: 1 << 20, ExpertsAll: 100, TopK: 4, Workspace: func(rows, context int) int64 { return int64(rows) << 10 },
		}
	}
	w := Weights{Trunk: 400 << 20, Expert: 1 << 20, ExpertLayers: 2, Experts: 50, TopK: 4}
	rates := Rates{Disk: series(1e9), Trunk: series(1e12), Experts: series(1e12), TrunkShared: series(5e11), ExpertsShared: series(5e11)}
	p, err := memory.Make(request(800 << 20))
	if err != nil {
		t.Fatal(err)
	}
	all, best, err := rates.Share(p, w, 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 2, 3, 4, 8} {
		if all[i].Sequences != want {
			t.Errorf("row %d is of %d texts", i, all[i].Sequences)
		}
		if all[i].StateBytes != int64(want)*(10<<20+100*1000) || math.Abs(all[i].Tokens-float64(want)*all[i].Each) > 1e-6 {
			t.Errorf("%+v", all[i])
		}
	}
	if last := all[len(all)-1]; last.Sequences < 32 || last.Sequences > 128 {
		t.Errorf("the last that fits: %+v", last)
	}
	if n := all[best].Sequences; n == 1 || n == all[len(all)-1].Sequences && n < 8 {
		t.Errorf("the best is %d of %+v", n, all)
	}
	for _, x := range all {
		if x.Tokens > all[best].Tokens {
			t.Errorf("%d texts are better than %d", x.Sequences, all[best].Sequences)
		}
	}
	if _, _, err := rates.Share(p, w, 3000); !errors.Is(err, memory.ErrNoFit) {
		t.Errorf("3000 texts: %v", err)
	}
	rates.Disk = nil
	if all, best, err := rates.Share(p, w, 0); err != nil || best != -1 && all[0].Seconds == 0 {
		t.Errorf("with no disk measured: best %d, %v", best, err)
	}
}
