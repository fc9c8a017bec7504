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

// Phase is what one part of a Generate cost.
type Phase struct {
	Tokens int    // tokens computed (prefill) or generated (decode)
	Passes int    // passes over the weights
	Cost          // Time is all of the phase's; the rest, the sum over the layers
	Layers []Cost // by layer, lm_head last
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
	var out Outcome
	sampler, err := sample.New(o.Sample)
	if err != nil {
		return out, err
	}
	if err := e.turn.nested(); err != nil {
		return out, fmt.Errorf("core: generate: %w", err)
	}
	switch {
	case o.MaxTokens < 1:
		return out, fmt.Errorf("core: generate: %d tokens: must be at least 1", o.MaxTokens)
	case s.engine != e:
		return out, errors.New("core: generate: a sequence of another engine")
	case s.Err() != nil:
		return out, s.Err()
	case len(s.waiting())+len(prompt) == 0:
		return out, fmt.Errorf("core: generate: %w", ErrPrompt)
	case len(s.ids)+len(prompt) > e.Context():
		return out, fmt.Errorf("core: generate: %w: %d tokens do not fit into %d", ErrContext, len(s.ids)+len(prompt), e.Context())
	}
	for _, id := range prompt {
		if id < 0 || id >= e.model.Config.Vocab {
			return out, fmt.Errorf("core: generate: %w: %d is not in [0, %d)", ErrToken, id, e.model.Config.Vocab)
		}
	}
	s.Append(prompt...)
	g := generation{engine: e, sequence: s, options: o, sampler: sampler, emit: emit, drafter: o.Speculate.Drafter}
	defer func() { g.memory.Free() }()
	before := read(e.Costs())
	g.read = func() int64 { return read(e.Costs()) - before }
	if g.drafter == nil {
		g.drafter = speculate.NGram{}
	}
	computed := s.Computed()
	reason, err := g.phase(&out.Prefill, func() (StopReason, error) { return g.prefill(ctx) })
	out.Prefill.Tokens = s.Computed() - computed
	if err == nil && reason == "" {
		reason, err = g.phase(&out.Decode, func() (StopReason, error) { return g.decode(ctx) })
		out.Decode.Tokens = len(g.ids) - 1
	}
	out.IDs, out.Reason, out.Guesses = g.ids, reason, g.guesses
	out.Guesses.Saved = time.Duration(g.pacer.Saved() * float64(time.Second))
	return out, err
}

// generation is one Generate under way.
type generation struct {
	engine   *Engine
	sequence *Sequence
	options  GenerateOptions
	sampler  *sample.Sampler
	emit     func(id int) error
	ids      []int // generated
	passes   int
	read     func() int64  // bytes so far
	memory   *memory.Block // for the logits of a pass

	drafter  speculate.Drafter
	pacer    speculate.Pacer
	draft    []int // what was drafted for the pass
	position int   // of the first row of the pass
	guesses  Guesses
}

// phase runs f and notes what it took.
func (g *generation) phase(p *Phase, f func() (StopReason, error)) (StopReason, error) {
	start, before, passes := time.Now(), g.engine.Costs(), g.passes
	reason, err := f()
	p.Passes, p.Layers = g.passes-passes, subtract(g.engine.Costs(), before)
	for _, c := range p.Layers {
		p.add(c, 1)
	}
	p.Time = time.Since(start)
	return reason, err
}

// prefill computes what waits in the sequence, chunk by chunk, and chooses the first token.
func (g *generation) prefill(ctx context.Context) (StopReason, error) {
	total, before := len(g.sequence.waiting()), g.sequence.Computed()
	for {
		if g.interrupted() {
			return StopInterrupt, nil
		}
		waiting := g.sequence.waiting()
		n := min(len(waiting), g.engine.MaxRows())
		last := n == len(waiting)
		done := g.sequence.Computed() - before
		logits, err := g.pass(ctx, waiting[:n], nil, last, Progress{Prefill: true, Done: done, Total: total})
		if err == nil {
			logits, err = g.show(logits, n)
		}
		if err != nil {
			return "", err
		}
		if last {
			return g.choose(logits[0])
		}
		if g.options.OnPrefill != nil {
			if err := g.options.OnPrefill(); err != nil {
				return "", err
			}
		}
	}
}

// decode computes the token that waits, and guesses behind it, pass by pass.
func (g *generation) decode(ctx context.Context) (StopReason, error) {
	for {
		switch {
		case len(g.ids) >= g.options.MaxTokens:
			return StopLength, nil
		case g.sequence.Computed() >= g.engine.Context():
			return StopContext, nil
		case g.interrupted():
			return StopInterrupt, nil
		}
		taken, certain := g.guess(), g.sequence.waiting()
		start := time.Now()
		logits, err := g.pass(ctx, certain, taken, true, Progress{Done: len(g.ids), Total: g.options.MaxTokens})
		if err != nil {
			return "", err
		}
		seconds := time.Since(start).Seconds()
		reason, accepted, err := g.check(logits, len(certain), taken)
		g.pacer.Observe(len(taken), accepted, seconds)
		g.guesses.Proposed += len(taken)
		g.guesses.Accepted += accepted
		if reason != "" || err != nil {
			return reason, err
		}
	}
}

