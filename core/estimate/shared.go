package estimate

import (
	"errors"
	"math"

	"github.com/k3infer/k3/core/memory"
)

// SharedRows is the number of vectors that Rates.TrunkShared and ExpertsShared were measured with.
const SharedRows = 16

// Distinct is how many experts of a layer n rows of different texts choose together, if every expert is as likely as any other:
//
//	E (1 - (1 - k/E)^n)
//
// Rows of real texts choose fewer, since some experts are more popular, and rows of one text fewer still.
func (w Weights) Distinct(n int) float64 {
	if w.Experts == 0 {
		return 0
	}
	e := float64(w.Experts)
	return e * (1 - math.Pow(1-float64(w.TopK)/e, float64(n)))
}

// Shared is what many texts together are expected to get of a machine: passes of a row of each.
type Shared struct {
	Sequences  int     `json:"sequences"`
	StateBytes int64   `json:"state_bytes"`       // of all: what never grows, and the latents of what they may reach
	Distinct   float64 `json:"distinct_experts"`  // of a layer, in a pass
	TrunkRead  int64   `json:"trunk_read_bytes"`  // a pass
	ExpertRead int64   `json:"expert_read_bytes"` // a pass
	Seconds    float64 `json:"seconds,omitempty"` // a pass: the longer of reading and computing; 0: not all was measured
	Tokens     float64 `json:"tokens_per_hour,omitempty"`
	Each       float64 `json:"tokens_per_hour_each,omitempty"`
}

// share estimates passes under a plan of n texts. The share of the distinct experts that is in memory is between that of one row,
// the rule of thumb of Predict, and, where rows choose all there are, the share that there is memory for: the power goes from 0.35 to 1
// with the number of distinct experts.
func (r Rates) share(p memory.Plan, w Weights, n int) Shared {
	x := Shared{Sequences: n, StateBytes: p.Bytes(memory.State) + p.Bytes(memory.Latents), Distinct: w.Distinct(n), TrunkRead: max(0, p.Trunk-p.Pinned)}
	inMemory := 0.0
	if all := w.ExpertLayers * w.Experts; all > 0 {
		popular := 1.0
		if rest := float64(w.Experts - w.TopK); rest > 0 {
			popular = 1 - (x.Distinct-float64(w.TopK))/rest
		}
		inMemory = math.Pow(min(1, float64(p.Slots)/float64(all)), 0.35*popular+(1-popular))
	}
	experts := x.Distinct * float64(w.ExpertLayers) * float64(w.Expert)
	x.ExpertRead = int64(experts * (1 - inMemory))
	if r.Disk == nil && x.TrunkRead+x.ExpertRead > 0 || r.Trunk == nil || r.TrunkShared == nil || experts > 0 && (r.Experts == nil || r.ExpertsShared == nil) {
		return x
	}
	compute := float64(w.Trunk) * secondsPerByte(r.Trunk, r.TrunkShared, float64(n))
	if experts > 0 {
		compute += experts * secondsPerByte(r.Experts, r.ExpertsShared, float64(n*w.TopK)/x.Distinct)
	}
	read := 0.0
	if x.TrunkRead+x.ExpertRead > 0 {
		read = float64(x.TrunkRead+x.ExpertRead) / r.Disk.Median
	}
	x.Seconds = max(read, compute)
	x.Each = 3600 / x.Seconds
	x.Tokens = x.Each * float64(n)
	return x
}

// secondsPerByte is the time that a byte of weights takes to be multiplied with n vectors, by a straight line through one vector and
// SharedRows of them; more are a multiple of those.
func secondsPerByte(one, shared *Series, n float64) float64 {
	a, b := 1/one.Median, 1/shared.Median
	if n > SharedRows {
		return b * n / SharedRows
	}
	return a + max(b-a, 0)*(n-1)/(SharedRows-1)
}

// mostSequences is where Share ends.
const mostSequences = 4096

// Share estimates passes of 1, 2, 4, ... texts, and of n if that is above 0, as far as their states fit into p's memory, and says which
// of them makes most tokens an hour: with more texts each pass serves more, and leaves less memory for the weights. best is -1 if not
// all was measured.
func (r Rates) Share(p memory.Plan, w Weights, n int) (all []Shared, best int, err error) {
	best = -1
	if n > 0 {
		if _, err := p.WithSequences(n); err != nil {
			return nil, best, err
		}
	}
	add := func(n int) error {
		q, err := p.WithSequences(n)
		if err != nil {
			return err
		}
		all = append(all, r.share(q, w, n))
		if last := len(all) - 1; all[last].Tokens > 0 && (best < 0 || all[last].Tokens > all[best].Tokens) {
			best = last
		}
		return nil
	}
	for next := 1; next <= mostSequences; next *= 2 {
		if n > next/2 && n < next {
			if err := add(n); err != nil {
				return all, best, err
			}
		}
		if err := add(next); errors.Is(err, memory.ErrNoFit) && next > 1 {
			break
		} else if err != nil {
			return all, best, err
		}
	}
	return all, best, nil
}
