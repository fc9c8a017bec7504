// Package graph is the model: the layers of Kimi K3 in terms of kernels, the tape and the experts. It reads like
// docs/model.md, in the same order and with the same names.
//
// Everything is a pass over the weights: Pass carries rows (tokens of any number of sequences) once through all layers,
// each tile of the trunk and each expert being multiplied with all rows that need it. Rows meet only in their own
// sequence's State, so the bits of a row do not depend on its company.
package graph

import (
	"fmt"
	"io"
	"slices"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tape"
)

// The epsilons that config.json does not hold.
const (
	loraNormEps = 1e-6 // q_a_layernorm and kv_a_layernorm
	l2NormEps   = 1e-6 // queries and keys of KDA
	weightEps   = 1e-20
)

// matrix indexes the tape; none marks a matrix the model does not have.
type matrix int

const none matrix = -1

// layer is what one layer needs besides its experts: indexes of its matrices on the tape, and its small vectors.
type layer struct {
	index                   int
	attnResFold, mlpResFold []float32 // E: norm weight times projection
	inputNorm, postNorm     []float32 // E
	kda                     *kdaLayer // one of kda and mla
	mla                     *mlaLayer
	dense                   *denseLayer // one of dense and moe
	moe                     *moeLayer
}

// Model is a checkpoint ready to compute with. One pass runs at a time.
type Model struct {
	config  *checkpoint.Config
	source  *checkpoint.Model
	pool    *kernel.Pool
	backend kernel.Backend
	account *memory.Account
	tape    tape.Tape
	experts experts.Store
	trunk   []tape.Matrix

	layers             []*layer
	head               matrix
	embedding          checkpoint.Tensor
	finalNorm, outFold []float32 // E
	vectors            *memory.Block
	kdaLayers          int
	mlaLayers          int
	maxRows            int
	context            int
	states             *stateFile // nil: recurrent states are in memory
	work               *workspace
	workBlock          *memory.Block
}

// Layout lists the trunk's matrices in the order in which a pass consumes them, lm_head last: the tape of the model.
func Layout(m *checkpoint.Model) ([]tape.Matrix, error) {
	var b builder
	b.source = m
	b.build(nil)
	return b.tape, b.err
}

// VectorBytes is the memory that the small vectors of the model take once widened to float32.
func VectorBytes(m *checkpoint.Model) (int, error) {
	var b builder
	b.source = m
	b.build(nil)
	return 4 * b.floats, b.err
}

// builder walks the checkpoint once, collecting the tape and, given memory for them, the vectors.
type builder struct {
	source *checkpoint.Model
	tape   []tape.Matrix
	layer  int       // being built
	floats int       // length of all vectors
	memory []float32 // nil: only count
	err    error
}

func (b *builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (b *builder) tensor(name string) checkpoint.Tensor {
	name = checkpoint.TextName(name)
	t, ok := b.source.Index.Lookup(name)
	if !ok {
		b.fail(fmt.Errorf("graph: find %s: %w", name, checkpoint.ErrFormat))
	}
	return t
}

// formatOf is how the elements of a tensor look to a kernel.
func formatOf(t checkpoint.Tensor) (kernel.Format, error) {
	switch t.DType {
	case checkpoint.F32:
		return kernel.F32, nil
	case checkpoint.BF16:
		return kernel.BF16, nil
	case checkpoint.F16:
		return kernel.F16, nil
	}
	return 0, fmt.Errorf("graph: %s is %v, not F32, BF16 or F16: %w", t.Name, t.DType, checkpoint.ErrFormat)
}

// matrix puts the next matrix on the tape.
func (b *builder) matrix(name string, rows, cols, unit int) matrix {
	t := b.tensor(name)
	f, err := formatOf(t)
	if err != nil && b.err == nil {
		b.fail(err)
	}
	b.tape = append(b.tape, tape.Matrix{Tensor: t, Rows: rows, Cols: cols, Format: f, Unit: unit, Layer: b.layer})
	return matrix(len(b.tape) - 1)
}

// read widens the first n elements of a small tensor to float32; it returns nil when only counting.
func (b *builder) read(name string, n int) []float32 {
	t := b.tensor(name)
	if b.memory == nil || b.err != nil {
		return nil
	}
	f, err := formatOf(t)
	if err != nil {
		b.fail(err)
		return nil
	}
	raw := make([]byte, f.RowBytes(n))
	if err := b.source.Read(raw, t, 0); err != nil {
		b.fail(err)
		return nil
	}
	return kernel.Widen(make([]float32, 0, n), f, raw, nil)
}

// place moves a vector of n elements into the model's block.
func (b *builder) place(x []float32, n int) []float32 {
	b.floats += n
	if x == nil {
		return nil
	}
	out := b.memory[:n:n]
	b.memory = b.memory[n:]
	copy(out, x)
	return out
}

// vector is a small tensor's first n elements as float32. What lies behind them is padding.
func (b *builder) vector(name string, n int) []float32 { return b.place(b.read(name, n), n) }

// finite is a vector that must not have NaN or infinity, because computing with it would not show them.
func (b *builder) finite(name string, n int) []float32 {
	x := b.vector(name, n)
	if i := slices.IndexFunc(x, func(v float32) bool { return v-v != 0 }); i >= 0 {
		err := fmt.Errorf("%w: element %d is %v: %w", checkpoint.ErrFormat, i, x[i], ErrNumbers)
		b.fail(fmt.Errorf("graph: read %s: %w", checkpoint.TextName(name), err))
	}
	return x
}

// fold is the product of a residual norm's weight and its projection: one vector for both.
func (b *builder) fold(norm, proj string, n int) []float32 {
	w, p := b.read(norm, n), b.read(proj, n)
	for i := range p {
		w[i] = float32(w[i] * p[i])
	}
	return b.place(w, n)
}

// build collects the model's layers in consumption order.
func (b *builder) build(m *Model) {
	c := b.source.Config
	e := c.Hidden
	for i := range c.Layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		l := &layer{index: i}
		b.layer = i
		l.attnResFold = b.fold(p+"self_attention_res_norm.weight", p+"self_attention_res_proj.weight", e)
		l.mlpResFold = b.fold(p+"mlp_res_norm.weight", p+"mlp_res_proj.weight", e)
		l.inputNorm = b.vector(p+"input_layernorm.weight", e)
		l.postNorm = b.vector(p+"post_attention_layernorm.weight", e)
		if c.FullAttention[i] {
			l.mla = b.mla(p + "self_attn.")
		} else {
			l.kda = b.kda(p + "self_attn.")
		}
		if i < c.DenseLayers {
			l.dense = b.dense(p + "mlp.")
		} else {
			l.moe = b.moe(p + "block_sparse_moe.")
		}
		if b.err != nil {
			return
		}
		if m != nil {
			if l.mla != nil {
				l.mla.index = m.mlaLayers
				m.mlaLayers++
			} else {
				l.kda.index = m.kdaLayers
				m.kdaLayers++
			}
			m.layers = append(m.layers, l)
		}
	}
	b.layer = c.Layers
	norm := b.vector("model.norm.weight", e)
	fold := b.fold("model.output_attn_res_norm.weight", "model.output_attn_res_proj.weight", e)
	embedding := b.tensor("model.embed_tokens.weight")
	head := b.matrix("lm_head.weight", c.Vocab, e, 1)
	if m != nil {
		m.finalNorm, m.outFold, m.embedding, m.head = norm, fold, embedding, head
	}
}

