package replay

import (
	"cmp"
	"slices"

	"github.com/k3infer/k3/core/experts"
)

// Profile is what a trace says about the experts themselves, whatever the cache.
type Profile struct {
	Requests int
	Passes   int
	Touched  int // distinct experts asked for
	Layers   int // distinct layers asked for
	// Hottest are the experts asked for most, most first; the lower layer, then the lower expert, among equals.
	Hottest []Heat
	// Reuse[i] counts the requests whose expert was asked for before, with at least 2^i and fewer than 2^(i+1) requests in
	// between; Reuse[0] has those with none in between, too.
	Reuse []int
}

// Heat is an expert and how often it was asked for.
type Heat struct {
	Key      experts.Key
	Requests int
}

// NewProfile looks at a trace; it keeps the hottest experts, up to most of them.
func NewProfile(t *Trace, most int) Profile {
	p := Profile{Requests: len(t.Keys), Passes: t.Passes()}
	counts := make([]int, t.Layers*t.Experts)
	last := make([]int, len(counts)) // 1 + index of the last request
	layers := make([]bool, t.Layers)
	for i, key := range t.Keys {
		id := int(key.Layer)*t.Experts + int(key.Expert)
		if last[id] > 0 {
			between, bucket := i-last[id], 0
			for between > 1 {
				between, bucket = between/2, bucket+1
			}
			for len(p.Reuse) <= bucket {
				p.Reuse = append(p.Reuse, 0)
			}
			p.Reuse[bucket]++
		}
		last[id] = i + 1
		counts[id]++
		layers[key.Layer] = true
	}
	var all []Heat
	for id, n := range counts {
		if n > 0 {
			p.Touched++
			all = append(all, Heat{experts.Key{Layer: int32(id / t.Experts), Expert: int32(id % t.Experts)}, n})
		}
	}
	for _, here := range layers {
		if here {
			p.Layers++
		}
	}
	slices.SortStableFunc(all, func(a, b Heat) int { return cmp.Compare(b.Requests, a.Requests) })
	p.Hottest = all[:min(most, len(all))]
	return p
}
