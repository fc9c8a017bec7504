package graph

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/kernel"
)

// array is a tensor of the reference operators.
type array struct {
	Shape []int
	Data  []float32
}

// reference reads one file of operator inputs and outputs that the project does not ship.
func reference(t *testing.T, name string, into any) {
	data, err := os.ReadFile("../../../shared/fixtures/ops/" + name + ".json")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no reference data here")
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

// near holds every value to the tolerance the reference states: 1e-5 + 1e-4 of the value.
func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("%s: %d values, not %d", what, len(got), len(want))
	}
	for i, w := range want {
		if !(math.Abs(float64(got[i]-w)) <= 1e-5+1e-4*math.Abs(float64(w))) {
			t.Fatalf("%s: value %d is %g, not %g", what, i, got[i], w)
		}
	}
}

// poolPass is a pass with nothing but a pool and a workspace of the given shape.
func poolPass(t *testing.T, c *checkpoint.Config, rows int) *pass {
	pool := kernel.NewPool(generic.Backend{}, 2)
	t.Cleanup(pool.Close)
	sizes := newWorkspace(nil, c, pool.Backend(), rows, 64, 2)
	w := newWorkspace(make([]float32, sizes.floats), c, pool.Backend(), rows, 64, 2)
	return &pass{Model: &Model{config: c, pool: pool, backend: pool.Backend(), context: 64}, workspace: w, rows: rows,
		runs: []run{{rows: rows}}, runOf: make([]int, rows)}
}

func smallConfig() *checkpoint.Config {
	c := &checkpoint.Config{Hidden: 128, Layers: 27, Vocab: 16, NormEps: 1e-5, ResidualBlock: 3, DenseIntermediate: 1, SituBeta: 4, SituLinearBeta: 25}
	c.KDA.Heads, c.KDA.HeadDim, c.KDA.ConvKernel, c.KDA.GateLowerBound = 4, 16, 4, -5
	c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim = 1, 1, 1, 1, 1, 1
	c.MoE.Experts, c.MoE.TopK, c.MoE.Latent, c.MoE.Intermediate, c.MoE.ScalingFactor, c.MoE.Renormalize = 8, 2, 1, 1, 1, true
	return c
}

func TestReferenceAttentionResidual(t *testing.T) {
	var f struct {
		Sources int   `json:"n_sources"`
		Prefix  array `json:"prefix_sum"`
		Blocks  array `json:"block_residual"`
		Proj    array `json:"proj_weight"`
		Norm    array `json:"norm_weight"`
		Fold    array `json:"fold_hint"`
		Out     array `json:"out"`
	}
	reference(t, "attnres", &f)
	rows, e := f.Prefix.Shape[0], f.Prefix.Shape[1]
	p := poolPass(t, smallConfig(), rows)
	p.blocks = f.Sources - 1
	for row := range rows {
		for i := range p.blocks {
			copy(p.slot(row, i), f.Blocks.Data[(row*p.blocks+i)*e:][:e])
		}
		copy(p.running(row), f.Prefix.Data[row*e:][:e])
	}
	fold := make([]float32, e)
	for i := range fold {
		fold[i] = f.Norm.Data[i] * f.Proj.Data[i]
	}
	near(t, "fold", fold, f.Fold.Data)
	p.attnres(p.h, fold)
	near(t, "attention residual", p.h[:rows*e], f.Out.Data)
}

func TestReferenceDecayIsPerHead(t *testing.T) {
	var f struct {
		Z     array
		ALog  array `json:"A_log"`
		Bias  array `json:"dt_bias"`
		Alpha array
	}
	reference(t, "kda_decay", &f)
	heads, d := len(f.ALog.Data), len(f.Bias.Data)/len(f.ALog.Data)
	got := make([]float32, len(f.Z.Data))
	for i := 0; i < len(got); i += d {
		h := i / d % heads
		generic.Backend{}.Decay(got[i:][:d], f.Z.Data[i:][:d], f.Bias.Data[h*d:][:d], kernel.Exp(f.ALog.Data[h]), -5)
	}
	near(t, "alpha", got, f.Alpha.Data)
}

func TestReferenceRecurrence(t *testing.T) {
	var f struct {
		H                         int
		D                         int     `json:"d_k"`
		Scale                     float32 `json:"q_scale"`
		Q, K, V, Alpha, Beta, Out array
		State                     array `json:"state_out"`
	}
	reference(t, "kda_recur1", &f)
	n := f.D * f.D
	state, out := make([]float32, f.H*n), make([]float32, f.H*f.D)
	for h := range f.H {
		at := h * f.D
		q := make([]float32, f.D)
		for i := range q {
			q[i] = f.Q.Data[at+i] * f.Scale
		}
		generic.Backend{}.KDA(state[h*n:][:n], f.D, 1, q, f.K.Data[at:], f.V.Data[at:], f.Alpha.Data[at:], f.D, f.Beta.Data[h:], 1, out[at:])
	}
	near(t, "output", out, f.Out.Data)
	near(t, "state", state, f.State.Data)
}

