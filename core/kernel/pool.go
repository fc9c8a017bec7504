package kernel

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// Job is work cut into independent parts. Do computes part i; worker, below Pool.Threads, is the same for no two calls
// that run at the same time, so it can pick scratch memory. Parts must not depend on which worker runs them or when.
type Job interface{ Do(i, worker int) }

// Func is a Job made of a function.
type Func func(i, worker int)

// Do calls f.
func (f Func) Do(i, worker int) { f(i, worker) }

// Pool runs jobs on a fixed set of threads. Each thread begins with its share of the parts, in order, since neighbouring parts
// use neighbouring memory, and then takes over from the ends of the others' shares, so a descheduled worker delays nothing
// but the part it holds. Idle workers spin briefly, then sleep. Running a job allocates nothing. Methods may be called from
// several goroutines; jobs run one after the other and must not call the pool again.
//
// A part that panics ends the job for its caller, with that panic, but only when no part is running any more: the
// memory that the parts use is the caller's again, and the pool is ready for the next job. From another thread than the
// caller's the panic comes as an error that has the stack of the part.
type Pool struct {
	backend Backend
	threads int
	running sync.Mutex // held by the caller of Run
	product product    // the job of Product, kept here so that a product allocates nothing

	// Who takes a part out of a share holds it: the job cannot end, nor job and parts change, until it is counted as done.
	shares []share
	job    Job
	parts  int
	done   atomic.Int64
	jobs   atomic.Uint64         // counts the jobs begun
	failed atomic.Pointer[error] // the first panic of a part in a worker

	mu       sync.Mutex // guards the two conditions and closed
	wake     sync.Cond  // jobs changed
	finished sync.Cond  // done reached parts
	sleeping atomic.Int32
	waiting  atomic.Bool
	closed   bool
	workers  sync.WaitGroup
}

// share is the parts that a thread has still to do: the first<<32 | the one after the last. It fills a cache line or two.
type share struct {
	parts atomic.Uint64
	_     [120]byte
}

// take takes a part: the first one for the share's owner, the last one for another thread.
func (s *share) take(owner bool) (part int, ok bool) {
	for {
		v := s.parts.Load()
		first, end := v>>32, v&0xffffffff
		if first >= end {
			return 0, false
		}
		if owner && s.parts.CompareAndSwap(v, v+1<<32) {
			return int(first), true
		}
		if !owner && s.parts.CompareAndSwap(v, v-1) {
			return int(end - 1), true
		}
	}
}

// NewPool starts threads-1 workers (the caller of Run is the last); Close ends them.
func NewPool(b Backend, threads int) *Pool {
	p := &Pool{backend: b, threads: max(1, threads)}
	p.shares = make([]share, p.threads)
	p.wake.L, p.finished.L = &p.mu, &p.mu
	for w := 1; w < p.threads; w++ {
		p.workers.Add(1)
		go p.work(w)
	}
	return p
}

// Backend is the backend the pool computes with.
func (p *Pool) Backend() Backend { return p.backend }

// Threads is the number of parts that may run at the same time.
func (p *Pool) Threads() int { return p.threads }

// Close ends the workers and waits for them. The pool must be idle.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wake.Broadcast()
	p.workers.Wait()
}

// Run does parts 0..parts-1 of the job and returns when all are done.
func (p *Pool) Run(parts int, job Job) {
	if parts <= 0 {
		return
	}
	p.running.Lock()
	defer p.running.Unlock()
	p.run(parts, job)
}

// run is Run for a caller that holds p.running.
func (p *Pool) run(parts int, job Job) {
	if p.threads == 1 || parts == 1 {
		for i := range parts {
			job.Do(i, 0)
		}
		return
	}
	p.job, p.parts = job, parts
	p.failed.Store(nil)
	p.done.Store(0)
	for w := range p.shares {
		first, end := w*parts/p.threads, (w+1)*parts/p.threads
		p.shares[w].parts.Store(uint64(first)<<32 | uint64(end))
	}
	p.jobs.Add(1)
	if p.sleeping.Load() > 0 {
		p.mu.Lock()
		p.wake.Broadcast()
		p.mu.Unlock()
	}
	func() {
		defer p.wait(parts) // also when a part panics here
		p.help(0, false)
	}()
	if err := p.failed.Load(); err != nil {
		panic(*err)
	}
}

// wait returns when all parts of the job are done.
func (p *Pool) wait(parts int) {
	for s := (spin{}); p.done.Load() < int64(parts); {
		if s.on() {
			continue
		}
		p.mu.Lock()
		// A swap and not a store: emulated arm64 processors (qemu 7) let the load of done overtake a store, and then the thread
		// that does the last part wakes nobody.
		p.waiting.Swap(true)
		for p.done.Load() < int64(parts) {
			p.finished.Wait()
		}
		p.waiting.Store(false)
		p.mu.Unlock()
	}
	p.job = nil
}

// spinTime bounds the busy waiting before a thread sleeps: longer than what one thread does between two products and than the
// difference of two threads at the end of one, since waking a thread takes as long as a small product.
const spinTime = 100 * time.Microsecond

// spin is a busy wait.
type spin struct {
	rounds int
	since  time.Time
}

