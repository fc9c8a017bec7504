package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/sample"
	"github.com/k3infer/k3/core/speculate"
)

// ErrStop is what Generate's emit returns to end the text without an error.
var ErrStop = errors.New("stop")

// GenerateOptions says how to go on from a prompt.
type GenerateOptions struct {
	MaxTokens int           // most tokens to generate; at least 1
	Sample    sample.Params // the zero value is greedy
	Stop      []int         // ids that end the text; they are generated, but not emitted
	// OnLogits is shown the logits of every position computed, in order, which are valid during the call. It makes
	// prompts slower, since otherwise only the last position needs any.
	OnLogits func(position int, logits []float32) error
	// OnPrefill is called between the passes of a long prompt, when the sequence may be saved or kept. An error ends the text.
	OnPrefill func() error
	// Progress is called when a layer is about to be computed. It is a hook of a pass: see Engine.
	Progress func(Progress)
	// Speculate takes guesses along. They change how many passes a text needs, never the text.
	Speculate speculate.Options
	// Interrupt, once closed, ends the text after the pass in flight.
	Interrupt <-chan struct{}
}

// check is the error of options that make no sense.
func (o GenerateOptions) check() error {
	if o.MaxTokens < 1 {
		return fmt.Errorf("core: generate: %d tokens: must be at least 1", o.MaxTokens)
	}
	return nil
}

// Progress is where a Generate stands.
type Progress struct {
	Prefill       bool
	Done, Total   int // tokens of the prompt computed, or tokens generated, and how many there will be
	Rows          int // rows of the pass in flight
	Layer, Layers int // Layer == Layers stands for lm_head
	// Read returns the bytes of weights that this Generate has read from the disk so far.
	Read func() int64
}

// StopReason says why a text ended.
type StopReason string

// The ways a text ends.
const (
	StopID        StopReason = "stop id"     // the model chose an id of GenerateOptions.Stop
	StopLength    StopReason = "max tokens"  // MaxTokens were generated
	StopContext   StopReason = "context"     // the sequence is full
	StopCaller    StopReason = "stop text"   // emit returned ErrStop
	StopInterrupt StopReason = "interrupted" // GenerateOptions.Interrupt was closed
)

// Phase is what one part of a Generate cost. Of a pass that it shared with other texts it counts what each layer took in full,
// because it waited for that, and of the bytes and experts as much as it had of the rows.
type Phase struct {
	Tokens int    // tokens computed (prefill) or generated (decode)
	Passes int    // passes over the weights
	Rows   int    // rows of those passes, of all texts
	Cost          // Time is all of the phase's; the rest, the sum over the layers
	Layers []Cost // by layer, lm_head last
}

// pass counts a pass, of whose rows the text had some.
func (p *Phase) pass(costs []Cost, own, rows int) {
	p.Passes++
	p.Rows += rows
	if p.Layers == nil {
		p.Layers = make([]Cost, len(costs))
	}
	for i, c := range costs {
		c = c.share(own, rows)
		p.Layers[i].add(c, 1)
		c.Time = 0
		p.add(c, 1)
	}
}

// Outcome is what Generate did.
type Outcome struct {
	IDs     []int // every id generated, the stop id included
	Reason  StopReason
	Prefill Phase // up to the first token generated
	Decode  Phase // the tokens after it
	// Guesses is what speculation did.
	Guesses Guesses
}

// Guesses counts what speculation did in a Generate.
type Guesses struct {
	Proposed, Accepted int           // guesses computed, and those that were right
	Saved              time.Duration // time saved, as far as passes without guesses show; negative if they cost more
}

// Generate appends prompt to the sequence and goes on from there, one token a pass. Each generated id, but for stop ids, is
// given to emit as soon as it is chosen; emit may be nil and may return ErrStop. The last id generated waits in the
// sequence uncomputed, so that a text can go on without computing anything twice.
//
// On an error the outcome has what was generated before. ErrContext before the first pass says that the prompt does not
// fit; a cancelled ctx breaks the sequence, Interrupt does not.
func (e *Engine) Generate(ctx context.Context, s *Sequence, prompt []int, o GenerateOptions, emit func(id int) error) (Outcome, error) {
	if err := e.turn.nested(); err != nil {
		return Outcome{}, fmt.Errorf("core: generate: %w", err)
	}
	var p single
	defer p.free()
	var out Outcome
	err := e.generate(ctx, &p, &out, s, prompt, o, emit)
	return out, err
}

