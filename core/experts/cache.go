package experts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// Options are the memory, the readers and the policy of a cache.
type Options struct {
	Pool    *disk.Pool
	Account *memory.Account
	// Slots is the number of experts there is memory for, SlotBytes each; 1 is enough if the model has one expert, else at
	// least 2. More than the model has are not taken.
	Slots  int
	Policy string // name of a registered policy
	Seed   uint64 // for policies that draw lots
	// Trace, if not nil, is told of every request before it is served.
	Trace func(layer int, ids []int)
}

// Cache is a Store over the files of a checkpoint. Its slots are of one size. Most keep experts for as long as the policy
// says; a few are reserved for those that the policy finds not worth keeping, so that a request may name any number of
// experts: those that have no slot yet are loaded as others are released.
//
// It has no goroutine of its own: the caller's and the pool's move it on.
type Cache struct {
	model    *checkpoint.Model
	pool     *disk.Pool
	trace    func(layer int, ids []int)
	capacity int // experts the policy may keep
	memory   *memory.Block
	free     func(Key) bool // evictable, made once

	mu     sync.Mutex
	policy Policy
	slots  []slot
	unused []int   // slots without an expert
	where  []int32 // slot of each resident expert, by layer and number; -1: none
	kept   int     // residents
	batch  *batch
	closed bool
	lent   int    // number of the loan that is out, 0: none
	loans  int    // loans so far
	seen   []bool // by number: named by the request being made
	stats  []LayerStats
}

// slot is memory for one expert.
type slot struct {
	bytes []byte
	key   Key
	at    [maxParts]int // where its tensors begin
	kept  bool          // the policy counts it as resident
	taken bool          // it belongs to the open batch: loading, waiting to be lent, or lent
}

// maxParts is the number of tensors of an expert: three matrices, each with scales.
const maxParts = 6

// LayerStats counts the requests of one layer.
type LayerStats struct {
	Requests int           // experts asked for
	Hits     int           // those that were resident
	Read     int64         // bytes of weights that came from the disk
	Wait     time.Duration // time that passes waited for experts
}

// SlotBytes is the memory one expert of the model takes.
func SlotBytes(m *checkpoint.Model) (int, error) {
	c := m.Config
	var tensors [maxParts]checkpoint.Tensor
	largest := 0
	for layer := c.DenseLayers; layer < c.Layers; layer++ {
		for id := range c.MoE.Experts {
			parts := m.Index.Expert(layer, id, tensors[:0])
			if len(parts) == 0 {
				return 0, fmt.Errorf("experts: layer %d has no expert %d: %w", layer, id, checkpoint.ErrFormat)
			}
			// The usual case, one run, is not worth arranging 80,000 times.
			from, to, bytes, one := parts[0].Offset, int64(0), int64(0), true
			for _, p := range parts {
				from, to, bytes = min(from, p.Offset), max(to, p.Offset+p.Bytes), bytes+p.Bytes
				one = one && p.Shard == parts[0].Shard
			}
			if one && to-from == bytes {
				largest = max(largest, disk.Span(from, int(bytes)))
			} else {
				largest = max(largest, arrange(m, parts).Size)
			}
		}
	}
	return largest, nil
}

func arrange(m *checkpoint.Model, tensors []checkpoint.Tensor) disk.Arrangement {
	parts := make([]disk.Part, len(tensors))
	for i, t := range tensors {
		parts[i] = disk.Part{File: m.Shard(t.Shard), Off: t.Offset, Len: int(t.Bytes)}
	}
	return disk.Arrange(parts)
}

// Transient is how many of the slots are not the policy's, for a model that has more experts than slots: enough to load all
// of one token's experts of a layer at once, but at most a quarter.
func Transient(slots, topK int) int { return min(max(slots/4, 1), topK) }

// Open makes a cache. It allocates all its memory and reads nothing yet.
func Open(m *checkpoint.Model, o Options) (*Cache, error) {
	c := m.Config
	size, err := SlotBytes(m)
	if err != nil {
		return nil, err
	}
	all := (c.Layers - c.DenseLayers) * c.MoE.Experts
	slots := min(o.Slots, all)
	s := &Cache{model: m, pool: o.Pool, trace: o.Trace, capacity: slots, stats: make([]LayerStats, c.Layers),
		where: make([]int32, c.Layers*c.MoE.Experts), seen: make([]bool, c.MoE.Experts)}
	if slots < all {
		s.capacity -= Transient(slots, c.MoE.TopK)
	}
	if all > 0 {
		if s.capacity < 1 {
			return nil, fmt.Errorf("experts: open: %d slots are too few", o.Slots)
		}
		s.policy, err = NewPolicy(o.Policy, Config{Layers: c.Layers, Experts: c.MoE.Experts, Capacity: s.capacity, Seed: o.Seed})
		if err != nil {
			return nil, fmt.Errorf("experts: open: %w", err)
		}
	}
	if s.memory, err = o.Account.Allocate("expert slots", slots*size); err != nil {
		return nil, fmt.Errorf("experts: open: %w", err)
	}
	for i := range s.where {
		s.where[i] = -1
	}
	s.slots = make([]slot, slots)
	for i := range s.slots {
		s.slots[i].bytes = s.memory.Bytes()[i*size:][:size:size]
		s.unused = append(s.unused, i)
	}
	s.free = func(key Key) bool {
		i := s.where[s.index(key)]
		return i >= 0 && !s.slots[i].taken
	}
	return s, nil
}

