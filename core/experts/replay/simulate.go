package replay

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/k3infer/k3/core/experts"
)

// Result is what one policy made of a trace at one capacity.
type Result struct {
	Policy     string
	Capacity   int // slots
	Requests   int
	Hits       int // requests for an expert that was resident
	Compulsory int // requests for an expert never asked for before: no cache can hold those
}

// Misses returns the requests that cost a read from the disk.
func (r Result) Misses() int { return r.Requests - r.Hits }

// HitRate returns hits per request, 0 to 1.
func (r Result) HitRate() float64 {
	if r.Requests == 0 {
		return 0
	}
	return float64(r.Hits) / float64(r.Requests)
}

// Run replays a trace, request by request, through the named policy with capacity slots that are empty at the start. The
// errors are those of experts.NewPolicy, or name the decision by which the policy broke the rules of its interface.
func Run(t *Trace, policy string, capacity int, seed uint64) (Result, error) {
	r := Result{Policy: policy, Capacity: capacity, Requests: len(t.Keys)}
	p, err := experts.NewPolicy(policy, experts.Config{
		Layers: t.Layers, Experts: t.Experts, Capacity: capacity, Seed: seed, Future: t.Keys,
	})
	if err != nil {
		return r, err
	}
	const (
		resident = 1 << iota
		seen
	)
	state := make([]byte, t.Layers*t.Experts)
	at := func(key experts.Key) *byte { return &state[int(key.Layer)*t.Experts+int(key.Expert)] }
	free := capacity
	for i, key := range t.Keys {
		s := at(key)
		if *s&seen == 0 {
			r.Compulsory++
			*s |= seen
		}
		if *s&resident != 0 {
			r.Hits++
			p.Hit(key)
			continue
		}
		victim, decision := p.Miss(key, nil)
		switch decision {
		case experts.Bypass:
			continue
		case experts.Swap:
			v := at(victim)
			if *v&resident == 0 {
				return r, fmt.Errorf("replay: run policy %s: request %d: evicts %v, which is not resident", policy, i, victim)
			}
			*v &^= resident
		default:
			if free == 0 {
				return r, fmt.Errorf("replay: run policy %s: request %d: fills a slot when none is free", policy, i)
			}
			free--
		}
		*s |= resident
	}
	return r, nil
}

// Sweep runs every policy at every capacity, on all processors, and returns the results of policies[i] at capacities[j] in
// [i][j]. It stops early, with the context's error, when ctx is done.
func Sweep(ctx context.Context, t *Trace, policies []string, capacities []int, seed uint64) ([][]Result, error) {
	results := make([][]Result, len(policies))
	for i := range results {
		results[i] = make([]Result, len(capacities))
	}
	cells := len(policies) * len(capacities)
	errs := make([]error, cells)
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), cells) {
		group.Go(func() {
			for {
				cell := int(next.Add(1)) - 1
				if cell >= cells || ctx.Err() != nil {
					return
				}
				i, j := cell/len(capacities), cell%len(capacities)
				results[i][j], errs[cell] = Run(t, policies[i], capacities[j], seed)
			}
		})
	}
	group.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("replay: sweep: %w", err)
	}
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}
