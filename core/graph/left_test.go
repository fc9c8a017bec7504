package graph_test

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/kernel"
)

// abandon runs f, which is to panic or to end its goroutine.
func abandon(t *testing.T, f func()) {
	t.Helper()
	ended, returned := make(chan bool), false
	go func() {
		defer close(ended)
		defer func() { recover() }()
		f()
		returned = true
	}()
	if <-ended; returned {
		t.Error("it was not left")
	}
}

// bomb panics at one of its products.
type bomb struct {
	generic.Backend
	left *atomic.Int64 // products until then
}

func (b bomb) Dot(dst []float32, stride int, w kernel.Tile, packed []float32, n int) {
	if b.left.Add(-1) == 0 {
		panic("a fault in a kernel")
	}
	b.Backend.Dot(dst, stride, w, packed, n)
}

func TestAPassThatIsLeftBreaksItsSequencesAndNoOthers(t *testing.T) {
	ways := map[string]func(){"panic": func() { panic("a hook's fault") }, "goexit": runtime.Goexit}
	each(t, func(t *testing.T, dir string) {
		for _, threads := range []int{1, 3} {
			if testing.Short() && threads == 1 {
				continue
			}
			b := bomb{left: new(atomic.Int64)}
			m := newTester(t, dir, b, threads)
			ids := text(5, m.vocab)
			want, head := make([]float32, len(ids)*m.vocab), 0
			last := graph.Hooks{Layer: func(layer int) { head = layer }}
			if err := m.Pass(t.Context(), rowsOf(m.state(), ids, false), want, last); err != nil {
				t.Fatal(err)
			}
			check := func(how string, hooks graph.Hooks, product int64) {
				t.Helper()
				s, other := m.state(), m.state()
				m.pass(rowsOf(other, ids[:2], false)...)
				b.left.Store(product)
				abandon(t, func() { m.Pass(t.Context(), rowsOf(s, ids, false), make([]float32, len(ids)*m.vocab), hooks) })
				if b.left.Store(0); !errors.Is(s.Err(), graph.ErrBroken) {
					t.Errorf("%s: the sequence goes on: %v", how, s.Err())
				}
				equal(t, how+": another sequence", m.pass(rowsOf(other, ids[2:], false)...), want[2*m.vocab:])
			}
			for name, leave := range ways {
				check(name+" in Layer", graph.Hooks{Layer: func(layer int) {
					if layer == 3 {
						leave()
					}
				}}, 0)
				check(name+" for the head", graph.Hooks{Layer: func(layer int) {
					if layer == head {
						leave()
					}
				}}, 0)
				check(name+" in Routed", graph.Hooks{Routed: func(int, []int) { leave() }}, 0)
				places := []string{"self_attention_res", "kv_a_proj_with_mqa", "expert_weights", "routed_expert_norm", "output"}
				for _, at := range places {
					check(name+" in Probe at "+at, graph.Hooks{Probe: func(_ int, what string, _ []float32, _ int) {
						if what == at {
							leave()
						}
					}}, 0)
				}
			}
			b.left.Store(1 << 40)
			m.pass(rowsOf(m.state(), ids, false)...)
			products := 1<<40 - b.left.Load()
			for n := int64(1); n <= products; n += 1 + products/7 {
				check(fmt.Sprintf("panic in product %d of %d", n, products), graph.Hooks{}, n)
			}
		}
	})
}

func TestAcceptingThatIsLeftBreaksTheSequence(t *testing.T) {
	left := new(atomic.Bool)
	m := newTester(t, path("tiny-mx"), recurBomb{left: left}, 1)
	s := m.state()
	m.pass(rowsOf(s, text(4, m.vocab), true)...)
	left.Store(true)
	abandon(t, func() { s.Accept(2) })
	if !errors.Is(s.Err(), graph.ErrBroken) {
		t.Errorf("the sequence goes on: %v", s.Err())
	}
}

// recurBomb panics in the recurrence.
type recurBomb struct {
	generic.Backend
	left *atomic.Bool
}

func (b recurBomb) KDA(s []float32, dim, tokens int, q, k, v, alpha []float32, stride int, beta []float32, betaStride int,
	o []float32) {
	if b.left.Load() {
		panic("a fault in a kernel")
	}
	b.Backend.KDA(s, dim, tokens, q, k, v, alpha, stride, beta, betaStride, o)
}

// A hook can neither copy nor change a state of its pass, and what it tries does no harm.
func TestAStateIsNotUsedWhileAPassChangesIt(t *testing.T) {
	m := newTester(t, path("tiny-mx"), generic.Backend{}, 2)
	ids := text(5, m.vocab)
	want := m.pass(rowsOf(m.state(), ids, false)...)
	s, other, closed := m.state(), m.state(), m.state()
	m.pass(rowsOf(other, ids[:3], false)...)
	calls := 0
	hooks := graph.Hooks{Layer: func(int) {
		calls++
		_, clone := s.Clone()
		_, write := s.WriteTo(io.Discard)
		for what, err := range map[string]error{"clone": clone, "write": write, "accept": s.Accept(0), "idle": s.Idle()} {
			if err == nil || errors.Is(err, graph.ErrBroken) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if s.Err() != nil || s.Len() != 0 {
			t.Errorf("%d tokens, %v", s.Len(), s.Err())
		}
		c, err := other.Clone()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Free()
		equal(t, "a clone of another state", c.Snapshot(), other.Snapshot())
		closed.Free()
	}}
	logits := make([]float32, 6*m.vocab)
	rows := append(rowsOf(s, ids, false), rowsOf(closed, ids[:1], false)...)
	if err := m.Pass(t.Context(), rows, logits, hooks); err != nil || calls == 0 {
		t.Fatal(err, calls)
	}
	equal(t, "logits", logits[:5*m.vocab], want)
	if s.Idle() != nil || !errors.Is(closed.Err(), graph.ErrBroken) {
		t.Errorf("after the pass: %v, and what was closed: %v", s.Idle(), closed.Err())
	}
}
