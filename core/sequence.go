package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/k3infer/k3/core/graph"
)

// Sequence is one text: its ids, and what the model remembers of those it has computed. One goroutine may use it at a
// time.
type Sequence struct {
	engine  *Engine
	state   *graph.State
	context int   // most tokens it can have
	ids     []int // computed, then waiting
	guesses []int // the tentative rows of the last pass
	closed  bool
}

// NewSequence returns an empty sequence of up to Context tokens. Close frees its state. As many may be open at a time as
// Options.Sequences says; one more is an error that matches ErrNoFit.
func (e *Engine) NewSequence() (*Sequence, error) { return e.NewSequenceOf(e.Context()) }

// NewSequenceOf returns an empty sequence of up to n tokens. All that are open have Options.Tokens together.
func (e *Engine) NewSequenceOf(n int) (*Sequence, error) { return e.begin(n, e.graph.NewState) }

// begin opens a sequence of up to n tokens, of a state that is made once it is known that the plan has room for it.
func (e *Engine) begin(n int, state func() (*graph.State, error)) (*Sequence, error) {
	if n < 1 || n > e.Context() {
		return nil, fmt.Errorf("core: open a sequence: %w: %d tokens, not 1 to %d", ErrContext, n, e.Context())
	}
	if err := e.room.take(n); err != nil {
		return nil, fmt.Errorf("core: open a sequence: %w", err)
	}
	s, err := state()
	if err != nil {
		e.room.give(n)
		return nil, err
	}
	return &Sequence{engine: e, state: s, context: n}, nil
}

// room is the sequences and their tokens that a plan has memory for.
type room struct {
	mu                sync.Mutex
	sequences, tokens int           // that are not taken
	all               [2]int        // with none taken
	given             chan struct{} // is closed when some are given back; nil while nobody waits
}

// newRoom is room for so many sequences and pages of latents.
func newRoom(sequences, pages int) *room {
	return &room{sequences: sequences, tokens: pages, all: [2]int{sequences, pages}}
}

func (r *room) take(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	pages := graph.Pages(n)
	switch {
	case r.sequences == 0:
		return fmt.Errorf("%w: there is room for %d at a time (Options.Sequences), and no more", ErrNoFit, r.all[0])
	case pages > r.tokens:
		return fmt.Errorf("%w: %d tokens are wanted, and there is room for %d more (Options.Tokens)", ErrNoFit, n, r.tokens*graph.PageTokens)
	}
	r.sequences--
	r.tokens -= pages
	return nil
}

// ever is nil if n tokens fit when nothing else is open.
func (r *room) ever(n int) error {
	if pages := graph.Pages(n); pages > r.all[1] {
		return fmt.Errorf("%w: %d tokens are wanted, and there is room for %d (Options.Tokens)", ErrNoFit, n, r.all[1]*graph.PageTokens)
	}
	return nil
}

func (r *room) give(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sequences++
	r.tokens += graph.Pages(n)
	if r.given != nil {
		close(r.given)
		r.given = nil
	}
}

// wait returns a channel that is closed when room is given back.
func (r *room) wait() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.given == nil {
		r.given = make(chan struct{})
	}
	return r.given
}

// Close frees the sequence's state.
func (s *Sequence) Close() {
	if !s.closed {
		s.closed = true
		s.state.Free()
		s.engine.room.give(s.context)
	}
}

// Context is the most tokens the sequence can have.
func (s *Sequence) Context() int { return s.context }

func (s *Sequence) broken() bool { return s.closed || s.state.Err() != nil }

// fits is nil if a Generate of prompt can begin.
func (s *Sequence) fits(prompt []int) error {
	switch n := len(s.ids) + len(prompt); {
	case s.Err() != nil:
		return s.Err()
	case len(s.waiting())+len(prompt) == 0:
		return fmt.Errorf("core: generate: %w", ErrPrompt)
	case n > s.context:
		return fmt.Errorf("core: generate: %w: %d tokens do not fit into %d", ErrContext, n, s.context)
	}
	for _, id := range prompt {
		if vocab := s.engine.model.Config.Vocab; id < 0 || id >= vocab {
			return fmt.Errorf("core: generate: %w: %d is not in [0, %d)", ErrToken, id, vocab)
		}
	}
	return nil
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
	// Score, if not nil, asks how likely an id is to follow the token. It takes no room for logits.
	Score *Score
}

// Score is how likely an id is to follow a row.
type Score = graph.Score

