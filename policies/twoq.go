package policies

import "github.com/k3infer/k3/core/experts"

func init() { experts.RegisterPolicy("2q", newTwoQ) }

// twoQ (Johnson, Shasha 1994) holds newcomers in a queue of a quarter of the slots and remembers the names of half as many
// experts as it has slots after they left it. Only one that is asked for again while remembered enters the main LRU list.
type twoQ struct {
	ids
	capacity       int
	in, past, main list
	where          []queue
}

func newTwoQ(config experts.Config) (experts.Policy, error) {
	chains := newLinks(config)
	return &twoQ{
		ids: newIDs(config), capacity: config.Capacity, in: newList(chains), past: newList(chains), main: newList(chains),
		where: make([]queue, config.Layers*config.Experts),
	}, nil
}

func (p *twoQ) Hit(key experts.Key) {
	if id := p.of(key); p.where[id] == inMain {
		p.main.moveToFront(id)
	}
}

func (p *twoQ) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	id, victim := p.of(key), int32(none)
	returns := p.where[id] == inGhost
	full := p.in.size+p.main.size >= p.capacity
	if full {
		if victim = p.evict(evictable); victim == none {
			return experts.Key{}, experts.Bypass
		}
	}
	if p.where[id] == inGhost {
		p.past.remove(id)
	}
	if returns {
		p.where[id] = inMain
		p.main.pushFront(id)
	} else {
		p.where[id] = inSmall
		p.in.pushFront(id)
	}
	if !full {
		return experts.Key{}, experts.Fill
	}
	return p.key(victim), experts.Swap
}

func (p *twoQ) evict(evictable func(experts.Key) bool) int32 {
	first, second := &p.main, &p.in
	if p.in.size >= max(1, p.capacity/4) {
		first, second = second, first
	}
	id := first.oldest(p.ids, evictable)
	if id == none {
		id = second.oldest(p.ids, evictable)
	}
	if id == none {
		return none
	}
	if p.where[id] == inMain {
		p.main.remove(id)
		p.where[id] = absent
		return id
	}
	p.in.remove(id)
	p.where[id] = inGhost
	p.past.pushFront(id)
	if p.past.size > max(1, p.capacity/2) {
		p.where[p.past.back] = absent
		p.past.remove(p.past.back)
	}
	return id
}

func (p *twoQ) Remove(key experts.Key) {
	id := p.of(key)
	if p.where[id] == inMain {
		p.main.remove(id)
	} else {
		p.in.remove(id)
	}
	p.where[id] = absent
}
