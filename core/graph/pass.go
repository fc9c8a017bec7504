package graph

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/tape"
)

// ErrNumbers is matched when a value that is NaN or infinite appears, or when the logits of a row tell nothing because
// all of them are equal. The message names the layer it was first seen in.
var ErrNumbers = errors.New("not a finite number")

// errEqual is the error of logits that are all equal.
var errEqual error = equalError{}

type equalError struct{}

func (equalError) Error() string        { return "all logits are equal: the weights are damaged" }
func (equalError) Is(target error) bool { return target == ErrNumbers }

// Partial is the error of a pass in which the numbers of some sequences were at fault (ErrNumbers). Those are broken; the others
// have all of it, as if they had been alone.
type Partial struct{ Errors []error }

// Error implements error.
func (p *Partial) Error() string { return errors.Join(p.Errors...).Error() }

// Unwrap gives errors.Is the error of each sequence.
func (p *Partial) Unwrap() []error { return p.Errors }

// errLeft is the cause of a broken sequence whose pass came to no end of its own.
var errLeft = errors.New("a panic, or the end of its goroutine, cut it short")

// ErrToken is matched when an id is not in the vocabulary; nothing was computed.
var ErrToken = errors.New("no such token id")

// Row is one token of a pass.
type Row struct {
	State *State
	Token int // id, below the vocabulary's size
	// Tentative marks a guess: it is computed but changes no state until State.Accept. In a sequence, guesses come last.
	Tentative bool
	// Logits asks for the row's logits.
	Logits bool
	// Score, if not nil, asks how likely an id is to follow the row.
	Score *Score
}

// wants tells whether the row needs lm_head.
func (r Row) wants() bool { return r.Logits || r.Score != nil }

// Probe is shown intermediate values: the layer, what they are, and width values for each row. Those values are only
// valid during the call. Tests and studies use it; it costs nothing when nil.
type Probe func(layer int, what string, values []float32, width int)

// Hooks are functions that a pass calls as it goes, each nil or set. They are called from its goroutine, and may ask
// anything of the states in it but change none of them.
type Hooks struct {
	Probe Probe
	// Layer is called when a layer is about to be computed, and once more with the number of layers for lm_head.
	Layer func(layer int)
	// Routed is told the experts of each row, in descending order of biased score, layer after layer, row after row.
	Routed func(layer int, experts []int)
	// Complete is asked when everything was computed, before any of it counts; an error fails the pass.
	Complete func() error
}

// run is the rows of one sequence in a pass.
type run struct {
	state       *State
	first, rows int // rows [first, first+rows) of the pass
	certain     int // the others are tentative
	position    int // of the first row
	failed      error
}

// pass is one Pass under way.
type pass struct {
	*Model
	*workspace
	ctx    context.Context
	hooks  Hooks
	rows   int
	runs   []run
	runOf  []int // by row
	reader tape.Reader
	feed   *feed // nil: states are in memory
	blocks int   // residual snapshots so far

	vectors       kernel.Vectors // what packed holds
	vectorsOf     *float32
	vectorsFormat kernel.Format
}

// Pass computes the rows, in order, and puts the logits of those that ask for them into logits, one vocabulary's width
// after the other. The rows of a sequence stand together. Certain rows are part of their sequences afterwards; tentative
// ones wait for State.Accept, which must be called before the sequence's next pass.
//
// A failure spoils every sequence of the pass (ErrBroken), and so does a panic of a hook, except where nothing was
// computed: rows that do not fit (ErrContext), a sequence already broken, wrong arguments. Numbers that are not finite in rows
// of one sequence spoil that one alone: the error is a *Partial if there were others, and the logits of its rows are 0.
func (m *Model) Pass(ctx context.Context, rows []Row, logits []float32, hooks Hooks) error {
	p, err := m.newPass(ctx, rows, hooks)
	if err != nil {
		return err
	}
	for _, r := range p.runs {
		r.state.computing.Store(true)
	}
	// Whatever ends the pass, be it a panic of a hook: a sequence either has all of it or is broken.
	cause := errLeft
	defer func() {
		_ = p.close() // after a panic
		for _, r := range p.runs {
			r.state.computing.Store(false)
			switch {
			case cause != nil:
				r.state.spoil(cause)
			case r.failed != nil:
				r.state.spoil(r.failed)
			default:
				r.state.length += r.certain
				r.state.fresh = r.state.fresh && r.certain == 0
				r.state.tentative = r.rows - r.certain
			}
			if r.state.closing {
				r.state.Free()
			}
		}
	}()
	if p.states != nil {
		p.feed = p.states.startFeed(p.ctx, p.runs)
	}
	cause = p.play(rows, logits)
	if err := p.close(); cause == nil {
		cause = err
	}
	if cause == nil && hooks.Complete != nil {
		cause = hooks.Complete()
	}
	if failed := p.failures(); cause == nil && len(failed) > 0 {
		return &Partial{failed}
	}
	return cause
}

