package core_test

import (
	"errors"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/disk/disktest"
	"github.com/k3infer/k3/core/speculate"
)

// within runs f in a goroutine of its own, which may panic or end, and fails the test if that takes too long.
func within(t *testing.T, what string, f func()) (returned bool) {
	t.Helper()
	over := make(chan bool)
	go func() {
		defer close(over)
		defer func() { recover() }()
		f()
		returned = true
	}()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal(what, "hangs")
	}
	return returned
}

// Whatever a function of the caller does, the sequence is broken or goes on with the right text.
func TestAHookThatPanicsLeavesNoWrongAnswer(t *testing.T) {
	var hook atomic.Pointer[func(name string)]
	call := func(name string) {
		if f := hook.Load(); f != nil {
			(*f)(name)
		}
	}
	e := open(t, core.Options{Sequences: 3, PrefillChunk: 4, Routed: func(int, []int) { call("Routed") },
		Probe: func(int, string, []float32, int) { call("Probe") }})
	plain, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{MaxTokens: 12}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := slices.Concat(prompt, plain.IDs)
	draft := drafterFunc(func(history []int, n int) []int {
		return text[min(len(history), len(text)):min(len(history)+n, len(text))]
	})
	options := core.GenerateOptions{
		MaxTokens: 12, Speculate: speculate.Options{Most: 3, Drafter: draft, Always: true},
		OnLogits:  func(int, []float32) error { call("OnLogits"); return nil },
		OnPrefill: func() error { call("OnPrefill"); return nil },
		Progress:  func(core.Progress) { call("Progress") },
	}
	emit := func(int) error { call("emit"); return nil }
	other := sequence(t, e)
	if _, err := e.Generate(t.Context(), other, prompt, core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
		t.Fatal(err)
	}
	ways := map[string]func(){"panics": func() { panic("a fault of the caller") }, "ends its goroutine": runtime.Goexit}
	inPass := map[string]bool{"Routed": true, "Probe": true, "Progress": true, "OnLogits": false, "OnPrefill": false, "emit": false}
	for how, leave := range ways {
		for name, inPass := range inPass {
			calls := 0
			count := func(called string) {
				if called == name {
					calls++
				}
			}
			hook.Store(&count)
			s, err := e.NewSequence()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Generate(t.Context(), s, prompt, options, emit); err != nil || calls == 0 {
				t.Fatalf("%s: %d calls, %v", name, calls, err)
			}
			s.Close()
			for at := 1; at <= calls; at += 1 + calls/9 {
				s, err := e.NewSequence()
				if err != nil {
					t.Fatal(err)
				}
				left := at
				leaveAt := func(called string) {
					if called == name {
						if left--; left == 0 {
							leave()
						}
					}
				}
				hook.Store(&leaveAt)
				if within(t, name, func() { e.Generate(t.Context(), s, prompt, options, emit) }) {
					t.Errorf("%s: call %d: it was not left", name, at)
				}
				hook.Store(nil)
				if broken := errors.Is(s.Err(), core.ErrBroken); broken != inPass {
					t.Errorf("%s %s in call %d of %d: broken: %v", name, how, at, calls, s.Err())
				}
				if n := len(s.IDs()); s.Err() == nil && n < len(text) {
					rest := core.GenerateOptions{MaxTokens: len(text) - n}
					out, err := e.Generate(t.Context(), s, nil, rest, nil)
					// Everything may be computed, and the next id not chosen yet: then it only goes on with ids.
					if !slices.Equal(s.IDs(), text) && !errors.Is(err, core.ErrPrompt) {
						t.Errorf("%s %s in call %d of %d: went on with %v, %v to %v", name, how, at, calls, out.IDs, err, s.IDs())
					}
				}
				if !slices.Equal(s.IDs(), text[:len(s.IDs())]) {
					t.Errorf("%s %s in call %d: ids %v", name, how, at, s.IDs())
				}
				s.Close()
			}
		}
	}
	rest, err := e.Generate(t.Context(), other, nil, core.GenerateOptions{MaxTokens: 11}, nil)
	if err != nil || !slices.Equal(rest.IDs, plain.IDs[1:]) {
		t.Errorf("another sequence: %v, %v", rest.IDs, err)
	}
	if logits := e.Memory()["logits"]; logits != 0 {
		t.Errorf("%d bytes of logits are left", logits)
	}
}

