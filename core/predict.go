package core

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// Rates is how fast a machine reads and computes, in bytes of weights a second.
type Rates struct {
	Disk    float64 // weights from the disk
	Trunk   float64 // BF16 weights multiplied with one vector
	Experts float64 // MXFP4 weights multiplied with one vector
}

// Prediction is what a token of a decode is expected to take.
type Prediction struct {
	TrunkBytes, ExpertBytes int64   // weights it is computed with
	TrunkRead, ExpertRead   int64   // those of them that come from the disk
	HitRate                 float64 // share of experts expected in memory
	DiskSeconds             float64
	ComputeSeconds          float64
	Seconds                 float64 // the longer of the two: reading and computing go on at the same time
}

// Predict estimates a decode under a plan. The trunk's part is arithmetic. The share of experts in memory is a rule of
// thumb, the 0.35th power of the share of experts there is memory for: it is within 2 points of what the adaptive policy
// reaches on a recorded decode of the released model at 8, 16, 32, 64 and 128 GB.
func Predict(p memory.Plan, w Weights, r Rates) Prediction {
	x := Prediction{TrunkBytes: w.Trunk, ExpertBytes: int64(w.ExpertLayers) * int64(w.TopK) * w.Expert}
	x.TrunkRead = max(0, p.Trunk-p.Pinned)
	if all := w.ExpertLayers * w.Experts; all > 0 {
		x.HitRate = math.Pow(min(1, float64(p.Slots)/float64(all)), 0.35)
	}
	x.ExpertRead = int64(float64(x.ExpertBytes) * (1 - x.HitRate))
	x.DiskSeconds = float64(x.TrunkRead+x.ExpertRead) / r.Disk
	x.ComputeSeconds = float64(x.TrunkBytes)/r.Trunk + float64(x.ExpertBytes)/r.Experts
	x.Seconds = max(x.DiskSeconds, x.ComputeSeconds)
	return x
}

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
		n := specBytes(s)
		switch {
		case s.Expert < 0 && s.Name() != checkpoint.Embedding:
			w.Trunk += n
		case s.Expert == 0 && s.Layer == c.DenseLayers:
			w.Expert += n
		}
	}
	return w
}

func specBytes(s checkpoint.Spec) int64 {
	n := int64(s.DType.Bits()) / 8
	for _, d := range s.Shape {
		n *= int64(d)
	}
	return n
}

// computeRounds is how many times MeasureCompute measures.
const computeRounds = 5

// MeasureCompute measures the rates of computing with a backend several times, in a fraction of a second; Disk stays 0. It takes
// up to 256 MiB of memory, and no more than a quarter of what the machine has free.
func MeasureCompute(ctx context.Context, backend string, threads int) ([]Rates, error) {
	b, err := kernel.Select(backend)
	if err != nil {
		return nil, fmt.Errorf("core: measure: %w", err)
	}
	if threads == 0 {
		threads = kernel.DefaultThreads()
	}
	pool := kernel.NewPool(b, threads)
	defer pool.Close()
	const cols = 7168
	var account memory.Account
	block, err := account.Allocate("measure", int(min(256<<20, max(16<<20, memory.Probe().Free().Free/4))))
	if err != nil {
		return nil, fmt.Errorf("core: measure: %w", err)
	}
	defer block.Free()
	data := block.Bytes()
	for i := range data {
		data[i] = byte(i*7) &^ 0x40 // finite as BF16
	}
	x := make([]float32, cols)
	for i := range x {
		x[i] = float32(i%13) - 6
	}
	product := func(f kernel.Format) (rate func() float64) {
		t := kernel.Tile{Format: f, Cols: cols, Stride: cols}
		if f == kernel.MXFP4 {
			t.Scale = make([]byte, len(data)/f.RowBytes(cols)*cols/kernel.GroupSize)
			for i := range t.Scale {
				t.Scale[i] = 127
			}
		}
		t.Rows = len(data) / f.RowBytes(cols)
		t.Data = data[:t.Rows*f.RowBytes(cols)]
		t.Scale = t.Scale[:min(len(t.Scale), t.Rows*cols/kernel.GroupSize)]
		packed := pool.Pack(make([]float32, pool.PackedLen(f, cols, 1)), f, x, cols, cols, 1)
		dst := make([]float32, t.Rows)
		return func() float64 {
			const step = 256
			start, done := time.Now(), 0
			for from := 0; from+step <= t.Rows && time.Since(start) < 80*time.Millisecond && ctx.Err() == nil; from += step {
				pool.Product(dst[from:], t.Rows, t.Slice(from, from+step), packed)
				done += step
			}
			return float64(done*(f.RowBytes(cols)+len(t.Scale)/t.Rows)) / time.Since(start).Seconds()
		}
	}
	trunk, experts := product(kernel.BF16), product(kernel.MXFP4)
	trunk()
	experts() // the first round finds nothing in place
	all := make([]Rates, computeRounds)
	for i := range all {
		all[i] = Rates{Trunk: trunk(), Experts: experts()}
	}
	return all, ctx.Err()
}
