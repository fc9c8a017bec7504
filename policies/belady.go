package policies

import (
	"container/heap"
	"math"

	"github.com/k3infer/k3/core/experts"
)

func init() { experts.RegisterPolicy("belady", newBelady) }

// belady knows the future and keeps what is needed soonest; nothing can do better, so it is the ceiling of the others.
// An expert that is needed later than every resident is not kept at all.
type belady struct {
	ids
	free     int
	next     []int32 // next[i] is when the expert of request i is asked for again, never = MaxInt32
	now      int     // index of the request being reported
	due      []int32 // by id: when a resident is needed next; none = not resident
	furthest dueHeap // residents, the one needed last on top; entries whose due has changed are stale
}

type dueEntry struct{ due, id int32 }

type dueHeap []dueEntry

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due > h[j].due }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(dueEntry)) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func newBelady(config experts.Config) (experts.Policy, error) {
	if config.Future == nil {
		return nil, experts.ErrOffline
	}
	p := &belady{ids: newIDs(config), free: config.Capacity, next: make([]int32, len(config.Future))}
	p.due = make([]int32, config.Layers*config.Experts)
	for id := range p.due {
		p.due[id] = math.MaxInt32
	}
	for i := len(config.Future) - 1; i >= 0; i-- {
		id := p.of(config.Future[i])
		p.next[i] = p.due[id]
		p.due[id] = int32(i)
	}
	for id := range p.due {
		p.due[id] = none
	}
	return p, nil
}

func (p *belady) Hit(key experts.Key) {
	p.set(p.of(key), p.next[p.now])
	p.now++
}

func (p *belady) set(id, due int32) {
	p.due[id] = due
	heap.Push(&p.furthest, dueEntry{due, id})
}

func (p *belady) Remove(key experts.Key) {
	p.due[p.of(key)] = none
	p.free++
}

func (p *belady) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	due := p.next[p.now]
	p.now++
	if p.free > 0 {
		p.free--
		p.set(p.of(key), due)
		return experts.Key{}, experts.Fill
	}
	var held []dueEntry
	victim := int32(none)
	for len(p.furthest) > 0 {
		top := p.furthest[0]
		if p.due[top.id] == top.due {
			if due >= top.due {
				break
			}
			if p.may(top.id, evictable) {
				victim = top.id
				heap.Pop(&p.furthest)
				break
			}
			held = append(held, top)
		}
		heap.Pop(&p.furthest)
	}
	for _, entry := range held {
		heap.Push(&p.furthest, entry)
	}
	if victim == none {
		return experts.Key{}, experts.Bypass
	}
	p.due[victim] = none
	p.set(p.of(key), due)
	return p.key(victim), experts.Swap
}
