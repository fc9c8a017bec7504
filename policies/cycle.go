package policies

import (
	"math"

	"github.com/k3infer/k3/core/experts"
)

// cycle uses what a general cache cannot know: requests come layer by layer, in the same cycle every pass. The next use
// of a resident is then its layer's distance in the cycle, which is certain, plus the passes until the router chooses it
// again, which is estimated; the resident whose next use is the furthest leaves. docs/policies.md has the derivation.
//
// With a visit of a layer as the unit of time, c the exponentially decayed count of visits that chose an expert, m the same
// count for an expert chosen every time, and age the visits since it was last chosen, the share of coming visits that will
// choose it is taken as
//
//	p = (c + prior) / (m + 1) / (1 + age)       by recency and frequency
//	p = (c + prior) / (m + 1)                   by frequency alone
//
// and its next use as 1/p - 1 + distance passes away, where distance is above 0 and at most 1. The layer being computed is
// left alone: its experts not asked for yet in this visit may be next.
//
// A newcomer whose own next use is further than the victim's is not kept, unless requests repeat within a visit, as they do
// in recorded prompts: then its next use may be the very next request.
//
// What a visit changes are the estimates of that layer alone, so they are made once, when the visit ends, and sorted into
// buckets; choosing a victim compares the worst of each layer. Cost is a few operations for each resident of a layer in each
// of its visits, and one for each layer in an eviction.
type cycle struct {
	ids
	capacity, size int
	frequency      bool // alone, without recency
	byID           []estimate
	layers         []cycleLayer
	ring           []int32 // layers seen so far, ascending: the cycle
	current        int32   // layer being computed, none before the first
	asked          int     // requests of this visit
	repeated       int     // those of them for an expert asked for before in it
	repeats        float64 // recent share of repeated requests
}

type estimate struct {
	count float32 // decayed count of visits that chose it, as of visit last
	last  int32   // visit of its layer that chose it last, 0: none
	turn  int32   // its place among the requests of that visit, the latest
	place int32   // index among its layer's residents, none: not resident
	wait  float32 // passes until it is chosen again, beyond the coming one, as of the last visit's end
}

type cycleLayer struct {
	seen      bool
	position  int32 // in the ring
	visits    int32
	residents []int32
	// order is the residents as of visit sorted, furthest next use first, from next on; some may have gone or been
	// asked for since, and others come.
	order  []int32
	next   int
	sorted int32
	worst  float32 // wait of the resident at order[next]
}

const (
	cycleDecay   = 0.99 // weight of a visit against the next; results hardly depend on it
	cyclePrior   = 0.02 // chosen counts of an expert never seen: about top-k of all
	cycleRepeats = 0.02 // share of repeated requests from which on newcomers are always kept
	noVictim     = -1
)

var cyclePowers = func() (t [1024]float32) {
	for i := range t {
		t[i] = float32(math.Pow(cycleDecay, float64(i)))
	}
	return t
}()

// decayed is cycleDecay to the n.
func decayed(n int32) float32 {
	if int(n) < len(cyclePowers) {
		return cyclePowers[n]
	}
	return 0
}

func newCycle(config experts.Config, frequency bool) *cycle {
	p := &cycle{
		ids: newIDs(config), capacity: config.Capacity, frequency: frequency, byID: make([]estimate, config.Layers*config.Experts),
		layers: make([]cycleLayer, config.Layers), current: none, repeats: 1,
	}
	for i := range p.byID {
		p.byID[i].place = none
	}
	return p
}

func (p *cycle) Hit(key experts.Key) { p.request(key) }

func (p *cycle) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	p.request(key)
	id := p.of(key)
	if p.size < p.capacity {
		p.add(id)
		return experts.Key{}, experts.Fill
	}
	victim, due := p.furthest(evictable)
	if victim == none {
		return experts.Key{}, experts.Bypass
	}
	if p.repeats < cycleRepeats && p.wait(id, p.layers[key.Layer].visits)+1 > due {
		return experts.Key{}, experts.Bypass
	}
	p.drop(victim)
	p.add(id)
	return p.key(victim), experts.Swap
}

func (p *cycle) Remove(key experts.Key) { p.drop(p.of(key)) }

func (p *cycle) add(id int32) {
	l := &p.layers[id/p.experts]
	p.byID[id].place = int32(len(l.residents))
	l.residents = append(l.residents, id)
	p.size++
}

func (p *cycle) drop(id int32) {
	l := &p.layers[id/p.experts]
	last := len(l.residents) - 1
	moved, at := l.residents[last], p.byID[id].place
	l.residents[at], p.byID[moved].place = moved, at
	l.residents = l.residents[:last]
	p.byID[id].place = none
	p.size--
	if id/p.experts != p.current {
		p.skip(l)
	}
}

// request notes that the router chose an expert. A new layer begins a visit; so do requests of one layer without end.
func (p *cycle) request(key experts.Key) {
	if key.Layer != p.current || p.asked >= int(p.experts) {
		p.endVisit()
		p.beginVisit(key.Layer)
	}
	p.asked++
	e, visit := &p.byID[p.of(key)], p.layers[key.Layer].visits
	e.turn = int32(p.asked)
	if e.last == visit {
		p.repeated++
		return
	}
	e.count = float32(e.count*decayed(visit-e.last)) + 1
	e.last = visit
}

