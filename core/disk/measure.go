package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Load is a way of reading to be measured.
type Load struct {
	Block   int           // bytes of a read, a multiple of Block; at least one
	Readers int           // reads at a time
	Random  bool          // blocks in random order, not one after the other
	Time    time.Duration // how long to read
	Seed    uint64        // of the order
}

// Measure reads f as the load says, around the page cache where the system can, and returns bytes a second and whether the
// reads were direct. It reads beyond the end from the beginning again, and stops when the time or the context ends, but not
// before every reader has read once.
func Measure(ctx context.Context, f File, l Load) (rate float64, direct bool, err error) {
	if l.Block < Block || l.Block%Block != 0 || l.Readers < 1 || f.Size() < int64(l.Block) {
		return 0, false, fmt.Errorf("disk: measure %s: blocks of %d, %d readers, %d bytes: out of range", f.Name(), l.Block, l.Readers, f.Size())
	}
	read := f.ReadAt
	if d, ok := f.(Direct); ok {
		r, err := d.OpenDirect()
		if err == nil {
			defer r.Close()
			// Some files refuse direct reads only when they are read.
			if _, err := r.ReadAt(alignedBuffer(Block), 0); err == nil {
				read, direct = r.ReadAt, true
			}
		}
	}
	blocks := f.Size() / int64(l.Block)
	var next, total atomic.Int64
	ctx, cancel := context.WithTimeoutCause(ctx, l.Time, errMeasured)
	defer cancel()
	errs := make([]error, l.Readers)
	var all sync.WaitGroup
	start := time.Now()
	for i := range l.Readers {
		all.Go(func() {
			p := alignedBuffer(l.Block)
			rng := rand.New(rand.NewPCG(l.Seed, uint64(i)))
			for once := false; !once || ctx.Err() == nil; once = true { // once at least, however late a busy machine gets here
				at := (next.Add(1) - 1) % blocks
				if l.Random {
					at = rng.Int64N(blocks)
				}
				n, err := read(p, at*int64(l.Block))
				if n < len(p) {
					errs[i] = fmt.Errorf("disk: measure %s: read at %d: %d of %d bytes: %w", f.Name(), at*int64(l.Block), n, len(p), err)
					return
				}
				total.Add(int64(n))
			}
		})
	}
	all.Wait()
	seconds := time.Since(start).Seconds()
	if err := errors.Join(errs...); err != nil {
		return 0, direct, err
	}
	if cause := context.Cause(ctx); cause != errMeasured {
		return 0, direct, cause
	}
	return float64(total.Load()) / seconds, direct, nil
}

var errMeasured = errors.New("disk: the time is up")

// alignedBuffer is n bytes that direct reads can go to.
func alignedBuffer(n int) []byte {
	p := make([]byte, n+Block)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(p))) % Block)
	return p[skip:][:n:n]
}
