package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/session"
)

// ErrSession: a file is no session, is damaged, belongs to another model, or was made by a newer program.
var ErrSession = session.ErrSession

// Fingerprint names the checkpoint by its content. It is computed once, and at the latest by the first Save: call it early where
// a state is to be saved, since the fingerprint of files that have changed cannot be had any more (ErrChanged).
func (e *Engine) Fingerprint() (checkpoint.Fingerprint, error) {
	return e.model.Fingerprint(context.Background(), e.options.Cache)
}

// Save writes the sequence to a file, whole or not at all: a crash leaves the file that was there before. extra is kept
// for the caller and may be nil. Guesses that are not accepted are not part of it.
func (s *Sequence) Save(path string, extra json.RawMessage) error {
	if err := s.state.Idle(); err != nil {
		return err
	}
	fingerprint, err := s.engine.Fingerprint()
	if err != nil {
		return err
	}
	h := s.header(fingerprint, s.ids)
	h.Extra = extra
	return session.Write(path, h, func(w io.Writer) error {
		_, err := s.state.WriteTo(w)
		return err
	})
}

// SaveIDs writes a session of a sequence whose state cannot be saved because a pass over it was cancelled or failed: all its ids,
// with the state that the session file from has, which must be of a beginning of the same text; none if from is "". The file may be
// the same. What that state lacks waits to be computed again, to the same bits. It returns how many ids the state covers.
func (s *Sequence) SaveIDs(path, from string, extra json.RawMessage) (computed int, err error) {
	fingerprint, err := s.engine.Fingerprint()
	if err != nil {
		return 0, err
	}
	if from == "" {
		// Not a sequence, for which there may be no room: pages of it that are only read take no memory.
		state, err := s.engine.graph.NewState()
		if err != nil {
			return 0, err
		}
		defer state.Free()
		empty := &Sequence{engine: s.engine, state: state}
		h := empty.header(fingerprint, s.ids)
		h.Extra = extra
		return 0, session.Write(path, h, func(w io.Writer) error {
			_, err := state.WriteTo(w)
			return err
		})
	}
	r, err := session.Open(from)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	h := r.Header
	if n := h.Computed; !h.Of().Matches(fingerprint) || n > len(s.ids) || !slices.Equal(h.IDs[:n], s.ids[:n]) {
		return 0, fmt.Errorf("core: save %s: %w: %s is of another text", path, ErrSession, from)
	}
	h.IDs, h.Extra = s.ids, extra
	return h.Computed, session.Write(path, h, func(w io.Writer) error {
		err := r.State(func(in io.Reader) error {
			_, err := io.Copy(w, in)
			return err
		})
		return errors.Join(err, r.Close()) // before the file gets its name, which may be this one's
	})
}

// header describes a session of the state and of ids, which begin with those computed.
func (s *Sequence) header(fingerprint checkpoint.Fingerprint, ids []int) session.Header {
	c := s.engine.model.Config
	return session.Header{
		Program: "k3", Model: fmt.Sprintf("%d layers, hidden %d, %d experts", c.Layers, c.Hidden, c.MoE.Experts),
		Fingerprint: fingerprint.Samples, Exact: fingerprint.Exact, IDs: ids, Computed: s.state.Len(), StateBytes: s.state.Bytes(),
	}
}

// LoadSequence restores what Save wrote, bit for bit, and returns what the caller had it keep. A file that is damaged or
// foreign gives an error that matches ErrSession; one that is too long for Options.Context gives ErrContext.
func (e *Engine) LoadSequence(path string) (*Sequence, json.RawMessage, error) {
	return e.loadSequence(path, e.Context())
}

// loadSequence is LoadSequence for a text of up to n tokens.
func (e *Engine) loadSequence(path string, n int) (*Sequence, json.RawMessage, error) {
	r, err := session.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	h := r.Header
	fingerprint, err := e.Fingerprint()
	if err != nil {
		return nil, nil, err
	}
	if !h.Of().Matches(fingerprint) {
		return nil, nil, fmt.Errorf("core: load %s: %w: it was made with another model (%s)", path, ErrSession, h.Model)
	}
	bad := func(id int) bool { return id < 0 || id >= e.model.Config.Vocab }
	if slices.ContainsFunc(h.IDs, bad) {
		return nil, nil, fmt.Errorf("core: load %s: %w: an id is not in the vocabulary", path, ErrSession)
	}
	if len(h.IDs) > n+1 || h.Computed > n {
		return nil, nil, fmt.Errorf("core: load %s: %w: its %d tokens do not fit into %d", path, ErrContext, len(h.IDs), n)
	}
	s, err := e.NewSequenceOf(n)
	if err != nil {
		return nil, nil, err
	}
	if err := r.State(func(in io.Reader) error {
		err := s.state.Restore(in, h.Computed)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: its state is too short for %d tokens", ErrSession, h.Computed)
		}
		return err
	}); err != nil {
		s.Close()
		return nil, nil, err
	}
	s.ids = h.IDs
	return s, h.Extra, nil
}
