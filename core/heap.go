package core

import (
	"runtime/debug"
	"sync"
)

// heap is the limit of the Go heap while engines are open: the sum of what their plans leave to it.
var heap struct {
	mu     sync.Mutex
	sum    int64
	before int64 // the limit when none was open
}

// limitHeap adds the share of an engine that opens, or takes it off again when the engine closes: bytes is then
// negative.
func limitHeap(bytes int64) {
	heap.mu.Lock()
	defer heap.mu.Unlock()
	if heap.sum == 0 {
		heap.before = debug.SetMemoryLimit(-1)
	}
	limit := heap.before
	if heap.sum += bytes; heap.sum > 0 {
		limit = heap.sum
	}
	debug.SetMemoryLimit(limit)
}