// Capacity is the number of experts that the policy keeps.
func (s *Cache) Capacity() int { return s.capacity }

// Stats returns the counts so far, by layer.
func (s *Cache) Stats() []LayerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]LayerStats(nil), s.stats...)
}

// Close implements Store. It ends a request that is open: its loads write to the memory that is freed here.
func (s *Cache) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.end(s.batch)
	s.memory.Free()
	return nil
}

func (s *Cache) index(key Key) int { return int(key.Layer)*len(s.seen) + int(key.Expert) }

// Request implements Store. One batch may be open at a time.
func (s *Cache) Request(ctx context.Context, layer int, ids []int) (Batch, error) {
	if s.trace != nil {
		s.trace(layer, ids)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(layer, ids); err != nil {
		return nil, fmt.Errorf("experts: ask for experts of layer %d: %w", layer, err)
	}
	b := &batch{store: s, outer: ctx, layer: layer, left: len(ids), wake: make(chan struct{}, 1)}
	b.ctx, b.cancel = context.WithCancel(ctx)
	s.batch = b
	made := false
	defer func() {
		if !made { // the policy panicked
			s.end(b)
		}
	}()
	// What the request hits must not leave for what it misses.
	for _, id := range ids {
		if i := s.where[s.index(b.key(id))]; i >= 0 {
			s.slots[i].taken = true
			b.arrived = append(b.arrived, int(i))
		}
	}
	s.stats[layer].Requests += len(ids)
	s.stats[layer].Hits += len(b.arrived)
	for _, id := range ids {
		if key := b.key(id); s.where[s.index(key)] >= 0 {
			s.policy.Hit(key)
		} else if err := s.miss(b, key); err != nil {
			b.fail(err)
			break
		}
	}
	s.bypass(b)
	made = true
	return b, nil
}

func (s *Cache) check(layer int, ids []int) error {
	switch {
	case s.closed:
		return errors.New("the cache is closed")
	case layer < s.model.Config.DenseLayers || layer >= len(s.stats) || len(s.slots) == 0:
		return errors.New("there is no such layer")
	case s.batch != nil:
		return errors.New("another request is open")
	case s.lent != 0:
		return errors.New("an expert of the request before was not released")
	}
	clear(s.seen)
	for _, id := range ids {
		if id < 0 || id >= len(s.seen) || s.seen[id] {
			return fmt.Errorf("expert %d does not exist or is asked for twice", id)
		}
		s.seen[id] = true
	}
	return nil
}

// miss does with a missing expert what the policy decides.
func (s *Cache) miss(b *batch, key Key) error {
	victim, decision := s.policy.Miss(key, s.free)
	var i int
	switch decision {
	case Bypass:
		b.waiting = append(b.waiting, int(key.Expert))
		return nil
	case Swap:
		if v := s.index(victim); v < 0 || v >= len(s.where) || !s.free(victim) {
			return fmt.Errorf("experts: keep %v: the policy parts with %v, which cannot leave", key, victim)
		}
		i = int(s.where[s.index(victim)])
		s.where[s.index(victim)] = -1
	default:
		if s.kept == s.capacity {
			return fmt.Errorf("experts: keep %v: the policy keeps more than %d", key, s.capacity)
		}
		s.kept++
		i = s.take()
	}
	s.slots[i].kept = true
	s.where[s.index(key)] = int32(i)
	s.load(b, i, key)
	return nil
}

// bypass loads experts that are not kept, as long as there are slots.
func (s *Cache) bypass(b *batch) {
	for len(b.waiting) > 0 && len(s.unused) > 0 && b.err == nil {
		id := b.waiting[0]
		b.waiting = b.waiting[1:]
		s.load(b, s.take(), b.key(id))
	}
}

func (s *Cache) take() int {
	i := s.unused[len(s.unused)-1]
	s.unused = s.unused[:len(s.unused)-1]
	return i
}

func (s *Cache) load(b *batch, i int, key Key) {
	var room [maxParts]checkpoint.Tensor
	tensors := s.model.Index.Expert(int(key.Layer), int(key.Expert), room[:0])
	a := arrange(s.model, tensors)
	x := &s.slots[i]
	x.key, x.taken = key, true
	copy(x.at[:], a.At)
	b.loading++
	s.pool.Start(b.ctx, disk.Urgent, a.Runs(x.bytes), func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		b.loading--
		if err == nil {
			b.arrived = append(b.arrived, i)
			s.stats[b.layer].Read += bytesOf(tensors)
		} else {
			s.drop(i)
			b.fail(fmt.Errorf("experts: load %s: %w", s.tensorAt(tensors, err), err))
		}
		b.signal()
	})
}

