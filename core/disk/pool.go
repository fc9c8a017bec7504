package disk

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Priority orders the reads of a pool.
type Priority int

// Reads that computing waits for come before reads that are done ahead of need.
const (
	Urgent Priority = iota // experts
	Ahead                  // the tape's read-ahead
	priorities
)

// Run is a stretch of a file and the memory it goes to.
type Run struct {
	File File
	Off  int64
	Len  int
	// Mem receives the whole blocks around the stretch, so that byte Off lands at Mem[Off%Block]. Its address is a multiple
	// of Block and it has Span(Off, Len) bytes, all of which may be written.
	Mem []byte
}

// Span is the size of the whole blocks around n bytes at off.
func Span(off int64, n int) int { return int(roundUp(off+int64(n)) - roundDown(off)) }

// Config is how a pool reads.
type Config struct {
	Readers int // reads at a time, at least 1
	// Buffered leaves direct reads alone: everything goes through the page cache.
	Buffered bool
	// Fallback, if not nil, is told once for each file that refuses direct reads and is read through the page cache instead.
	// It is called from the pool's goroutines.
	Fallback func(file string, why error)
	// Piece is the size of single reads, rounded to blocks; 0 is DefaultPiece. Smaller ones spread an urgent read over more
	// readers, larger ones ask the disk less often.
	Piece int
}

// DefaultPiece is the size of single reads.
const DefaultPiece = 4 << 20

// Stats counts what a pool has read.
type Stats struct {
	Urgent, Ahead int64         // bytes asked for and delivered
	Busy          time.Duration // wall time during which at least one read was under way
}

// Pool reads with a fixed number of goroutines, of which Config.Readers read at a time. Each takes the next piece of the
// oldest read of the highest priority; a read may be of any size, and several of them work on one. What they read of a
// file with checksums (see Summed) they compare.
type Pool struct {
	config  Config
	readers sync.WaitGroup

	mu      sync.Mutex
	wake    sync.Cond
	queues  [priorities][]*job
	sources map[File]*source
	closed  bool
	active  int // readers at work
	since   time.Time
	stats   Stats
}

// job is one call of Read. Its fields belong to whoever holds the pool's mutex.
type job struct {
	ctx      context.Context
	priority Priority
	runs     []Run
	run      int // the next piece starts here
	at       int64
	pending  int       // pieces being read
	parts    []stretch // of units that are read in several pieces
	err      error
	done     func(error) // nil once it was called
	stop     func() bool // ends the watch over ctx
}

// NewPool starts a pool. Close ends it.
func NewPool(config Config) *Pool {
	config.Readers = max(config.Readers, 1)
	if config.Piece <= 0 {
		config.Piece = DefaultPiece
	}
	config.Piece = int(roundUp(int64(config.Piece)))
	p := &Pool{config: config, sources: map[File]*source{}}
	p.wake.L = &p.mu
	// Checksums are made beside the reads: while some goroutines make them, others take their places as readers.
	count := config.Readers + runtime.GOMAXPROCS(0)
	p.readers.Add(count)
	for range count {
		go p.serve()
	}
	return p
}

// ErrClosed is the result of reads that a pool's end cut short.
var ErrClosed = errors.New("the reader pool is closed")

// Start reads the runs and returns at once. done is called exactly once, from another goroutine, when nothing writes to
// the runs' memory any more: with nil when all bytes are there, else with the first error, an *Error or the context's.
// When the context ends, pieces not begun are left out: where none is being read, done is called at once and waits for
// no reader.
func (p *Pool) Start(ctx context.Context, priority Priority, runs []Run, done func(error)) {
	j := &job{ctx: ctx, priority: priority, runs: runs, done: done}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		go done(ErrClosed)
		return
	}
	p.queues[priority] = append(p.queues[priority], j)
	j.stop = context.AfterFunc(ctx, func() { p.cancel(j) })
	p.wake.Broadcast()
}

// Read reads the runs and waits for them.
func (p *Pool) Read(ctx context.Context, priority Priority, runs []Run) error {
	result := make(chan error, 1)
	p.Start(ctx, priority, runs, func(err error) { result <- err })
	return <-result // not before: the memory is the caller's again when Read returns
}

// Stats returns the counts so far.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	if p.active > 0 {
		s.Busy += time.Since(p.since)
	}
	return s
}