// on says whether to go on waiting, and now and then lets other goroutines run.
func (s *spin) on() bool {
	s.rounds++
	if s.rounds%64 != 0 {
		return true
	}
	runtime.Gosched()
	if s.since.IsZero() {
		s.since = time.Now()
	}
	return time.Since(s.since) < spinTime
}

// help does parts of the current job until none is left to take. In a worker it stops after a part that panics, which
// it notes for the caller of Run, and reports false.
func (p *Pool) help(thread int, worker bool) (all bool) {
	n, busy := 0, false // parts done but not counted, and whether one is under way
	defer func() {
		if !busy {
			return
		}
		if worker {
			err := failure(recover())
			p.failed.CompareAndSwap(nil, &err)
		}
		p.count(n + 1)
	}()
	for i := range p.shares {
		s := &p.shares[(thread+i)%p.threads]
		for n = 0; ; n++ {
			part, ok := s.take(i == 0)
			if !ok {
				break
			}
			busy = true
			p.job.Do(part, thread)
			busy = false
		}
		if n > 0 {
			p.count(n)
		}
	}
	return true
}

// failure is the error that tells of a part that did not return. cause is nil if its goroutine ended.
func failure(cause any) error {
	err, ok := cause.(error)
	switch {
	case cause == nil:
		return errors.New("kernel: a part of a job ended its goroutine")
	case !ok:
		err = fmt.Errorf("%v", cause)
	}
	return fmt.Errorf("kernel: a part of a job panicked: %w\n\n%s", err, debug.Stack())
}

// count counts parts as done. The job may be over afterwards.
func (p *Pool) count(n int) {
	parts := p.parts
	if p.done.Add(int64(n)) == int64(parts) && p.waiting.Load() {
		p.mu.Lock()
		p.finished.Signal()
		p.mu.Unlock()
	}
}

func (p *Pool) work(worker int) {
	closed := false
	defer func() {
		if !closed { // a part ended the goroutine: another takes its place
			go p.work(worker)
			return
		}
		p.workers.Done()
	}()
	seen := uint64(0)
	for s := (spin{}); ; {
		if jobs := p.jobs.Load(); jobs != seen {
			seen = jobs
			for !p.help(worker, true) {
			}
			s = spin{}
		}
		if s.on() {
			continue
		}
		p.mu.Lock()
		p.sleeping.Add(1)
		for p.jobs.Load() == seen && !p.closed {
			p.wake.Wait()
		}
		p.sleeping.Add(-1)
		closed = p.closed
		p.mu.Unlock()
		if closed {
			return
		}
		s = spin{}
	}
}

// Vectors are activation vectors packed for products with matrices of one format.
type Vectors struct {
	Count, Len int // number of vectors, and elements of each
	format     Format
	data       []float32
	packedLen  int
}

// PackedLen is how many float32 Pack needs for count vectors of n elements.
func (p *Pool) PackedLen(f Format, n, count int) int { return p.backend.PackedLen(f, n) * count }

// Pack prepares count vectors of n elements for products with matrices of format f. Vector v is x[v*stride:][:n]. The
// result lives in buf, which must hold PackedLen elements.
func (p *Pool) Pack(buf []float32, f Format, x []float32, n, stride, count int) Vectors {
	one := p.backend.PackedLen(f, n)
	for v := range count {
		p.backend.Pack(f, buf[v*one:][:one], x[v*stride:][:n])
	}
	return Vectors{Count: count, Len: n, format: f, data: buf[:count*one], packedLen: one}
}

// Product sets dst[v*stride+r] to the dot product of row r of w and vector v, for every row and vector. Threads share the
// rows; each reads its rows once for all vectors.
func (p *Pool) Product(dst []float32, stride int, w Tile, x Vectors) {
	if x.format != w.Format || x.Len != w.Cols {
		panic("kernel: product: vectors were packed for another matrix")
	}
	// Blocks large enough for a stretch of memory to be read in one go, and enough of them to share out evenly; a whole
	// number of the row groups that vector units like, which all divide 24.
	rowBytes := max(1, w.Format.RowBytes(w.Cols))
	block := max(8, min(max(24, blockBytes/rowBytes), w.Rows/(8*p.threads)))
	if block >= 24 {
		block = block / 24 * 24
	}
	if w.Rows*rowBytes*x.Count <= aloneBytes {
		block = max(block, w.Rows)
	}
	p.running.Lock()
	defer p.running.Unlock()
	p.product = product{p.backend, dst, stride, w, x, block}
	p.run((w.Rows+block-1)/block, &p.product)
}

const (
	blockBytes = 1 << 20
	// aloneBytes is what one thread multiplies in the time that two need to begin and end together.
	aloneBytes = 64 << 10
)

type product struct {
	backend Backend
	dst     []float32
	stride  int
	w       Tile
	x       Vectors
	block   int
}

func (j *product) Do(i, _ int) {
	from := i * j.block
	to := min(from+j.block, j.w.Rows)
	w := j.w.Slice(from, to)
	for v := 0; v < j.x.Count; v += MaxVectors {
		n := min(MaxVectors, j.x.Count-v)
		j.backend.Dot(j.dst[v*j.stride+from:], j.stride, w, j.x.data[v*j.x.packedLen:], n)
	}
}
