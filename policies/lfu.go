package policies

import "github.com/k3infer/k3/core/experts"

func init() { experts.RegisterPolicy("lfu", newLFU) }

// lfu evicts the resident with the fewest requests, the least recent of equals. Counts go on while an expert is absent and
// are halved after every ten requests a slot, so that old fame fades.
type lfu struct {
	ids
	capacity, size int
	count          counter
	by             []list // by count: residents
}

// counter counts requests by id up to a small ceiling, and halves all counts once a window of requests is full.
type counter struct {
	of              []uint8
	window, pending int
}

const countCeiling = 63

func newCounter(config experts.Config) counter {
	return counter{of: make([]uint8, config.Layers*config.Experts), window: 10 * config.Capacity}
}

// add counts a request for id; it says true when all counts were halved first.
func (c *counter) add(id int32) (halved bool) {
	if c.pending++; c.pending > c.window {
		for i := range c.of {
			c.of[i] /= 2
		}
		c.pending, halved = 0, true
	}
	c.of[id] = min(c.of[id]+1, countCeiling)
	return halved
}

func newLFU(config experts.Config) (experts.Policy, error) {
	chains := newLinks(config)
	p := &lfu{
		ids: newIDs(config), capacity: config.Capacity, count: newCounter(config),
		by: make([]list, countCeiling+1),
	}
	for i := range p.by {
		p.by[i] = newList(chains)
	}
	return p, nil
}

// request counts a request for id, which is on no list.
func (p *lfu) request(id int32) {
	if !p.count.add(id) {
		return
	}
	for count := 1; count <= countCeiling; count++ {
		p.by[count/2].takeFront(&p.by[count])
	}
}

func (p *lfu) Hit(key experts.Key) {
	id := p.of(key)
	p.by[p.count.of[id]].remove(id)
	p.request(id)
	p.by[p.count.of[id]].pushFront(id)
}

func (p *lfu) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	id := p.of(key)
	p.request(id)
	if p.size < p.capacity {
		p.size++
		p.by[p.count.of[id]].pushFront(id)
		return experts.Key{}, experts.Fill
	}
	for count := range p.by {
		if victim := p.by[count].oldest(p.ids, evictable); victim != none {
			p.by[count].remove(victim)
			p.by[p.count.of[id]].pushFront(id)
			return p.key(victim), experts.Swap
		}
	}
	return experts.Key{}, experts.Bypass
}

func (p *lfu) Remove(key experts.Key) {
	id := p.of(key)
	p.by[p.count.of[id]].remove(id)
	p.size--
}
