package policies

import (
	"math/rand/v2"

	"github.com/k3infer/k3/core/experts"
)

func init() { experts.RegisterPolicy("random", newRandom) }

// random evicts any resident with equal chance. It is the yardstick: a policy that loses to it does harm.
type random struct {
	ids
	capacity  int
	draw      *rand.Rand
	residents bag
}

func newRandom(config experts.Config) (experts.Policy, error) {
	return &random{
		ids: newIDs(config), capacity: config.Capacity, draw: rand.New(rand.NewPCG(config.Seed, 0)), residents: newBag(config),
	}, nil
}

func (p *random) Hit(experts.Key) {}

func (p *random) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	id, r := p.of(key), &p.residents
	if len(r.members) < p.capacity {
		r.add(id)
		return experts.Key{}, experts.Fill
	}
	start := p.draw.IntN(len(r.members))
	for i := range r.members {
		at := (start + i) % len(r.members)
		if victim := r.members[at]; p.may(victim, evictable) {
			r.members[at], r.place[id], r.place[victim] = id, int32(at), none
			return p.key(victim), experts.Swap
		}
	}
	return experts.Key{}, experts.Bypass
}

func (p *random) Remove(key experts.Key) { p.residents.remove(p.of(key)) }