// close waits until the states are where they belong.
func (p *pass) close() error {
	if p.feed == nil {
		return nil
	}
	f := p.feed
	p.feed = nil
	return f.end()
}

// failures is the errors of the sequences that failed alone.
func (p *pass) failures() (errs []error) {
	for _, r := range p.runs {
		if r.failed != nil {
			errs = append(errs, r.failed)
		}
	}
	return errs
}

// fail notes that a row's numbers are of no use. Its sequence takes no more part: what is computed for its rows is 0, so that
// the others are not held up by it. The error is not nil if no sequence is left.
func (p *pass) fail(row int, err error) error {
	r := &p.runs[p.runOf[row]]
	if r.failed == nil {
		r.failed = err
	}
	for i := r.first; i < r.first+r.rows; i++ {
		clear(p.slots[i*p.slotRows*p.config.Hidden:][:p.slotRows*p.config.Hidden])
		clear(p.x[i*p.config.Hidden:][:p.config.Hidden])
	}
	if failed := p.failures(); len(failed) == len(p.runs) {
		return errors.Join(failed...)
	}
	return nil
}

// alive reports whether a row's sequence takes part.
func (p *pass) alive(row int) bool { return p.runs[p.runOf[row]].failed == nil }

// newPass checks the rows and makes room in their sequences.
func (m *Model) newPass(ctx context.Context, rows []Row, hooks Hooks) (*pass, error) {
	if len(rows) == 0 || len(rows) > m.maxRows {
		return nil, fmt.Errorf("graph: a pass of %d rows, not of 1 to %d", len(rows), m.maxRows)
	}
	p := &pass{Model: m, workspace: m.work, ctx: ctx, hooks: hooks, rows: len(rows)}
	for i, r := range rows {
		if r.Token < 0 || r.Token >= m.config.Vocab {
			return nil, fmt.Errorf("graph: %w: %d is not in [0, %d)", ErrToken, r.Token, m.config.Vocab)
		}
		if r.Score != nil && (r.Score.Next < 0 || r.Score.Next >= m.config.Vocab) {
			return nil, fmt.Errorf("graph: score: %w: %d is not in [0, %d)", ErrToken, r.Score.Next, m.config.Vocab)
		}
		last := len(p.runs) - 1
		if last < 0 || p.runs[last].state != r.State {
			for _, other := range p.runs {
				if other.state == r.State {
					return nil, errors.New("graph: the rows of a sequence do not stand together")
				}
			}
			if r.State == nil || r.State.model != m {
				return nil, errors.New("graph: a row of another model")
			}
			if err := r.State.Idle(); err != nil {
				return nil, err
			}
			if r.State.tentative != 0 {
				return nil, errors.New("graph: tentative rows of the last pass are neither accepted nor rejected")
			}
			p.runs = append(p.runs, run{state: r.State, first: i, position: r.State.length})
			last++
		}
		u := &p.runs[last]
		u.rows++
		if !r.Tentative {
			u.certain++
		}
		if u.certain != u.rows && !r.Tentative {
			return nil, errors.New("graph: a certain row follows a tentative one")
		}
		p.runOf = append(p.runOf, last)
	}
	for _, r := range p.runs {
		if n := r.position + r.rows; n > m.context {
			return nil, fmt.Errorf("graph: %w: %d tokens do not fit into %d", ErrContext, n, m.context)
		}
	}
	for _, r := range p.runs {
		if err := r.state.grow(r.position+r.rows, r.rows-r.certain); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// play is the model, from tokens to logits.
func (p *pass) play(rows []Row, logits []float32) error {
	wanted := 0
	for _, r := range rows {
		if r.wants() {
			wanted++
		}
	}
	matrices := int(p.head)
	if wanted > 0 {
		matrices++
	}
	var err error
	if p.reader, err = p.tape.Start(p.ctx, matrices); err != nil {
		return err
	}
	defer p.reader.Close()

	for i, r := range rows {
		if err := p.embed(p.slot(i, 0), r.Token); err != nil {
			return err
		}
	}
	for _, l := range p.layers {
		if err := p.ctx.Err(); err != nil {
			return fmt.Errorf("graph: layer %d: %w", l.index, err)
		}
		if p.hooks.Layer != nil {
			p.hooks.Layer(l.index)
		}
		if err := p.layer(l); err != nil {
			return err
		}
	}
	if wanted == 0 {
		return nil
	}
	if p.hooks.Layer != nil {
		p.hooks.Layer(len(p.layers))
	}
	return p.logits(rows, logits, wanted)
}

// layer is docs/model.md's "One layer" for all rows.
func (p *pass) layer(l *layer) error {
	e := p.config.Hidden
	if p.blocks == 0 && l.index == 0 {
		for i := range p.rows {
			copy(p.h[i*e:][:e], p.slot(i, 0))
		}
	} else {
		p.attnres(p.h, l.attnResFold)
	}
	p.probe(l, "self_attention_res", p.h, e)
	boundary := l.index%p.config.ResidualBlock == 0
	if boundary {
		p.blocks++ // the running residual is a snapshot from here on
	}
	p.norm(l.inputNorm)
	p.probe(l, "input_layernorm", p.x, e)
	var err error
	if l.kda != nil {
		err = p.kda(l.kda)
	} else {
		err = p.mla(l, l.mla)
	}
	if err != nil {
		return fmt.Errorf("graph: layer %d: attention: %w", l.index, err)
	}
	p.probe(l, "self_attn", p.out, e)
	p.each(func(i int) {
		if boundary {
			copy(p.running(i), p.out[i*e:][:e])
		} else {
			add(p.running(i), p.out[i*e:][:e])
		}
	})
	p.attnres(p.h, l.mlpResFold)
	p.probe(l, "mlp_res", p.h, e)
	p.norm(l.postNorm)
	p.probe(l, "post_attention_layernorm", p.x, e)
	if l.dense != nil {
		err = p.mlp(l.dense.gate, l.dense.up, l.dense.down, p.config.DenseIntermediate, p.out)
	} else {
		err = p.moe(l, l.moe)
	}
	if errors.Is(err, ErrNumbers) {
		return err // it says where
	}
	if err != nil {
		return fmt.Errorf("graph: layer %d: mlp: %w", l.index, err)
	}
	p.probe(l, "mlp", p.out, e)
	p.each(func(i int) { add(p.running(i), p.out[i*e:][:e]) })
	for i := range p.rows {
		if !finite(p.running(i)) {
			if err := p.fail(i, fmt.Errorf("graph: layer %d: %w in the residual of row %d", l.index, ErrNumbers, i)); err != nil {
				return err
			}
		}
	}
	if p.hooks.Probe != nil {
		for i := range p.rows {
			copy(p.h[i*e:][:e], p.running(i))
		}
		p.probe(l, "output", p.h, e)
	}
	return nil
}

// logits is the end of the model, for the rows that asked.
func (p *pass) logits(rows []Row, logits []float32, wanted int) error {
	e, vocab := p.config.Hidden, p.config.Vocab
	p.attnres(p.h, p.outFold)
	n := 0
	for i, r := range rows {
		if r.wants() {
			p.backend.RMSNorm(p.x[n*e:][:e], p.h[i*e:][:e], p.finalNorm, p.config.NormEps)
			n++
		}
	}
	p.vectorsOf = nil
	var err error
	if scored := slices.ContainsFunc(rows, func(r Row) bool { return r.Score != nil }); scored {
		var tallies []tally
		if tallies, err = p.headByTiles(rows, logits, wanted); err == nil {
			if err := p.fillScores(rows, tallies); err != nil {
				return err
			}
		}
	} else {
		err = p.matmulRows(p.head, logits, vocab, p.x, e, wanted)
	}
	if err != nil {
		return fmt.Errorf("graph: lm_head: %w", err)
	}
	n = 0
	for i, r := range rows {
		if !r.Logits {
			continue
		}
		row := logits[n*vocab:][:vocab]
		n++
		var err error
		switch {
		case !p.alive(i):
		case !finite(row):
			err = fmt.Errorf("graph: lm_head: %w in the logits of row %d", ErrNumbers, i)
		case vocab > 1 && !slices.ContainsFunc(row, func(v float32) bool { return v != row[0] }):
			err = fmt.Errorf("graph: lm_head: row %d: %w", i, errEqual)
		}
		if err != nil {
			err = p.fail(i, err)
		}
		if !p.alive(i) {
			clear(row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// slot is residual snapshot i of a row.
func (p *pass) slot(row, i int) []float32 {
	e := p.config.Hidden
	return p.slots[(row*p.slotRows+i)*e:][:e]
}

// running is a row's running residual, the slot behind its snapshots.
func (p *pass) running(row int) []float32 { return p.slot(row, p.blocks) }

// run runs f for each of n parts, in parallel.
func (p *pass) run(n int, f func(i int)) {
	p.pool.Run(n, kernel.Func(func(i, _ int) { f(i) }))
}

// each runs f for every row, in parallel.
func (p *pass) each(f func(row int)) {
	p.run(p.rows, f)
}

// norm puts the rows of h, normalised, into x.
func (p *pass) norm(w []float32) {
	e := p.config.Hidden
	p.each(func(i int) { p.backend.RMSNorm(p.x[i*e:][:e], p.h[i*e:][:e], w, p.config.NormEps) })
	p.vectorsOf = nil
}

// matmul multiplies all rows of x (n wide, packed beside each other) with a matrix of the tape, which must be the next:
// dst[row*stride+r] is row r's product.
func (p *pass) matmul(w matrix, dst []float32, stride int, x []float32, n int) error {
	return p.matmulRows(w, dst, stride, x, n, p.rows)
}

func (p *pass) matmulRows(w matrix, dst []float32, stride int, x []float32, n, rows int) error {
	return p.tiles(w, func(t tape.Tile) {
		p.pool.Product(dst[t.Row:], stride, t.Tile, p.pack(t.Format, x, n, rows))
	})
}

// tiles calls f with each tile of a matrix of the tape, which must be the next.
func (p *pass) tiles(w matrix, f func(t tape.Tile)) error {
	rows := p.trunk[w].Rows
	for at := 0; at < rows; {
		t, err := p.reader.Next()
		if err != nil {
			return err
		}
		if t.Matrix != int(w) || t.Row != at {
			t.Release()
			panic(fmt.Sprintf("graph: tape out of step: matrix %d row %d came for matrix %d row %d", t.Matrix, t.Row, w, at))
		}
		use(t, f)
		at += t.Rows
	}
	return nil
}

// use calls f with a tile and gives it back, whatever f does.
func use(t tape.Tile, f func(t tape.Tile)) {
	defer t.Release()
	f(t)
}

// pack lays x out for a product, unless it is already.
func (p *pass) pack(f kernel.Format, x []float32, n, rows int) kernel.Vectors {
	if p.vectorsOf != &x[0] || p.vectorsFormat != f || p.vectors.Len != n || p.vectors.Count != rows {
		p.vectors = p.pool.Pack(p.packed, f, x, n, n, rows)
		p.vectorsOf, p.vectorsFormat = &x[0], f
	}
	return p.vectors
}

// embed reads the embedding of a token.
func (p *pass) embed(dst []float32, token int) error {
	f, err := formatOf(p.embedding)
	if err != nil {
		return err
	}
	row := f.RowBytes(p.config.Hidden)
	raw := make([]byte, row)
	if err := p.source.Read(raw, p.embedding, int64(token)*int64(row)); err != nil {
		return fmt.Errorf("graph: embedding of token %d: %w", token, err)
	}
	kernel.Widen(dst[:0], f, raw, nil)
	return nil
}

func (p *pass) probe(l *layer, what string, values []float32, width int) {
	if p.hooks.Probe != nil {
		p.hooks.Probe(l.index, what, values[:p.rows*width], width)
	}
}

// add sets y[i] += x[i].
func add(y, x []float32) {
	for i, v := range x {
		y[i] += v
	}
}

// finite reports whether no element is NaN or infinite.
func finite(x []float32) bool {
	bad := float32(0)
	for _, v := range x {
		bad += v - v // 0, or NaN
	}
	return bad == 0
}
