// Package sample turns logits into a token id, the same one on every platform.
//
// The order of operations is fixed: repetition penalty, division by the temperature, top-k, top-p, min-p, and a draw from
// what is left, renormalised. Probabilities come from kernel.Exp, which is exact to the bit everywhere, and are added up in
// float64 in a fixed order. The draw for a position depends on the seed and the position only (see Uniform), so a sequence
// that is restored, or whose guesses were rejected, goes on with the same text.
package sample

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/k3infer/k3/core/kernel"
)

// ErrLogits says that logits cannot be sampled from: one is NaN or +Inf, or all of them are -Inf, or there are none.
var ErrLogits = errors.New("no token can be chosen from these logits")

// ErrParams says that a sampling parameter is out of its range.
var ErrParams = errors.New("sampling parameter out of range")

// greedyBelow is the temperature below which the choice is the arg-max: there, logits that differ at all (2^-24 relative)
// are so far apart that only ties could make a difference, and those shall go to the lowest id.
const greedyBelow = 1e-9

// Limits of the repetition penalty; beyond them it would decide alone.
const minPenalty, maxPenalty = 0.01, 100

// Params says how to choose a token. The zero value is greedy: the largest logit, the lowest id among equals.
type Params struct {
	// Temperature divides the logits; 0 (and anything below 1e-9) is greedy.
	Temperature float64
	// TopK keeps the k largest logits, the lower id among equals; 0 keeps all.
	TopK int
	// TopP keeps the fewest of the largest probabilities that add up to this share of what top-k kept, the lower id
	// among equals; 1 keeps all, and so does 0.
	TopP float64
	// MinP drops what is less probable than this share of the most probable token; 0 drops nothing.
	MinP float64
	// RepetitionPenalty divides the positive and multiplies the negative logits of ids that occurred before, in the prompt
	// or since, once however often they did; 1 does nothing, and so does 0.
	RepetitionPenalty float64
	// Seed chooses the draws.
	Seed uint64
}

