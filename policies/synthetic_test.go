package policies_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/experts/replay"
)

// mixture is a made-up model and what is asked of it. Each row of a pass chooses topK experts a layer.
type mixture struct {
	name                  string
	layers, experts, topK int
	prompt, passes        int     // rows of the first pass, and passes of `rows` rows after it
	rows                  int     // sequences decoded together
	zipf                  float64 // exponent of an expert's popularity; 0 is uniform
	sticky                float64 // chance that a choice is one of the same row's last choices in the layer
	shift                 int     // passes after which the popular experts are others; 0: never
	loop                  int     // passes after which the choices repeat exactly; 0: never
}

var mixtures = []mixture{
	{name: "popular experts", layers: 20, experts: 64, topK: 4, passes: 200, rows: 1, zipf: 1},
	{name: "very popular experts", layers: 12, experts: 128, topK: 8, passes: 200, rows: 1, zipf: 1.5},
	{name: "uniform", layers: 20, experts: 64, topK: 4, passes: 200, rows: 1},
	{name: "sticky choices", layers: 30, experts: 96, topK: 6, passes: 150, rows: 1, sticky: 0.6},
	{name: "sticky and popular", layers: 30, experts: 96, topK: 6, passes: 150, rows: 1, sticky: 0.4, zipf: 0.8},
	{name: "popularity that shifts", layers: 20, experts: 64, topK: 4, passes: 400, rows: 1, zipf: 1.2, shift: 40},
	{name: "popularity that shifts fast", layers: 20, experts: 64, topK: 4, passes: 300, rows: 1, zipf: 1.2, shift: 8},
	{name: "a long prompt, then a decode", layers: 24, experts: 64, topK: 4, prompt: 60, passes: 100, rows: 1, zipf: 0.9, sticky: 0.3},
	{name: "prompts alone", layers: 24, experts: 64, topK: 4, passes: 12, rows: 12, zipf: 0.9},
	{name: "a batch", layers: 16, experts: 96, topK: 4, passes: 100, rows: 8, zipf: 0.8, sticky: 0.3},
	{name: "a loop", layers: 16, experts: 64, topK: 4, passes: 240, rows: 1, loop: 5},
	{name: "a long loop", layers: 16, experts: 64, topK: 4, passes: 200, rows: 1, loop: 30},
	{name: "few layers", layers: 2, experts: 256, topK: 8, passes: 400, rows: 1, zipf: 1},
	{name: "one layer", layers: 1, experts: 256, topK: 8, passes: 600, rows: 1, zipf: 1},
	{name: "many layers, few experts", layers: 61, experts: 16, topK: 2, passes: 200, rows: 1, zipf: 0.7},
	{name: "top-1", layers: 24, experts: 64, topK: 1, passes: 500, rows: 1, zipf: 1, sticky: 0.5},
}

// trace makes the requests of a mixture, the same for a seed on every platform that computes math.Pow alike.
func (m mixture) trace(seed uint64) *replay.Trace {
	rng := rand.New(rand.NewPCG(seed, 7))
	weights := make([]float64, m.experts)
	total := 0.0
	for i := range weights {
		total += math.Pow(float64(i+1), -m.zipf)
		weights[i] = total
	}
	order := make([][]int, m.layers) // popularity rank to expert
	last := make([][][]int, m.layers)
	for l := range order {
		order[l] = rng.Perm(m.experts)
		last[l] = make([][]int, max(m.rows, m.prompt))
	}
	var keys []experts.Key
	var starts []int
	for pass := range m.passes + min(m.prompt, 1) {
		starts = append(starts, len(keys))
		if m.loop > 0 && pass >= m.loop {
			keys = append(keys, keys[starts[pass-m.loop]:starts[pass-m.loop+1]]...)
			continue
		}
		if m.shift > 0 && pass%m.shift == m.shift-1 {
			for l := range order {
				order[l] = rng.Perm(m.experts)
			}
		}
		rows := m.rows
		if pass == 0 && m.prompt > 0 {
			rows = m.prompt
		}
		for l := range m.layers {
			for row := range rows {
				var chosen []int
				for len(chosen) < m.topK {
					e := -1
					if before := last[l][row]; len(before) > 0 && rng.Float64() < m.sticky {
						e = before[rng.IntN(len(before))]
					} else {
						x := rng.Float64() * total
						rank := 0
						for weights[rank] < x {
							rank++
						}
						e = order[l][rank]
					}
					new := true
					for _, c := range chosen {
						new = new && c != e
					}
					if new {
						chosen = append(chosen, e)
						keys = append(keys, experts.Key{Layer: int32(l), Expert: int32(e)})
					}
				}
				last[l][row] = chosen
			}
		}
	}
	return replay.New(keys)
}

