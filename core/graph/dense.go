package graph

// denseLayer is the dense MLP of the first layers: down · situ(gate · x, up · x).
type denseLayer struct{ gate, up, down matrix }

func (b *builder) dense(p string) *denseLayer {
	c := b.source.Config
	return &denseLayer{
		gate: b.matrix(p+"gate_proj.weight", c.DenseIntermediate, c.Hidden, 1),
		up:   b.matrix(p+"up_proj.weight", c.DenseIntermediate, c.Hidden, 1),
		down: b.matrix(p+"down_proj.weight", c.Hidden, c.DenseIntermediate, 1),
	}
}

// mlp is a gated MLP of the given inner width on x, for the dense layers and the shared experts.
func (p *pass) mlp(gate, up, down matrix, inner int, dst []float32) error {
	e := p.config.Hidden
	if err := p.matmul(gate, p.gate, inner, p.x, e); err != nil {
		return err
	}
	if err := p.matmul(up, p.up, inner, p.x, e); err != nil {
		return err
	}
	p.situ(p.gate, p.up, inner, p.rows)
	return p.matmul(down, dst, e, p.gate, inner)
}

// situ puts situ(g, u) into g, for rows rows of width values.
func (p *pass) situ(g, u []float32, width, rows int) {
	n := width * rows
	const part = 2048
	p.run((n+part-1)/part, func(i int) {
		from, to := i*part, min((i+1)*part, n)
		p.backend.SiTU(g[from:to], g[from:to], u[from:to], p.config.SituBeta, p.config.SituLinearBeta)
	})
	p.vectorsOf = nil
}
