package graph

import (
	"math"

	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/tape"
)

// mlaLayer is gated full attention over cached latents (docs/model.md, "Gated MLA"). The keys and values of a head are
// never expanded: the nope rows of kv_b are multiplied into the query, and its value rows into the mixed latents.
type mlaLayer struct {
	index                  int // among the MLA layers
	qa, qb, kva, g, kvb, o matrix
	qNorm, latentNorm      []float32 // [ql], [kvl]
}

func (b *builder) mla(p string) *mlaLayer {
	c := b.source.Config
	a := c.MLA
	l := &mlaLayer{
		qa:  b.matrix(p+"q_a_proj.weight", a.QueryRank, c.Hidden, 1),
		kva: b.matrix(p+"kv_a_proj_with_mqa.weight", a.LatentRank+a.RopeDim, c.Hidden, 1),
		g:   none,
	}
	if a.OutputGate {
		l.g = b.matrix(p+"g_proj.weight", a.Heads*a.ValueDim, c.Hidden, 1)
	}
	l.qb = b.matrix(p+"q_b_proj.weight", a.Heads*(a.NopeDim+a.RopeDim), a.QueryRank, 1)
	// The rows of a head stay together, because they are used on both sides of its attention.
	l.kvb = b.matrix(p+"kv_b_proj.weight", a.Heads*(a.NopeDim+a.ValueDim), a.LatentRank, a.NopeDim+a.ValueDim)
	l.o = b.matrix(p+"o_proj.weight", c.Hidden, a.Heads*a.ValueDim, 1)
	l.qNorm = b.vector(p+"q_a_layernorm.weight", a.QueryRank)
	l.latentNorm = b.vector(p+"kv_a_layernorm.weight", a.LatentRank)
	return l
}

// mla is the layer for all rows. A row attends to the positions of its sequence up to its own.
func (p *pass) mla(l *layer, a *mlaLayer) error {
	c := p.config.MLA
	e, kvl, rank := p.config.Hidden, c.LatentRank, c.LatentRank+c.RopeDim
	if err := p.matmul(a.qa, p.qa, c.QueryRank, p.x, e); err != nil {
		return err
	}
	p.probe(l, "q_a_proj", p.qa, c.QueryRank)
	if err := p.matmul(a.kva, p.kv, rank, p.x, e); err != nil {
		return err
	}
	p.probe(l, "kv_a_proj_with_mqa", p.kv, rank)
	if a.g != none {
		if err := p.matmul(a.g, p.mg, c.Heads*c.ValueDim, p.x, e); err != nil {
			return err
		}
	}
	p.each(func(i int) {
		q := p.qa[i*c.QueryRank:][:c.QueryRank]
		p.backend.RMSNorm(q, q, a.qNorm, loraNormEps)
		// The latent, normalised, and the rope part, as it is, enter the cache.
		r := &p.runs[p.runOf[i]]
		position := r.position + i - r.first
		cache := r.state.latent(a.index, position/latentRows)[position%latentRows*rank:][:rank]
		kv := p.kv[i*rank:][:rank]
		p.backend.RMSNorm(cache[:kvl], kv[:kvl], a.latentNorm, loraNormEps)
		copy(cache[kvl:], kv[kvl:])
	})
	p.vectorsOf = nil
	p.probe(l, "q_a_layernorm", p.qa, c.QueryRank)
	if err := p.matmul(a.qb, p.mq, c.Heads*(c.NopeDim+c.RopeDim), p.qa, c.QueryRank); err != nil {
		return err
	}
	p.probe(l, "q_b_proj", p.mq, c.Heads*(c.NopeDim+c.RopeDim))
	err := p.tiles(a.kvb, func(t tape.Tile) {
		for from := 0; from < p.rows; from += mlaRows {
			p.heads(a, t, from, min(from+mlaRows, p.rows))
		}
	})
	if err != nil {
		return err
	}
	p.probe(l, "attend", p.mo, c.Heads*c.ValueDim)
	if a.g != none {
		n := c.Heads * c.ValueDim
		p.each(func(i int) { p.backend.Gate(p.mo[i*n:][:n], p.mg[i*n:][:n]) })
	}
	return p.matmul(a.o, p.out, e, p.mo, c.Heads*c.ValueDim)
}