func (p *cycle) beginVisit(layer int32) {
	l := &p.layers[layer]
	if !l.seen {
		l.seen = true
		p.ring = p.ring[:0]
		for i := range p.layers {
			if x := &p.layers[i]; x.seen {
				x.position = int32(len(p.ring))
				p.ring = append(p.ring, int32(i))
			}
		}
	}
	l.visits++
	p.current = layer
}

// endVisit brings the layer that was computed up to date: who of its residents is due last, and when. Residents that were not
// asked for age together and keep their order, nearly, so a layer with many is put in order not after every visit.
func (p *cycle) endVisit() {
	if p.current == none {
		return
	}
	p.repeats = (p.repeats + float64(p.repeated)/float64(p.asked)) / 2
	p.asked, p.repeated = 0, 0
	l := &p.layers[p.current]
	if l.visits-l.sorted > int32(len(l.residents)/sortedAlways) || l.next == len(l.order) {
		p.sort(l)
	}
	p.skip(l)
}

// sortedAlways is the number of residents up to which a layer is put in order after every visit.
const sortedAlways = 128

// sort puts a layer's residents in order, by buckets.
func (p *cycle) sort(l *cycleLayer) {
	var starts [waitBuckets + 1]int32
	for _, id := range l.residents {
		w := p.wait(id, l.visits)
		p.byID[id].wait = w
		starts[bucketOf(w)+1]++
	}
	for i := range waitBuckets {
		starts[i+1] += starts[i]
	}
	if cap(l.order) < len(l.residents) {
		l.order = make([]int32, len(l.residents), 2*int(p.experts))
	}
	l.order = l.order[:len(l.residents)]
	for _, id := range l.residents {
		b := bucketOf(p.byID[id].wait)
		l.order[starts[b]] = id
		starts[b]++
	}
	l.next, l.sorted = 0, l.visits
}

// wait is the passes until an expert is chosen again, beyond the coming one, as of visit number visits of its layer.
func (p *cycle) wait(id, visits int32) float32 {
	e := &p.byID[id]
	age := visits - e.last
	count := float32(e.count * decayed(age))
	all := (1 - decayed(visits)) / (1 - cycleDecay)
	if p.frequency {
		age = 0
	}
	return float32((all+1)*float32(1+age))/(count+cyclePrior) - 1
}

// waitBuckets is the number of buckets of waits, sixteen to a doubling, the longest first.
const waitBuckets = 512

func bucketOf(wait float32) int32 {
	const least = 127 - 4 // exponent below which waits do not differ
	b := int32(math.Float32bits(wait+1)>>19) - least<<4
	return waitBuckets - 1 - max(0, min(b, waitBuckets-1))
}

// skip moves next past those that have gone or were asked for since they were put in order, and notes the wait of who is
// left.
func (p *cycle) skip(l *cycleLayer) {
	for l.next < len(l.order) {
		if e := &p.byID[l.order[l.next]]; e.place != none && e.last <= l.sorted {
			l.worst = p.wait(l.order[l.next], l.visits)
			return
		}
		l.next++
	}
	l.worst = noVictim
	if len(l.residents) > 0 && l.sorted < l.visits {
		p.sort(l)
		l.worst = p.byID[l.order[0]].wait
	}
}

// furthest is the resident whose next use is the furthest away, and how many passes. The layer being computed comes last.
func (p *cycle) furthest(evictable func(experts.Key) bool) (victim int32, due float32) {
	for tried := 0; tried <= len(p.ring); tried++ {
		best, due := int32(none), float32(noVictim)
		here := p.layers[p.current].position
		for _, i := range p.ring {
			l := &p.layers[i]
			if i == p.current || l.worst == noVictim {
				continue
			}
			ahead := l.position - here
			if ahead <= 0 {
				ahead += int32(len(p.ring))
			}
			if d := l.worst + float32(ahead)/float32(len(p.ring)); d > due {
				best, due = i, d
			}
		}
		if best == none {
			break
		}
		l := &p.layers[best]
		for ; l.next < len(l.order); l.next++ {
			if id := l.order[l.next]; p.byID[id].place != none && p.may(id, evictable) {
				return id, due
			}
		}
		l.worst = noVictim // all of it is in use: until its next visit
	}
	// Nothing elsewhere: of this layer, who is due last of those not asked for in this visit, else of all.
	l := &p.layers[p.current]
	victim, due = none, noVictim
	for _, asked := range []bool{false, true} {
		for _, id := range l.residents {
			if (p.byID[id].last == l.visits) != asked || !p.may(id, evictable) {
				continue
			}
			w := p.wait(id, l.visits) + 1
			if w > due || w == due && p.byID[id].turn < p.byID[victim].turn {
				victim, due = id, w
			}
		}
		if victim != none {
			break
		}
	}
	return victim, due
}
