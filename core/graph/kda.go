package graph

import (
	"math"

	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// kdaLayer is linear attention with a state of constant size (docs/model.md, "KDA").
type kdaLayer struct {
	index               int // among the KDA layers
	q, k, v, fa, b, g   matrix
	fb, o               matrix
	qConv, kConv, vConv []float32 // [P][K]
	decay               []float32 // [Hk] exp(A_log), one a head
	bias                []float32 // [P] dt_bias
	norm                []float32 // [D] o_norm
}

func (b *builder) kda(p string) *kdaLayer {
	c := b.source.Config
	e, width, d, h, taps := c.Hidden, c.KDAWidth(), c.KDA.HeadDim, c.KDA.Heads, c.KDA.ConvKernel
	l := &kdaLayer{
		q: b.matrix(p+"q_proj.weight", width, e, 1), k: b.matrix(p+"k_proj.weight", width, e, 1), v: b.matrix(p+"v_proj.weight", width, e, 1),
		fa: b.matrix(p+"f_a_proj.weight", d, e, 1), b: b.matrix(p+"b_proj.weight", h, e, 1), g: b.matrix(p+"g_proj.weight", width, e, 1),
		fb: b.matrix(p+"f_b_proj.weight", width, d, 1), o: b.matrix(p+"o_proj.weight", e, width, 1),
		qConv: b.vector(p+"q_conv1d.weight", width*taps), kConv: b.vector(p+"k_conv1d.weight", width*taps), vConv: b.vector(p+"v_conv1d.weight", width*taps),
		decay: b.vector(p+"A_log", h), bias: b.vector(p+"dt_bias", width), norm: b.vector(p+"o_norm.weight", d),
	}
	for i, a := range l.decay {
		l.decay[i] = kernel.Exp(a)
	}
	return l
}

// kda is the layer for all rows: projections, then each head of each sequence by itself, then the output projection.
func (p *pass) kda(l *kdaLayer) error {
	c := p.config
	e, width, d, heads := c.Hidden, c.KDAWidth(), c.KDA.HeadDim, c.KDA.Heads
	for _, m := range []struct {
		w     matrix
		dst   []float32
		width int
	}{{l.q, p.q, width}, {l.k, p.k, width}, {l.v, p.v, width}, {l.fa, p.fa, d}, {l.b, p.beta, heads}, {l.g, p.g, width}} {
		if err := p.matmul(m.w, m.dst, m.width, p.x, e); err != nil {
			return err
		}
	}
	if err := p.matmul(l.fb, p.z, width, p.fa, d); err != nil {
		return err
	}
	p.backend.Sigmoid(p.beta[:p.rows*heads], p.beta[:p.rows*heads])
	if p.feed == nil {
		p.kdaHeads(l, p.runs, func(i int) []float32 { return p.runs[i].state.kda(l.index) })
	} else if err := p.kdaGroups(l); err != nil {
		return err
	}
	return p.matmul(l.o, p.out, e, p.o, width)
}

// kdaGroups is kdaHeads for states in a file, group after group.
func (p *pass) kdaGroups(l *kdaLayer) error {
	for done := 0; done < len(p.runs); {
		g, err := p.feed.next(p.ctx, l.index)
		if err != nil {
			return err
		}
		p.kdaHeads(l, g.runs, func(i int) []float32 { return memory.Float32s(p.states.part(g, i)) })
		done += len(g.runs)
		p.feed.use(g)
	}
	return nil
}

// kdaHeads takes the rows of some sequences through all heads. part is the layer's part of the state of sequence i of runs.
func (p *pass) kdaHeads(l *kdaLayer, runs []run, part func(i int) []float32) {
	heads := p.config.KDA.Heads
	p.pool.Run(len(runs)*heads, kernel.Func(func(i, worker int) {
		p.kdaHead(l, &runs[i/heads], part(i/heads), i%heads, &p.perThread[worker])
	}))
}

// kdaHead takes the rows of one sequence through one head: convolutions, norms and decay in place in q, k, v and z, then
// the recurrence into o, its norm, and the gate. part is the layer's part of the sequence's state.
func (p *pass) kdaHead(l *kdaLayer, r *run, part []float32, head int, s *scratch) {
	c := p.config
	width, d, heads := c.KDAWidth(), c.KDA.HeadDim, c.KDA.Heads
	at := r.first*width + head*d // of the head's channels in the first row
	guesses := r.rows - r.certain
	for t := r.certain; t < r.rows; t++ {
		q, k, v, _, beta := r.state.guess(l.index, t-r.certain, guesses)
		copy(q[head*d:][:d], p.q[at+t*width:])
		copy(k[head*d:][:d], p.k[at+t*width:])
		copy(v[head*d:][:d], p.v[at+t*width:])
		beta[head] = p.beta[(r.first+t)*heads+head]
	}
	matrices, history := p.kdaParts(part)
	p.convolve(l, history, head, p.q[at:], p.k[at:], p.v[at:], r.rows, r.certain, s)
	for t := range r.rows {
		z := p.z[at+t*width:][:d]
		p.backend.Decay(z, z, l.bias[head*d:][:d], l.decay[head], c.KDA.GateLowerBound)
		q := p.q[at+t*width:][:d]
		p.backend.L2Norm(q, q, l2NormEps, queryScale(d))
		k := p.k[at+t*width:][:d]
		p.backend.L2Norm(k, k, l2NormEps, 1)
		if t >= r.certain {
			_, _, _, alpha, _ := r.state.guess(l.index, t-r.certain, guesses)
			copy(alpha[head*d:][:d], z)
		}
	}
	state := matrices[head*d*d:][:d*d]
	p.recur(state, p.q[at:], p.k[at:], p.v[at:], p.z[at:], p.beta[r.first*heads+head:], p.o[at:], r.certain)
	if guesses > 0 {
		copy(s.state, state)
		at := at + r.certain*width
		p.recur(s.state, p.q[at:], p.k[at:], p.v[at:], p.z[at:], p.beta[(r.first+r.certain)*heads+head:], p.o[at:], guesses)
	}
	for t := range r.rows {
		o := p.o[at+t*width:][:d]
		p.backend.RMSNorm(o, o, l.norm, c.NormEps)
		p.backend.Gate(o, p.g[at+t*width:][:d])
	}
}

// recur advances a head's state by n rows, which lie a width of all heads apart.
func (m *Model) recur(state, q, k, v, alpha, beta, o []float32, n int) {
	if n > 0 {
		m.backend.KDA(state, m.config.KDA.HeadDim, n, q, k, v, alpha, m.config.KDAWidth(), beta, m.config.KDA.Heads, o)
	}
}

func queryScale(d int) float32 { return float32(1 / math.Sqrt(float64(d))) }

// convolve replaces n rows of one head's channels of q, k and v, a width of all heads apart, by their short convolutions,
// and moves the last inputs of the first `keep` rows into the history.
func (m *Model) convolve(l *kdaLayer, history []float32, head int, q, k, v []float32, n, keep int, s *scratch) {
	c := m.config
	width, d, taps := c.KDAWidth(), c.KDA.HeadDim, c.KDA.ConvKernel
	for j, x := range []struct{ rows, weight []float32 }{{q, l.qConv}, {k, l.kConv}, {v, l.vConv}} {
		// The inputs before this pass, then those of its rows, beside each other.
		past := history[j*(taps-1)*width:][:(taps-1)*width]
		in := s.inputs[j]
		for t := range taps - 1 {
			copy(in[t*d:][:d], past[t*width+head*d:])
		}
		for t := range n {
			copy(in[(taps-1+t)*d:][:d], x.rows[t*width:])
		}
		for t := range n {
			m.backend.ShortConv(x.rows[t*width:][:d], x.weight[head*d*taps:][:d*taps], taps, in[t*d:], d)
		}
		for t := range taps - 1 {
			copy(past[t*width+head*d:][:d], in[(keep+t)*d:])
		}
	}
}

// replay makes the first n guesses of a state's last pass part of its recurrent state, of which part is the layer's.
func (m *Model) replay(l *kdaLayer, state *State, part []float32, n int) {
	c := m.config
	width, d, heads := c.KDAWidth(), c.KDA.HeadDim, c.KDA.Heads
	w := m.work
	for t := range n {
		q, k, v, alpha, beta := state.guess(l.index, t, state.tentative)
		copy(w.q[t*width:], q)
		copy(w.k[t*width:], k)
		copy(w.v[t*width:], v)
		copy(w.z[t*width:], alpha)
		copy(w.beta[t*heads:], beta)
	}
	matrices, history := m.kdaParts(part)
	m.pool.Run(heads, kernel.Func(func(head, worker int) {
		s := &w.perThread[worker]
		at := head * d
		m.convolve(l, history, head, w.q[at:], w.k[at:], w.v[at:], n, n, s)
		for t := range n {
			k := w.k[at+t*width:][:d]
			m.backend.L2Norm(k, k, l2NormEps, 1)
		}
		// The outputs were delivered when the rows were guesses; their place is o, which nobody reads.
		m.recur(matrices[head*d*d:][:d*d], w.q[at:], w.k[at:], w.v[at:], w.z[at:], w.beta[head:], w.o[at:], n)
	}))
}
