package policies

import "github.com/k3infer/k3/core/experts"

func init() { experts.RegisterPolicy("arc", newARC) }

// arc (Megiddo, Modha 2003) keeps one LRU list of experts asked for once and one of those asked for again, and remembers the
// names that left each. A request for a remembered name shifts the share of the slots towards the list it had left.
type arc struct {
	ids
	capacity, target    int // target is how many slots the once list should have
	once, again         list
	onceGone, againGone list // names that left them
	where               []arcList
}

type arcList uint8

const (
	arcAbsent arcList = iota
	arcOnce
	arcAgain
	arcOnceGone
	arcAgainGone
)

func newARC(config experts.Config) (experts.Policy, error) {
	chains := newLinks(config)
	return &arc{
		ids: newIDs(config), capacity: config.Capacity, once: newList(chains), again: newList(chains),
		onceGone: newList(chains), againGone: newList(chains), where: make([]arcList, config.Layers*config.Experts),
	}, nil
}

func (p *arc) list(of arcList) *list {
	switch of {
	case arcOnce:
		return &p.once
	case arcAgain:
		return &p.again
	case arcOnceGone:
		return &p.onceGone
	default:
		return &p.againGone
	}
}

// move takes id from the list it is on, if any, to the front of another, if any.
func (p *arc) move(id int32, to arcList) {
	if from := p.where[id]; from != arcAbsent {
		p.list(from).remove(id)
	}
	if p.where[id] = to; to != arcAbsent {
		p.list(to).pushFront(id)
	}
}

func (p *arc) Hit(key experts.Key) { p.move(p.of(key), arcAgain) }

func (p *arc) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	id := p.of(key)
	from := p.where[id]
	switch from {
	case arcOnceGone:
		p.target = min(p.capacity, p.target+max(1, p.againGone.size/p.onceGone.size))
	case arcAgainGone:
		p.target = max(0, p.target-max(1, p.onceGone.size/p.againGone.size))
	}
	to := arcAgain
	if from == arcAbsent {
		to = arcOnce
	}
	if p.once.size+p.again.size < p.capacity {
		p.move(id, to)
		p.forget()
		return experts.Key{}, experts.Fill
	}
	first, second := &p.again, &p.once
	if p.once.size > p.target || p.once.size == p.target && p.once.size > 0 && from == arcAgainGone {
		first, second = second, first
	}
	victim := first.oldest(p.ids, evictable)
	if victim == none {
		victim = second.oldest(p.ids, evictable)
	}
	if victim == none {
		return experts.Key{}, experts.Bypass
	}
	if p.where[victim] == arcOnce {
		p.move(victim, arcOnceGone)
	} else {
		p.move(victim, arcAgainGone)
	}
	p.move(id, to)
	p.forget()
	return p.key(victim), experts.Swap
}

// forget keeps the once list and its names within the capacity, and all four lists within twice that.
func (p *arc) forget() {
	for p.onceGone.size > 0 && p.once.size+p.onceGone.size > p.capacity {
		p.move(p.onceGone.back, arcAbsent)
	}
	for p.againGone.size > 0 && p.once.size+p.again.size+p.onceGone.size+p.againGone.size > 2*p.capacity {
		p.move(p.againGone.back, arcAbsent)
	}
}

func (p *arc) Remove(key experts.Key) { p.move(p.of(key), arcAbsent) }
