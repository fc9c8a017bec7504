package core

import (
	"sync"

	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/session"
)

// Prefixes keeps the states of texts under a memory budget, so that a text that begins with a kept one, id for id, goes on
// from there: a conversation's next turn, an answer tried again. The best moments to keep one are ends of messages, where
// texts part. Several goroutines may use it.
type Prefixes struct {
	engine *Engine
	mu     sync.Mutex // of states
	states *session.Prefixes[*graph.State]
	dir    *prefixDir // nil: none
}

// NewPrefixes returns an empty store that takes up to budget bytes outside the Go heap. Close frees it.
func (e *Engine) NewPrefixes(budget int64) *Prefixes {
	return &Prefixes{engine: e, states: session.NewPrefixes(budget, (*graph.State).Free)}
}

// Keep remembers the computed part of the sequence as it is now. Where states share positions of a text, they share
// memory; each counts in full.
func (p *Prefixes) Keep(s *Sequence) error {
	if err := s.state.Idle(); err != nil || s.Computed() == 0 {
		return err
	}
	if p.dir != nil {
		if err := p.dir.keep(s); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.states.Reserve(s.state.Bytes()) { // before there is another copy
		return nil
	}
	state, err := s.state.Clone()
	if err != nil {
		return err
	}
	p.states.Put(s.ids[:s.Computed()], state, state.Bytes())
	return nil
}

// Sequence returns a new sequence of the given ids, of which those a kept text covers are computed and the rest wait. At
// least one waits, so that there are logits to come.
func (p *Prefixes) Sequence(ids []int) (*Sequence, error) {
	return p.SequenceOf(ids, p.engine.Context())
}

// SequenceOf is Sequence for a text of up to n tokens.
func (p *Prefixes) SequenceOf(ids []int, n int) (*Sequence, error) {
	if p.dir != nil {
		p.mu.Lock()
		_, length, _ := p.states.Longest(ids)
		p.mu.Unlock()
		if s := p.dir.longest(ids, length, n); s != nil {
			return s, nil
		}
	}
	s, err := p.engine.begin(n, func() (*graph.State, error) {
		state, err := p.state(ids)
		if state == nil && err == nil {
			state, err = p.engine.graph.NewState()
		}
		return state, err
	})
	if err != nil {
		return nil, err
	}
	s.Append(ids...)
	return s, nil
}

// state returns a copy of the longest state kept in memory of a text that ids begin with; nil if there is none.
func (p *Prefixes) state(ids []int) (*graph.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kept, _, ok := p.states.Longest(ids)
	if !ok {
		return nil, nil
	}
	return kept.Clone()
}

// Len is the number of texts kept.
func (p *Prefixes) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.states.Len()
}

// Bytes is the memory that the states kept take, at most.
func (p *Prefixes) Bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.states.Bytes()
}

// Close forgets all.
func (p *Prefixes) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states.Clear()
}
