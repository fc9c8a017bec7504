package session

import "slices"

// Prefixes keeps states of texts, each found again by a text that begins with its exact ids. States cannot be rewound, so
// nothing but a whole kept text is ever used. Above the budget the least recently used leave. It is not safe for
// concurrent use.
type Prefixes[S any] struct {
	budget, used int64
	leave        func(S)
	kept         []kept[S] // least recently used first
}

type kept[S any] struct {
	ids   []int
	state S
	bytes int64
}

// NewPrefixes returns an empty store of budget bytes; leave is called with each state that goes.
func NewPrefixes[S any](budget int64, leave func(S)) *Prefixes[S] {
	return &Prefixes[S]{budget: budget, leave: leave}
}

// Put keeps the state of a text, which takes bytes. A state of the same ids leaves for it; a state larger than the budget
// leaves at once.
func (p *Prefixes[S]) Put(ids []int, state S, bytes int64) {
	for i, k := range p.kept {
		if slices.Equal(k.ids, ids) {
			p.drop(i)
			break
		}
	}
	p.kept = append(p.kept, kept[S]{slices.Clone(ids), state, bytes})
	p.used += bytes
	for p.used > p.budget && len(p.kept) > 0 {
		p.drop(0)
	}
}

// Reserve makes room for a state of so many bytes, which Put will bring; false says that it will never fit, and nothing has left.
func (p *Prefixes[S]) Reserve(bytes int64) bool {
	if bytes > p.budget {
		return false
	}
	for p.used+bytes > p.budget {
		p.drop(0)
	}
	return true
}

func (p *Prefixes[S]) drop(i int) {
	p.used -= p.kept[i].bytes
	p.leave(p.kept[i].state)
	p.kept = slices.Delete(p.kept, i, i+1)
}

// Longest returns the state of the longest kept text that ids begins with and goes on after, and its length.
func (p *Prefixes[S]) Longest(ids []int) (state S, length int, ok bool) {
	best := -1
	for i, k := range p.kept {
		if len(k.ids) < len(ids) && (best < 0 || len(k.ids) > len(p.kept[best].ids)) && slices.Equal(k.ids, ids[:len(k.ids)]) {
			best = i
		}
	}
	if best < 0 {
		return state, 0, false
	}
	k := p.kept[best]
	p.kept = append(slices.Delete(p.kept, best, best+1), k)
	return k.state, len(k.ids), true
}

// Len is the number of states kept.
func (p *Prefixes[S]) Len() int { return len(p.kept) }

// Bytes is what they take.
func (p *Prefixes[S]) Bytes() int64 { return p.used }

// Clear drops all.
func (p *Prefixes[S]) Clear() {
	for len(p.kept) > 0 {
		p.drop(len(p.kept) - 1)
	}
}
