package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/k3infer/k3/core/sample"
)

// ErrStop is what Generate's emit returns to end the text without an error.
var ErrStop = errors.New("stop")

// GenerateOptions says how to go on from a prompt.
type GenerateOptions struct {
	MaxTokens int           // most tokens to generate; at least 1
	Sample    sample.Params // the zero value is greedy
	Stop      []int         // ids that end the text; they are generated, but not emitted
	// OnLogits is shown the logits of every position computed, in order. It makes prompts slower, since otherwise only the
	// last position needs any.
	OnLogits func(position int, logits []float32) error
	// Progress is called when a layer is about to be computed.
	Progress func(Progress)
	// Interrupt, once closed, ends the text after the pass in flight.
	Interrupt <-chan struct{}
}

// Progress is where a Generate stands.
type Progress struct {
	Prefill       bool
	Done, Total   int // tokens of the prompt computed, or tokens generated, and how many there will be
	Rows          int // rows of the pass in flight
	Layer, Layers int // Layer == Layers stands for lm_head
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
	Tokens int           // tokens computed (prefill) or generated (decode)
	Passes int           // passes over the weights
	Time   time.Duration // wall time
}

// Outcome is what Generate did.
type Outcome struct {
	IDs     []int // every id generated, the stop id included
	Reason  StopReason
	Prefill Phase // up to the first token generated
	Decode  Phase // the tokens after it
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
	g := generation{engine: e, sequence: s, options: o, sampler: sampler, emit: emit}
	start, computed := time.Now(), s.Computed()
	reason, err := g.prefill(ctx)
	out.Prefill = Phase{Tokens: s.Computed() - computed, Passes: g.passes, Time: time.Since(start)}
	if err == nil && reason == "" {
		passes := g.passes
		start = time.Now()
		reason, err = g.decode(ctx)
		out.Decode = Phase{Tokens: len(g.ids) - 1, Passes: g.passes - passes, Time: time.Since(start)}
	}
	out.IDs, out.Reason = g.ids, reason
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
		logits, err := g.pass(ctx, waiting[:n], n == len(waiting), Progress{Prefill: true, Done: g.sequence.Computed() - before, Total: total})
		if err != nil {
			return "", err
		}
		if n == len(waiting) {
			return g.choose(logits)
		}
	}
}

// decode computes one token at a time.
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
		logits, err := g.pass(ctx, g.sequence.waiting(), true, Progress{Done: len(g.ids), Total: g.options.MaxTokens})
		if err != nil {
			return "", err
		}
		if reason, err := g.choose(logits); reason != "" || err != nil {
			return reason, err
		}
	}
}

// pass computes ids of the sequence and returns the logits behind the last of them, if wanted.
func (g *generation) pass(ctx context.Context, ids []int, last bool, at Progress) ([]float32, error) {
	rows := make([]Row, len(ids))
	for i, id := range ids {
		rows[i] = Row{Sequence: g.sequence, Token: id, Logits: g.options.OnLogits != nil || last && i == len(ids)-1}
	}
	var onLayer func(int)
	if g.options.Progress != nil {
		at.Rows, at.Layers = len(ids), g.engine.model.Config.Layers
		onLayer = func(layer int) {
			at.Layer = layer
			g.options.Progress(at)
		}
	}
	position := g.sequence.Computed()
	g.engine.passing.Lock()
	defer g.engine.passing.Unlock()
	logits, err := g.engine.pass(ctx, rows, onLayer)
	if err != nil {
		return nil, err
	}
	g.passes++
	if g.options.OnLogits != nil {
		for i, l := range logits {
			if err := g.options.OnLogits(position+i, l); err != nil {
				return nil, err
			}
		}
	}
	if !last {
		return nil, nil
	}
	// A copy: the next pass of any sequence writes over the engine's.
	return slices.Clone(logits[len(logits)-1]), nil
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