// generate is Generate with passes of p's choice. It fills out as it goes, so that a panic leaves what there is.
func (e *Engine) generate(ctx context.Context, p passer, out *Outcome, s *Sequence, prompt []int, o GenerateOptions, emit func(id int) error) error {
	sampler, err := sample.New(o.Sample)
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if s.engine != e {
		return errors.New("core: generate: a sequence of another engine")
	}
	if err := s.fits(prompt); err != nil {
		return err
	}
	s.Append(prompt...)
	g := generation{passer: p, sequence: s, options: o, sampler: sampler, emit: emit, drafter: o.Speculate.Drafter, out: out}
	if g.drafter == nil {
		g.drafter = speculate.NGram{}
	}
	g.total, g.before, g.shown = len(s.waiting()), s.Computed(), s.Computed()
	start := time.Now()
	out.Reason, err = g.run(ctx, &out.Prefill, 1)
	out.Prefill.Time = time.Since(start)
	out.Prefill.Tokens = s.Computed() - g.before
	if err == nil && out.Reason == "" {
		start = time.Now()
		out.Reason, err = g.run(ctx, &out.Decode, o.MaxTokens)
		out.Decode.Time = time.Since(start)
		out.Decode.Tokens = len(out.IDs) - 1
	}
	out.Guesses.Saved = time.Duration(g.pacer.Saved() * float64(time.Second))
	return err
}

// passer computes what a text wants next.
type passer interface {
	// pass computes rows of the text. It returns errAgain where it could not, and the sequence has gone back to an earlier state.
	pass(ctx context.Context, w *want) error
}

// errAgain says that ids of a sequence wait once more.
var errAgain = errors.New("to be computed again")

// want is the rows that a text wants next, and what came of them.
type want struct {
	sequence *Sequence
	ids      []int   // which wait; at least one, and as many of the first of them as is convenient, are computed
	guesses  []int   // which follow them, and are computed if all ids are
	every    bool    // logits after every row, and not only after the last id and each guess
	scores   []Score // of what follows each of the ids; nil: logits are wanted
	onLayer  func(layer, rows int, read int64)
	prompt   bool // no token has been chosen so far

	taken  int         // ids computed
	logits [][]float32 // valid until release
	costs  []Cost      // of the whole pass
	own    int         // rows of this text in it
	rows   int         // rows of all texts in it
	free   func()      // of the logits; nil: nothing to do
	fault  error       // onLayer panicked
}

// release tells that the logits were used.
func (w *want) release() {
	if w.free != nil {
		w.free()
		w.free = nil
	}
}

// fill appends the first n ids that w wants, and its guesses if those are all, to the rows of a pass.
func (w *want) fill(rows []Row, n int) []Row {
	for i, id := range w.ids[:n] {
		if w.scores != nil {
			rows = append(rows, Row{Sequence: w.sequence, Token: id, Score: &w.scores[i]})
			continue
		}
		rows = append(rows, Row{Sequence: w.sequence, Token: id, Logits: w.every || i == len(w.ids)-1})
	}
	if n == len(w.ids) {
		for _, id := range w.guesses {
			rows = append(rows, Row{Sequence: w.sequence, Token: id, Logits: true, Tentative: true})
		}
	}
	return rows
}

// score computes the ids that wait in a sequence, all but the last, and how likely each of them makes the next.
func (e *Engine) score(ctx context.Context, p passer, s *Sequence) ([]Score, error) {
	if s.engine != e {
		return nil, errors.New("core: score: a sequence of another engine")
	}
	if err := s.fits(nil); err != nil {
		return nil, err
	}
	before, last := s.Computed(), len(s.ids)-1
	scores := make([]Score, last)
	for i := range scores {
		scores[i].Next = s.ids[i+1]
	}
	for s.Computed() < last {
		from := s.Computed() // below what it was, if all is computed again
		w := want{sequence: s, ids: s.ids[from:last], scores: scores[from:], prompt: true}
		if err := p.pass(ctx, &w); err != nil && !errors.Is(err, errAgain) {
			return nil, err
		}
	}
	return scores[min(before, last):], nil
}

