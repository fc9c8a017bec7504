package policies

import "github.com/k3infer/k3/core/experts"

func init() { experts.RegisterPolicy("tinylfu", newTinyLFU) }

// tinyLFU (W-TinyLFU, Einziger et al. 2017) passes newcomers through a small LRU window; one that drops out of it is admitted
// to the main cache, a segmented LRU, only if it was asked for more often lately than the one that would leave. There are so
// few experts that exact ageing counts take the place of the sketch.
type tinyLFU struct {
	ids
	capacity, windowSize, protectedSize int
	window, probation, protected        list
	where                               []queue
	count                               counter
}

const (
	inWindow    = inSmall
	inProbation = inMain
	inProtected = inGhost + 1
)

func newTinyLFU(config experts.Config) (experts.Policy, error) {
	chains := newLinks(config)
	p := &tinyLFU{
		ids: newIDs(config), capacity: config.Capacity, windowSize: max(1, config.Capacity/100),
		window: newList(chains), probation: newList(chains), protected: newList(chains),
		where: make([]queue, config.Layers*config.Experts), count: newCounter(config),
	}
	p.protectedSize = (p.capacity - p.windowSize) * 8 / 10
	return p, nil
}

func (p *tinyLFU) Hit(key experts.Key) {
	id := p.of(key)
	p.count.add(id)
	switch p.where[id] {
	case inWindow:
		p.window.moveToFront(id)
	case inProtected:
		p.protected.moveToFront(id)
	case inProbation:
		p.probation.remove(id)
		p.where[id] = inProtected
		p.protected.pushFront(id)
		if p.protected.size > p.protectedSize {
			last := p.protected.back
			p.protected.remove(last)
			p.where[last] = inProbation
			p.probation.pushFront(last)
		}
	}
}

func (p *tinyLFU) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	id := p.of(key)
	p.count.add(id)
	victim, decision := int32(none), experts.Fill
	if p.window.size+p.probation.size+p.protected.size >= p.capacity {
		if victim = p.evict(evictable); victim == none {
			return experts.Key{}, experts.Bypass
		}
		decision = experts.Swap
	} else if p.window.size >= p.windowSize {
		p.admit(p.window.back)
	}
	p.where[id] = inWindow
	p.window.pushFront(id)
	if decision == experts.Fill {
		return experts.Key{}, experts.Fill
	}
	return p.key(victim), experts.Swap
}

func (p *tinyLFU) admit(id int32) {
	p.window.remove(id)
	p.where[id] = inProbation
	p.probation.pushFront(id)
}

// evict lets the oldest of the window and the oldest of the main cache compete for a place.
func (p *tinyLFU) evict(evictable func(experts.Key) bool) int32 {
	resident := p.probation.oldest(p.ids, evictable)
	if resident == none {
		resident = p.protected.oldest(p.ids, evictable)
	}
	newcomer := int32(none)
	if p.window.size >= p.windowSize {
		newcomer = p.window.oldest(p.ids, evictable)
	}
	switch {
	case newcomer != none && (resident == none || p.count.of[newcomer] <= p.count.of[resident]):
		p.window.remove(newcomer)
		p.where[newcomer] = absent
		return newcomer
	case resident == none:
		return none
	case newcomer != none:
		p.admit(newcomer)
	}
	p.leave(resident)
	return resident
}

func (p *tinyLFU) leave(id int32) {
	switch p.where[id] {
	case inWindow:
		p.window.remove(id)
	case inProbation:
		p.probation.remove(id)
	case inProtected:
		p.protected.remove(id)
	}
	p.where[id] = absent
}

func (p *tinyLFU) Remove(key experts.Key) { p.leave(p.of(key)) }
