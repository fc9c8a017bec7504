package graph_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tape"
	_ "github.com/k3infer/k3/policies"
)

// models are small checkpoints of odd sizes, one for every storage format.
var models = []string{"tiny-mx", "tiny-plain", "tiny-f16"}

func path(name string) string { return "../../conformance/testdata/" + name }

// open makes a model of a checkpoint directory, everything in memory.
func open(t testing.TB, dir string, b kernel.Backend, threads, rows, positions int) *graph.Model {
	t.Helper()
	return openWithStates(t, dir, b, threads, rows, positions, nil)
}

// openWithStates is open with recurrent states in a file, unless that is nil.
func openWithStates(t testing.TB, dir string, b kernel.Backend, threads, rows, positions int, states graph.StateFile) *graph.Model {
	t.Helper()
	source, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	account := new(memory.Account)
	layout, err := graph.Layout(source)
	if err != nil {
		t.Fatal(err)
	}
	// Small tiles, a ring for all of them, and room for few experts: what is hardest to get right.
	tiles, err := tape.Cut(layout, tape.Shards(source), 4096)
	if err != nil {
		t.Fatal(err)
	}
	files := disk.NewPool(disk.Config{Readers: 3})
	trunk, err := tape.Open(tiles, tape.Options{Pool: files, Account: account, Ring: 2})
	if err != nil {
		t.Fatal(err)
	}
	store, err := experts.Open(source, experts.Options{Pool: files, Account: account, Slots: 5, Policy: "lru"})
	if err != nil {
		t.Fatal(err)
	}
	pool := kernel.NewPool(b, threads)
	m, err := graph.New(graph.Options{Source: source, Pool: pool, Account: account, Tape: trunk, Experts: store, MaxRows: rows, Context: positions, States: states})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		pool.Close()
		trunk.Close()
		store.Close()
		files.Close()
		source.Close()
		if left := account.Bytes(); len(left) != 0 {
			t.Errorf("memory left: %v", left)
		}
	})
	return m
}

// text is a deterministic text of n ids.
func text(n, vocab int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = (i*i*7 + i*13 + 5) % vocab
	}
	return ids
}

// tester computes texts on one model, keeping every logit.
type tester struct {
	*graph.Model
	t     testing.TB
	vocab int
}

func newTester(t testing.TB, dir string, b kernel.Backend, threads int) tester {
	config, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer config.Close()
	return tester{open(t, dir, b, threads, 40, 200), t, config.Config.Vocab}
}

func (m tester) state() *graph.State {
	s, err := m.NewState()
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(s.Free)
	return s
}

func rowsOf(s *graph.State, ids []int, tentative bool) []graph.Row {
	var rows []graph.Row
	for _, id := range ids {
		rows = append(rows, graph.Row{State: s, Token: id, Logits: true, Tentative: tentative})
	}
	return rows
}

// pass computes rows that all want logits, and returns these.
func (m tester) pass(rows ...graph.Row) []float32 {
	m.t.Helper()
	logits := make([]float32, len(rows)*m.vocab)
	if err := m.Pass(m.t.Context(), rows, logits, graph.Hooks{}); err != nil {
		m.t.Fatal(err)
	}
	return logits
}

// memory is a state's whole content, to compare.
func (m tester) snapshot(s *graph.State) []float32 { return s.Snapshot() }

