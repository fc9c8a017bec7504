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
	closed  bool
}

// NewSequence returns an empty sequence. Close frees its state. As many may be open at a time as Options.Sequences
// says; one more is an error that matches ErrNoFit.
func (e *Engine) NewSequence() (*Sequence, error) { return e.begin(e.graph.NewState) }

// begin opens a sequence of a state that is made once it is known that the plan has room for it.
func (e *Engine) begin(state func() (*graph.State, error)) (*Sequence, error) {
	if n := e.sequences.Add(1); n > int64(e.options.Sequences) {
		e.sequences.Add(-1)
		return nil, fmt.Errorf("core: open a sequence: %w: there is room for %d at a time (Options.Sequences), and no more",
			ErrNoFit, e.options.Sequences)
	}
	s, err := state()
	if err != nil {
		e.sequences.Add(-1)
		return nil, err
	}
	return &Sequence{engine: e, state: s}, nil
}

// Close frees the sequence's state.
func (s *Sequence) Close() {
	if !s.closed {
		s.closed = true
		s.state.Free()
		s.engine.sequences.Add(-1)
	}
}

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
// The result has the logits of each row that asked, in the order of the rows, vocabulary wide. They are the caller's
// own, on the Go heap, where the plan leaves no room for those of many rows: PassInto puts them elsewhere. A failure
// breaks all sequences of the pass (ErrBroken), but rows that were refused (ErrContext, ErrToken, too many rows) leave
// them as they were.
func (e *Engine) Pass(ctx context.Context, rows []Row) ([][]float32, error) {
	wanted, vocab := logitsOf(rows), e.model.Config.Vocab
	all := make([]float32, min(wanted, e.MaxRows())*vocab) // more rows are refused
	if err := e.PassInto(ctx, rows, all); err != nil {
		return nil, err
	}
	return slices.Collect(slices.Chunk(all, vocab)), nil
}

// PassInto is Pass with the logits in memory of the caller's choice, such as a memory.Block: those of the rows that
// asked, one after the other, vocabulary wide.
func (e *Engine) PassInto(ctx context.Context, rows []Row, logits []float32) error {
	return e.pass(ctx, rows, logits, nil)
}

// logitsOf is the number of rows that ask for logits.
func logitsOf(rows []Row) (n int) {
	for _, r := range rows {
		if r.Logits {
			n++
		}
	}
	return n
}

// pass is PassInto that also calls onLayer, unless it is nil, when a layer is about to be computed.
func (e *Engine) pass(ctx context.Context, rows []Row, logits []float32, onLayer func(layer int)) error {
	hooks := graph.Hooks{Routed: e.options.Routed, Probe: e.options.Probe}
	if err := e.turn.take(onLayer != nil || hooks.Routed != nil || hooks.Probe != nil); err != nil {
		return fmt.Errorf("core: pass: %w", err)
	}
	defer e.turn.give()
	if len(rows) == 0 || len(rows) > e.MaxRows() {
		return fmt.Errorf("core: pass: %d rows, not 1 to %d", len(rows), e.MaxRows())
	}
	if need := logitsOf(rows) * e.model.Config.Vocab; len(logits) < need {
		return fmt.Errorf("core: pass: room for %d logits, not for the %d of the rows that want some", len(logits), need)
	}
	inner := make([]graph.Row, len(rows))
	next := map[*Sequence]int{}
	fresh := make([]int, len(rows)) // positions of the rows that add an id to their sequences; -1 for others
	for i, r := range rows {
		if r.Sequence == nil || r.Sequence.engine != e {
			return fmt.Errorf("core: pass: row %d belongs to no sequence of this engine", i)
		}
		at, seen := next[r.Sequence]
		if !seen {
			at = r.Sequence.state.Len()
		}
		next[r.Sequence] = at + 1
		waits := at < len(r.Sequence.ids)
		if waits && (r.Tentative || r.Sequence.ids[at] != r.Token) {
			return fmt.Errorf("core: pass: row %d is id %d, but id %d waits in its sequence", i, r.Token, r.Sequence.ids[at])
		}
		if fresh[i] = at; waits || r.Tentative {
			fresh[i] = -1
		}
		inner[i] = graph.Row{State: r.Sequence.state, Token: r.Token, Tentative: r.Tentative, Logits: r.Logits}
	}
	clock := clock{engine: e, layer: -1}
	hooks.Layer = func(layer int) {
		clock.enter(layer)
		if onLayer != nil {
			onLayer(layer)
		}
	}
	defer func() { clock.enter(-1) }()
	if err := e.changed(); err != nil {
		return err
	}
	hooks.Complete = e.changed
	if err := e.graph.Pass(ctx, inner, logits, hooks); err != nil {
		return err
	}
	for i, r := range rows {
		s := r.Sequence
		switch {
		case r.Tentative:
			s.guesses = append(s.guesses, r.Token)
		case fresh[i] >= 0: // before what a hook may have appended
			s.ids = slices.Insert(s.ids, fresh[i], r.Token)
		}
	}
	return nil
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
	if err := s.engine.turn.take(false); err != nil {
		return fmt.Errorf("core: accept: %w", err)
	}
	defer s.engine.turn.give()
	if err := s.state.Accept(n); err != nil {
		return err
	}
	s.guesses = s.guesses[:0]
	return nil
}
