package core

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/memory"
)

// ErrStopped is the error of texts that were not done when their Scheduler was closed.
var ErrStopped = errors.New("the scheduler was closed")

// PanicError is the error of a text that ended because a function of its caller panicked, or a pass did.
type PanicError struct {
	Value any
	Stack []byte
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns what was panicked with, if that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Lane is who a text is computed for.
type Lane int

// Those of an earlier lane go first.
const (
	People     Lane = iota // somebody waits for it
	Background             // it may wait
)

// SchedulerOptions says how texts share passes.
type SchedulerOptions struct {
	// Slowdown is how many times as long a pass may take, because of rows of prompts and of later lanes, as one with nothing but
	// the texts that are being answered; 0: DefaultSlowdown. While none is being answered, prompts fill the passes.
	Slowdown float64
	// Prefixes, if not nil, is where texts find what is computed of them already, at the beginning and after a pass that failed.
	// The scheduler does not close it.
	Prefixes *Prefixes
}

// DefaultSlowdown is the usual SchedulerOptions.Slowdown.
const DefaultSlowdown = 1.5

// Scheduler computes many texts together: each pass over the weights carries rows of all of them. Texts join and leave between
// passes. What it does is a matter of time alone: each text is, bit for bit, what Engine.Generate makes of it.
//
// A text fares by itself: what its numbers, its sampler, its functions or its cancellation do ends it and no other. A pass that
// fails for all, such as by a read that fails, is computed again from the ids of its texts, once, before they are told.
type Scheduler struct {
	engine  *Engine
	options SchedulerOptions
	maxRows int           // of a pass
	ended   chan struct{} // the loop has returned

	mu      sync.Mutex
	wake    chan struct{} // has an element when there may be something to do
	texts   []*text       // in order of arrival
	waiting []*ticket     // for room, by lane and arrival
	closed  bool
	cancel  context.CancelFunc // of the pass that is under way; nil: none
	times   passTimes
	stats   SchedulerStats
	blocks  []*logitsBlock
	freed   sync.Cond
}

// SchedulerStats counts what a scheduler has done.
type SchedulerStats struct {
	Passes   int
	Rows     int // of those passes
	Again    int // passes that failed and whose texts were computed again
	Running  int // texts that are in Generate
	Queued   int // texts that wait for room
	LastRows int // rows of the latest pass
}

// NewScheduler starts a scheduler. Close ends it, before the engine is closed. Passes that others have the engine compute take their
// turns with its own.
func (e *Engine) NewScheduler(o SchedulerOptions) *Scheduler {
	if o.Slowdown == 0 {
		o.Slowdown = DefaultSlowdown
	}
	s := &Scheduler{engine: e, options: o, maxRows: e.MaxRows(), ended: make(chan struct{}), wake: make(chan struct{}, 1)}
	s.freed.L = &s.mu
	go s.loop()
	return s
}

// Close ends the pass that is under way, within a layer, and the texts with ErrStopped. It returns when nothing is computed any more.
func (s *Scheduler) Close() {
	s.mu.Lock()
	s.closed = true
	if s.cancel != nil {
		s.cancel()
	}
	s.freed.Broadcast()
	s.moved()
	s.mu.Unlock()
	s.poke()
	<-s.ended
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.blocks {
		if b.users == 0 {
			b.memory.Free()
		}
		b.over = true
	}
	s.blocks = nil
}

// Stats returns the counts so far.
func (s *Scheduler) Stats() SchedulerStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Running, stats.Queued = len(s.texts), len(s.waiting)
	return stats
}

// ticket is a text that waits for room.
type ticket struct {
	lane  Lane
	moved chan struct{} // is closed when the queue has changed
}