// Pass computes rows of any number of sequences in one reading of the weights. The rows of a sequence stand together, in
// order, guesses last, and a sequence whose guesses await Accept takes no rows. A certain row that continues what Append
// left waiting must repeat it.
//
// The result has the logits of each row that asked, in the order of the rows, vocabulary wide. They are the caller's
// own, on the Go heap, where the plan leaves no room for those of many rows: PassInto puts them elsewhere. A failure
// breaks all sequences of the pass (ErrBroken), but rows that were refused (ErrContext, ErrToken, too many rows) leave
// them as they were. Where only the numbers of some sequences were at fault, the error is a *PartialError: those are broken,
// and the others have their rows and logits, as if they had been alone.
func (e *Engine) Pass(ctx context.Context, rows []Row) ([][]float32, error) {
	wanted, vocab := logitsOf(rows), e.model.Config.Vocab
	all := make([]float32, min(wanted, e.MaxRows())*vocab) // more rows are refused
	err := e.PassInto(ctx, rows, all)
	if partial := (*PartialError)(nil); err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	return slices.Collect(slices.Chunk(all, vocab)), err
}

// PartialError is the error of a pass in which the numbers of some sequences were at fault (ErrNumbers), and only of those.
type PartialError = graph.Partial

// PassInto is Pass with the logits in memory of the caller's choice, such as a memory.Block: those of the rows that
// asked, one after the other, vocabulary wide.
func (e *Engine) PassInto(ctx context.Context, rows []Row, logits []float32) error {
	_, err := e.pass(ctx, rows, logits, nil)
	return err
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

// pass is PassInto that also calls onLayer, unless it is nil, when a layer is about to be computed, and returns what the pass
// cost, layer by layer.
func (e *Engine) pass(ctx context.Context, rows []Row, logits []float32, onLayer func(layer int)) (costs []Cost, err error) {
	hooks := graph.Hooks{Routed: e.options.Routed, Probe: e.options.Probe}
	if err := e.turn.take(onLayer != nil || hooks.Routed != nil || hooks.Probe != nil); err != nil {
		return nil, fmt.Errorf("core: pass: %w", err)
	}
	defer e.turn.give()
	if len(rows) == 0 || len(rows) > e.MaxRows() {
		return nil, fmt.Errorf("core: pass: %d rows, not 1 to %d", len(rows), e.MaxRows())
	}
	if need := logitsOf(rows) * e.model.Config.Vocab; len(logits) < need {
		return nil, fmt.Errorf("core: pass: room for %d logits, not for the %d of the rows that want some", len(logits), need)
	}
	inner := make([]graph.Row, len(rows))
	next := map[*Sequence]int{}
	fresh := make([]int, len(rows)) // positions of the rows that add an id to their sequences; -1 for others
	for i, r := range rows {
		if r.Sequence == nil || r.Sequence.engine != e {
			return nil, fmt.Errorf("core: pass: row %d belongs to no sequence of this engine", i)
		}
		at, seen := next[r.Sequence]
		if !seen {
			at = r.Sequence.state.Len()
		}
		if next[r.Sequence] = at + 1; at >= r.Sequence.context {
			return nil, fmt.Errorf("core: pass: %w: row %d is beyond the %d tokens of its sequence", ErrContext, i, r.Sequence.context)
		}
		waits := at < len(r.Sequence.ids)
		if waits && (r.Tentative || r.Sequence.ids[at] != r.Token) {
			return nil, fmt.Errorf("core: pass: row %d is id %d, but id %d waits in its sequence", i, r.Token, r.Sequence.ids[at])
		}
		if fresh[i] = at; waits || r.Tentative {
			fresh[i] = -1
		}
		inner[i] = graph.Row{State: r.Sequence.state, Token: r.Token, Tentative: r.Tentative, Logits: r.Logits, Score: r.Score}
	}
	clock := clock{engine: e, layer: -1}
	hooks.Layer = func(layer int) {
		clock.enter(layer)
		if onLayer != nil {
			onLayer(layer)
		}
	}
	defer func() {
		clock.enter(-1)
		costs = e.spent()
	}()
	if err := e.changed(); err != nil {
		return nil, err
	}
	hooks.Complete = e.changed
	err = e.graph.Pass(ctx, inner, logits, hooks)
	if partial := (*PartialError)(nil); err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	for i, r := range rows {
		s := r.Sequence
		switch {
		case s.Err() != nil: // it alone failed
		case r.Tentative:
			s.guesses = append(s.guesses, r.Token)
		case fresh[i] >= 0: // before what a hook may have appended
			s.ids = slices.Insert(s.ids, fresh[i], r.Token)
		}
	}
	return nil, err
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
