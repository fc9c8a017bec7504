package graph_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/graph"
)

// faultyStates is a file of states whose reads or writes fail once told to.
type faultyStates struct {
	graph.StateFile
	reads, writes atomic.Bool
}

var errStates = errors.New("the disk of states is gone")

func (f *faultyStates) ReadAt(b []byte, at int64) (int, error) {
	if f.reads.Load() {
		return 0, errStates
	}
	return f.StateFile.ReadAt(b, at)
}

func (f *faultyStates) WriteAt(b []byte, at int64) (int, error) {
	if f.writes.Load() {
		return 0, errStates
	}
	return f.StateFile.WriteAt(b, at)
}

func stateFile(t *testing.T) *faultyStates {
	file, err := os.Create(filepath.Join(t.TempDir(), "states"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return &faultyStates{StateFile: file}
}

// More sequences than a group has, in a file: prompts, answers, guesses of which some count, clones, and slots used again give
// the logits that they give in memory.
func TestStatesInAFileDoNotChangeBits(t *testing.T) {
	for _, name := range models {
		inMemory := newTester(t, path(name), generic.Backend{}, 2)
		inFile := tester{openWithStates(t, path(name), generic.Backend{}, 2, 40, 200, stateFile(t)), t, inMemory.vocab}
		const sequences = 19
		compute := func(m tester) (logits []float32) {
			pass := func(rows []graph.Row) { logits = append(logits, m.pass(rows...)...) }
			left := m.state() // its slot is used again, and must begin clean
			pass(rowsOf(left, text(3, m.vocab), false))
			left.Free()
			var states []*graph.State
			for range sequences {
				states = append(states, m.state())
			}
			for step := range 3 {
				var rows []graph.Row
				for i, s := range states {
					rows = append(rows, rowsOf(s, text(40, m.vocab)[i+step:][:1], false)...)
					if i%5 == 1 {
						rows = append(rows, rowsOf(s, text(40, m.vocab)[i+step+7:][:2], true)...)
					}
				}
				pass(rows)
				for i, s := range states {
					if i%5 == 1 {
						if err := s.Accept(i % 3); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			clone, err := states[4].Clone()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(clone.Free)
			pass(append(rowsOf(states[4], []int{1, 2}, false), rowsOf(clone, []int{3}, false)...))
			return logits
		}
		want, got := compute(inMemory), compute(inFile)
		equal(t, name, got, want)
		if read, written := inFile.StateTraffic(); read == 0 || written == 0 {
			t.Errorf("%s: %d bytes read, %d written", name, read, written)
		}
	}
}

// A state that cannot be read or written breaks the sequences of the pass, which says why, and no others.
func TestAFaultOfTheStateFileBreaksThePass(t *testing.T) {
	for _, what := range []string{"read", "write"} {
		file := stateFile(t)
		m := tester{Model: openWithStates(t, path(models[0]), generic.Backend{}, 2, 40, 200, file), t: t}
		a, b := m.state(), m.state()
		pass := func(s *graph.State) error {
			return m.Pass(t.Context(), []graph.Row{{State: s, Token: 1}}, nil, graph.Hooks{})
		}
		if err := errors.Join(pass(a), pass(b)); err != nil {
			t.Fatal(err)
		}
		file.reads.Store(what == "read")
		file.writes.Store(what == "write")
		if err := pass(a); !errors.Is(err, errStates) {
			t.Errorf("%s: %v", what, err)
		}
		file.reads.Store(false)
		file.writes.Store(false)
		if err := pass(a); err == nil {
			t.Errorf("%s: the sequence goes on", what)
		}
		if err := pass(b); err != nil {
			t.Errorf("%s: another sequence: %v", what, err)
		}
	}
}
