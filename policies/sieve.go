package policies

import "github.com/k3infer/k3/core/experts"

func init() { experts.RegisterPolicy("sieve", newSieve) }

// sieve (Zhang et al. 2024) keeps residents in order of arrival. A hand moves from the oldest to the newest and evicts the
// first that was not asked for since the hand last passed; it moves on from there next time.
type sieve struct {
	ids
	capacity int
	queue    list
	visited  []bool
	hand     int32
}

func newSieve(config experts.Config) (experts.Policy, error) {
	return &sieve{
		ids: newIDs(config), capacity: config.Capacity, queue: newList(newLinks(config)),
		visited: make([]bool, config.Layers*config.Experts), hand: none,
	}, nil
}

func (p *sieve) Hit(key experts.Key) { p.visited[p.of(key)] = true }

func (p *sieve) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	id := p.of(key)
	if p.queue.size < p.capacity {
		p.insert(id)
		return experts.Key{}, experts.Fill
	}
	for range 2 * p.queue.size {
		if p.hand == none {
			p.hand = p.queue.back
		}
		at := p.hand
		p.hand = p.queue.prev[at]
		if p.visited[at] {
			p.visited[at] = false
		} else if p.may(at, evictable) {
			p.queue.remove(at)
			p.insert(id)
			return p.key(at), experts.Swap
		}
	}
	return experts.Key{}, experts.Bypass
}

func (p *sieve) insert(id int32) {
	p.visited[id] = false
	p.queue.pushFront(id)
}

func (p *sieve) Remove(key experts.Key) {
	id := p.of(key)
	if p.hand == id {
		p.hand = p.queue.prev[id]
	}
	p.queue.remove(id)
}
