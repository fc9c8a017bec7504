package policies

import "github.com/k3infer/k3/core/experts"

func init() { experts.RegisterPolicy("s3fifo", newS3FIFO) }

// s3fifo (Yang et al. 2023) is three queues in order of arrival: a small one (a tenth) through which every newcomer passes,
// the main one for those asked for again meanwhile, and a ghost queue of names evicted from the small one, which go straight
// to main when they return. Main gives second chances, as many as an expert had requests, up to three.
type s3fifo struct {
	ids
	capacity          int
	small, main, past list
	where             []queue
	uses              []uint8
}

// queue says on which list of a policy an id is.
type queue uint8

const (
	absent queue = iota
	inSmall
	inMain
	inGhost
)

func newS3FIFO(config experts.Config) (experts.Policy, error) {
	total, chains := config.Layers*config.Experts, newLinks(config)
	return &s3fifo{
		ids: newIDs(config), capacity: config.Capacity, small: newList(chains), main: newList(chains), past: newList(chains),
		where: make([]queue, total), uses: make([]uint8, total),
	}, nil
}

func (p *s3fifo) Hit(key experts.Key) {
	id := p.of(key)
	p.uses[id] = min(p.uses[id]+1, 3)
}

func (p *s3fifo) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	id, decision, victim := p.of(key), experts.Fill, int32(none)
	returns := p.where[id] == inGhost
	if p.small.size+p.main.size >= p.capacity {
		if victim = p.evict(evictable); victim == none {
			return experts.Key{}, experts.Bypass
		}
		decision = experts.Swap
	}
	if p.where[id] == inGhost {
		p.past.remove(id)
	}
	p.uses[id] = 0
	if returns {
		p.where[id] = inMain
		p.main.pushFront(id)
	} else {
		p.where[id] = inSmall
		p.small.pushFront(id)
	}
	if decision == experts.Fill {
		return experts.Key{}, experts.Fill
	}
	return p.key(victim), experts.Swap
}

func (p *s3fifo) evict(evictable func(experts.Key) bool) int32 {
	tenth := max(1, p.capacity/10)
	for range 5 * p.capacity { // each may be looked at once in small and four times in main
		if p.small.size >= tenth || p.main.size == 0 {
			id := p.small.back
			p.small.remove(id)
			if p.uses[id] < 2 && p.may(id, evictable) {
				p.where[id] = inGhost
				p.past.pushFront(id)
				if p.past.size > p.capacity-tenth {
					p.where[p.past.back] = absent
					p.past.remove(p.past.back)
				}
				return id
			}
			p.uses[id], p.where[id] = 0, inMain
			p.main.pushFront(id)
			continue
		}
		id := p.main.back
		p.main.remove(id)
		if p.uses[id] == 0 && p.may(id, evictable) {
			p.where[id] = absent
			return id
		}
		p.uses[id] = max(p.uses[id], 1) - 1
		p.main.pushFront(id)
	}
	return none
}

func (p *s3fifo) Remove(key experts.Key) {
	id := p.of(key)
	if p.where[id] == inSmall {
		p.small.remove(id)
	} else {
		p.main.remove(id)
	}
	p.where[id] = absent
}