// Real bytes of the released checkpoint: rounding is not involved, so equality is exact.
func TestReferenceMXFP4IsExact(t *testing.T) {
	var raw struct {
		Rows     int
		Width    int             `json:"logical_width"`
		Packed   json.RawMessage `json:"packed"`
		Scales   json.RawMessage `json:"scales"`
		Expected json.RawMessage `json:"expected"`
	}
	reference(t, "mxfp4", &raw)
	var packed, scales struct{ Data []int }
	var expected array
	for _, x := range []struct {
		from json.RawMessage
		to   any
	}{{raw.Packed, &packed}, {raw.Scales, &scales}, {raw.Expected, &expected}} {
		if err := json.Unmarshal(x.from, x.to); err != nil {
			t.Fatal(err)
		}
	}
	bytes := func(x []int) []byte {
		b := make([]byte, len(x))
		for i, v := range x {
			b[i] = byte(v)
		}
		return b
	}
	got := kernel.Widen(nil, kernel.MXFP4, bytes(packed.Data), bytes(scales.Data))
	if len(got) != raw.Rows*raw.Width || len(got) != len(expected.Data) {
		t.Fatalf("%d values", len(got))
	}
	for i, w := range expected.Data {
		if got[i] != w {
			t.Fatalf("weight %d is %g, not %g", i, got[i], w)
		}
	}
	// The dot product sees the same weights: against unit vectors it gives them back.
	one := make([]float32, raw.Width)
	row := kernel.Tile{Format: kernel.MXFP4, Rows: 1, Cols: raw.Width, Stride: raw.Width, Data: bytes(packed.Data[:raw.Width/2]), Scale: bytes(scales.Data[:raw.Width/32])}
	for i := 0; i < raw.Width; i += 97 {
		one[i] = 1
		var dst [1]float32
		generic.Backend{}.Dot(dst[:], 1, row, one, 1)
		if dst[0] != expected.Data[i] {
			t.Fatalf("weight %d in a dot product is %g, not %g", i, dst[0], expected.Data[i])
		}
		one[i] = 0
	}
}

func TestReferenceNorm(t *testing.T) {
	var f struct {
		Eps             float32
		Weight, In, Out array
	}
	reference(t, "rmsnorm", &f)
	n := len(f.Weight.Data)
	got := make([]float32, len(f.In.Data))
	for i := 0; i < len(got); i += n {
		generic.Backend{}.RMSNorm(got[i:][:n], f.In.Data[i:][:n], f.Weight.Data, f.Eps)
	}
	near(t, "rmsnorm", got, f.Out.Data)
}

func TestReferenceRouterBiasSteersButDoesNotWeigh(t *testing.T) {
	var f struct {
		TopK    int   `json:"top_k"`
		Gate    array `json:"gate_weight"`
		Bias    array
		In      array
		Index   array `json:"topk_idx"`
		Weights array `json:"topk_weight"`
		Changed int   `json:"rows_where_bias_changed_selection"`
	}
	reference(t, "router", &f)
	c := smallConfig()
	rows := f.In.Shape[0]
	p := poolPass(t, c, rows)
	for row := range rows {
		for e := range c.MoE.Experts {
			generic.Backend{}.Dot(p.scores[row*c.MoE.Experts+e:], 1, kernel.Float32Tile(f.Gate.Data[e*c.Hidden:], 1, c.Hidden, c.Hidden), f.In.Data[row*c.Hidden:], 1)
		}
	}
	var ids []float32
	p.hooks.Routed = func(_ int, picked []int) {
		for _, id := range picked {
			ids = append(ids, float32(id))
		}
	}
	p.route(&layer{}, &moeLayer{bias: f.Bias.Data})
	near(t, "experts", ids, f.Index.Data)
	near(t, "weights", p.weights[:rows*f.TopK], f.Weights.Data)
	if f.Changed == 0 {
		t.Error("the bias never mattered")
	}
}

func TestReferenceShortConvolution(t *testing.T) {
	var f struct {
		Kernel, Channels int
		Weight, In, Out  array
		InNext           array `json:"in_next"`
		OutNext          array `json:"out_next"`
	}
	reference(t, "shortconv", &f)
	in := append(make([]float32, (f.Kernel-1)*f.Channels), f.In.Data...)
	in = append(in, f.InNext.Data...)
	want := append(f.Out.Data, f.OutNext.Data...)
	got := make([]float32, len(want))
	for at := 0; at < len(want); at += f.Channels {
		generic.Backend{}.ShortConv(got[at:][:f.Channels], f.Weight.Data, f.Kernel, in[at:], f.Channels)
	}
	near(t, "short convolution", got, want)
}

func TestReferenceSiTU(t *testing.T) {
	var f struct {
		B1      float32 `json:"beta"`
		B2      float32 `json:"linear_beta"`
		In, Out array
	}
	reference(t, "situ_glu", &f)
	rows, n := f.Out.Shape[0], f.Out.Shape[1]
	got := make([]float32, rows*n)
	for row := range rows {
		in := f.In.Data[row*2*n:][:2*n]
		generic.Backend{}.SiTU(got[row*n:][:n], in[:n], in[n:], f.B1, f.B2)
	}
	near(t, "situ", got, f.Out.Data)
}

func TestTopKTakesTheLowerIndexAmongEquals(t *testing.T) {
	for _, c := range []struct {
		scores, bias []float32
		k            int
		want         []int
	}{
		{[]float32{1, 1, 1, 1}, []float32{0, 0, 0, 0}, 2, []int{0, 1}},
		{[]float32{.1, .9, .5, .9}, []float32{0, 0, 0, 0}, 3, []int{1, 3, 2}},
		{[]float32{.1, .9, .5, .9}, []float32{2, 0, 0, 0}, 2, []int{0, 1}},
		{[]float32{.5, .25, .5}, []float32{0, .25, 0}, 3, []int{0, 1, 2}},
		{[]float32{3, 2, 1}, []float32{0, 0, 0}, 1, []int{0}},
	} {
		got := topK(c.scores, c.bias, c.k, nil)
		for i := range c.want {
			if len(got) != c.k || got[i] != c.want[i] {
				t.Errorf("topK(%v, %v, %d) = %v, not %v", c.scores, c.bias, c.k, got, c.want)
				break
			}
		}
	}
}
