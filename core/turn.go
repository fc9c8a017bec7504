package core

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// errNested is the error of what needs a turn and is called by the goroutine that has it.
var errNested = errors.New("a hook of a pass called it, and it would wait for that pass to end")

// turn is the right to use the graph's workspace, which one pass has at a time.
type turn struct {
	mu    sync.Mutex
	owner atomic.Uint64 // number of the goroutine that has it; 0: none
}

// take waits for the turn. The goroutine that has it would wait for itself: it gets errNested.
func (t *turn) take() error {
	if err := t.nested(); err != nil {
		return err
	}
	t.mu.Lock()
	t.owner.Store(goroutine())
	return nil
}

// give passes the turn on.
func (t *turn) give() {
	t.owner.Store(0)
	t.mu.Unlock()
}

// nested returns errNested to the goroutine that has the turn.
func (t *turn) nested() error {
	if n := t.owner.Load(); n != 0 && n == goroutine() {
		return errNested
	}
	return nil
}

// goroutine is the number of the calling goroutine. Go tells it in stack traces only; if they ever look different it is
// 0, and whoever computes in a hook waits for ever.
func goroutine() (n uint64) {
	var trace [64]byte
	fmt.Sscanf(string(trace[:runtime.Stack(trace[:], false)]), "goroutine %d ", &n)
	return n
}
