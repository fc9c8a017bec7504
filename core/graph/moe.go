package graph

import (
	"fmt"

	"github.com/k3infer/k3/core/experts"
)

// moeLayer is the latent mixture of experts (docs/model.md, "Latent mixture of experts").
type moeLayer struct {
	gate, down, up                   matrix
	sharedGate, sharedUp, sharedDown matrix
	bias                             []float32 // [N] e_score_correction_bias
	norm                             []float32 // [L] routed_expert_norm, nil without
}

func (b *builder) moe(p string) *moeLayer {
	c := b.source.Config
	e, latent, shared := c.Hidden, c.MoE.Latent, c.MoE.Shared*c.MoE.Intermediate
	l := &moeLayer{
		gate: b.matrix(p+"gate.weight", c.MoE.Experts, e, 1),
		down: b.matrix(p+"routed_expert_down_proj.weight", latent, e, 1),
		bias: b.finite(p+"gate.e_score_correction_bias", c.MoE.Experts),
	}
	l.sharedGate, l.sharedUp, l.sharedDown = none, none, none
	if shared > 0 {
		l.sharedGate = b.matrix(p+"shared_experts.gate_proj.weight", shared, e, 1)
		l.sharedUp = b.matrix(p+"shared_experts.up_proj.weight", shared, e, 1)
		l.sharedDown = b.matrix(p+"shared_experts.down_proj.weight", e, shared, 1)
	}
	l.up = b.matrix(p+"routed_expert_up_proj.weight", e, latent, 1)
	if c.MoE.LatentNorm {
		l.norm = b.vector(p+"routed_expert_norm.weight", latent)
	}
	return l
}

// moe is the layer for all rows, into out. The experts are asked for as soon as the router has spoken; the shared experts
// are computed while they load.
func (p *pass) moe(l *layer, m *moeLayer) error {
	c := p.config.MoE
	e := p.config.Hidden
	if err := p.matmul(m.gate, p.scores, c.Experts, p.x, e); err != nil {
		return err
	}
	chosen, err := p.route(l, m)
	if err != nil {
		return err
	}
	batch, err := p.experts.Request(p.ctx, l.index, chosen.ids)
	if err != nil {
		return err
	}
	defer batch.Close()

	if err := p.matmul(m.down, p.zl, c.Latent, p.x, e); err != nil {
		return err
	}
	shared := p.shared[:p.rows*e]
	if m.sharedGate != none {
		if err := p.mlp(m.sharedGate, m.sharedUp, m.sharedDown, c.Shared*c.Intermediate, shared); err != nil {
			return err
		}
	} else {
		clear(shared)
	}
	for range chosen.ids {
		x, err := batch.Next()
		if err != nil {
			return err
		}
		p.expert(x, chosen.uses[x.ID])
	}
	p.each(func(i int) { p.combine(i, m) })
	p.vectorsOf = nil
	p.probe(l, "routed_expert_norm", p.y, c.Latent)
	if err := p.matmul(m.up, p.out, e, p.y, c.Latent); err != nil {
		return err
	}
	p.each(func(i int) { add(p.out[i*e:][:e], shared[i*e:][:e]) })
	return nil
}

// place is where an expert is chosen: a row, and its rank in that row's routing order.
type place struct{ row, rank int }

// routing is what the router said about all rows.
type routing struct {
	ids  []int           // the distinct experts, in order of first choice
	uses map[int][]place // by expert
}

