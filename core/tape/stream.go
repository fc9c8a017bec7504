package tape

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// Options are the memory and the readers of a tape.
type Options struct {
	Pool    *disk.Pool
	Account *memory.Account
	// Pinned is the memory for segments that stay, in bytes. Tiles.Bytes is enough for all.
	Pinned int64
	// Workers expand tiles of compressed matrices; nil: the caller of Next does.
	Workers *kernel.Pool
	// Ring is the number of buffers of Tiles.BufferBytes that the others pass through, at least 1 unless all stay.
	Ring int
}

// Stream is a Tape over the files of a checkpoint.
//
// Segments that stay are read when a pass first comes to them. The others go through the ring: whenever a buffer is free,
// the next segment that has none is read into it, past the end of the pass into the beginning of the one to come. A buffer
// is free when its last tile was released, never before.
//
// It has no goroutine of its own: the caller's and the pool's move it on.
type Stream struct {
	*Tiles
	pool     *disk.Pool
	workers  *kernel.Pool
	scratch  []byte // for the tile that is lent, where it must be expanded
	expander expander
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	loads    sync.WaitGroup
	memory   []*memory.Block

	mu      sync.Mutex
	kept    []*buffer // by segment; nil for those that go through the ring
	ring    []*buffer
	queue   []*buffer // those of the ring that the pass comes to next, in order
	at      int       // segment the pass is in
	limit   int       // segments of the pass
	cursor  int       // segment to load next
	ahead   int       // segments from at to cursor, across the end of the pass
	loading int
	reader  *reader
	held    *buffer       // of the tile that is lent
	lent    int           // counts tiles lent, so that a tile is given back once
	changed chan struct{} // closed when a load ends
	closed  bool
	stats   Stats
}

// Stats counts what the tape has done since it was opened, and what of it stays in memory.
type Stats struct {
	Bytes     int64 // of weights, in Tiles.Len tiles
	Kept      int   // tiles that stay
	KeptBytes int64 // of weights in them

	Read     int64         // bytes of weights that came from the disk
	Wait     time.Duration // time that passes waited for tiles
	Matrices []MatrixStats
}

// MatrixStats is the part of one matrix.
type MatrixStats struct {
	Read int64
	Wait time.Duration
}

type state int

const (
	empty state = iota
	loading
	ready
	failed
)

// buffer is memory for one segment.
type buffer struct {
	bytes   []byte
	segment int // whose bytes it has, or gets; -1 none
	state   state
	err     error // of a failed load
	queued  bool
	cancel  context.CancelFunc // of the load under way, nil once it was cancelled
}

// Open makes a tape. It allocates all its memory and reads nothing yet.
func Open(tiles *Tiles, o Options) (*Stream, error) {
	t := &Stream{Tiles: tiles, pool: o.Pool, workers: o.Workers, changed: make(chan struct{}), kept: make([]*buffer, len(tiles.segments))}
	t.stats.Matrices = make([]MatrixStats, len(tiles.matrices))
	t.ctx, t.cancel = context.WithCancel(context.Background())
	ring := min(o.Ring, len(tiles.segments))
	if o.Pinned+int64(ring)*int64(tiles.largest) >= tiles.bytes {
		o.Pinned, ring = tiles.bytes, 0 // what the ring would take is enough for the rest
	}
	var size int64
	keep := tiles.pin(o.Pinned)
	all := true
	for s, k := range keep {
		if all = all && k; k {
			size += int64(tiles.segments[s].Size)
		}
	}
	if !all && ring < 1 {
		return nil, fmt.Errorf("tape: open: no ring buffer, and %d bytes are less than the %d of all tiles", o.Pinned, tiles.bytes)
	}
	allocate := func(purpose string, n int64) ([]byte, error) {
		b, err := o.Account.Allocate(purpose, int(n))
		if err != nil {
			t.Close()
			return nil, fmt.Errorf("tape: open: %w", err)
		}
		t.memory = append(t.memory, b)
		return b.Bytes(), nil
	}
	arena, err := allocate("trunk tiles", size)
	if err != nil {
		return nil, err
	}
	for s, k := range keep {
		if n := tiles.segments[s].Size; k {
			t.kept[s] = &buffer{bytes: arena[:n:n], segment: s}
			arena = arena[n:]
		}
	}
	if arena, err = allocate("trunk ring", int64(ring)*int64(tiles.largest)); err != nil {
		return nil, err
	}
	for _, x := range tiles.tiles {
		t.stats.Bytes += int64(x.bytes)
		if keep[x.segment] {
			t.stats.Kept++
			t.stats.KeptBytes += int64(x.bytes)
		}
	}
	if tiles.scratch > 0 {
		if t.scratch, err = allocate("trunk scratch", int64(tiles.scratch)); err != nil {
			return nil, err
		}
	}
	for i := range ring {
		t.ring = append(t.ring, &buffer{bytes: arena[i*tiles.largest:][:tiles.largest], segment: -1})
	}
	return t, nil
}