func equal(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, not %d", what, len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d is %g (%08x), not %g (%08x)", what, i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

func each(t *testing.T, f func(t *testing.T, dir string)) {
	for _, name := range models {
		t.Run(name, func(t *testing.T) { f(t, path(name)) })
	}
}

func TestAPromptSplitAnywhereGivesTheSameBits(t *testing.T) {
	each(t, func(t *testing.T, dir string) {
		m := newTester(t, dir, generic.Backend{}, 2)
		ids := text(20, m.vocab)
		whole := m.state()
		want := m.pass(rowsOf(whole, ids, false)...)
		single := m.state()
		var got []float32
		for _, id := range ids {
			got = append(got, m.pass(rowsOf(single, []int{id}, false)...)...)
		}
		equal(t, "logits token by token", got, want)
		equal(t, "state token by token", m.snapshot(single), m.snapshot(whole))
		for cut := 1; cut < len(ids); cut++ {
			s := m.state()
			got := m.pass(rowsOf(s, ids[:cut], false)...)
			got = append(got, m.pass(rowsOf(s, ids[cut:], false)...)...)
			equal(t, fmt.Sprintf("logits cut at %d", cut), got, want)
			equal(t, fmt.Sprintf("state cut at %d", cut), m.snapshot(s), m.snapshot(whole))
		}
	})
}

func TestThreadsDoNotChangeBits(t *testing.T) {
	each(t, func(t *testing.T, dir string) {
		var want []float32
		for _, threads := range []int{1, 2, 3, 8} {
			m := newTester(t, dir, generic.Backend{}, threads)
			ids := text(20, m.vocab)
			s := m.state()
			got := m.pass(rowsOf(s, ids, false)...)
			got = append(got, m.pass(rowsOf(s, ids[:1], false)...)...)
			got = append(got, m.snapshot(s)...)
			if want == nil {
				want = got
			}
			equal(t, fmt.Sprint(threads, " threads"), got, want)
		}
	})
}

func TestCompanyDoesNotChangeBits(t *testing.T) {
	each(t, func(t *testing.T, dir string) {
		m := newTester(t, dir, generic.Backend{}, 2)
		texts := [][]int{text(9, m.vocab), text(14, m.vocab)[5:], text(30, m.vocab)[23:]}
		var alone [][]float32
		for _, ids := range texts {
			s := m.state()
			a := m.pass(rowsOf(s, ids[:3], false)...)
			a = append(a, m.pass(rowsOf(s, ids[3:], false)...)...)
			alone = append(alone, a)
		}
		// The same texts side by side, one of them guessing its second half.
		states := []*graph.State{m.state(), m.state(), m.state()}
		var first, second []graph.Row
		for i, ids := range texts {
			first = append(first, rowsOf(states[i], ids[:3], false)...)
			second = append(second, rowsOf(states[i], ids[3:], i == 1)...)
		}
		a, b := m.pass(first...), m.pass(second...)
		for i, ids := range texts {
			n, rest := 3*m.vocab, (len(ids)-3)*m.vocab
			equal(t, fmt.Sprint("text ", i), slices.Concat(a[:n], b[:rest]), alone[i])
			a, b = a[n:], b[rest:]
		}
	})
}

func TestGuessesLeaveNoTraceUnlessAccepted(t *testing.T) {
	each(t, func(t *testing.T, dir string) {
		m := newTester(t, dir, generic.Backend{}, 2)
		ids := text(16, m.vocab)
		for accepted := 0; accepted <= 5; accepted++ {
			for _, certain := range []int{0, 1, 4} {
				s, plain := m.state(), m.state()
				m.pass(rowsOf(s, ids[:6], false)...)
				m.pass(rowsOf(plain, ids[:6], false)...)
				rows := rowsOf(s, ids[6:6+certain], false)
				rows = append(rows, rowsOf(s, ids[6+certain:][:5], true)...)
				got := m.pass(rows...)
				if err := s.Accept(accepted); err != nil {
					t.Fatal(err)
				}
				want := []float32(nil)
				for _, id := range ids[6 : 6+certain+accepted] {
					want = append(want, m.pass(rowsOf(plain, []int{id}, false)...)...)
				}
				what := fmt.Sprintf("%d accepted after %d certain", accepted, certain)
				equal(t, "logits, "+what, got[:len(want)], want)
				if s.Len() != plain.Len() {
					t.Fatalf("%s: %d tokens, not %d", what, s.Len(), plain.Len())
				}
				equal(t, "state, "+what, m.snapshot(s), m.snapshot(plain))
				equal(t, "what follows, "+what, m.pass(rowsOf(s, ids[:3], false)...), m.pass(rowsOf(plain, ids[:3], false)...))
			}
		}
	})
}

func TestANewSequenceStartsClean(t *testing.T) {
	m := newTester(t, path("tiny-mx"), generic.Backend{}, 2)
	ids := text(12, m.vocab)
	want := m.pass(rowsOf(m.state(), ids, false)...)
	m.pass(rowsOf(m.state(), text(33, m.vocab), false)...)
	equal(t, "logits after another text", m.pass(rowsOf(m.state(), ids, false)...), want)
}

// Contexts beyond one block of the latent cache, and attention over all of it.
func TestLongContextsAreOneText(t *testing.T) {
	m := newTester(t, path("tiny-mx"), generic.Backend{}, 3)
	ids := text(150, m.vocab)
	a, b := m.state(), m.state()
	var x, y []float32
	for at := 0; at < len(ids); at += 30 {
		x = append(x, m.pass(rowsOf(a, ids[at:at+30], false)...)...)
	}
	for at := 0; at < len(ids); at += 25 {
		y = append(y, m.pass(rowsOf(b, ids[at:at+25], false)...)...)
	}
	equal(t, "logits", x, y)
}

func TestRefusedRowsLeaveSequencesAsTheyWere(t *testing.T) {
	m := newTester(t, path("tiny-mx"), generic.Backend{}, 1)
	s, other := m.state(), m.state()
	m.pass(rowsOf(s, text(3, m.vocab), false)...)
	want := m.snapshot(s)
	one := func(s *graph.State, id int) graph.Row { return graph.Row{State: s, Token: id} }
	guess := one(s, 1)
	guess.Tentative = true
	for name, c := range map[string]struct {
		rows []graph.Row
		err  error
	}{
		"nothing":                {nil, nil},
		"a negative id":          {[]graph.Row{one(s, -1)}, graph.ErrToken},
		"an id too large":        {[]graph.Row{one(s, 1), one(s, m.vocab)}, graph.ErrToken},
		"too many":               {rowsOf(s, text(41, m.vocab), false), nil},
		"no state":               {[]graph.Row{{Token: 1}}, nil},
		"rows apart":             {[]graph.Row{one(s, 1), one(other, 1), one(s, 2)}, nil},
		"certain behind a guess": {[]graph.Row{guess, one(s, 1)}, nil},
	} {
		err := m.Pass(t.Context(), c.rows, make([]float32, 50*m.vocab), graph.Hooks{})
		if err == nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for range 4 {
		m.pass(rowsOf(other, text(40, m.vocab), false)...)
	}
	if err := m.Pass(t.Context(), rowsOf(other, text(40, m.vocab), false)[:40], make([]float32, 40*m.vocab), graph.Hooks{}); err != nil {
		t.Fatal(err)
	}
	if err := m.Pass(t.Context(), []graph.Row{one(other, 1)}, nil, graph.Hooks{}); !errors.Is(err, graph.ErrContext) {
		t.Errorf("a full context: got %v", err)
	}
	if other.Err() != nil || s.Err() != nil {
		t.Error("a refused row broke a sequence")
	}
	equal(t, "state", m.snapshot(s), want)
}

func TestACancelledPassBreaksItsSequencesAndNoOthers(t *testing.T) {
	m := newTester(t, path("tiny-mx"), generic.Backend{}, 1)
	s, other := m.state(), m.state()
	ctx, cancel := context.WithCancel(t.Context())
	hooks := graph.Hooks{Layer: func(layer int) {
		if layer == 2 {
			cancel()
		}
		if layer > 3 {
			t.Error("still computing layer", layer)
		}
	}}
	err := m.Pass(ctx, rowsOf(s, text(3, m.vocab), false), make([]float32, 3*m.vocab), hooks)
	if !errors.Is(err, context.Canceled) {
		t.Fatal("got", err)
	}
	err = m.Pass(t.Context(), rowsOf(s, text(1, m.vocab), false), make([]float32, m.vocab), graph.Hooks{})
	if !errors.Is(err, graph.ErrBroken) || !errors.Is(err, context.Canceled) {
		t.Error("a broken sequence went on:", err)
	}
	if err := s.Accept(0); !errors.Is(err, graph.ErrBroken) {
		t.Error("a broken sequence accepted guesses:", err)
	}
	m.pass(rowsOf(other, text(3, m.vocab), false)...)
}

func TestClonesShareAPastAndNoFuture(t *testing.T) {
	m := newTester(t, path("tiny-mx"), generic.Backend{}, 2)
	ids := text(100, m.vocab)
	for _, n := range []int{1, 37, 64, 70} {
		s, plain := m.state(), m.state()
		for at := 0; at < n; at += 35 {
			m.pass(rowsOf(s, ids[at:min(at+35, n)], false)...)
			m.pass(rowsOf(plain, ids[at:min(at+35, n)], false)...)
		}
		clone, err := s.Clone()
		if err != nil {
			t.Fatal(err)
		}
		want := m.snapshot(plain)
		m.pass(rowsOf(s, ids[40:60], false)...) // the original goes its own way, with other ids than the clone
		equal(t, "clone", m.snapshot(clone), want)
		original := m.snapshot(s)
		equal(t, "logits of a clone", m.pass(rowsOf(clone, ids[:30], false)...), m.pass(rowsOf(plain, ids[:30], false)...))
		equal(t, "original", m.snapshot(s), original)
		clone.Free()
		equal(t, "original after the clone is gone", m.snapshot(s), original)
	}
}
