package core

import (
	"context"
	"fmt"
	"slices"

	"github.com/k3infer/k3/core/graph"
)

// Sequence is one text: its ids, and what the model remembers of those it has computed. One goroutine may use it at a
// time.
type Sequence struct {
	engine  *Engine
	state   *graph.State
	ids     []int // computed, then waiting
	guesses []int // the tentative rows of the last pass
}

// NewSequence returns an empty sequence. Close frees its state.
func (e *Engine) NewSequence() (*Sequence, error) {
	s, err := e.graph.NewState()
	if err != nil {
		return nil, err
	}
	return &Sequence{engine: e, state: s}, nil
}

// Close frees the sequence's state.
func (s *Sequence) Close() { s.state.Free() }

// IDs returns all ids of the sequence, Computed() of them part of its state and the rest, such as the last token that
// Generate chose, waiting for the next pass.
func (s *Sequence) IDs() []int { return slices.Clone(s.ids) }

// Computed is the number of ids whose effect is in the state.
func (s *Sequence) Computed() int { return s.state.Len() }

// Err is nil, or matches ErrBroken: the sequence gives no more tokens.
func (s *Sequence) Err() error { return s.state.Err() }

// Append puts ids behind the sequence, to be computed by the next Generate.
func (s *Sequence) Append(ids ...int) { s.ids = append(s.ids, ids...) }

// waiting is the ids that are not computed.
func (s *Sequence) waiting() []int { return s.ids[s.state.Len():] }

// Row is one token of a pass.
type Row struct {
	Sequence *Sequence
	Token    int
	// Tentative marks a guess: it gets logits like any row but becomes part of the sequence only by Accept.
	Tentative bool
	// Logits asks for the logits that follow the token.
	Logits bool
}

// Pass computes rows of any number of sequences in one reading of the weights. The rows of a sequence stand together, in
// order, guesses last, and a sequence whose guesses await Accept takes no rows. A certain row that continues what Append
// left waiting must repeat it.
//
// The result has the logits of each row that asked, in the order of the rows, vocabulary wide; they are valid until the
// engine's next pass. A failure spoils all sequences of the pass: see ErrBroken; but rows that were refused (ErrContext,
// ErrToken, too many rows) leave them as they were.
func (e *Engine) Pass(ctx context.Context, rows []Row) ([][]float32, error) {
	e.passing.Lock()
	defer e.passing.Unlock()
	return e.pass(ctx, rows, nil)
}

// pass is Pass for a caller that holds e.passing.
func (e *Engine) pass(ctx context.Context, rows []Row, onLayer func(layer int)) ([][]float32, error) {
	inner := make([]graph.Row, len(rows))
	next := map[*Sequence]int{}
	wanted := 0
	for i, r := range rows {
		if r.Sequence == nil || r.Sequence.engine != e {
			return nil, fmt.Errorf("core: pass: row %d belongs to no sequence of this engine", i)
		}
		at, seen := next[r.Sequence]
		if !seen {
			at = r.Sequence.state.Len()
		}
		next[r.Sequence] = at + 1
		if at < len(r.Sequence.ids) && (r.Tentative || r.Sequence.ids[at] != r.Token) {
			return nil, fmt.Errorf("core: pass: row %d is id %d, but id %d waits in its sequence", i, r.Token, r.Sequence.ids[at])
		}
		inner[i] = graph.Row{State: r.Sequence.state, Token: r.Token, Tentative: r.Tentative, Logits: r.Logits}
		if r.Logits {
			wanted++
		}
	}
	vocab := e.model.Config.Vocab
	if need := 4 * vocab * wanted; e.logits == nil || len(e.logits.Bytes()) < need {
		e.logits.Free()
		b, err := e.account.Allocate("logits", need)
		if err != nil {
			e.logits = nil
			return nil, err
		}
		e.logits = b
	}
	out := e.logits.Float32s()
	clock := clock{engine: e, layer: -1}
	enter := func(layer int) {
		clock.enter(layer)
		if onLayer != nil {
			onLayer(layer)
		}
	}
	defer func() { clock.enter(-1) }()
	if err := e.changed(); err != nil {
		return nil, err
	}
	if err := e.graph.Pass(ctx, inner, out, graph.Hooks{
		Layer: enter, Routed: e.options.Routed, Probe: e.options.Probe, Complete: e.changed,
	}); err != nil {
		return nil, err
	}
	for _, r := range rows {
		s := r.Sequence
		switch {
		case r.Tentative:
			s.guesses = append(s.guesses, r.Token)
		case s.state.Len() > len(s.ids):
			s.ids = append(s.ids, r.Token)
		}
	}
	logits := make([][]float32, wanted)
	for i := range logits {
		logits[i] = out[i*vocab:][:vocab:vocab]
	}
	return logits, nil
}

// Accept makes the first n guesses of the sequence's last pass part of it and forgets the others.
func (s *Sequence) Accept(n int) error {
	right := slices.Clone(s.guesses[:max(0, min(n, len(s.guesses)))])
	if err := s.keep(n); err != nil {
		return err
	}
	s.ids = append(s.ids, right...)
	return nil
}

// keep is Accept for guesses whose ids are appended already.
func (s *Sequence) keep(n int) error {
	s.engine.passing.Lock()
	defer s.engine.passing.Unlock()
	if err := s.state.Accept(n); err != nil {
		return err
	}
	s.guesses = s.guesses[:0]
	return nil
}
