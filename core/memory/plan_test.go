package memory_test

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/memory"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// released has the sizes of the released checkpoint.
func released(total int64) memory.Request {
	const (
		hidden, width, vocab = 7168, 12288, 163840
		kda, mla             = 69, 24
	)
	return memory.Request{
		Total:     total,
		Index:     497220 * 40,
		Tokenizer: 30 * mib,
		Vectors:   60 * mib,
		Workspace: func(rows, context int) int64 { return 8*mib + int64(rows)*1200*1024 + 2*8*4*int64(context) },
		Logits:    4 * vocab,
		State:     4 * kda * (width*128 + 9*width),
		Position:  4 * mla * 576,
		Guess:     14 * mib,
		Sequences: 1, Context: 8192,
		TrunkBytes: 111_200_000_000, TileBuffer: 16*mib + 8192,
		ExpertSlot: 17_551_360, ExpertsAll: 92 * 896, TopK: 16,
	}
}

func check(t *testing.T, r memory.Request, p memory.Plan) {
	t.Helper()
	var sum int64
	for _, i := range p.Items {
		if i.Bytes < 0 {
			t.Errorf("%s: %d bytes", i.Purpose, i.Bytes)
		}
		sum += i.Bytes
	}
	switch {
	case sum+p.Unused != p.Total || p.Unused < 0:
		t.Errorf("items are %d bytes, %d unused, of %d", sum, p.Unused, p.Total)
	case r.Total > 0 && p.Total != r.Total:
		t.Errorf("total %d, want %d", p.Total, r.Total)
	case p.Bytes(memory.TrunkRing) != int64(p.Ring)*r.TileBuffer || p.Bytes(memory.TrunkTiles) != p.Pinned:
		t.Errorf("ring %d, pinned %d: %v", p.Ring, p.Pinned, p.Items)
	case p.Ring < 2 && p.Pinned < r.TrunkBytes || p.Pinned > r.TrunkBytes || p.Pinned == r.TrunkBytes && p.Ring > 0:
		t.Errorf("ring %d, %d of %d pinned", p.Ring, p.Pinned, r.TrunkBytes)
	case p.Bytes(memory.ExpertSlots) != int64(p.Slots)*r.ExpertSlot || p.Slots > r.ExpertsAll || p.Slots < min(r.TopK, r.ExpertsAll):
		t.Errorf("%d of %d slots: %v", p.Slots, r.ExpertsAll, p.Items)
	case p.PrefillRows < 1 || p.PrefillRows > r.Context || r.PrefillRows > 0 && p.PrefillRows != min(r.PrefillRows, r.Context):
		t.Errorf("%d rows of %d wanted in a context of %d", p.PrefillRows, r.PrefillRows, r.Context)
	case p.MaxRows < p.PrefillRows || p.MaxRows < r.Sequences*(1+r.Guesses):
		t.Errorf("at most %d rows", p.MaxRows)
	case p.GoLimit != p.Bytes(memory.Heap)+p.Bytes(memory.Program)/2: // of the program the Go runtime counts about half
		t.Errorf("limit of the heap is %d", p.GoLimit)
	}
}

func TestTheReleasedModelFitsIn2GiB(t *testing.T) {
	for _, test := range []struct {
		total  int64
		pinned int64 // at least
		slots  int   // at least
		rows   int
	}{
		{2 * gib, 400 * mib, 16, 128},
		{3 * gib, 1200 * mib, 16, 256},
		{8 * gib, 6 * gib, 16, 256},
		{96 * gib, 90 * gib, 16, 256},
		{128 * gib, 111_200_000_000, 1400, 256},
		{224 * gib, 111_200_000_000, 7000, 256},
		{2000 * gib, 111_200_000_000, 92 * 896, 256},
	} {
		r := released(test.total)
		p, err := memory.Make(r)
		if err != nil {
			t.Errorf("%d GiB: %v", test.total>>30, err)
			continue
		}
		check(t, r, p)
		if p.Pinned < test.pinned || p.Slots < test.slots || p.PrefillRows != test.rows {
			t.Errorf("%d GiB: %d MiB pinned, %d slots, %d rows; want %d, %d, %d", test.total>>30, p.Pinned>>20, p.Slots, p.PrefillRows,
				test.pinned>>20, test.slots, test.rows)
		}
		if p.Pinned < r.TrunkBytes && p.Slots > r.TopK {
			t.Errorf("%d GiB: %d slots before the trunk was in memory", test.total>>30, p.Slots)
		}
	}
}