// Options are the resources a Model computes with. The model uses them but does not close them.
type Options struct {
	Source  *checkpoint.Model
	Pool    *kernel.Pool
	Account *memory.Account
	Tape    tape.Tape // over Layout(Source)
	Experts experts.Store
	MaxRows int // the most rows a pass may have
	Context int // the most tokens a sequence may have
	// States, if not nil, has the recurrent states of all sequences, and not memory. The model does not close it.
	States StateFile
}

// GuessBytes is what a sequence keeps of each tentative row of a pass.
func GuessBytes(c *checkpoint.Config) int {
	kda, _ := layerKinds(c)
	return 4 * kda * (4*c.KDAWidth() + c.KDA.Heads)
}

// New reads the small vectors and allocates the workspace of a pass. Close frees both.
func New(o Options) (*Model, error) {
	m := &Model{config: o.Source.Config, source: o.Source, pool: o.Pool, backend: o.Pool.Backend(), account: o.Account,
		tape: o.Tape, experts: o.Experts, maxRows: o.MaxRows, context: o.Context}
	if kda, _ := layerKinds(m.config); o.States != nil && kda > 0 {
		m.states = &stateFile{file: o.States, layer: 4 * recurrentFloats(m.config), layers: kda}
		for range stateBuffers {
			b, err := m.account.Allocate(memory.State, stateGroup*m.states.layer)
			if err != nil {
				m.Close()
				return nil, err
			}
			m.states.buffers = append(m.states.buffers, b)
		}
	}
	n, err := VectorBytes(o.Source)
	if err != nil {
		return nil, err
	}
	if m.vectors, err = o.Account.Allocate("vectors", n); err != nil {
		m.Close()
		return nil, err
	}
	b := builder{source: o.Source, memory: m.vectors.Float32s()}
	b.build(m)
	if b.err != nil {
		m.Close()
		return nil, b.err
	}
	m.trunk = b.tape
	sizes := newWorkspace(nil, m.config, m.backend, o.MaxRows, o.Context, o.Pool.Threads())
	if m.workBlock, err = o.Account.Allocate("workspace", 4*sizes.floats); err != nil {
		m.Close()
		return nil, err
	}
	m.work = newWorkspace(m.workBlock.Float32s(), m.config, m.backend, o.MaxRows, o.Context, o.Pool.Threads())
	return m, nil
}

// Close frees the model's own memory.
func (m *Model) Close() {
	m.vectors.Free()
	m.workBlock.Free()
	if m.states != nil {
		for _, b := range m.states.buffers {
			b.Free()
		}
	}
}

// WorkspaceBytes is the memory of a pass of up to rows rows over sequences of up to context tokens.
func WorkspaceBytes(c *checkpoint.Config, b kernel.Backend, rows, context, threads int) int {
	return 4 * newWorkspace(nil, c, b, rows, context, threads).floats
}

// MaxRows is the most rows a pass may have.
func (m *Model) MaxRows() int { return m.maxRows }

// Context is the most tokens a sequence may have.
func (m *Model) Context() int { return m.context }

// WriteVectors writes the model's small vectors, little-endian float32, to w: something that tells one model of a geometry
// from another, and is in memory already.
func (m *Model) WriteVectors(w io.Writer) error {
	_, err := w.Write(m.vectors.Bytes())
	return err
}
