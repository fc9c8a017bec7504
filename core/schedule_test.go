package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/speculate"
)

// scheduler starts one that is closed before the engine is.
func scheduler(t testing.TB, e *core.Engine, o core.SchedulerOptions) *core.Scheduler {
	t.Helper()
	s := e.NewScheduler(o)
	t.Cleanup(s.Close)
	return s
}

// request is a text to be generated.
type request struct {
	lane    core.Lane
	prompt  []int
	options core.GenerateOptions
}

// requests are n texts of random lengths, ways of sampling and guessing.
func requests(rng *rand.Rand, n, vocab int) []request {
	all := make([]request, n)
	for i := range all {
		ids := make([]int, 1+rng.IntN(40))
		for j := range ids {
			ids[j] = rng.IntN(vocab)
		}
		all[i] = request{core.Lane(rng.IntN(2)), ids, core.GenerateOptions{MaxTokens: 1 + rng.IntN(20), Stop: []int{rng.IntN(vocab)}}}
		if rng.IntN(3) > 0 {
			all[i].options.Sample = sample.Params{Temperature: 1, TopP: 0.95, Seed: rng.Uint64()}
		}
		if rng.IntN(2) > 0 {
			all[i].options.Speculate = speculate.Options{Most: 1 + rng.IntN(3), Always: rng.IntN(2) > 0}
		}
	}
	return all
}

