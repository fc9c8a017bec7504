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
	residents []int32
	place     []int32 // by id: index in residents
}

func newRandom(config experts.Config) (experts.Policy, error) {
	total := config.Layers * config.Experts
	return &random{
		ids: newIDs(config), capacity: config.Capacity, draw: rand.New(rand.NewPCG(config.Seed, 0)),
		residents: make([]int32, 0, min(config.Capacity, total)), place: make([]int32, total),
	}, nil
}

func (p *random) Hit(experts.Key) {}

func (p *random) Miss(key experts.Key, evictable func(experts.Key) bool) (experts.Key, experts.Decision) {
	id := p.of(key)
	if len(p.residents) < p.capacity {
		p.place[id] = int32(len(p.residents))
		p.residents = append(p.residents, id)
		return experts.Key{}, experts.Fill
	}
	start := p.draw.IntN(len(p.residents))
	for i := range p.residents {
		at := (start + i) % len(p.residents)
		if victim := p.residents[at]; p.may(victim, evictable) {
			p.residents[at], p.place[id] = id, int32(at)
			return p.key(victim), experts.Swap
		}
	}
	return experts.Key{}, experts.Bypass
}

func (p *random) Remove(key experts.Key) {
	at, last := p.place[p.of(key)], len(p.residents)-1
	moved := p.residents[last]
	p.residents[at], p.place[moved] = moved, at
	p.residents = p.residents[:last]
}