// heads computes rows [from, to) of the pass for the heads whose kv_b rows are in the tile.
func (p *pass) heads(a *mlaLayer, t tape.Tile, from, to int) {
	c := p.config.MLA
	kvl, rank, unit := c.LatentRank, c.LatentRank+c.RopeDim, c.NopeDim+c.ValueDim
	query, rows := c.NopeDim+c.RopeDim, to-from
	first, heads := t.Row/unit, t.Rows/unit
	queries, values := c.Heads*query, c.Heads*c.ValueDim

	// Into the query of each head goes its key matrix: absorbed[row][head] = (Wk^T q_nope, q_rope).
	vectorGroups := (rows + kernel.MaxVectors - 1) / kernel.MaxVectors
	p.run(heads*vectorGroups, func(i int) {
		head, group := i/vectorGroups, from+i%vectorGroups*kernel.MaxVectors
		n := min(kernel.MaxVectors, to-group)
		dst := p.absorbed[((group-from)*heads+head)*rank:]
		q := p.mq[group*queries+(first+head)*query:]
		for v := range n {
			row := dst[v*heads*rank:][:rank]
			clear(row[:kvl])
			copy(row[kvl:], q[v*queries+c.NopeDim:][:c.RopeDim])
		}
		p.backend.Transposed(dst, heads*rank, t.Slice(head*unit, head*unit+c.NopeDim), q, queries, n)
	})

	// All heads of a row see the same latents: a thread takes as many of them as it can, and reads the latents once for all.
	part := min(headsPerThread(c.Heads, p.pool.Threads()), heads)
	parts := (heads + part - 1) / part
	p.pool.Run(rows*parts, kernel.Func(func(i, worker int) {
		row, head := i/parts, i%parts*part
		p.attend(a, from+row, p.absorbed[(row*heads+head)*rank:], p.mixed[(row*heads+head)*kvl:], min(part, heads-head), &p.perThread[worker])
	}))

	// Out of the mixed latents come the values.
	p.pool.Run(heads*vectorGroups, kernel.Func(func(i, worker int) {
		head, group := i/vectorGroups, from+i%vectorGroups*kernel.MaxVectors
		n := min(kernel.MaxVectors, to-group)
		packed, one := p.perThread[worker].packed, p.backend.PackedLen(t.Format, kvl)
		for v := range n {
			p.backend.Pack(t.Format, packed[v*one:][:one], p.mixed[((group-from+v)*heads+head)*kvl:][:kvl])
		}
		p.backend.Dot(p.mo[group*values+(first+head)*c.ValueDim:], values, t.Slice(head*unit+c.NopeDim, (head+1)*unit), packed, n)
	}))
}

// headsPerThread is how many heads of a row a thread takes together.
func headsPerThread(heads, threads int) int { return (heads + threads - 1) / threads }

// scoreStride is the distance of two heads' scores. Were it a power of two, the scores of all heads at a position would
// compete for the same places of the cache.
func scoreStride(context int) int { return roundUp(context, latentRows) + kernel.Lanes }

// attend mixes the latents of a row's positions by the scores of some heads: queries [heads][kvl+rope], mixed [heads][kvl].
func (p *pass) attend(a *mlaLayer, row int, queries, mixed []float32, heads int, s *scratch) {
	c := p.config.MLA
	kvl, rank := c.LatentRank, c.LatentRank+c.RopeDim
	r := &p.runs[p.runOf[row]]
	positions := r.position + row - r.first + 1
	stride := scoreStride(p.context)
	one := p.backend.PackedLen(kernel.F32, rank)
	for h := range heads {
		p.backend.Pack(kernel.F32, s.packed[h*one:][:one], queries[h*rank:][:rank])
	}
	// blocks calls f for the latents of each block of positions, and for as many heads as go together.
	blocks := func(cols int, f func(at int, latents kernel.Tile, head, n int)) {
		for at := 0; at < positions; at += latentRows {
			latents := kernel.Float32Tile(r.state.latent(a.index, at/latentRows), min(latentRows, positions-at), cols, rank)
			for head := 0; head < heads; head += kernel.MaxVectors {
				f(at, latents, head, min(kernel.MaxVectors, heads-head))
			}
		}
	}
	blocks(rank, func(at int, keys kernel.Tile, head, n int) {
		p.backend.Dot(s.scores[head*stride+at:], stride, keys, s.packed[head*one:], n)
	})
	scale := float32(1 / math.Sqrt(float64(c.NopeDim+c.RopeDim)))
	for h := range heads {
		scores := s.scores[h*stride:][:positions]
		for i := range scores {
			scores[i] = float32(scores[i] * scale)
		}
		p.backend.Softmax(scores)
	}
	clear(mixed[:heads*kvl])
	blocks(kvl, func(at int, values kernel.Tile, head, n int) {
		p.backend.Transposed(mixed[head*kvl:], kvl, values, s.scores[head*stride+at:], stride, n)
	})
}
