package policies

import (
	"math"
	"slices"

	"github.com/k3infer/k3/core/experts"
)

func init() { experts.RegisterPolicy("adaptive", newAdaptive) }

// adaptive follows whichever of a few rules has been doing best: two that know the cycle of the layers (see cycle), and LRU
// and S3-FIFO for texts and models where that knowledge does not pay. Each rule runs beside the cache as a ghost: it sees
// every request and keeps its own set of names, and its hits are its score. The cache keeps what the leading rule's ghost
// keeps: a newcomer the ghost has not taken is passed by, and who leaves is somebody the ghost does not have.
//
// Another rule takes the lead when it has been better for several passes by more than chance explains: by two standard
// deviations of the requests on which the two disagree.
type adaptive struct {
	ids
	capacity int
	ghosts   []ghost
	lead     int
	layer    int32   // of the last request
	asked    int     // requests of this pass
	total    float64 // requests that the scores are of
	resident []bool  // by id
	size     int     // residents
	surplus  bag     // residents that the leading ghost does not have
}

// ghost is a rule and the set of experts it would keep.
type ghost struct {
	policy experts.Policy
	has    []bool  // by id
	score  float64 // hits beyond the leader's, lately
	apart  float64 // requests on which it and the leader disagreed, lately
	better int     // passes in a row at whose end it was better than chance explains
}

const (
	scorePasses   = 10    // the time over which scores are kept: so many passes,
	scoreRequests = 4000  // but at least so many requests
	betterPasses  = 3     // passes in a row that another rule must be better, to take the lead
	leadMargin    = 0.002 // share of the requests that a rule must be better by
	landslide     = 0.03  // the same, for a rule to take the lead at once
)

func newAdaptive(config experts.Config) (experts.Policy, error) {
	total := config.Layers * config.Experts
	p := &adaptive{ids: newIDs(config), capacity: config.Capacity, layer: none, resident: make([]bool, total),
		surplus: newBag(config)}
	rules := []experts.Policy{newCycle(config, false), newCycle(config, true)}
	for _, general := range []experts.Factory{newLRU, newS3FIFO} {
		rule, err := general(config)
		if err != nil {
			return nil, err
		}
		rules = append(rules, rule)
	}
	if config.Layers == 1 {
		p.lead = len(rules) - 1 // one layer is no cycle to know anything about
	}
	for _, rule := range rules {
		p.ghosts = append(p.ghosts, ghost{policy: rule, has: make([]bool, total)})
	}
	return p, nil
}

func (p *adaptive) Hit(key experts.Key) { p.request(key) }

func (p *adaptive) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	p.request(key)
	id := p.of(key)
	if !p.ghosts[p.lead].has[id] {
		return experts.Key{}, experts.Bypass
	}
	if p.size < p.capacity {
		p.resident[id] = true
		p.size++
		return experts.Key{}, experts.Fill
	}
	// The ghost has this one and the cache has not, so the cache has others that the ghost has not.
	for _, victim := range slices.Backward(p.surplus.members) {
		if p.may(victim, evictable) {
			p.surplus.remove(victim)
			p.resident[victim], p.resident[id] = false, true
			return p.key(victim), experts.Swap
		}
	}
	return experts.Key{}, experts.Bypass
}

func (p *adaptive) Remove(key experts.Key) {
	id := p.of(key)
	p.surplus.remove(id)
	p.resident[id] = false
	p.size--
}

// request shows a request to every ghost.
func (p *adaptive) request(key experts.Key) {
	if key.Layer < p.layer || p.asked == len(p.resident) {
		p.endPass()
	}
	p.layer = key.Layer
	p.asked++
	id := p.of(key)
	leads := p.ghosts[p.lead].has[id]
	for i := range p.ghosts {
		g := &p.ghosts[i]
		if g.has[id] != leads {
			g.apart++
			if leads {
				g.score--
			} else {
				g.score++
			}
		}
		if g.has[id] {
			g.policy.Hit(key)
			continue
		}
		victim, decision := g.policy.Miss(key, nil)
		if decision == experts.Bypass {
			continue
		}
		g.has[id] = true
		if i == p.lead && p.resident[id] {
			p.surplus.remove(id)
		}
		if decision == experts.Swap {
			gone := p.of(victim)
			g.has[gone] = false
			if i == p.lead && p.resident[gone] {
				p.surplus.add(gone)
			}
		}
	}
}

// endPass lets another rule lead if it has been better.
func (p *adaptive) endPass() {
	keep := 1 - 1/max(scorePasses, float64(scoreRequests)/float64(p.asked))
	p.total = float64(p.total*keep) + float64(p.asked)
	p.asked = 0
	best := p.lead
	for i := range p.ghosts {
		g := &p.ghosts[i]
		if g.score <= 2*math.Sqrt(g.apart)+float64(leadMargin*p.total) {
			g.better = 0
		} else if g.better++; (g.better >= betterPasses || g.score > float64(landslide*p.total)) && (best == p.lead || g.score > p.ghosts[best].score) {
			best = i
		}
		g.score, g.apart = float64(g.score*keep), float64(g.apart*keep)
	}
	if best == p.lead {
		return
	}
	p.lead = best
	for i := range p.ghosts {
		p.ghosts[i].score, p.ghosts[i].apart, p.ghosts[i].better = 0, 0, 0 // they were against the old leader
	}
	p.surplus.empty()
	for id, here := range p.resident {
		if here && !p.ghosts[best].has[id] {
			p.surplus.add(int32(id))
		}
	}
}