var suggestion = regexp.MustCompile(`(\d+)MiB of memory|context of (\d+) tokens|chunk of (\d+) rows|(\d+) sequences`)

// change does what a suggestion of an error says.
func change(r memory.Request, m []string) memory.Request {
	for i, text := range m[1:] {
		if n, err := strconv.Atoi(text); err == nil {
			switch i {
			case 0:
				r.Total = int64(n) * mib
			case 1:
				r.Context = n
			case 2:
				r.PrefillRows = n
			case 3:
				r.Sequences = n
			}
		}
	}
	return r
}

func TestWhatDoesNotFitIsRefusedWithWhatWould(t *testing.T) {
	tests := map[string]struct {
		edit func(*memory.Request)
		want []string
	}{
		"too little": {func(r *memory.Request) { r.Total = 900 * mib; r.Context = 64 }, []string{"900MiB given", "of memory"}},
		"context":    {func(r *memory.Request) { r.Context = 100_000 }, []string{"context of"}},
		"chunk":      {func(r *memory.Request) { r.PrefillRows = 4096 }, []string{"chunk of"}},
		"sequences":  {func(r *memory.Request) { r.Sequences, r.Context = 8, 1000 }, []string{"sequences"}},
		"trunk":      {func(r *memory.Request) { r.Trunk = 2 * gib }, []string{"as asked for"}},
		"experts":    {func(r *memory.Request) { r.Experts = 2 * gib }, []string{"as asked for"}},
		"few slots":  {func(r *memory.Request) { r.Experts = 100 * mib }, []string{"chooses 16 in a layer"}},
		"one buffer": {func(r *memory.Request) { r.Trunk = 17 * mib }, []string{"2 tile buffers"}},
	}
	for name, test := range tests {
		r := released(2 * gib)
		test.edit(&r)
		_, err := memory.Make(r)
		if !errors.Is(err, memory.ErrNoFit) {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", name, want, err)
			}
		}
		_, would, _ := strings.Cut(err.Error(), "would fit")
		for _, m := range suggestion.FindAllStringSubmatch(would, -1) {
			if _, err := memory.Make(change(r, m)); err != nil {
				t.Errorf("%s: %s was said to fit: %v", name, m[0], err)
			}
		}
	}
	for _, bad := range []func(*memory.Request){
		func(r *memory.Request) { r.Total = -1 }, func(r *memory.Request) { r.Context = 0 },
		func(r *memory.Request) { r.Sequences = 0 }, func(r *memory.Request) { r.PrefillRows = -1 },
	} {
		r := released(2 * gib)
		bad(&r)
		if _, err := memory.Make(r); err == nil || errors.Is(err, memory.ErrNoFit) {
			t.Errorf("%+v: got %v", r, err)
		}
	}
}

// With nothing that bounds them, and no wish, a pass has the rows that keep the disk as busy as the processor.
func TestAPlanWithoutATotalHasTheUsualRows(t *testing.T) {
	p, err := memory.Make(released(0))
	if err != nil {
		t.Fatal(err)
	}
	if p.PrefillRows != 64 || p.MaxRows != 64 || p.Ring != 8 || p.Unused != 0 {
		t.Errorf("%d rows, %d at most, %d buffers, %d bytes unused", p.PrefillRows, p.MaxRows, p.Ring, p.Unused)
	}
}

// Logits are kept of the rows that have any: the last of each sequence and its guesses, or all. Where passes are shared the
// last one's are still being read.
func TestLogitsAreReckonedByTheRowsThatHaveThem(t *testing.T) {
	for _, c := range []struct {
		sequences, guesses, rows int
		all                      bool
		want                     int64
	}{{1, 0, 16, false, 1}, {1, 3, 16, false, 4}, {2, 3, 16, false, 2 * 8}, {2, 3, 16, true, 2 * 32}, {2, 20, 16, true, 2 * 42}} {
		r := released(0)
		r.Sequences, r.Guesses, r.PrefillRows, r.AllLogits = c.sequences, c.guesses, c.rows, c.all
		p, err := memory.Make(r)
		if err != nil {
			t.Fatal(err)
		}
		if n := p.Bytes(memory.Logits) / r.Logits; n != c.want || p.MaxRows != max(c.rows, c.sequences*(1+c.guesses)) {
			t.Errorf("%+v: logits of %d rows, %d rows at most", c, n, p.MaxRows)
		}
	}
}