// alone is what Engine.Generate makes of a request.
func alone(t *testing.T, e *core.Engine, r request) core.Outcome {
	t.Helper()
	s := sequence(t, e)
	defer s.Close()
	out, err := e.Generate(t.Context(), s, r.prompt, r.options, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Texts that arrive at random, of all lengths, in both lanes, sampled and guessed: each that ends by itself is, id for id, what it is
// alone, and each that is cancelled is a beginning of that.
func TestTextsInCompanyAreWhatTheyAreAlone(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	e := open(t, core.Options{Sequences: 9, Guesses: 3, Context: 128, PrefillChunk: 24})
	all := requests(rng, 40, e.Config().Vocab)
	var want []core.Outcome
	for _, r := range all {
		want = append(want, alone(t, e, r))
	}
	kept := e.NewPrefixes(1 << 30)
	t.Cleanup(kept.Close)
	s := scheduler(t, e, core.SchedulerOptions{Prefixes: kept})
	var wg sync.WaitGroup
	for i, r := range all {
		pause, leave := time.Duration(rng.IntN(30))*time.Millisecond, -1
		if rng.IntN(4) == 0 {
			leave = rng.IntN(10)
		}
		wg.Go(func() {
			time.Sleep(pause)
			q, err := s.Sequence(t.Context(), r.lane, r.prompt, len(r.prompt)+r.options.MaxTokens)
			if err != nil {
				t.Error(err)
				return
			}
			defer q.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			out, err := s.Generate(ctx, r.lane, q, nil, r.options, func(int) error {
				if n++; n == leave {
					cancel()
				}
				return nil
			})
			if leave >= 0 && errors.Is(err, context.Canceled) {
				if len(out.IDs) > len(want[i].IDs) || !slices.Equal(out.IDs, want[i].IDs[:len(out.IDs)]) {
					t.Errorf("cancelled text %d: %v is no beginning of %v", i, out.IDs, want[i].IDs)
				}
				return
			}
			if err != nil || !slices.Equal(out.IDs, want[i].IDs) || out.Reason != want[i].Reason {
				t.Errorf("text %d: %v, %q, %v; alone %v, %q", i, out.IDs, out.Reason, err, want[i].IDs, want[i].Reason)
			}
			if err := kept.Keep(q); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	stats := s.Stats()
	if stats.Rows <= stats.Passes || stats.Running != 0 || stats.Queued != 0 {
		t.Errorf("%+v: rows did not share passes, or texts are left", stats)
	}
}

// together has n texts generated with the same options and reports each outcome.
func together(t *testing.T, s *core.Scheduler, n int, prepare func(i int, o *core.GenerateOptions) (emit func(int) error)) (outs []core.Outcome, errs []error) {
	t.Helper()
	outs, errs = make([]core.Outcome, n), make([]error, n)
	var wg sync.WaitGroup
	ready := make(chan bool)
	for i := range n {
		ids := append([]int{i}, prompt...)
		o := core.GenerateOptions{MaxTokens: 12, Sample: sample.Params{Temperature: 1, Seed: uint64(i)}}
		emit := prepare(i, &o)
		q, err := s.Sequence(t.Context(), core.People, ids, 60)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			defer q.Close()
			<-ready
			outs[i], errs[i] = s.Generate(t.Context(), core.People, q, nil, o, emit)
		})
	}
	close(ready)
	wg.Wait()
	return outs, errs
}

func nothing(int, *core.GenerateOptions) func(int) error { return nil }

func TestTextsShareTheirPasses(t *testing.T) {
	e := open(t, core.Options{Sequences: 8, Context: 60})
	s := scheduler(t, e, core.SchedulerOptions{Slowdown: 100}) // so that all have their prompts behind them at once
	outs, errs := together(t, s, 8, nothing)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, out := range outs {
		rows += out.Decode.Rows
		if out.Decode.Passes != 11 || out.Prefill.Tokens != len(prompt)+1 || len(out.Decode.Layers) != e.Config().Layers+1 {
			t.Errorf("%d decode passes, %d tokens of prompt, %d layers", out.Decode.Passes, out.Prefill.Tokens, len(out.Decode.Layers))
		}
	}
	if mean := float64(rows) / (8 * 11); mean < 6 {
		t.Errorf("%.1f rows in a pass of 8 texts", mean)
	}
}

// What a text's own functions do ends it and leaves the others alone.
func TestATextsFaultsAreItsOwn(t *testing.T) {
	e := open(t, core.Options{Sequences: 6, Context: 60, Guesses: 2})
	s := scheduler(t, e, core.SchedulerOptions{})
	want, errs := together(t, s, 6, nothing)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	fault := errors.New("a fault")
	got, errs := together(t, s, 6, func(i int, o *core.GenerateOptions) func(int) error {
		n := 0
		after := func(f func() error) error {
			if n++; n == 5 {
				return f()
			}
			return nil
		}
		switch i {
		case 0:
			return func(int) error { return after(func() error { panic(fault) }) }
		case 1:
			return func(int) error { return after(func() error { return fault }) }
		case 2:
			o.Progress = func(core.Progress) { after(func() error { panic(fault) }) }
		case 3:
			o.OnLogits = func(int, []float32) error { return after(func() error { panic(fault) }) }
		case 4:
			return func(int) error { return after(func() error { runtime.Goexit(); return nil }) }
		}
		return nil
	})
	for i, err := range errs {
		switch {
		case i < 4 && !errors.Is(err, fault):
			t.Errorf("text %d: %v", i, err)
		case i < 4 && !slices.Equal(got[i].IDs, want[i].IDs[:len(got[i].IDs)]):
			t.Errorf("text %d: %v is no beginning of %v", i, got[i].IDs, want[i].IDs)
		case i == 5 && (err != nil || !slices.Equal(got[i].IDs, want[i].IDs)):
			t.Errorf("text %d: %v, %v; not %v", i, err, got[i].IDs, want[i].IDs)
		}
	}
	if stats := s.Stats(); stats.Running != 0 || stats.Again != 0 {
		t.Errorf("%+v", stats)
	}
}

// Numbers at fault end the text that has them, and nobody else has its tokens computed again.
func TestNumbersAtFaultEndOneTextOfMany(t *testing.T) {
	var poison atomic.Bool
	e := open(t, core.Options{Sequences: 4, Context: 60, Probe: func(layer int, what string, values []float32, width int) {
		if layer == 2 && what == "mlp" && len(values) > 3*width && poison.CompareAndSwap(true, false) {
			zero := float32(0)
			values[width] = 1 / zero
		}
	}})
	s := scheduler(t, e, core.SchedulerOptions{})
	want, errs := together(t, s, 4, nothing)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	poison.Store(true)
	got, errs := together(t, s, 4, nothing)
	failed := 0
	for i, err := range errs {
		if errors.Is(err, core.ErrNumbers) {
			failed++
		} else if err != nil || !slices.Equal(got[i].IDs, want[i].IDs) {
			t.Errorf("text %d: %v, %v; not %v", i, err, got[i].IDs, want[i].IDs)
		}
	}
	if failed != 1 || s.Stats().Again != 0 {
		t.Errorf("%d texts failed; %+v", failed, s.Stats())
	}
}

// A pass that fails is computed again, and only if that fails, too, the texts are told.
func TestAPassThatFailsIsComputedAgain(t *testing.T) {
	broken := errors.New("input/output error")
	files := damage(t, "../conformance/testdata/tiny-mx", "language_model.model.layers.3.self_attn.o_proj.weight")
	files.err = broken
	files.on.Store(false)
	e := open(t, core.Options{Files: files, Sequences: 5, Context: 60, TileBytes: 8 << 10, TrunkMemory: 100 << 10})
	kept := e.NewPrefixes(1 << 30)
	t.Cleanup(kept.Close)
	s := scheduler(t, e, core.SchedulerOptions{Prefixes: kept})
	want, errs := together(t, s, 4, nothing)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	begin := sequence(t, e)
	if _, err := e.Generate(t.Context(), begin, []int{2, 5, 9, 2}, core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
		t.Fatal(err)
	}
	if err := kept.Keep(begin); err != nil { // of the beginning of text 2
		t.Fatal(err)
	}
	begin.Close()
	for _, again := range []bool{true, false} {
		var once sync.Once
		mends := func(core.Progress) {
			if again && s.Stats().Again > 0 {
				files.on.Store(false)
			}
		}
		got, errs := together(t, s, 4, func(i int, o *core.GenerateOptions) func(int) error {
			o.Progress = mends
			n := 0
			return func(int) error {
				if n++; n == 4 {
					once.Do(func() { files.on.Store(true) })
				}
				return nil
			}
		})
		files.on.Store(false)
		for i, err := range errs {
			if again && (err != nil || !slices.Equal(got[i].IDs, want[i].IDs)) {
				t.Errorf("text %d: %v, %v; not %v", i, err, got[i].IDs, want[i].IDs)
			}
			if !again && !errors.Is(err, broken) {
				t.Errorf("text %d: %v", i, err)
			}
		}
	}
	if _, errs := together(t, s, 4, nothing); errors.Join(errs...) != nil {
		t.Errorf("once the disk works again: %v", errs)
	}
}

// A hook of the engine that panics spoils a pass, which is computed again.
func TestAHookThatPanicsOnceCostsNoText(t *testing.T) {
	var left atomic.Int64
	e := open(t, core.Options{Sequences: 3, Context: 60, Routed: func(int, []int) {
		if left.Add(-1) == 0 {
			panic("a hook's fault")
		}
	}})
	s := scheduler(t, e, core.SchedulerOptions{})
	want, _ := together(t, s, 3, nothing)
	left.Store(130)
	got, errs := together(t, s, 3, nothing)
	for i, err := range errs {
		if err != nil || !slices.Equal(got[i].IDs, want[i].IDs) {
			t.Errorf("text %d: %v, %v; not %v", i, err, got[i].IDs, want[i].IDs)
		}
	}
	if s.Stats().Again != 1 {
		t.Errorf("%+v", s.Stats())
	}
}

// A pass that nobody wants any more ends within a layer; one that somebody wants goes on.
func TestAPassThatNobodyWantsEnds(t *testing.T) {
	var last atomic.Int64
	cancels := [2]context.CancelFunc{}
	var both atomic.Bool
	e := open(t, core.Options{Sequences: 2, Context: 60, Probe: func(layer int, what string, _ []float32, _ int) {
		last.Store(int64(layer))
		if layer == 2 && what == "output" && both.Load() {
			cancels[0]()
			cancels[1]()
			time.Sleep(20 * time.Millisecond) // until the scheduler has seen it
		}
	}})
	s := scheduler(t, e, core.SchedulerOptions{})
	run := func(i int) error {
		q, err := s.Sequence(t.Context(), core.People, prompt, 60)
		if err != nil {
			return err
		}
		defer q.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cancels[i] = cancel
		_, err = s.Generate(ctx, core.People, q, nil, core.GenerateOptions{MaxTokens: 1}, nil)
		return err
	}
	cancels[1] = func() {}
	both.Store(true)
	if err := run(0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if at := last.Load(); at != 2 {
		t.Errorf("the pass went on to layer %d", at)
	}
	both.Store(false)
	if err := run(0); err != nil {
		t.Error(err)
	}
}

// A text that is slow to take its tokens does not hold up the others.
func TestASlowReaderHoldsUpNobody(t *testing.T) {
	e := open(t, core.Options{Sequences: 3, Context: 60})
	s := scheduler(t, e, core.SchedulerOptions{})
	others := make(chan bool, 2)
	outs, errs := together(t, s, 3, func(i int, _ *core.GenerateOptions) func(int) error {
		n := 0
		return func(int) error {
			switch n++; {
			case i == 0 && n == 2: // until both others are done
				for range 2 {
					select {
					case <-others:
					case <-time.After(20 * time.Second):
						return errors.New("the others wait for the slow one")
					}
				}
			case i > 0 && n == 12:
				others <- true
			}
			return nil
		}
	})
	for i, err := range errs {
		if err != nil || len(outs[i].IDs) != 12 {
			t.Errorf("text %d: %v, %v", i, err, outs[i].IDs)
		}
	}
}

// Texts wait for room in order: people first, and a long one is not passed by short ones for ever.
func TestTextsWaitForRoomInOrder(t *testing.T) {
	e := open(t, core.Options{Sequences: 2, Context: 192, Tokens: 256})
	s := scheduler(t, e, core.SchedulerOptions{})
	if _, err := s.Sequence(t.Context(), core.People, prompt, 193); !errors.Is(err, core.ErrContext) && !errors.Is(err, core.ErrNoFit) {
		t.Errorf("a text that never fits: %v", err)
	}
	first, err := s.Sequence(t.Context(), core.People, prompt, 192)
	if err != nil {
		t.Fatal(err)
	}
	order := make(chan string, 3)
	var wg sync.WaitGroup
	wait := func(name string, lane core.Lane, n int) {
		queued := s.Stats().Queued
		wg.Go(func() {
			q, err := s.Sequence(t.Context(), lane, prompt, n)
			if err != nil {
				t.Error(err)
				return
			}
			order <- name
			time.Sleep(5 * time.Millisecond)
			q.Close()
		})
		for s.Stats().Queued == queued {
			time.Sleep(time.Millisecond)
		}
	}
	wait("background", core.Background, 192)
	wait("long", core.People, 192)
	wait("short", core.People, 192)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Sequence(cancelled, core.People, prompt, 192); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	first.Close()
	wg.Wait()
	if got := fmt.Sprint(<-order, <-order, <-order); got != "longshortbackground" {
		t.Errorf("order %s", got)
	}
}

// Closing ends what runs and what waits, and nothing is left.
func TestAClosedSchedulerLeavesNothing(t *testing.T) {
	e := open(t, core.Options{Sequences: 2, Context: 128})
	before := runtime.NumGoroutine()
	s := e.NewScheduler(core.SchedulerOptions{})
	started := make(chan bool, 2)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			q, err := s.Sequence(t.Context(), core.People, prompt, 128)
			if err != nil {
				t.Error(err)
				return
			}
			defer q.Close()
			_, err = s.Generate(t.Context(), core.People, q, nil, core.GenerateOptions{MaxTokens: 117}, func(int) error {
				select {
				case started <- true:
				default:
				}
				return nil
			})
			if !errors.Is(err, core.ErrStopped) && !errors.Is(err, context.Canceled) && err != nil {
				t.Error(err)
			}
		})
	}
	<-started
	<-started
	waiting := make(chan error)
	go func() {
		_, err := s.Sequence(context.Background(), core.People, prompt, 128)
		waiting <- err
	}()
	for s.Stats().Queued == 0 {
		runtime.Gosched()
	}
	s.Close()
	wg.Wait()
	if err := <-waiting; !errors.Is(err, core.ErrStopped) {
		t.Errorf("waiting for room: %v", err)
	}
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 1000 {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
		time.Sleep(time.Millisecond)
	}
}
