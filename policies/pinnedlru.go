package policies

import (
	"slices"

	"github.com/k3infer/k3/core/experts"
)

func init() { experts.RegisterPolicy("pinned-lru", newPinnedLRU) }

// pinnedLRU reserves half of the slots for the experts that the whole trace asks for most often, each loaded when first asked
// for and never evicted, and leaves the other half to LRU. It shows what a profile of an earlier run would buy.
type pinnedLRU struct {
	lru
	pinned []bool
}

func newPinnedLRU(config experts.Config) (experts.Policy, error) {
	if config.Future == nil {
		return nil, experts.ErrOffline
	}
	pins := config.Capacity / 2
	p := &pinnedLRU{lru: lru{ids: newIDs(config), capacity: config.Capacity - pins, recent: newList(newLinks(config))}}
	p.pinned = make([]bool, config.Layers*config.Experts)
	count := make([]int, len(p.pinned))
	var asked []int32 // in order of first request, which also breaks ties of the count
	for _, key := range config.Future {
		id := p.of(key)
		if count[id] == 0 {
			asked = append(asked, id)
		}
		count[id]++
	}
	slices.SortStableFunc(asked, func(a, b int32) int { return count[b] - count[a] })
	for _, id := range asked[:min(pins, len(asked))] {
		p.pinned[id] = true
	}
	return p, nil
}

func (p *pinnedLRU) Hit(key experts.Key) {
	if !p.pinned[p.of(key)] {
		p.lru.Hit(key)
	}
}

func (p *pinnedLRU) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	if p.pinned[p.of(key)] {
		return experts.Key{}, experts.Fill
	}
	return p.lru.Miss(key, evictable)
}

func (p *pinnedLRU) Remove(key experts.Key) {
	if !p.pinned[p.of(key)] {
		p.lru.Remove(key)
	}
}