// Between two collections garbage piles up beside what lives: half as much again is reckoned with.
func TestThePlanLeavesRoomForWhatTheCollectorHasNotFreedYet(t *testing.T) {
	before, err := memory.Make(released(8 * gib))
	if err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string]func(*memory.Request){
		"index":     func(r *memory.Request) { r.Index += 100 * mib },
		"tokenizer": func(r *memory.Request) { r.Tokenizer += 100 * mib },
	} {
		r := released(8 * gib)
		more(&r)
		p, err := memory.Make(r)
		if err != nil {
			t.Fatal(err)
		}
		if n := p.Bytes(memory.Heap) - before.Bytes(memory.Heap); n != 150*mib || p.GoLimit-before.GoLimit != n {
			t.Errorf("100 MiB more of %s are %d MiB of the heap, and its limit rises by %d MiB", name, n>>20, (p.GoLimit-before.GoLimit)>>20)
		}
	}
}

// A model whose tokens choose one expert in a layer needs a slot for what comes beside the one that stays.
func TestThePlanHasTwoSlotsAtLeastWhereThereAreTwoExperts(t *testing.T) {
	for experts, want := range []int{0, 1, 2, 2} {
		r := released(0)
		r.TopK, r.ExpertsAll = 1, experts
		p, err := memory.Make(r)
		if err != nil {
			t.Fatal(err)
		}
		if p.Slots != want {
			t.Errorf("%d slots for %d experts, want %d", p.Slots, experts, want)
		}
		if r.Experts = r.ExpertSlot; experts > 1 {
			if _, err := memory.Make(r); !errors.Is(err, memory.ErrNoFit) {
				t.Errorf("memory for one of %d experts: %v", experts, err)
			}
		}
	}
}

func TestEveryPlanKeepsItsPromiseAndMoreMemoryIsNeverLessSpeed(t *testing.T) {
	r := random.New(t, 1, 2)
	made := 0
	for i := range 3000 {
		q := released(0)
		q.TrunkBytes = r.Int64N(200 * mib)
		q.TileBuffer = min(q.TrunkBytes, 1+r.Int64N(20*mib))
		q.ExpertSlot, q.ExpertsAll, q.TopK = 1+r.Int64N(mib), r.IntN(300), 1+r.IntN(20)
		q.TopK = min(q.TopK, max(q.ExpertsAll, 1))
		q.Context, q.Sequences, q.Guesses, q.PrefillRows = 1+r.IntN(1000), 1+r.IntN(3), r.IntN(3), r.IntN(2)*r.IntN(300)
		q.AllLogits = r.IntN(2) == 0
		if r.IntN(4) == 0 {
			q.Trunk = 1 + r.Int64N(2*q.TrunkBytes+1)
		}
		if r.IntN(4) == 0 {
			q.Experts = 1 + r.Int64N(200*mib)
		}
		var before memory.Plan
		for _, total := range []int64{0, 1300 * mib, 1700 * mib, 2 * gib, 4 * gib} {
			q.Total = total
			p, err := memory.Make(q)
			if err != nil {
				if !errors.Is(err, memory.ErrNoFit) {
					t.Fatal(err)
				}
				continue
			}
			made++
			check(t, q, p)
			if before.Total > 0 && (p.Pinned+int64(p.Ring)*q.TileBuffer+int64(p.Slots)*q.ExpertSlot+int64(p.PrefillRows)*gib) <
				(before.Pinned+int64(before.Ring)*q.TileBuffer+int64(before.Slots)*q.ExpertSlot+int64(before.PrefillRows)*gib) {
				t.Errorf("more memory, less speed: %+v after %+v", p, before)
			}
			if before = p; total == 0 {
				before = memory.Plan{}
			}
			if t.Failed() {
				t.Fatalf("request %d: %+v", i, q)
			}
		}
	}
	if made < 3000 {
		t.Errorf("only %d plans were made", made)
	}
}

func TestAPlanWithinAnotherTotalIsTheOneOfThatTotal(t *testing.T) {
	p, err := memory.Make(released(200 * gib))
	if err != nil {
		t.Fatal(err)
	}
	for _, total := range []int64{3 * gib, 8 * gib, 200 * gib} {
		want, err := memory.Make(released(total))
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.Within(total)
		if err != nil || got.Total != want.Total || got.Pinned != want.Pinned || got.Slots != want.Slots || got.PrefillRows != want.PrefillRows {
			t.Errorf("%d: %+v, %v; want %+v", total, got, err, want)
		}
		check(t, released(total), got)
	}
	if _, err := p.Within(100 * mib); !errors.Is(err, memory.ErrNoFit) {
		t.Errorf("100 MiB: %v", err)
	}
}
