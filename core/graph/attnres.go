package graph

import "github.com/k3infer/k3/core/kernel"

// attnres is the attention residual (docs/model.md, "One layer") of every row, into dst [R][E]: a softmax over its
// snapshots and its running residual, scored by their normalised selves against the folded weight, mixing the raw sources.
func (p *pass) attnres(dst, fold []float32) {
	e, sources := p.config.Hidden, p.blocks+1
	packed := p.fold[:p.backend.PackedLen(kernel.F32, e)]
	p.backend.Pack(kernel.F32, packed, fold)
	p.pool.Run(p.rows, kernel.Func(func(row, worker int) {
		all := p.slots[row*p.slotRows*e:][:sources*e]
		scores := p.perThread[worker].sources[:sources]
		p.backend.Dot(scores, sources, kernel.Float32Tile(all, sources, e, e), packed, 1)
		for i := range scores {
			scores[i] = float32(scores[i] * p.backend.InverseRMS(all[i*e:][:e], p.config.NormEps))
		}
		p.backend.Softmax(scores)
		h := dst[row*e:][:e]
		clear(h)
		for i, weight := range scores {
			p.backend.Axpy(h, weight, all[i*e:][:e])
		}
	}))
}
