// Package estimate says what a machine will do with a model before it is run: how large the model is, how fast the machine reads
// and computes, and how long a token will then take.
package estimate

import (
	"math"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/memory"
)

// Weights is how large a model is.
type Weights struct {
	Trunk        int64 // bytes of everything that every token is computed with, lm_head included
	Expert       int64 // bytes of one routed expert
	ExpertLayers int
	Experts      int // of a layer
	TopK         int
}

// WeightsOf counts the weights of a geometry stored as released: BF16, and MXFP4 experts if quantized.
func WeightsOf(c *checkpoint.Config, quantized bool) Weights {
	w := Weights{ExpertLayers: c.Layers - c.DenseLayers, Experts: c.MoE.Experts, TopK: c.MoE.TopK}
	for s := range checkpoint.Required(c, quantized) {
		n := s.Bytes()
		switch {
		case s.Expert < 0 && s.Name() != checkpoint.Embedding:
			w.Trunk += n
		case s.Expert == 0 && s.Layer == c.DenseLayers:
			w.Expert += n
		}
	}
	return w
}

// Rates is how fast a machine was measured to be, several times each, in bytes of weights a second. What could not be measured is
// nil, and Notes say why.
type Rates struct {
	Disk    *Series `json:"disk,omitempty"`    // weights from the disk
	Trunk   *Series `json:"trunk,omitempty"`   // BF16 weights multiplied with one vector
	Experts *Series `json:"experts,omitempty"` // MXFP4 weights multiplied with one vector
	// TrunkShared and ExpertsShared are the same with SharedRows vectors: bytes of weights a second, each multiplied with all of them.
	TrunkShared   *Series  `json:"trunk_shared,omitempty"`
	ExpertsShared *Series  `json:"experts_shared,omitempty"`
	Direct        bool     `json:"direct"`          // the disk was read around the page cache
	Notes         []string `json:"notes,omitempty"` // what else must be known about the figures
}

// Complete reports whether all that a prediction rests on was measured.
func (r Rates) Complete() bool { return r.Disk != nil && r.Trunk != nil }

// Prediction is what a token of a decode is expected to take, in bytes and seconds. Low and High are with the fastest and the
// slowest of all rates that were measured, the others with their medians.
type Prediction struct {
	TrunkBytes     int64   `json:"trunk_bytes"` // weights it is computed with
	ExpertBytes    int64   `json:"expert_bytes"`
	TrunkRead      int64   `json:"trunk_read_bytes"` // those of them that come from the disk
	ExpertRead     int64   `json:"expert_read_bytes"`
	HitRate        float64 `json:"expert_hit_rate"`           // share of experts expected in memory
	DiskSeconds    float64 `json:"disk_seconds,omitempty"`    // where the disk was measured
	ComputeSeconds float64 `json:"compute_seconds,omitempty"` // where the processor was
	Seconds        float64 `json:"seconds,omitempty"`         // the longer of the two: reading and computing go on at the same time
	Low            float64 `json:"seconds_low,omitempty"`
	High           float64 `json:"seconds_high,omitempty"`
}

// Predict estimates a decode under a plan. The trunk's part is arithmetic. The share of experts in memory is a rule of
// thumb, the 0.35th power of the share of experts there is memory for: it is within 2 points of what the adaptive policy
// reaches on a recorded decode of the released model at 8, 16, 32, 64 and 128 GB.
func (r Rates) Predict(p memory.Plan, w Weights) Prediction {
	x := Prediction{TrunkBytes: w.Trunk, ExpertBytes: int64(w.ExpertLayers) * int64(w.TopK) * w.Expert}
	x.TrunkRead = max(0, p.Trunk-p.Pinned)
	if all := w.ExpertLayers * w.Experts; all > 0 {
		x.HitRate = math.Pow(min(1, float64(p.Slots)/float64(all)), 0.35)
	}
	x.ExpertRead = int64(float64(x.ExpertBytes) * (1 - x.HitRate))
	seconds := func(pick func(*Series) float64) (disk, compute, longer float64) {
		take := func(bytes int64, s *Series) float64 {
			if s == nil {
				return 0 // no time that is known
			}
			return float64(bytes) / pick(s)
		}
		disk = take(x.TrunkRead+x.ExpertRead, r.Disk)
		compute = take(x.TrunkBytes, r.Trunk) + take(x.ExpertBytes, r.Experts)
		return disk, compute, max(disk, compute)
	}
	x.DiskSeconds, x.ComputeSeconds, x.Seconds = seconds(func(s *Series) float64 { return s.Median })
	_, _, x.Low = seconds(func(s *Series) float64 { return s.Max })
	_, _, x.High = seconds(func(s *Series) float64 { return s.Min })
	return x
}

// LeastMemory is the least memory, to a mebibyte, that p's model works with.
func LeastMemory(p memory.Plan) int64 {
	low, high := int64(0), p.Total-p.Unused // too little, enough
	for high-low > 1<<20 {
		middle := low + (high-low)/2
		if _, err := p.Within(middle); err == nil {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}