// Score computes the ids that wait in a sequence, all but the last, which goes on waiting, and returns how likely each of them makes
// the id after it.
func (e *Engine) Score(ctx context.Context, s *Sequence) ([]Score, error) {
	if err := e.turn.nested(); err != nil {
		return nil, fmt.Errorf("core: score: %w", err)
	}
	var p single
	defer p.free()
	return e.score(ctx, &p, s)
}

// single computes the rows of one text in passes of their own.
type single struct {
	memory *memory.Block // for the logits of a pass
}

func (p *single) free() { p.memory.Free() }

func (p *single) pass(ctx context.Context, w *want) (err error) {
	e := w.sequence.engine
	w.taken = min(len(w.ids), e.MaxRows())
	w.guesses = w.guesses[:min(len(w.guesses), e.MaxRows()-w.taken)]
	rows := w.fill(nil, w.taken)
	w.own, w.rows = len(rows), len(rows)
	var logits []float32
	if p.memory, logits, err = e.logits(p.memory, logitsOf(rows)); err != nil {
		return err
	}
	w.logits = slices.Collect(slices.Chunk(logits, e.model.Config.Vocab))
	var onLayer func(int)
	if w.onLayer != nil {
		before := read(e.Costs())
		onLayer = func(layer int) { w.onLayer(layer, len(rows), read(e.Costs())-before) }
	}
	w.costs, err = e.pass(ctx, rows, logits, onLayer)
	return err
}

// logits returns memory for n rows of logits, which is the block given if that is large enough.
func (e *Engine) logits(b *memory.Block, n int) (*memory.Block, []float32, error) {
	wanted := n * e.model.Config.Vocab
	if n == 0 {
		return b, nil, nil
	}
	if b == nil || len(b.Bytes()) < 4*wanted {
		b.Free()
		var err error
		if b, err = e.account.Allocate(memory.Logits, 4*wanted); err != nil {
			return nil, nil, err
		}
	}
	return b, b.Float32s()[:wanted], nil
}

// generation is one Generate under way.
type generation struct {
	passer   passer
	sequence *Sequence
	options  GenerateOptions
	sampler  *sample.Sampler
	emit     func(id int) error
	out      *Outcome
	total    int   // ids that waited at the beginning
	before   int   // and those that were computed
	shown    int   // positions whose logits OnLogits has seen
	read     int64 // bytes of the passes so far

	drafter speculate.Drafter
	pacer   speculate.Pacer
	draft   []int // what was drafted for the pass
}

// run computes what waits, chooses the token after it, and so on until there are enough.
func (g *generation) run(ctx context.Context, phase *Phase, tokens int) (StopReason, error) {
	for {
		switch s := g.sequence; {
		case len(g.out.IDs) >= tokens && tokens < g.options.MaxTokens:
			return "", nil
		case len(g.out.IDs) >= tokens:
			return StopLength, nil
		case s.Computed() >= s.Context():
			return StopContext, nil
		case g.interrupted():
			return StopInterrupt, nil
		}
		reason, err := g.step(ctx, phase)
		if err != nil || reason != "" {
			return reason, err
		}
	}
}

