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
	owner atomic.Uint64 // number of the goroutine that has it for a pass with hooks; else 0
}

// take waits for the turn. The goroutine that has it would wait for itself: it gets errNested. That can be only where hooks
// will be called, which the caller tells, because finding out who has the turn takes about as long as a small product.
func (t *turn) take(hooks bool) error {
	if err := t.nested(); err != nil {
		return err
	}
	t.mu.Lock()
	if hooks {
		t.owner.Store(goroutine())
	}
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
