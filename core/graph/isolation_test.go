package graph_test

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/graph"
)

// Whatever value of a row goes wrong, in whatever layer: its sequence breaks, and the others have the bits they have alone.
func TestNumbersAtFaultBreakTheirSequenceAlone(t *testing.T) {
	each(t, func(t *testing.T, dir string) {
		m := newTester(t, dir, generic.Backend{}, 2)
		ids := text(12, m.vocab)
		alone := func(ids []int, next int) []float32 {
			s := m.state()
			return append(m.pass(rowsOf(s, ids, false)...), m.pass(rowsOf(s, []int{next}, false)...)...)
		}
		left, right := alone(ids[:3], 1), alone(ids[8:], 2)
		var places []string
		sound := func(l int, what string, _ []float32, _ int) {
			if what == "input_layernorm" || what == "self_attn" || what == "post_attention_layernorm" || what == "mlp" {
				places = append(places, fmt.Sprint(l, what))
			}
		}
		if err := m.Pass(t.Context(), rowsOf(m.state(), ids[:1], false), make([]float32, m.vocab), graph.Hooks{Probe: sound}); err != nil {
			t.Fatal(err)
		}
		bad := float32(math.Inf(1))
		for i, place := range places {
			if bad = -bad; i%3 == 0 {
				bad = float32(math.NaN())
			}
			a, guilty, b := m.state(), m.state(), m.state()
			rows := append(append(rowsOf(a, ids[:3], false), rowsOf(guilty, ids[3:8], false)...), rowsOf(b, ids[8:], false)...)
			logits := make([]float32, len(rows)*m.vocab)
			err := m.Pass(t.Context(), rows, logits, graph.Hooks{Probe: func(l int, what string, values []float32, width int) {
				if fmt.Sprint(l, what) == place {
					values[(3+i%5)*width+i%width] = bad
				}
			}})
			var partial *graph.Partial
			if !errors.As(err, &partial) || !errors.Is(err, graph.ErrNumbers) || len(partial.Errors) != 1 {
				t.Fatalf("%v at %s: %v", bad, place, err)
			}
			if !errors.Is(guilty.Err(), graph.ErrBroken) || !errors.Is(guilty.Err(), graph.ErrNumbers) {
				t.Fatalf("%v at %s: the sequence at fault: %v", bad, place, guilty.Err())
			}
			equal(t, "logits at fault", logits[3*m.vocab:8*m.vocab], make([]float32, 5*m.vocab))
			next := m.pass(append(rowsOf(a, []int{1}, false), rowsOf(b, []int{2}, false)...)...)
			equal(t, place+": the first", append(logits[:3*m.vocab:3*m.vocab], next[:m.vocab]...), left)
			equal(t, place+": the last", append(logits[8*m.vocab:], next[m.vocab:]...), right)
			// With no other sequence there is nothing to go on for.
			lone := m.state()
			err = m.Pass(t.Context(), rowsOf(lone, ids[:2], false), logits[:2*m.vocab], graph.Hooks{Probe: func(l int, what string, values []float32, width int) {
				if fmt.Sprint(l, what) == place {
					values[width+i%width] = bad
				}
			}})
			if errors.As(err, &partial) || !errors.Is(err, graph.ErrNumbers) || !errors.Is(lone.Err(), graph.ErrBroken) {
				t.Fatalf("%v at %s, alone: %v", bad, place, err)
			}
		}
	})
}