// Whatever the model and the text, ours is at most a point below the better of two good general caches. On most it is
// far above, which the log shows.
func TestAdaptiveIsNeverAPointBelowLRUAndS3FIFO(t *testing.T) {
	for _, m := range mixtures {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			trace := m.trace(1)
			line := ""
			for _, share := range []float64{0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1} {
				capacity := max(1, int(share*float64(m.layers*m.experts)))
				rate := map[string]float64{}
				for _, policy := range []string{"lru", "s3fifo", "adaptive"} {
					r, err := replay.Run(trace, policy, capacity, 1)
					if err != nil {
						t.Fatal(err)
					}
					rate[policy] = 100 * r.HitRate()
				}
				best := max(rate["lru"], rate["s3fifo"])
				line += fmt.Sprintf("  %d: %.1f (%.1f, %.1f)", capacity, rate["adaptive"], rate["lru"], rate["s3fifo"])
				if rate["adaptive"] < best-1 {
					t.Errorf("%d slots: %.2f%%, but lru %.2f%% and s3fifo %.2f%%", capacity, rate["adaptive"], rate["lru"], rate["s3fifo"])
				}
			}
			t.Log("adaptive (lru, s3fifo) by slots:" + line)
		})
	}
}

// On the recorded traces of a real run, ours is the best of all that do not know the future.
func TestAdaptiveIsTheBestOnRecordedTraces(t *testing.T) {
	for name, least := range map[string][5]float64{
		"expert_trace.bin":      {38.8, 42.0, 48.5, 61.4, 84.4},
		"incremental_trace.bin": {16.8, 21.9, 28.8, 36.9, 42.4},
	} {
		trace := fixture(t, name)
		for i, gb := range gigabytes {
			rates := map[string]float64{}
			for _, policy := range experts.Policies() {
				if experts.CheckPolicy(policy) != nil {
					continue
				}
				r, err := replay.Run(trace, policy, gb*1_000_000_000/expertBytes, 1)
				if err != nil {
					t.Fatal(err)
				}
				rates[policy] = 100 * r.HitRate()
			}
			for policy, rate := range rates {
				if policy != "adaptive" && rate >= rates["adaptive"] {
					t.Errorf("%s at %d GB: %s %.3f%%, adaptive %.3f%%", name, gb, policy, rate, rates["adaptive"])
				}
			}
			if rates["adaptive"] < least[i] {
				t.Errorf("%s at %d GB: %.2f%%, not %.1f%%", name, gb, rates["adaptive"], least[i])
			}
		}
	}
}

// Every policy keeps the rules of its interface, also when most residents may not leave, and under Remove.
func TestPoliciesKeepTheRules(t *testing.T) {
	for _, name := range experts.Policies() {
		if experts.CheckPolicy(name) != nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(20) {
				rng := random.New(t, seed, 1)
				layers, n, capacity := 1+rng.IntN(6), 2+rng.IntN(20), 1+rng.IntN(30)
				p, err := experts.NewPolicy(name, experts.Config{Layers: layers, Experts: n, Capacity: capacity, Seed: seed})
				if err != nil {
					t.Fatal(err)
				}
				resident := map[experts.Key]bool{}
				var held map[experts.Key]bool
				for range 400 {
					for l := range layers {
						held = map[experts.Key]bool{}
						for range 1 + rng.IntN(6) {
							k := experts.Key{Layer: int32(l), Expert: int32(rng.IntN(n))}
							if resident[k] {
								p.Hit(k)
								held[k] = true
								continue
							}
							victim, decision := p.Miss(k, func(k experts.Key) bool {
								if !resident[k] {
									t.Fatalf("asked whether %v may leave, which is not there", k)
								}
								return !held[k]
							})
							switch decision {
							case experts.Fill:
								if len(resident) == capacity {
									t.Fatal("filled beyond the capacity")
								}
								resident[k] = true
							case experts.Swap:
								if !resident[victim] || held[victim] {
									t.Fatalf("%v leaves: resident %v, held %v", victim, resident[victim], held[victim])
								}
								delete(resident, victim)
								resident[k] = true
							case experts.Bypass:
								continue
							}
							held[k] = true
							if rng.IntN(50) == 0 {
								for gone := range resident {
									p.Remove(gone)
									delete(resident, gone)
									break
								}
							}
						}
					}
				}
			}
		})
	}
}

// BenchmarkRequest is the cost of a request with 80,000 residents of the released model's 82,432 experts.
func BenchmarkRequest(b *testing.B) {
	const layers, n, topK, capacity = 92, 896, 16, 80_000
	rng := rand.New(rand.NewPCG(1, 1))
	var keys []experts.Key
	for range 80 {
		for l := range layers {
			for range topK {
				keys = append(keys, experts.Key{Layer: int32(l), Expert: int32(rng.IntN(n))})
			}
		}
	}
	for _, name := range experts.Policies() {
		if experts.CheckPolicy(name) != nil {
			continue
		}
		b.Run(name, func(b *testing.B) {
			p, err := experts.NewPolicy(name, experts.Config{Layers: layers, Experts: n, Capacity: capacity, Seed: 1})
			if err != nil {
				b.Fatal(err)
			}
			resident := make([]bool, layers*n)
			at := func(k experts.Key) int { return int(k.Layer)*n + int(k.Expert) }
			ask := func(k experts.Key) {
				if resident[at(k)] {
					p.Hit(k)
				} else if v, d := p.Miss(k, nil); d != experts.Bypass {
					if d == experts.Swap {
						resident[at(v)] = false
					}
					resident[at(k)] = true
				}
			}
			for l := range layers { // fill it
				for e := range n {
					ask(experts.Key{Layer: int32(l), Expert: int32(e)})
				}
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				ask(keys[i%len(keys)])
				i++
			}
		})
	}
}