// route picks the top-k experts of every row by score plus bias, and weighs them by score alone. A score that is NaN
// would just never be chosen, and an infinite one would pass for 0 or 1: both are errors.
func (p *pass) route(l *layer, m *moeLayer) (routing, error) {
	c := p.config.MoE
	out := routing{uses: make(map[int][]place)}
	all := make([]int, 0, p.rows*c.TopK)
	for row := range p.rows {
		scores := p.scores[row*c.Experts:][:c.Experts]
		if !p.alive(row) {
			p.leaveOut(row)
			continue
		}
		if !finite(scores) {
			where := "the router's scores"
			if e := p.config.Hidden; !finite(p.x[row*e:][:e]) {
				where = "the router's input"
			}
			if err := p.fail(row, fmt.Errorf("graph: layer %d: mlp: %w in %s of row %d", l.index, ErrNumbers, where, row)); err != nil {
				return routing{}, err
			}
			p.leaveOut(row)
			continue
		}
		p.backend.Sigmoid(scores, scores)
		picked := topK(scores, m.bias, c.TopK, all[len(all):len(all):cap(all)])
		all = all[:len(all)+len(picked)]
		weights := p.weights[row*c.TopK:][:c.TopK]
		sum := float32(0)
		for i, id := range picked {
			weights[i] = scores[id]
			sum += scores[id]
			if out.uses[id] == nil {
				out.ids = append(out.ids, id)
			}
			out.uses[id] = append(out.uses[id], place{row, i})
		}
		for i := range weights {
			if c.Renormalize {
				weights[i] = float32(weights[i] / float32(sum+weightEps))
			}
			weights[i] = float32(weights[i] * c.ScalingFactor)
		}
		if p.hooks.Routed != nil {
			p.hooks.Routed(l.index, picked)
		}
	}
	p.probe(l, "expert_weights", p.weights, c.TopK)
	return out, nil
}

// leaveOut has no expert computed for a row.
func (p *pass) leaveOut(row int) {
	k, n := p.config.MoE.TopK, p.config.MoE.TopK*p.config.MoE.Latent
	clear(p.weights[row*k:][:k])
	clear(p.results[row*n:][:n])
}

// topK appends to dst the indexes of the k largest scores[i]+bias[i], largest first, the lower index first among equals.
func topK(scores, bias []float32, k int, dst []int) []int {
	key := func(i int) float32 { return scores[i] + bias[i] }
	for i := range scores {
		at := len(dst)
		for at > 0 && key(i) > key(dst[at-1]) {
			at--
		}
		switch {
		case len(dst) < k:
			dst = append(dst, 0)
		case at == k:
			continue
		}
		copy(dst[at+1:], dst[at:])
		dst[at] = i
	}
	return dst
}

// expert computes one expert for every row that chose it, into that row's results, and gives it back.
func (p *pass) expert(x experts.Expert, uses []place) {
	defer x.Release()
	c := p.config.MoE
	n := len(uses)
	for i, u := range uses {
		copy(p.gathered[i*c.Latent:][:c.Latent], p.zl[u.row*c.Latent:])
	}
	p.vectorsOf = nil
	p.pool.Product(p.eg, c.Intermediate, x.W1, p.pack(x.W1.Format, p.gathered, c.Latent, n))
	p.pool.Product(p.eu, c.Intermediate, x.W3, p.pack(x.W3.Format, p.gathered, c.Latent, n))
	p.situ(p.eg, p.eu, c.Intermediate, n)
	p.pool.Product(p.gathered, c.Latent, x.W2, p.pack(x.W2.Format, p.eg, c.Intermediate, n))
	for i, u := range uses {
		copy(p.results[(u.row*c.TopK+u.rank)*c.Latent:][:c.Latent], p.gathered[i*c.Latent:])
	}
	p.vectorsOf = nil
}

// combine adds up a row's experts in routing order, whatever order they came in, and normalises the sum.
func (p *pass) combine(row int, m *moeLayer) {
	c := p.config.MoE
	y := p.y[row*c.Latent:][:c.Latent]
	clear(y)
	for i := range c.TopK {
		p.backend.Axpy(y, p.weights[row*c.TopK+i], p.results[(row*c.TopK+i)*c.Latent:][:c.Latent])
	}
	if m.norm != nil {
		p.backend.RMSNorm(y, y, m.norm, p.config.NormEps)
	}
}