// guess drafts what may follow and returns how much of it the next pass takes along.
func (g *generation) guess() []int {
	o := g.options.Speculate
	room := min(g.options.MaxTokens-len(g.ids)-1, g.engine.Context()-len(g.sequence.ids), g.engine.MaxRows()-1)
	n := min(o.Most, room)
	if n <= 0 {
		g.draft = g.draft[:0]
		return nil
	}
	g.draft = g.drafter.Draft(g.draft[:0], g.sequence.ids, n)
	for i, id := range g.draft {
		if i == n || id < 0 || id >= g.engine.model.Config.Vocab {
			g.draft = g.draft[:i]
			break
		}
	}
	if o.Always {
		return g.draft
	}
	return g.draft[:g.pacer.Allow(len(g.draft))]
}

// check chooses tokens from the logits of the waiting token and of the guesses that were taken, as long as the guesses
// turn out right, and makes those part of the sequence.
func (g *generation) check(logits [][]float32, certain int, taken []int) (reason StopReason, accepted int, err error) {
	// Whatever ends it, a panic of the caller's functions included: the guesses must not hang over the sequence.
	defer func() {
		if e := g.sequence.keep(accepted); err == nil {
			err = e
		}
	}()
	if logits, err = g.show(logits, certain); err != nil {
		return "", 0, err
	}
	for {
		if reason, err = g.choose(logits[accepted]); err != nil {
			return reason, accepted, err
		}
		chosen := g.ids[len(g.ids)-1]
		if accepted == 0 && len(g.draft) > 0 {
			g.pacer.Fared(chosen == g.draft[0])
		}
		if reason != "" || accepted == len(taken) || chosen != taken[accepted] {
			return reason, accepted, nil
		}
		if g.options.OnLogits != nil {
			if err := g.options.OnLogits(g.position+certain+accepted, logits[accepted+1]); err != nil {
				return reason, accepted, err
			}
		}
		accepted++
	}
}

// show gives the logits of the certain rows of a pass to OnLogits, and returns those that tokens are chosen from: of
// the last certain row, if wanted, and of the guesses.
func (g *generation) show(logits [][]float32, certain int) ([][]float32, error) {
	if g.options.OnLogits == nil {
		return logits, nil
	}
	for i, l := range logits[:certain] {
		if err := g.options.OnLogits(g.position+i, l); err != nil {
			return nil, err
		}
	}
	return logits[certain-1:], nil
}

// pass computes ids of the sequence, and guesses that follow them. It returns the logits of all of them if OnLogits
// wants them, else those after the last id, if wanted, and after each guess. They are valid until the next pass.
func (g *generation) pass(ctx context.Context, ids, guesses []int, last bool, at Progress) ([][]float32, error) {
	rows := make([]Row, 0, len(ids)+len(guesses))
	for i, id := range ids {
		rows = append(rows, Row{Sequence: g.sequence, Token: id, Logits: g.options.OnLogits != nil || last && i == len(ids)-1})
	}
	for _, id := range guesses {
		rows = append(rows, Row{Sequence: g.sequence, Token: id, Logits: true, Tentative: true})
	}
	var onLayer func(int)
	if g.options.Progress != nil {
		at.Rows, at.Layers, at.Read = len(rows), g.engine.model.Config.Layers, g.read
		onLayer = func(layer int) {
			at.Layer = layer
			g.options.Progress(at)
		}
	}
	vocab := g.engine.model.Config.Vocab
	wanted := logitsOf(rows) * vocab
	if err := g.room(wanted); err != nil {
		return nil, err
	}
	g.position = g.sequence.Computed()
	logits := g.memory.Float32s()[:wanted]
	if err := g.engine.pass(ctx, rows, logits, onLayer); err != nil {
		return nil, err
	}
	g.passes++
	return slices.Collect(slices.Chunk(logits, vocab)), nil
}

// room makes sure that there is memory for n logits.
func (g *generation) room(n int) (err error) {
	if g.memory == nil || len(g.memory.Bytes()) < 4*n {
		g.memory.Free()
		g.memory, err = g.engine.account.Allocate(memory.Logits, 4*n)
	}
	return err
}

// choose takes the next token from the logits and says whether it was the last.
func (g *generation) choose(logits []float32) (StopReason, error) {
	id, err := g.sampler.Next(logits, g.sequence.ids)
	if err != nil {
		return "", fmt.Errorf("core: choose token %d: %w", len(g.ids), err)
	}
	g.ids = append(g.ids, id)
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