// drop empties a slot whose load failed.
func (s *Cache) drop(i int) {
	x := &s.slots[i]
	if x.kept {
		s.policy.Remove(x.key)
		s.where[s.index(x.key)] = -1
		s.kept--
	}
	s.vacate(i)
}

// vacate gives a slot back.
func (s *Cache) vacate(i int) {
	s.slots[i].kept, s.slots[i].taken = false, false
	s.unused = append(s.unused, i)
}

// leave ends a slot's part in a batch.
func (s *Cache) leave(i int) {
	if s.slots[i].taken = false; !s.slots[i].kept {
		s.vacate(i)
	}
}

func bytesOf(tensors []checkpoint.Tensor) (n int64) {
	for _, t := range tensors {
		n += t.Bytes
	}
	return n
}

// tensorAt is the tensor that a read failed in, or next to.
func (s *Cache) tensorAt(tensors []checkpoint.Tensor, err error) checkpoint.Tensor {
	best, distance := tensors[0], int64(-1)
	var e *disk.Error
	if errors.As(err, &e) {
		for _, t := range tensors {
			d := t.Offset + t.Bytes - e.Off
			if s.model.Shard(t.Shard).Name() == e.File && d > 0 && (distance < 0 || d < distance) {
				best, distance = t, d
			}
		}
	}
	return best
}

// expert makes what is lent of a slot.
func (s *Cache) expert(x *slot) Expert {
	c := s.model.Config.MoE
	var room [maxParts]checkpoint.Tensor
	tensors := s.model.Index.Expert(int(x.key.Layer), int(x.key.Expert), room[:0])
	part := func(i int) []byte { return x.bytes[x.at[i]:][:tensors[i].Bytes:tensors[i].Bytes] }
	tile := func(matrix, rows, cols int) kernel.Tile {
		first := matrix * len(tensors) / 3
		t := kernel.Tile{Rows: rows, Cols: cols, Stride: cols, Data: part(first)}
		switch tensors[first].DType {
		case checkpoint.U8:
			t.Format, t.Scale = kernel.MXFP4, part(first+1)
		case checkpoint.BF16:
			t.Format = kernel.BF16
		case checkpoint.F16:
			t.Format = kernel.F16
		case checkpoint.F32:
			t.Format = kernel.F32
		}
		t.Check()
		return t
	}
	return Expert{
		ID: int(x.key.Expert),
		W1: tile(0, c.Intermediate, c.Latent),
		W2: tile(1, c.Latent, c.Intermediate),
		W3: tile(2, c.Intermediate, c.Latent),
	}
}

// batch is one request. Its fields belong to whoever holds the store's mutex.
type batch struct {
	store   *Cache
	outer   context.Context // the caller's
	ctx     context.Context // of the loads
	cancel  context.CancelFunc
	layer   int
	arrived []int // slots to be lent
	waiting []int // experts that have no slot yet
	left    int   // experts not lent yet
	loading int
	err     error
	wake    chan struct{}
}

func (b *batch) key(id int) Key { return Key{int32(b.layer), int32(id)} }

func (b *batch) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// fail ends the request; loads not begun are left out.
func (b *batch) fail(err error) {
	if b.err == nil {
		b.err = err
		b.cancel()
	}
}

// Next implements Batch.
func (b *batch) Next() (Expert, error) {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.batch != b:
		return Expert{}, errors.New("experts: next: the request is over")
	case s.lent != 0:
		return Expert{}, errors.New("experts: next: the expert before was not released")
	case b.left == 0:
		return Expert{}, fmt.Errorf("experts: next: %w", io.EOF)
	}
	var since time.Time
	for {
		if err := b.outer.Err(); err != nil {
			return Expert{}, fmt.Errorf("experts: load experts of layer %d: %w", b.layer, err)
		}
		if b.err != nil {
			return Expert{}, b.err
		}
		if len(b.arrived) > 0 {
			break
		}
		if since.IsZero() {
			since = time.Now()
		}
		s.mu.Unlock()
		select {
		case <-b.wake:
		case <-b.outer.Done():
		}
		s.mu.Lock()
	}
	if !since.IsZero() {
		s.stats[b.layer].Wait += time.Since(since)
	}
	i := b.arrived[0]
	b.arrived = b.arrived[1:]
	b.left--
	s.loans++
	s.lent = s.loans
	loan := s.loans
	x := s.expert(&s.slots[i])
	x.release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lent == loan {
			s.lent = 0
			s.leave(i)
			s.bypass(b)
		}
	}
	return x, nil
}

// Close implements Batch. Loads that are under way are cancelled and waited for.
func (b *batch) Close() {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	b.store.end(b)
}

// end is Close for a caller that has the mutex.
func (s *Cache) end(b *batch) {
	if b == nil || s.batch != b {
		return
	}
	b.cancel()
	b.waiting = nil
	for b.loading > 0 {
		s.mu.Unlock()
		<-b.wake
		s.mu.Lock()
	}
	for _, i := range b.arrived {
		s.leave(i)
	}
	s.batch = nil
}
