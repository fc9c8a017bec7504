package graph

import (
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/kernel"
)

// workspace is every buffer of a pass, carved from one block. R is the most rows, E the hidden width; other letters are
// those of docs/model.md.
type workspace struct {
	floats int // length of the block

	// slots holds, for each row, the residual snapshots and behind them the running residual: [R][S][E]. A boundary layer
	// turns the running residual into a snapshot by counting one more.
	slots    []float32
	slotRows int       // S
	h        []float32 // [R][E] what a layer's parts work on
	x        []float32 // [R][E] h normalised
	out      []float32 // [R][E] what a part gives
	packed   []float32 // the vectors of the current product
	fold     []float32 // an attention residual's weight, packed

	// Attention and MLP follow each other and share memory.
	q, k, v, z, g, o []float32 // KDA: [R][P] each
	fa               []float32 // [R][D]
	beta             []float32 // [R][Hk]
	qa               []float32 // MLA: [R][ql]
	mq               []float32 // [R][Hm*(nope+rope)]
	kv               []float32 // [R][kvl+rope]
	mg, mo           []float32 // [R][Hm*v]
	absorbed         []float32 // [mlaRows][Hm][kvl+rope]
	mixed            []float32 // [mlaRows][Hm][kvl]

	gate, up  []float32 // dense and shared experts: [R][max(I, S*I')]
	scores    []float32 // [R][N]
	zl        []float32 // [R][L]
	weights   []float32 // [R][k]
	results   []float32 // [R][k][L]
	gathered  []float32 // [R][L] inputs, then outputs, of one expert
	eg, eu    []float32 // [R][I']
	y         []float32 // [R][L]
	shared    []float32 // [R][E]
	perThread []scratch
}

// scratch is what one thread needs for itself.
type scratch struct {
	inputs  [3][]float32 // [K-1+R][D] convolution inputs of a head: q, k, v
	state   []float32    // [D][D] a head's state while guesses pass through
	scores  []float32    // [heads of a thread][context]
	packed  []float32    // [heads of a thread, at least 8][PackedLen]
	sources []float32    // attention-residual scores, one a slot
}

// mlaRows is how many rows go through the heads of a kv_b tile together.
const mlaRows = 16

// carver cuts a block into buffers, or only counts when there is none.
type carver struct {
	memory   []float32
	at, most int
}

func (c *carver) take(n int) []float32 {
	// Whole cache lines, so that threads writing neighbouring buffers do not share one.
	from := c.at
	c.at += (n + 15) &^ 15
	c.most = max(c.most, c.at)
	if c.memory == nil {
		return nil
	}
	return c.memory[from:][:n:n]
}

// newWorkspace carves the buffers from memory; with nil it only counts floats.
func newWorkspace(memory []float32, c *checkpoint.Config, b kernel.Backend, rows, context, threads int) *workspace {
	w := &workspace{}
	cut := carver{memory: memory}
	take := func(n int) []float32 { return cut.take(rows * n) }
	packed := func(n int) int {
		most := 0
		for _, f := range []kernel.Format{kernel.F32, kernel.BF16, kernel.F16, kernel.MXFP4} {
			most = max(most, b.PackedLen(f, n))
		}
		return most
	}
	e, p, d := c.Hidden, c.KDAWidth(), c.KDA.HeadDim
	hm, kvl, rope := c.MLA.Heads, c.MLA.LatentRank, c.MLA.RopeDim
	shared := c.MoE.Shared * c.MoE.Intermediate
	inner := max(c.DenseIntermediate, shared)
	w.slotRows = (c.Layers+c.ResidualBlock-1)/c.ResidualBlock + 1

	w.slots, w.h, w.x, w.out = take(w.slotRows*e), take(e), take(e), take(e)
	w.packed = take(packed(max(e, p, d, c.MLA.QueryRank, hm*c.MLA.ValueDim, inner, c.MoE.Latent, c.MoE.Intermediate)))
	w.fold = cut.take(b.PackedLen(kernel.F32, e))
	head := b.PackedLen(kernel.F32, e)
	together := headsPerThread(hm, threads)
	w.perThread = make([]scratch, threads)
	for i := range w.perThread {
		s := &w.perThread[i]
		for j := range s.inputs {
			s.inputs[j] = cut.take((c.KDA.ConvKernel - 1 + rows) * d)
		}
		s.state = cut.take(d * d)
		s.scores = cut.take(together * scoreStride(context))
		s.packed = cut.take(max(head, max(together, kernel.MaxVectors)*packed(kvl+rope)))
		s.sources = cut.take(w.slotRows)
	}

	mark := cut.at
	w.q, w.k, w.v, w.z, w.g, w.o = take(p), take(p), take(p), take(p), take(p), take(p)
	w.fa, w.beta = take(d), take(c.KDA.Heads)
	cut.at = mark
	w.qa, w.mq, w.kv = take(c.MLA.QueryRank), take(hm*(c.MLA.NopeDim+rope)), take(kvl+rope)
	w.mg, w.mo = take(hm*c.MLA.ValueDim), take(hm*c.MLA.ValueDim)
	block := min(rows, mlaRows)
	w.absorbed, w.mixed = cut.take(block*hm*(kvl+rope)), cut.take(block*hm*kvl)
	cut.at = mark
	w.gate, w.up = take(inner), take(inner)
	w.scores, w.zl, w.weights = take(c.MoE.Experts), take(c.MoE.Latent), take(c.MoE.TopK)
	w.results, w.gathered = take(c.MoE.TopK*c.MoE.Latent), take(c.MoE.Latent)
	w.eg, w.eu = take(c.MoE.Intermediate), take(c.MoE.Intermediate)
	w.y, w.shared = take(c.MoE.Latent), take(e)

	w.floats = cut.most
	return w
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
