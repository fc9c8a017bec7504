package graph

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/k3infer/k3/core/memory"
)

// StateFile is where the recurrent states of sequences are kept that memory has no room for: a file of which nothing is expected once
// the model is closed.
type StateFile interface {
	io.ReaderAt
	io.WriterAt
}

// A pass reads the states of stateGroup sequences at a time, one KDA layer of each, ahead of the layer that needs them, and writes them
// after it: while one group is computed the next is read and the last is written.
const (
	stateGroup   = 8
	stateBuffers = 3
)

// stateFile is a StateFile divided into slots, each the recurrent state of a sequence: layer after layer, as in memory.
type stateFile struct {
	file          StateFile
	layer, layers int             // bytes of a layer, and how many there are
	buffers       []*memory.Block // of passes, which come one at a time
	read, written atomic.Int64

	mu   sync.Mutex
	free []int // slots that were given back
	next int   // slots that were ever in use
}

func (f *stateFile) take() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.free); n > 0 {
		slot := f.free[n-1]
		f.free = f.free[:n-1]
		return slot
	}
	f.next++
	return f.next - 1
}

func (f *stateFile) give(slot int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, slot)
}

func (f *stateFile) offset(slot, layer int) int64 {
	return (int64(slot)*int64(f.layers) + int64(layer)) * int64(f.layer)
}

// load reads a layer of a state.
func (f *stateFile) load(s *State, layer int, dst []byte) error {
	if s.fresh {
		clear(dst)
		return nil
	}
	n, err := f.file.ReadAt(dst, f.offset(s.slot, layer))
	f.read.Add(int64(n))
	if n < len(dst) {
		return fmt.Errorf("graph: read a state: %w", err)
	}
	return nil
}

// store writes a layer of a state.
func (f *stateFile) store(s *State, layer int, src []byte) error {
	n, err := f.file.WriteAt(src, f.offset(s.slot, layer))
	f.written.Add(int64(n))
	if err != nil {
		return fmt.Errorf("graph: write a state: %w", err)
	}
	return nil
}

// StateTraffic is how many bytes of states in a file were read and written so far.
func (m *Model) StateTraffic() (read, written int64) {
	if m.states == nil {
		return 0, 0
	}
	return m.states.read.Load(), m.states.written.Load()
}

// eachLayer calls f with each KDA layer's part of the recurrent state, as bytes, and keeps what f makes of them if keep is set.
func (s *State) eachLayer(keep bool, f func(layer int, part []byte) error) error {
	m := s.model
	if m.states == nil {
		all, n := s.recurrent.Bytes(), 4*recurrentFloats(m.config)
		for layer := 0; layer*n < len(all); layer++ {
			if err := f(layer, all[layer*n:][:n]); err != nil {
				return err
			}
		}
		return nil
	}
	b, err := m.account.Allocate(memory.State, m.states.layer)
	if err != nil {
		return err
	}
	defer b.Free()
	for layer := range m.states.layers {
		if err := m.states.load(s, layer, b.Bytes()); err != nil {
			return err
		}
		if err := f(layer, b.Bytes()); err != nil {
			return err
		}
		if keep {
			if err := m.states.store(s, layer, b.Bytes()); err != nil {
				return err
			}
		}
	}
	if keep {
		s.fresh = false
	}
	return nil
}

// group is a KDA layer's part of the states of some sequences of a pass, on its way through memory.
type group struct {
	layer int
	runs  []run
	block *memory.Block
	err   error
}

// part is where a group has the part of sequence i of its runs.
func (f *stateFile) part(g *group, i int) []byte { return g.block.Bytes()[i*f.layer:][:f.layer] }

// feed brings the states of a pass's sequences from the file and back, group after group in the order in which the layers need them.
type feed struct {
	file        *stateFile
	free, ready chan *group
	used        chan *group
	stop        context.CancelFunc
	working     sync.WaitGroup
	err         error // of the writer; read it once working is done
}

// startFeed begins to read for a pass of runs.
func (f *stateFile) startFeed(ctx context.Context, runs []run) *feed {
	d := &feed{
		file: f, free: make(chan *group, stateBuffers), ready: make(chan *group, stateBuffers), used: make(chan *group, stateBuffers),
	}
	for _, b := range f.buffers {
		d.free <- &group{block: b}
	}
	ctx, d.stop = context.WithCancel(ctx)
	d.working.Add(2)
	go d.readAll(ctx, runs)
	go d.writeAll()
	return d
}

func (f *feed) readAll(ctx context.Context, runs []run) {
	defer f.working.Done()
	defer close(f.ready)
	for layer := range f.file.layers {
		for at := 0; at < len(runs); at += stateGroup {
			var g *group
			select {
			case g = <-f.free:
			case <-ctx.Done():
				return
			}
			g.layer, g.runs, g.err = layer, runs[at:min(at+stateGroup, len(runs))], nil
			for i := range g.runs {
				if g.err = f.file.load(g.runs[i].state, layer, f.file.part(g, i)); g.err != nil {
					break
				}
			}
			f.ready <- g // there is room for all
		}
	}
}

func (f *feed) writeAll() {
	defer f.working.Done()
	for g := range f.used {
		for i := range g.runs {
			if f.err == nil && g.runs[i].certain > 0 {
				f.err = f.file.store(g.runs[i].state, g.layer, f.file.part(g, i))
			}
		}
		f.free <- g
	}
}

// next returns the next group, which is of the given layer; use gives it back.
func (f *feed) next(ctx context.Context, layer int) (*group, error) {
	g, ok := <-f.ready
	switch {
	case !ok:
		return nil, context.Cause(ctx)
	case g.err != nil:
		return nil, g.err
	case g.layer != layer:
		panic(fmt.Sprintf("graph: states of layer %d came for layer %d", g.layer, layer))
	}
	return g, nil
}

func (f *feed) use(g *group) { f.used <- g }

// end waits until what was computed is written, and ends the feed.
func (f *feed) end() error {
	f.stop()
	close(f.used)
	f.working.Wait()
	return f.err
}