// Hooks may call what does not compute; what would wait for the pass is an error.
func TestHooksMayAskTheEngineAndNothingHangs(t *testing.T) {
	var engine *core.Engine
	var s, other *core.Sequence
	var kept *core.Prefixes
	calls, armed := map[string]int{}, false
	hook := func(name string) {
		if !armed {
			return
		}
		if calls[name]++; calls[name] != 7 {
			return
		}
		within(t, "in "+name, func() { // on another goroutine everything that may wait would do so for ever
			if len(engine.Costs()) == 0 || engine.Residency().Tiles == 0 || len(engine.Memory()) == 0 {
				t.Error("no answers")
			}
		})
		file := filepath.Join(t.TempDir(), "saved")
		for what, err := range map[string]error{
			"save": s.Save(file, nil), "keep": kept.Keep(s), "accept": s.Accept(0), "close": engine.Close(),
		} {
			if err == nil || errors.Is(err, core.ErrBroken) {
				t.Errorf("%s: %s of the sequence that is computed: %v", name, what, err)
			}
		}
		if found, err := filepath.Glob(file + "*"); err != nil || len(found) > 0 {
			t.Errorf("%s: saved half a sequence: %v", name, found)
		}
		if _, err := engine.Pass(t.Context(), []core.Row{{Sequence: other, Token: 1}}); err == nil {
			t.Errorf("%s: a pass in a pass", name)
		}
		before := other.IDs()
		_, err := engine.Generate(t.Context(), other, []int{1}, core.GenerateOptions{MaxTokens: 1}, nil)
		if err == nil || !slices.Equal(other.IDs(), before) {
			t.Errorf("%s: %v, and the sequence has %v", name, err, other.IDs())
		}
		if err := other.Accept(0); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if err := errors.Join(other.Save(file, nil), kept.Keep(other)); err != nil {
			t.Errorf("%s: another sequence: %v", name, err)
		}
		one, err := kept.Sequence(other.IDs())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		one.Close()
		one, _, err = engine.LoadSequence(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		one.Close()
		if _, err := engine.Fingerprint(); err != nil {
			t.Error(err)
		}
	}
	engine = open(t, core.Options{Sequences: 3, Routed: func(int, []int) { hook("Routed") },
		Probe: func(int, string, []float32, int) { hook("Probe") }})
	s, other = sequence(t, engine), sequence(t, engine)
	kept = engine.NewPrefixes(1 << 30)
	t.Cleanup(kept.Close)
	o := core.GenerateOptions{MaxTokens: 4, Progress: func(core.Progress) { hook("Progress") }}
	within(t, "Generate", func() {
		if _, err := engine.Generate(t.Context(), other, prompt, core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
			t.Error(err)
		}
		armed = true
		out, err := engine.Generate(t.Context(), s, prompt, o, nil)
		armed = false
		if err != nil {
			t.Error(err)
		}
		for _, name := range []string{"Routed", "Probe", "Progress"} {
			if calls[name] < 7 {
				t.Errorf("%s was called %d times", name, calls[name])
			}
		}
		alone, err := engine.Generate(t.Context(), other, nil, core.GenerateOptions{MaxTokens: 3}, nil)
		if err != nil || !slices.Equal(out.IDs[1:], alone.IDs) {
			t.Errorf("%v, and %v, %v", out.IDs, alone.IDs, err)
		}
	})
}

// What a hook appends comes after the rows of the pass, which nobody had appended.
func TestIdsAppendedDuringAPassComeAfterIt(t *testing.T) {
	var s *core.Sequence
	e := open(t, core.Options{Routed: func(layer int, _ []int) {
		if layer == 1 && len(s.IDs()) == 0 {
			s.Append(7)
		}
	}})
	s = sequence(t, e)
	if _, err := e.Pass(t.Context(), []core.Row{{Sequence: s, Token: 3}, {Sequence: s, Token: 4}}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(s.IDs(), []int{3, 4, 7}) || s.Computed() != 2 {
		t.Errorf("%v, %d computed", s.IDs(), s.Computed())
	}
}

func TestTheLogitsOfAPassAreTheCallers(t *testing.T) {
	e := open(t, core.Options{Sequences: 2})
	a, b := sequence(t, e), sequence(t, e)
	pass := func(s *core.Sequence, ids ...int) [][]float32 {
		t.Helper()
		var rows []core.Row
		for _, id := range ids {
			rows = append(rows, core.Row{Sequence: s, Token: id, Logits: true})
		}
		logits, err := e.Pass(t.Context(), rows)
		if err != nil || len(logits) != len(ids) {
			t.Fatal(len(logits), err)
		}
		return logits
	}
	first := pass(a, 5, 9)
	want := slices.Concat(first...)
	pass(a, 2, 33)
	pass(b, 8)
	if _, err := e.Generate(t.Context(), b, []int{1}, core.GenerateOptions{MaxTokens: 2}, nil); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(slices.Concat(first...), want) {
		t.Error("a later pass changed them")
	}
	vocab := e.Config().Vocab
	rows := []core.Row{{Sequence: a, Token: 1}, {Sequence: a, Token: 2, Logits: true}}
	length := len(a.IDs())
	err := e.PassInto(t.Context(), rows, make([]float32, vocab-1))
	if err == nil || len(a.IDs()) != length || a.Err() != nil {
		t.Errorf("into too little room: %v", err)
	}
	into := make([]float32, vocab+1)
	into[vocab] = 42
	if err := e.PassInto(t.Context(), rows, into); err != nil || into[vocab] != 42 || into[0] == 0 {
		t.Errorf("%v, %g, %g", err, into[0], into[vocab])
	}
	many := slices.Repeat([]core.Row{{Sequence: a, Token: 1, Logits: true}}, e.MaxRows()+1)
	if _, err := e.Pass(t.Context(), many); err == nil || a.Err() != nil {
		t.Errorf("more rows than fit: %v", err)
	}
}

func TestMoreSequencesThanPlannedAreRefused(t *testing.T) {
	e := open(t, core.Options{Sequences: 2})
	kept := e.NewPrefixes(1 << 30)
	t.Cleanup(kept.Close)
	file := filepath.Join(t.TempDir(), "saved")
	a, b := sequence(t, e), sequence(t, e)
	if _, err := e.Generate(t.Context(), a, prompt, core.GenerateOptions{MaxTokens: 2}, nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Save(file, nil), kept.Keep(a)); err != nil { // what is kept counts against the store's budget
		t.Fatal(err)
	}
	ways := map[string]func() (*core.Sequence, error){
		"new": e.NewSequence,
		"loaded": func() (*core.Sequence, error) {
			s, _, err := e.LoadSequence(file)
			return s, err
		},
		"of a kept text":  func() (*core.Sequence, error) { return kept.Sequence(a.IDs()) },
		"of no kept text": func() (*core.Sequence, error) { return kept.Sequence([]int{1, 2}) },
	}
	state := e.Memory()["state"]
	for name, begin := range ways {
		if _, err := begin(); !errors.Is(err, core.ErrNoFit) || !strings.Contains(err.Error(), "room for 2") {
			t.Errorf("a third, %s: %v", name, err)
		}
	}
	if e.Memory()["state"] != state {
		t.Error("a refused sequence took memory")
	}
	b.Close()
	b.Close() // counts once
	for name, begin := range ways {
		s, err := begin()
		if err != nil {
			t.Errorf("in the place of the second, %s: %v", name, err)
			continue
		}
		if _, err := e.NewSequence(); !errors.Is(err, core.ErrNoFit) {
			t.Errorf("%s counts for nothing: %v", name, err)
		}
		s.Close()
	}
}

func TestTheLastCloseRestoresTheHeapLimit(t *testing.T) {
	before := debug.SetMemoryLimit(123 << 30)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	limit := func() int64 { return debug.SetMemoryLimit(-1) }
	start := func() *core.Engine {
		t.Helper()
		e, err := core.Open(t.Context(), core.Options{Files: disk.Dir("../conformance/testdata/tiny-mx")})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	a, b := start(), start()
	if got, want := limit(), a.Plan().GoLimit+b.Plan().GoLimit; got != want {
		t.Errorf("two engines: the limit is %d, not %d", got, want)
	}
	a.Close()
	if got, want := limit(), b.Plan().GoLimit; got != want {
		t.Errorf("one engine left: the limit is %d, not %d", got, want)
	}
	a.Close() // takes nothing twice
	b.Close()
	if got := limit(); got != 123<<30 {
		t.Errorf("no engine left: the limit is %d", got)
	}
	const bias = "language_model.model.layers.2.block_sparse_moe.gate.e_score_correction_bias"
	files := damage(t, "../conformance/testdata/tiny-mx", bias)
	if _, err := core.Open(t.Context(), core.Options{Files: files}); err == nil {
		t.Error("opened")
	}
	if got := limit(); got != 123<<30 {
		t.Errorf("an engine that did not open: the limit is %d", got)
	}
}

// Readers find at the same time that files refuse direct reads; who listens hears of it one by one.
func TestNoticesComeOneAtATime(t *testing.T) {
	files := disktest.Wrap(disk.Dir("../conformance/testdata/tiny-mx"), nil)
	files.Direct = disktest.RefuseAtOpen
	var inside atomic.Int32
	var notices []string
	e := open(t, core.Options{Files: files, Readers: 8, Notice: func(s string) {
		if inside.Add(1) > 1 {
			t.Error("two at a time")
		}
		time.Sleep(time.Millisecond)
		notices = append(notices, s)
		inside.Add(-1)
	}})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { e.Notify("a notice") })
	}
	if _, err := e.Generate(t.Context(), sequence(t, e), []int{1}, core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	if shards := slices.DeleteFunc(notices, func(s string) bool { return s == "a notice" }); len(shards) != 3 {
		t.Errorf("%q", shards)
	}
}
