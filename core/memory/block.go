// Package memory holds the engine's big buffers outside the Go heap, counts them by purpose, and knows what the machine
// has to give.
package memory

import (
	"fmt"
	"sync"
	"unsafe"
)

// Account counts the blocks of one engine by purpose. The zero Account is ready; its methods may be called from several
// goroutines.
type Account struct {
	mu    sync.Mutex
	bytes map[string]int64
}

// Block is page-aligned zeroed memory that the garbage collector neither scans nor moves nor frees.
type Block struct {
	account *Account
	purpose string
	data    []byte
	mapped  []byte // what the system gave: data rounded up to pages
}

// Allocate maps n bytes and counts them under purpose until Free. n may be 0. The error matches ErrNoFit.
func (a *Account) Allocate(purpose string, n int) (*Block, error) {
	b := &Block{account: a, purpose: purpose}
	if n > 0 {
		mapped, err := mapMemory(n)
		if err != nil {
			return nil, fmt.Errorf("memory: map %d bytes for %s: %w: %w", n, purpose, ErrNoFit, err)
		}
		b.data, b.mapped = mapped[:n:n], mapped
	}
	a.add(purpose, int64(n))
	return b, nil
}

func (a *Account) add(purpose string, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bytes == nil {
		a.bytes = map[string]int64{}
	}
	a.bytes[purpose] += n
}

// Bytes returns what is allocated now, by purpose.
func (a *Account) Bytes() map[string]int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := make(map[string]int64, len(a.bytes))
	for k, v := range a.bytes {
		if v != 0 {
			m[k] = v
		}
	}
	return m
}

// Bytes is the block's memory.
func (b *Block) Bytes() []byte { return b.data }

// Float32s is the block's memory seen as float32 values, a trailing part of one left out.
func (b *Block) Float32s() []float32 { return Float32s(b.data) }

// Float32s is part of a block's memory, from a multiple of 4 on, seen as float32 values, a trailing part of one left out.
func Float32s(part []byte) []float32 {
	if len(part) < 4 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(part))), len(part)/4)
}

// Free gives the memory back; nothing may use it afterwards. Freeing a nil or freed block does nothing.
func (b *Block) Free() {
	if b == nil || b.account == nil {
		return
	}
	b.account.add(b.purpose, -int64(len(b.data)))
	if b.mapped != nil {
		unmapMemory(b.mapped)
	}
	*b = Block{}
}