// Sequence returns a sequence for a text of up to n tokens that begins with ids, of which those that Prefixes knows are computed. It
// waits until there is room for it: earlier lanes first, and in order of arrival. A text for which there will never be room is an
// error that matches ErrNoFit or ErrContext.
func (s *Scheduler) Sequence(ctx context.Context, lane Lane, ids []int, n int) (*Sequence, error) {
	if err := s.engine.room.ever(n); err != nil {
		return nil, fmt.Errorf("core: open a sequence: %w", err)
	}
	t := &ticket{lane: lane}
	s.mu.Lock()
	at, _ := slices.BinarySearchFunc(s.waiting, lane+1, func(t *ticket, l Lane) int { return int(t.lane - l) })
	s.waiting = slices.Insert(s.waiting, at, t)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting = slices.DeleteFunc(s.waiting, func(x *ticket) bool { return x == t })
		s.moved()
		s.mu.Unlock()
	}()
	for {
		s.mu.Lock()
		moved := make(chan struct{})
		t.moved = moved
		first, closed := s.waiting[0] == t, s.closed
		s.mu.Unlock()
		if closed {
			return nil, ErrStopped
		}
		given := s.engine.room.wait() // before it is tried, so that nothing is missed
		if first {
			sequence, err := s.open(ids, n)
			if err == nil || !errors.Is(err, ErrNoFit) {
				return sequence, err
			}
		}
		select {
		case <-given:
		case <-moved:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// moved tells those that wait for room that they may have become the first.
func (s *Scheduler) moved() {
	for _, t := range s.waiting {
		if t.moved != nil {
			close(t.moved)
			t.moved = nil
		}
	}
}

// open opens a sequence of ids.
func (s *Scheduler) open(ids []int, n int) (*Sequence, error) {
	if s.options.Prefixes != nil {
		return s.options.Prefixes.SequenceOf(ids, n)
	}
	sequence, err := s.engine.NewSequenceOf(n)
	if err == nil {
		sequence.Append(ids...)
	}
	return sequence, err
}

// Generate is Engine.Generate in passes that are shared with other texts. It is called from one goroutine for each text; emit and the
// functions of the options are called from that goroutine, but for Progress, which the pass calls. While emit takes its time the others
// go on. A text whose ctx ends leaves when the pass that it is in does, unbroken, and a pass that nobody wants any more ends within a
// layer.
func (s *Scheduler) Generate(ctx context.Context, lane Lane, sequence *Sequence, prompt []int, o GenerateOptions, emit func(id int) error) (out Outcome, err error) {
	err = s.serve(ctx, lane, func(t *text) error { return s.engine.generate(ctx, t, &out, sequence, prompt, o, emit) })
	return out, err
}

// Score is Engine.Score in passes that are shared with other texts.
func (s *Scheduler) Score(ctx context.Context, lane Lane, sequence *Sequence) (scores []Score, err error) {
	err = s.serve(ctx, lane, func(t *text) (err error) {
		scores, err = s.engine.score(ctx, t, sequence)
		return err
	})
	return scores, err
}

// serve has a text take part in passes while f runs. A panic of f is an error.
func (s *Scheduler) serve(ctx context.Context, lane Lane, f func(t *text) error) (err error) {
	t := &text{scheduler: s, lane: lane, ctx: ctx, ready: make(chan error, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrStopped
	}
	s.texts = append(s.texts, t)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.texts = slices.DeleteFunc(s.texts, func(x *text) bool { return x == t })
		s.mu.Unlock()
		s.poke() // the others wait for it no longer
		if v := recover(); v != nil {
			err = fmt.Errorf("core: generate: %w", &PanicError{v, debug.Stack()})
		}
	}()
	return f(t)
}

// text is one Generate or Score of a scheduler. Its fields but for the first three belong to whoever holds the scheduler's mutex.
type text struct {
	scheduler *Scheduler
	lane      Lane
	ctx       context.Context

	want   *want // nil: it has the last pass's results to see to
	take   int   // ids that go into the coming pass
	flying bool  // it is in the pass that is under way
	slow   bool  // it is not waited for
	served int   // number of the last pass it was in
	again  bool  // its last pass failed
	ready  chan error
}

// pass implements passer.
func (t *text) pass(ctx context.Context, w *want) error {
	s := t.scheduler
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("core: generate: %w", err)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrStopped
	}
	t.want, t.slow = w, false
	s.mu.Unlock()
	s.poke()
	var err error
	select {
	case err = <-t.ready:
	case <-ctx.Done():
		s.mu.Lock()
		if !t.flying {
			t.want = nil
			s.mu.Unlock()
			select {
			case err = <-t.ready: // it has just landed
			default:
				return fmt.Errorf("core: generate: %w", ctx.Err())
			}
			break
		}
		s.abandon()
		s.mu.Unlock()
		err = <-t.ready
	}
	if ctx.Err() != nil {
		return fmt.Errorf("core: generate: %w", ctx.Err())
	}
	if err == nil {
		t.again = false
		return nil
	}
	if w.sequence.Err() == nil || t.again || s.isClosed() || errors.Is(err, ErrNumbers) {
		return err
	}
	t.again = true
	if err := s.reset(w.sequence); err != nil {
		return err
	}
	return errAgain
}

func (s *Scheduler) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// abandon ends the pass that is under way if nobody in it wants it.
func (s *Scheduler) abandon() {
	for _, t := range s.texts {
		if t.flying && t.ctx.Err() == nil {
			return
		}
	}
	if s.cancel != nil {
		s.cancel()
	}
}

// reset gives a broken sequence the latest state there is of its text, after which the rest waits once more.
func (s *Scheduler) reset(q *Sequence) error {
	q.state.Free() // before there is another
	q.guesses = nil
	var state *graph.State
	var err error
	if p := s.options.Prefixes; p != nil {
		state, err = p.state(q.ids)
	}
	if state == nil && err == nil {
		state, err = s.engine.graph.NewState()
	}
	if err == nil {
		q.state = state
	}
	return err
}

func (s *Scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// loop computes pass after pass.
func (s *Scheduler) loop() {
	defer close(s.ended)
	var patience <-chan time.Time // until the texts that have results to see to are waited for
	limit := leastPatience
	for {
		s.mu.Lock()
		if s.closed {
			for _, t := range s.texts {
				if t.want != nil {
					t.want = nil
					t.ready <- ErrStopped
				}
			}
			s.mu.Unlock()
			return
		}
		wanting, busy := 0, 0
		for _, t := range s.texts {
			if t.want != nil {
				wanting++
			} else if !t.slow {
				busy++
			}
		}
		if wanting > 0 && busy == 0 {
			rows := s.compose()
			if len(rows) > 0 {
				patience = nil
				start := time.Now()
				s.fly(rows) // gives the mutex back
				// Long enough for a token of each, and short beside the pass.
				limit = max(leastPatience, time.Since(start)/8)
				continue
			}
		}
		s.mu.Unlock()
		if wanting > 0 && patience == nil {
			patience = time.After(limit)
		}
		select {
		case <-s.wake:
		case <-patience:
			patience = nil
			s.mu.Lock()
			for _, t := range s.texts {
				t.slow = t.want == nil
			}
			s.mu.Unlock()
		}
	}
}

// leastPatience is how long a pass is held up at least for texts that have results to see to.
const leastPatience = 5 * time.Millisecond

// compose says how much of what the texts want goes into the next pass, and returns those of which anything does: those that are
// being answered first, since each row of them is a token, the one that was served longest ago before others, then prompts in order
// of arrival; and all of a lane before the next. Others slow down those of the first lane that are being answered by
// Options.Slowdown at most.
func (s *Scheduler) compose() []*text {
	var all []*text
	steady, people := 0, false
	for _, t := range s.texts {
		t.take = 0
		if t.want != nil {
			all = append(all, t)
			people = people || t.lane == People
		}
	}
	slices.SortStableFunc(all, func(a, b *text) int {
		switch {
		case a.lane != b.lane:
			return int(a.lane - b.lane)
		case a.want.answering() != b.want.answering():
			if a.want.answering() {
				return -1
			}
			return 1
		case a.want.answering():
			return a.served - b.served
		}
		return 0
	})
	for _, t := range all {
		if t.want.answering() && (t.lane == People || !people) {
			steady += 1 + len(t.want.guesses)
		}
	}
	room := s.maxRows
	if steady > 0 {
		room = min(room, max(steady+1, s.times.most(steady, s.options.Slowdown)))
	}
	var chosen []*text
	for _, t := range all {
		if room == 0 {
			break
		}
		w := t.want
		t.take = min(len(w.ids), room)
		room -= t.take
		w.guesses = w.guesses[:min(len(w.guesses), room)]
		if t.take < len(w.ids) {
			w.guesses = w.guesses[:0]
		}
		room -= len(w.guesses)
		chosen = append(chosen, t)
	}
	return chosen
}

// answering tells whether a text has its prompt behind it.
func (w *want) answering() bool { return !w.prompt && len(w.ids) == 1 }

// fly computes a pass for texts and gives them what came of it. The mutex is held when it is called, and not when it returns.
func (s *Scheduler) fly(texts []*text) {
	var rows []Row
	watched := false
	for _, t := range texts {
		before := len(rows)
		rows = t.want.fill(rows, t.take)
		t.want.taken, t.want.own = t.take, len(rows)-before
		t.flying = true
		watched = watched || t.want.onLayer != nil
	}
	b, logits, err := s.logits(logitsOf(rows))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.cancel = cancel
	s.abandon() // they may have been cancelled by now
	s.mu.Unlock()

	var costs []Cost
	start := time.Now()
	if err == nil {
		var onLayer func(int)
		if watched {
			onLayer = s.watch(texts, len(rows))
		}
		costs, err = s.pass(ctx, rows, logits, onLayer)
	}
	seconds := time.Since(start).Seconds()
	partial := (*PartialError)(nil)
	if whole := err != nil && !errors.As(err, &partial); whole && len(texts) > 1 && s.refused(texts) {
		// One of them asks for what cannot be. Alone, each gets an answer of its own.
		b.drop(s)
		for _, t := range texts {
			s.mu.Lock()
			s.fly([]*text{t})
		}
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = nil
	s.stats.Passes++
	s.stats.Rows += len(rows)
	s.stats.LastRows = len(rows)
	if err == nil {
		s.times.observe(len(rows), seconds)
	} else if partial == nil && ctx.Err() == nil && !errors.Is(err, ErrNumbers) {
		s.stats.Again++
	}
	vocab, at := s.engine.model.Config.Vocab, 0
	for _, t := range texts {
		w := t.want
		w.costs, w.rows = costs, len(rows)
		own := err
		if partial != nil {
			own = w.sequence.Err()
		}
		n := logitsOf(w.fill(nil, w.taken))
		w.logits = nil
		for range n {
			if own == nil {
				w.logits = append(w.logits, logits[at*vocab:][:vocab])
			}
			at++
		}
		if n > 0 && own == nil {
			b.users++
			w.free = func() { b.drop(s) }
		}
		t.want, t.flying, t.served = nil, false, s.stats.Passes
		t.ready <- own
	}
	b.users--
	b.tell(s)
}

// refused tells whether nothing was computed of a pass that failed.
func (s *Scheduler) refused(texts []*text) bool {
	return !slices.ContainsFunc(texts, func(t *text) bool { return t.want.sequence.broken() })
}

// pass is Engine.pass, and a panic of one of the engine's hooks an error.
func (s *Scheduler) pass(ctx context.Context, rows []Row, logits []float32, onLayer func(int)) (costs []Cost, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("core: pass: %w", &PanicError{v, debug.Stack()})
		}
	}()
	return s.engine.pass(ctx, rows, logits, onLayer)
}

// watch returns the function that tells texts which layer is computed. One that panics is not called again.
func (s *Scheduler) watch(texts []*text, rows int) func(layer int) {
	before := read(s.engine.Costs())
	watchers := make([]*want, 0, len(texts))
	for _, t := range texts {
		if t.want.onLayer != nil {
			watchers = append(watchers, t.want)
		}
	}
	return func(layer int) {
		read := read(s.engine.Costs()) - before
		for i, w := range watchers {
			if w == nil {
				continue
			}
			func() {
				defer func() {
					if v := recover(); v != nil {
						watchers[i] = nil
						w.fault = &PanicError{v, debug.Stack()}
					}
				}()
				w.onLayer(layer, rows, int64(float64(read)*float64(w.own)/float64(rows)))
			}()
		}
	}
}

// logitsBlock is memory for the logits of a pass. Texts go on reading it while the next pass is computed: there are two.
type logitsBlock struct {
	memory *memory.Block
	users  int
	over   bool // the scheduler is closed: the last user frees it
}

// logits returns memory for n rows of logits that nobody uses, waiting for some if need be. The caller is its first user, and
// holds the mutex.
func (s *Scheduler) logits(n int) (*logitsBlock, []float32, error) {
	for {
		at := slices.IndexFunc(s.blocks, func(b *logitsBlock) bool { return b.users == 0 })
		if at < 0 && len(s.blocks) < 2 {
			at = len(s.blocks)
			s.blocks = append(s.blocks, &logitsBlock{})
		}
		if at >= 0 {
			b := s.blocks[at]
			b.users = 1
			var logits []float32
			var err error
			b.memory, logits, err = s.engine.logits(b.memory, n)
			return b, logits, err
		}
		if s.closed {
			return &logitsBlock{users: 1, over: true}, nil, ErrStopped
		}
		s.freed.Wait()
	}
}

// drop ends a use.
func (b *logitsBlock) drop(s *Scheduler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.users--
	b.tell(s)
}

// tell frees a block that is over, or tells who waits for one.
func (b *logitsBlock) tell(s *Scheduler) {
	if b.users > 0 {
		return
	}
	if b.over {
		b.memory.Free()
	}
	s.freed.Broadcast()
}

// passTimes learns what passes take from those that were, the latest counting most: a straight line over the number of rows.
type passTimes struct {
	weight, rows, seconds, squares, products float64
}

// forgotten is how much of what was learned a pass leaves.
const forgotten = 0.95

func (p *passTimes) observe(rows int, seconds float64) {
	n := float64(rows)
	for _, x := range []struct {
		sum *float64
		add float64
	}{{&p.weight, 1}, {&p.rows, n}, {&p.seconds, seconds}, {&p.squares, n * n}, {&p.products, n * seconds}} {
		*x.sum = float64(forgotten**x.sum) + x.add
	}
}

// most returns the most rows that a pass may have to take up to factor times as long as one of steady rows. Until passes of
// different sizes were seen it doubles them.
func (p *passTimes) most(steady int, factor float64) int {
	spread := p.weight*p.squares - p.rows*p.rows
	if p.weight < 2 || spread < 0.01*p.rows*p.rows {
		return 2 * steady
	}
	row := (p.weight*p.products - p.rows*p.seconds) / spread
	base := (p.seconds - row*p.rows) / p.weight
	if row <= 0 {
		return 1 << 30
	}
	now := max(base, 0) + row*float64(steady)
	return int(min((factor*now-max(base, 0))/row+1e-6, 1<<30)) // a whole number stays one in spite of rounding
}
