package policies

import "github.com/k3infer/k3/core/experts"

func init() { experts.RegisterPolicy("lru", newLRU) }

// lru evicts the resident whose last request is the longest ago.
type lru struct {
	ids
	capacity int
	recent   list
}

func newLRU(config experts.Config) (experts.Policy, error) {
	return &lru{ids: newIDs(config), capacity: config.Capacity, recent: newList(newLinks(config))}, nil
}

func (p *lru) Hit(key experts.Key)    { p.recent.moveToFront(p.of(key)) }
func (p *lru) Remove(key experts.Key) { p.recent.remove(p.of(key)) }

func (p *lru) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	if p.recent.size < p.capacity {
		p.recent.pushFront(p.of(key))
		return experts.Key{}, experts.Fill
	}
	victim := p.recent.oldest(p.ids, evictable)
	if victim == none {
		return experts.Key{}, experts.Bypass
	}
	p.recent.remove(victim)
	p.recent.pushFront(p.of(key))
	return p.key(victim), experts.Swap
}