// Validate reports the first parameter that is out of its range, with the range, as an error that matches ErrParams.
func (p Params) Validate() error {
	finite := func(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
	switch {
	case !finite(p.Temperature) || p.Temperature < 0:
		return fmt.Errorf("sample: %w: temperature %v: must be a number from 0 (greedy) up", ErrParams, p.Temperature)
	case p.TopK < 0:
		return fmt.Errorf("sample: %w: top-k %d: must be 0 (all) or more", ErrParams, p.TopK)
	case !(p.TopP >= 0 && p.TopP <= 1):
		return fmt.Errorf("sample: %w: top-p %v: must be above 0 and at most 1 (all)", ErrParams, p.TopP)
	case !(p.MinP >= 0 && p.MinP <= 1):
		return fmt.Errorf("sample: %w: min-p %v: must be from 0 (off) to 1", ErrParams, p.MinP)
	case p.RepetitionPenalty != 0 && !(p.RepetitionPenalty >= minPenalty && p.RepetitionPenalty <= maxPenalty):
		return fmt.Errorf("sample: %w: repetition penalty %v: must be from %v to %v (1 is off)",
			ErrParams, p.RepetitionPenalty, minPenalty, maxPenalty)
	}
	return nil
}

// Sampler chooses tokens under fixed parameters. It keeps only scratch memory between calls, so what it returns depends
// on its arguments alone; one goroutine may use it at a time.
type Sampler struct {
	params Params
	values []float64 // the logits after the repetition penalty, by id
	seen   []uint64  // one bit an id: it is in the history
	ids    []int32   // candidates: a heap while they are selected, then in the order of the draw
	probs  []float64 // unnormalised probability of each candidate
}

// New returns a sampler, or an error that matches ErrParams.
func New(p Params) (*Sampler, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return &Sampler{params: p}, nil
}

// Next chooses the token that follows history, which holds every id of the sequence so far, prompt included: the
// repetition penalty looks at them, and their number is the position that selects the draw. logits has one value for
// each id of the vocabulary; -Inf marks an id that must not be chosen. Logits no token can be chosen from give an error
// that matches ErrLogits.
func (s *Sampler) Next(logits []float32, history []int) (int, error) {
	if err := s.load(logits, history); err != nil {
		return 0, err
	}
	best := 0
	for i, v := range s.values {
		if v > s.values[best] {
			best = i
		}
	}
	if math.IsInf(s.values[best], -1) {
		return 0, fmt.Errorf("sample: all %d logits are -Inf: %w", len(logits), ErrLogits)
	}
	if s.params.Temperature < greedyBelow {
		return best, nil
	}
	s.choose(best)
	return s.draw(Uniform(s.params.Seed, uint64(len(history)))), nil
}

// load checks the logits and writes them to s.values with the repetition penalty applied.
func (s *Sampler) load(logits []float32, history []int) error {
	if len(logits) == 0 {
		return fmt.Errorf("sample: no logits: %w", ErrLogits)
	}
	s.values = s.values[:0]
	for i, l := range logits {
		if l != l || l > math.MaxFloat32 {
			return fmt.Errorf("sample: the logit of id %d is %v: %w", i, l, ErrLogits)
		}
		s.values = append(s.values, float64(l))
	}
	penalty := s.params.RepetitionPenalty
	if penalty == 0 || penalty == 1 {
		return nil
	}
	if n := (len(logits) + 63) / 64; len(s.seen) < n {
		s.seen = make([]uint64, n)
	} else {
		clear(s.seen)
	}
	for _, id := range history {
		if id < 0 || id >= len(logits) {
			return fmt.Errorf("sample: id %d of the history is not one of the %d of the vocabulary", id, len(logits))
		}
		if s.seen[id/64]>>(id%64)&1 != 0 {
			continue
		}
		s.seen[id/64] |= 1 << (id % 64)
		if v := s.values[id]; v > 0 {
			s.values[id] = v / penalty
		} else {
			s.values[id] = v * penalty
		}
	}
	return nil
}

// choose fills s.ids and s.probs with the candidates that top-k, top-p and min-p leave.
func (s *Sampler) choose(best int) {
	s.ids, s.probs = s.ids[:0], s.probs[:0]
	for id := range s.values {
		s.ids = append(s.ids, int32(id))
	}
	prob := func(id int32) float64 {
		return float64(kernel.Exp(float32((s.values[id] - s.values[best]) / s.params.Temperature)))
	}
	all := func() float64 {
		sum := 0.0
		for _, id := range s.ids {
			p := prob(id)
			s.probs = append(s.probs, p)
			sum += p
		}
		return sum
	}
	topK := s.params.TopK > 0 && s.params.TopK < len(s.values)
	topP := s.params.TopP > 0 && s.params.TopP < 1
	switch {
	case topK:
		s.selectTop(s.params.TopK, math.Inf(1), prob)
		if topP {
			share := s.params.TopP * all()
			sum, n := 0.0, 0
			for sum < share {
				sum += s.probs[n]
				n++
			}
			s.ids, s.probs = s.ids[:n], s.probs[:0]
		}
	case topP:
		share := s.params.TopP * all()
		s.probs = s.probs[:0]
		s.selectTop(len(s.values), share, prob)
	}
	all()
	// The most probable candidate has probability exp(0) = 1 here, so min-p is the limit itself.
	kept := 0
	for i, p := range s.probs {
		if p >= s.params.MinP {
			s.ids[kept], s.probs[kept] = s.ids[i], p
			kept++
		}
	}
	s.ids, s.probs = s.ids[:kept], s.probs[:kept]
}

// selectTop reduces s.ids, which holds every id, to the first candidates in their order: k of them, or fewer if those add
// up to share. It costs O(n + k log n), for usually few of 163,840 are wanted.
func (s *Sampler) selectTop(k int, share float64, prob func(id int32) float64) {
	for i := len(s.ids)/2 - 1; i >= 0; i-- {
		s.sink(i, len(s.ids))
	}
	// s.ids[:size] is a heap; what left it stands behind it, the latest first.
	size := len(s.ids)
	for sum := 0.0; len(s.ids)-size < k && sum < share; {
		size--
		s.ids[0], s.ids[size] = s.ids[size], s.ids[0]
		s.sink(0, size)
		sum += prob(s.ids[size])
	}
	top := s.ids[size:]
	slices.Reverse(top)
	s.ids = s.ids[:copy(s.ids, top)]
}

// sink restores the order of the heap s.ids[:size], in which only the candidate at i may stand too high.
func (s *Sampler) sink(i, size int) {
	for {
		child := 2*i + 1
		if child >= size {
			return
		}
		if child+1 < size && s.before(s.ids[child+1], s.ids[child]) {
			child++
		}
		if !s.before(s.ids[child], s.ids[i]) {
			return
		}
		s.ids[i], s.ids[child] = s.ids[child], s.ids[i]
		i = child
	}
}

// before orders candidates: the larger logit first, the lower id among equals.
func (s *Sampler) before(a, b int32) bool {
	x, y := s.values[a], s.values[b]
	return x > y || x == y && a < b
}

// draw returns the candidate in whose share of the line from 0 to the sum of all shares the point u of [0, 1) lies.
func (s *Sampler) draw(u float64) int {
	total := 0.0
	for _, p := range s.probs {
		total += p
	}
	point, sum := u*total, 0.0
	last := 0
	for i, p := range s.probs {
		sum += p
		if p > 0 {
			last = i
			if sum > point {
				break
			}
		}
	}
	return int(s.ids[last])
}