// Start implements Tape.
func (t *Stream) Start(ctx context.Context, n int) (Reader, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, errors.New("tape: start: it is closed")
	case t.reader != nil:
		return nil, errors.New("tape: start: another pass is under way")
	case n < 1 || n > len(t.matrices):
		return nil, fmt.Errorf("tape: start: %d of %d matrices", n, len(t.matrices))
	}
	end := t.first[n]
	t.reader = &reader{tape: t, ctx: ctx, end: end}
	t.at, t.cursor, t.ahead = 0, 0, 0
	t.limit = t.tiles[end-1].segment + 1
	for _, b := range t.kept {
		if b != nil && b.state == failed {
			b.state = empty
		}
	}
	// Whatever the ring has already of this pass is found again.
	for _, b := range t.queue {
		b.queued = false
	}
	t.queue = t.queue[:0]
	t.fill()
	for _, b := range t.ring {
		if b.state == loading && !b.queued && b.cancel != nil {
			b.cancel()
			b.cancel = nil
		}
	}
	return t.reader, nil
}

// Close implements Tape. Loads that are under way are cancelled and waited for.
func (t *Stream) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.loads.Wait()
	for _, b := range t.memory {
		b.Free()
	}
	t.memory = nil
	return nil
}

// Stats returns the counts so far.
func (t *Stream) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Matrices = append([]MatrixStats(nil), s.Matrices...)
	return s
}

// fill begins the loads there is room for. The caller has the mutex.
func (t *Stream) fill() {
	for !t.closed && t.ahead < t.limit {
		if b := t.kept[t.cursor]; b != nil {
			if b.state == empty {
				// In the first pass, no more ahead than a ring would be.
				if t.loading >= max(len(t.ring), 4) {
					return
				}
				t.load(b, t.cursor)
			}
		} else {
			b := t.room(t.cursor)
			if b == nil {
				return
			}
			if b.segment != t.cursor {
				t.load(b, t.cursor)
			}
			b.queued = true
			t.queue = append(t.queue, b)
		}
		t.ahead++
		if t.cursor++; t.cursor == t.limit {
			t.cursor = 0
		}
	}
}

// room finds a buffer of the ring for segment s: one that has it already, or else one that nobody uses.
func (t *Stream) room(s int) *buffer {
	var unused *buffer
	for _, b := range t.ring {
		switch {
		case b.queued || b == t.held:
		case b.segment == s && (b.state == ready || b.state == loading && b.cancel != nil):
			return b
		case b.state != loading:
			unused = b
		}
	}
	if unused != nil {
		unused.segment, unused.state = -1, empty
	}
	return unused
}

func (t *Stream) load(b *buffer, s int) {
	ctx, cancel := context.WithCancel(t.ctx)
	b.segment, b.state, b.err, b.cancel = s, loading, nil, cancel
	t.loading++
	t.loads.Add(1)
	t.pool.Start(ctx, disk.Ahead, t.segments[s].Runs(b.bytes), func(err error) {
		defer t.loads.Done()
		cancel()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.loading--
		t.loaded(b, s, err)
		t.fill()
		close(t.changed)
		t.changed = make(chan struct{})
	})
}

// loaded notes the end of a load.
func (t *Stream) loaded(b *buffer, s int, err error) {
	cancelled := b.cancel == nil
	b.cancel = nil
	switch {
	case err == nil:
		b.state = ready
		for _, x := range t.tiles[t.begin(s):t.segments[s].end] {
			t.stats.Read += int64(x.bytes)
			t.stats.Matrices[x.matrix].Read += int64(x.bytes)
		}
	case cancelled:
		b.state, b.segment = empty, -1
	default:
		b.state = failed
		tensor := t.matrices[t.tiles[t.begin(s)].matrix].Tensor
		var e *disk.Error
		if errors.As(err, &e) {
			tensor = t.tensorAt(s, e.File, e.Off)
		}
		b.err = fmt.Errorf("tape: load %s: %w", tensor, err)
	}
}

// current is the buffer of the segment the pass is in, nil as long as there is none.
func (t *Stream) current() *buffer {
	if b := t.kept[t.at]; b != nil {
		return b
	}
	if t.ahead == 0 {
		return nil
	}
	return t.queue[0]
}