// step is one pass and what follows from it.
func (g *generation) step(ctx context.Context, phase *Phase) (reason StopReason, err error) {
	s := g.sequence
	w := want{sequence: s, ids: s.waiting(), every: g.options.OnLogits != nil, prompt: len(g.out.IDs) == 0}
	w.guesses = g.guess(len(w.ids))
	if g.options.Progress != nil {
		at := Progress{Done: len(g.out.IDs), Total: g.options.MaxTokens, Layers: s.engine.model.Config.Layers}
		if w.prompt {
			at.Prefill, at.Done, at.Total = true, s.Computed()-g.before, g.total
		}
		w.onLayer = func(layer, rows int, read int64) {
			at.Layer, at.Rows, at.Read = layer, rows, func() int64 { return g.read + read }
			g.options.Progress(at)
		}
	}
	position, start := s.Computed(), time.Now()
	accepted := 0
	// Whatever ends it, a panic of the caller's functions included: the guesses must not hang over the sequence.
	defer func() {
		w.release()
		if len(s.guesses) == 0 {
			return
		}
		if e := s.keep(accepted); err == nil {
			err = e
		}
	}()
	err = g.passer.pass(ctx, &w)
	if errors.Is(err, errAgain) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if w.fault != nil {
		return "", fmt.Errorf("core: generate: progress: %w", w.fault)
	}
	seconds := time.Since(start).Seconds()
	phase.pass(w.costs, w.own, w.rows)
	g.read = g.out.Prefill.Read() + g.out.Decode.Read()
	if w.every {
		for i := range w.taken {
			if err := g.show(position+i, w.logits[i]); err != nil {
				return "", err
			}
		}
	}
	if w.taken < len(w.ids) {
		w.release()
		if g.options.OnPrefill != nil && w.prompt {
			return "", g.options.OnPrefill()
		}
		return "", nil
	}
	if w.every {
		w.logits = w.logits[w.taken-1:]
	}
	reason, err = g.check(&w, position+w.taken, &accepted)
	g.out.Guesses.Accepted += accepted
	if !w.prompt {
		g.pacer.Observe(len(w.guesses), accepted, seconds)
		g.out.Guesses.Proposed += len(w.guesses)
	}
	return reason, err
}

// guess drafts what may follow and returns how much of it the next pass takes along with the ids that wait.
func (g *generation) guess(waiting int) []int {
	o, s := g.options.Speculate, g.sequence
	g.draft = g.draft[:0]
	if len(g.out.IDs) == 0 {
		return nil
	}
	n := min(o.Most, g.options.MaxTokens-len(g.out.IDs)-1, s.Context()-len(s.ids), s.engine.MaxRows()-waiting)
	if n <= 0 {
		return nil
	}
	g.draft = g.drafter.Draft(g.draft, s.ids, n)
	for i, id := range g.draft {
		if i == n || id < 0 || id >= s.engine.model.Config.Vocab {
			g.draft = g.draft[:i]
			break
		}
	}
	if o.Always {
		return g.draft
	}
	return g.draft[:g.pacer.Allow(len(g.draft))]
}

// check chooses tokens from the logits of the last id and of the guesses, as long as the guesses turn out right, and
// counts those. position is that of the first guess.
func (g *generation) check(w *want, position int, accepted *int) (reason StopReason, err error) {
	for {
		logits, last := w.logits[*accepted], *accepted == len(w.guesses)
		id, err := g.sampler.Next(logits, g.sequence.ids)
		if err != nil {
			return "", fmt.Errorf("core: choose token %d: %w", len(g.out.IDs), err)
		}
		if *accepted == 0 && len(g.draft) > 0 {
			g.pacer.Fared(id == g.draft[0])
		}
		last = last || id != w.guesses[*accepted]
		if last {
			w.release() // others may be waiting for it while this text is emitted
		}
		if reason, err = g.take(id); reason != "" || err != nil || last {
			return reason, err
		}
		if w.every {
			if err := g.show(position+*accepted, w.logits[*accepted+1]); err != nil {
				return reason, err
			}
		}
		*accepted++
	}
}

// show gives the logits of a position to OnLogits, once.
func (g *generation) show(position int, logits []float32) error {
	if position < g.shown {
		return nil // it was computed again
	}
	g.shown = position + 1
	return g.options.OnLogits(position, logits)
}

// take makes a token part of the text and says whether it was the last.
func (g *generation) take(id int) (StopReason, error) {
	g.out.IDs = append(g.out.IDs, id)
	g.sequence.Append(id)
	if slices.Contains(g.options.Stop, id) {
		return StopID, nil
	}
	if g.emit != nil {
		if err := g.emit(id); errors.Is(err, ErrStop) {
			return StopCaller, nil
		} else if err != nil {
			return "", err
		}
	}
	return "", nil
}

func (g *generation) interrupted() bool {
	select {
	case <-g.options.Interrupt:
		return true
	default:
		return false
	}
}