// Close ends all reads, with ErrClosed where pieces are left, waits for the pool's goroutines and closes the files that it
// opened for direct reads.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.wake.Broadcast()
	p.mu.Unlock()
	p.readers.Wait()
	var first error
	for _, s := range p.sources {
		if s.opened != nil {
			if err := s.opened.Close(); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

// serve is one reader.
func (p *Pool) serve() {
	defer p.readers.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		j := p.oldest()
		if j == nil || p.active >= p.config.Readers && !p.closed {
			if j == nil && p.closed {
				return
			}
			p.wake.Wait()
			continue
		}
		if err := j.ctx.Err(); err != nil {
			p.fail(j, err)
		} else if p.closed {
			p.fail(j, ErrClosed)
		}
		n, from, to, ok := j.next(int64(p.config.Piece))
		if j.run == len(j.runs) {
			p.remove(j)
		}
		if ok {
			j.pending++
			p.read(j, n, from, to)
			j.pending--
		}
		p.finish(j)
	}
}

// cancel is called when a job's context ends.
func (p *Pool) cancel(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// The readers finish a job that is all given out, and whatever is left when the pool is closed.
	if p.closed || j.run == len(j.runs) {
		return
	}
	p.readers.Add(1) // Close waits for what done does
	defer p.readers.Done()
	p.fail(j, j.ctx.Err())
	p.finish(j)
}

// fail notes a job's error, unless it has one, and leaves out the pieces that are not begun.
func (p *Pool) fail(j *job, err error) {
	if j.err == nil {
		j.err = err
	}
	j.run = len(j.runs)
	p.remove(j)
}

// finish calls done, with the mutex released, if nothing of the job is left to do.
func (p *Pool) finish(j *job) {
	if j.run < len(j.runs) || j.pending > 0 || j.done == nil {
		return
	}
	done, err, parts := j.done, j.err, j.parts
	j.done = nil
	p.mu.Unlock()
	defer p.mu.Lock()
	j.stop()
	if err == nil {
		err = join(j.runs, parts)
	}
	done(err)
}

// read reads bytes [from, to) of run number n, with the mutex released.
func (p *Pool) read(j *job, n int, from, to int64) {
	run := j.runs[n]
	s := p.sources[run.File]
	if s == nil {
		s = &source{}
		p.sources[run.File] = s
	}
	if p.active++; p.active == 1 {
		p.since = time.Now()
	}
	p.mu.Unlock()
	err := p.fill(s, run, from, to)
	p.mu.Lock()
	if p.active--; p.active == 0 {
		p.stats.Busy += time.Since(p.since)
	}
	if f, ok := run.File.(*summed); ok && err == nil {
		p.wake.Signal() // another may read meanwhile
		p.mu.Unlock()
		var parts []stretch
		parts, err = f.inspect(n, run, from, to)
		p.mu.Lock()
		j.parts = append(j.parts, parts...)
	}
	switch {
	case err != nil:
		p.fail(j, err)
	case j.priority == Urgent:
		p.stats.Urgent += to - from
	default:
		p.stats.Ahead += to - from
	}
}

// oldest is the job to work on, nil if there is none.
func (p *Pool) oldest() *job {
	for _, q := range p.queues {
		if len(q) > 0 {
			return q[0]
		}
	}
	return nil
}

// remove takes a job whose pieces are all given out from its queue.
func (p *Pool) remove(j *job) {
	q := p.queues[j.priority]
	for i := range q {
		if q[i] == j {
			copy(q[i:], q[i+1:])
			q[len(q)-1] = nil
			p.queues[j.priority] = q[:len(q)-1]
			return
		}
	}
}

// join compares the units that were read in several pieces.
func join(runs []Run, parts []stretch) error {
	slices.SortFunc(parts, func(a, b stretch) int { return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.off, b.off)) })
	for len(parts) > 0 {
		f := runs[parts[0].run].File.(*summed)
		n, err := f.join(runs[parts[0].run], parts)
		if err != nil {
			return err
		}
		parts = parts[n:]
	}
	return nil
}

// next cuts the next piece: bytes [from, to) of run number n. Pieces meet at block boundaries, so that no two write one block.
func (j *job) next(piece int64) (n int, from, to int64, ok bool) {
	for j.run < len(j.runs) {
		n, run := j.run, j.runs[j.run]
		from, end := max(j.at, run.Off), run.Off+int64(run.Len)
		to = min(roundDown(from)+piece, end)
		if j.at = to; to == end {
			j.run++
			j.at = 0
		}
		if from < to {
			return n, from, to, true
		}
	}
	return 0, 0, 0, false
}

// source is a file as a pool reads it.
type source struct {
	once   sync.Once
	opened DirectReader                 // to be closed
	direct atomic.Pointer[DirectReader] // nil: read as usual
}

// fill reads bytes [from, to) of a run.
func (p *Pool) fill(s *source, run Run, from, to int64) error {
	base := roundDown(run.Off)
	if len(run.Mem) < Span(run.Off, run.Len) || !Aligned(run.Mem) {
		panic("disk: the memory for a read is too short or not aligned")
	}
	file, _ := Unchecked(run.File)
	s.once.Do(func() { p.open(s, file) })
	if d := s.direct.Load(); d != nil {
		start, end := roundDown(from), roundUp(to)
		n, err := (*d).ReadAt(run.Mem[start-base:end-base], start)
		if n < 0 || start+int64(n) > end {
			n = 0
		}
		if start+int64(n) >= to {
			return nil
		}
		// Fewer bytes than the file should have. Whatever the reason, the ordinary way completes them or says why not.
		if n == 0 && refused(err) && s.direct.CompareAndSwap(d, nil) {
			p.fallback(file, err)
		}
		from = max(from, start+int64(n))
	}
	return ReadFull(file, run.Mem[from-base:to-base], from)
}

func (p *Pool) open(s *source, f File) {
	d, ok := f.(Direct)
	if !ok || p.config.Buffered {
		return
	}
	r, err := d.OpenDirect()
	if err != nil {
		p.fallback(f, err)
		return
	}
	s.opened = r
	s.direct.Store(&r)
}

func (p *Pool) fallback(f File, why error) {
	if p.config.Fallback != nil {
		p.config.Fallback(f.Name(), why)
	}
}

// refused tells whether an error of a direct read means that the file has none.
func refused(err error) bool {
	const invalidParameter, notSupported = syscall.Errno(87), syscall.Errno(50) // of Windows
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, ErrNoDirect) ||
		onWindows && (errors.Is(err, invalidParameter) || errors.Is(err, notSupported))
}