type reader struct {
	tape *Stream
	ctx  context.Context
	next int // tile
	end  int
}

// Next implements Reader.
func (r *reader) Next() (Tile, error) {
	t := r.tape
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.reader != r:
		return Tile{}, errors.New("tape: next: the pass is over")
	case t.held != nil:
		return Tile{}, errors.New("tape: next: the tile before was not released")
	case r.next == r.end:
		return Tile{}, fmt.Errorf("tape: next: %w", io.EOF)
	}
	x := t.tiles[r.next]
	var since time.Time
	for {
		if err := r.ctx.Err(); err != nil {
			return Tile{}, fmt.Errorf("tape: load %s: %w", t.matrices[x.matrix].Tensor, err)
		}
		b := t.current()
		if b != nil && b.state == failed {
			return Tile{}, b.err
		}
		if b != nil && b.state == ready {
			t.held = b
			break
		}
		if since.IsZero() {
			since = time.Now()
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-r.ctx.Done():
		}
		t.mu.Lock()
	}
	if !since.IsZero() {
		waited := time.Since(since)
		t.stats.Wait += waited
		t.stats.Matrices[x.matrix].Wait += waited
	}
	m := t.matrices[x.matrix]
	data := t.held.bytes[x.at:][:x.bytes:x.bytes]
	if m.Packed != nil {
		err := errors.New("tape: next: a panic cut the expanding of a tile short")
		defer func() {
			if err != nil { // the next pass reads the segment again
				t.held.state, t.held.err = failed, err
				t.held = nil
			}
		}()
		if err = t.expand(x, data); err != nil {
			return Tile{}, err
		}
		row := m.Format.RowBytes(m.Cols)
		data = t.scratch[(x.row-x.frame*m.Packed.Rows)*row:][: x.rows*row : x.rows*row]
	}
	r.next++
	t.lent++
	lent, last := t.lent, r.next == t.segments[x.segment].end || r.next == r.end
	out := Tile{
		Tile:   kernel.Tile{Format: m.Format, Rows: x.rows, Cols: m.Cols, Stride: m.Cols, Data: data},
		Matrix: x.matrix,
		Row:    x.row,
	}
	out.release = func() { t.release(r, lent, last) }
	out.Check()
	return out, nil
}

// expander is the job of expanding the frames of a tile, one a part.
type expander struct {
	packed *Packed
	frame  int // first
	rows   int // of the matrix
	row    int // bytes
	dst    []byte
	src    []byte
	failed atomic.Pointer[error]
}

// Do implements kernel.Job.
func (e *expander) Do(i, _ int) {
	p := e.packed
	begin, frame := p.start(e.frame), e.frame+i
	rows := min(p.Rows, e.rows-frame*p.Rows)
	src := e.src[p.start(frame)-begin : p.start(frame+1)-begin]
	if err := p.Expand(e.dst[i*p.Rows*e.row:][:rows*e.row], src); err != nil {
		e.failed.CompareAndSwap(nil, &err)
	}
}

// expand puts the frames that have a tile into the scratch memory. Its caller has the mutex and gets it back, but loads
// go on meanwhile; the buffer is held.
func (t *Stream) expand(x tile, src []byte) error {
	t.mu.Unlock()
	defer t.mu.Lock()
	m, e := t.matrices[x.matrix], &t.expander
	e.packed, e.frame, e.rows, e.row, e.dst, e.src = m.Packed, x.frame, m.Rows, m.Format.RowBytes(m.Cols), t.scratch, src
	e.failed.Store(nil)
	if t.workers == nil {
		for i := range x.frames {
			e.Do(i, 0)
		}
	} else {
		t.workers.Run(x.frames, e)
	}
	if err := e.failed.Load(); err != nil {
		return fmt.Errorf("tape: expand %s: %s at %d: %w", m.Tensor, x.file.Name(), x.off, *err)
	}
	return nil
}

// release takes a tile back; after the last tile of a segment its buffer is free.
func (t *Stream) release(r *reader, lent int, last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil || t.lent != lent {
		return
	}
	b := t.held
	t.held = nil
	if last && t.reader == r {
		if b.queued {
			b.queued = false
			t.queue = append(t.queue[:0], t.queue[1:]...)
		}
		t.ahead--
		t.at++
	}
	t.fill()
}

// Close implements Reader.
func (r *reader) Close() {
	r.tape.mu.Lock()
	defer r.tape.mu.Unlock()
	if r.tape.reader == r {
		r.tape.reader = nil
	}
}
