package graph

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
)

// ErrBroken is matched by every use of a sequence whose pass failed or was cancelled: its state is half one token and half
// another. It must be reopened from a session or its prompt.
var ErrBroken = errors.New("the sequence is broken")

// ErrContext is matched when a pass would exceed a sequence's context; nothing was computed.
var ErrContext = errors.New("context is full")

// errComputing is the error of what cannot be done with a state while a pass changes it.
var errComputing = errors.New("graph: a pass over the sequence is under way")

// PageTokens is the number of positions the latent cache grows by.
const PageTokens = kernel.LatentRows

const latentRows = PageTokens

// Pages is how many blocks of PageTokens positions a sequence of n tokens takes.
func Pages(n int) int { return (n + PageTokens - 1) / PageTokens }

// State is what one sequence remembers. A new one is at the beginning of a text.
type State struct {
	model     *Model
	length    int         // tokens whose effect is in the state
	tentative int         // guessed rows of the last pass, neither accepted nor rejected yet
	broken    error       // what broke it
	computing atomic.Bool // a pass over it is under way
	closing   bool        // that pass is to free it

	// recurrent holds, for each KDA layer, the matrices [Hk][D][D] and behind them the last K-1 convolution inputs of q, k
	// and v, oldest first: [3][K-1][P].
	// It is nil where states are in a file: then they have a slot there, of which nothing counts while fresh.
	recurrent *memory.Block
	slot      int
	fresh     bool
	// latents are the MLA caches: each block holds latentRows positions of all MLA layers, [layer][position][kvl+rope].
	// States that were cloned from each other share the blocks they have in common.
	latents []*latentBlock
	// guesses is what accepting tentative rows needs: for each KDA layer and row the convolution inputs of q, k and v, the
	// decay, and beta: [layer][row][3P+P+Hk].
	guesses *memory.Block
}

// latentBlock is memory that states may share while none of them writes to it.
type latentBlock struct {
	*memory.Block
	owners atomic.Int32
}

func (b *latentBlock) release() {
	if b.owners.Add(-1) == 0 {
		b.Free()
	}
}

// StateBytes is the memory of a sequence: what it always takes, and what each position adds.
func StateBytes(c *checkpoint.Config) (fixed, position int) {
	kda, mla := layerKinds(c)
	return 4 * kda * recurrentFloats(c), 4 * mla * (c.MLA.LatentRank + c.MLA.RopeDim)
}

func layerKinds(c *checkpoint.Config) (kda, mla int) {
	for _, full := range c.FullAttention {
		if full {
			mla++
		} else {
			kda++
		}
	}
	return kda, mla
}

func recurrentFloats(c *checkpoint.Config) int {
	return c.KDAWidth()*c.KDA.HeadDim + 3*(c.KDA.ConvKernel-1)*c.KDAWidth()
}

// NewState returns the state of an empty sequence. Free gives its memory back.
func (m *Model) NewState() (*State, error) {
	if m.states != nil {
		return &State{model: m, slot: m.states.take(), fresh: true}, nil
	}
	fixed, _ := StateBytes(m.config)
	b, err := m.account.Allocate(memory.State, fixed)
	if err != nil {
		return nil, err
	}
	return &State{model: m, recurrent: b}, nil
}

// Free gives the state's memory back. A hook of a pass may call it, too: it is done when the pass ends.
func (s *State) Free() {
	if s.computing.Load() {
		s.closing = true
		return
	}
	if s.model != nil && s.model.states != nil {
		s.model.states.give(s.slot)
	}
	s.recurrent.Free()
	s.guesses.Free()
	for _, b := range s.latents {
		b.release()
	}
	*s = State{broken: fmt.Errorf("graph: %w: it was closed", ErrBroken)}
}

// Clone returns a state that goes on from the same point by itself. Tentative rows must have been accepted or rejected.
func (s *State) Clone() (*State, error) {
	if err := s.Idle(); err != nil {
		return nil, err
	}
	if s.tentative != 0 {
		return nil, errors.New("graph: clone: tentative rows are neither accepted nor rejected")
	}
	clone, err := s.model.NewState()
	if err != nil {
		return nil, err
	}
	if err := s.copyTo(clone); err != nil {
		clone.Free()
		return nil, err
	}
	clone.length = s.length
	for _, b := range s.latents[:(s.length+latentRows-1)/latentRows] {
		b.owners.Add(1)
		clone.latents = append(clone.latents, b)
	}
	return clone, nil
}

// copyTo copies the recurrent state into a new one.
func (s *State) copyTo(clone *State) error {
	if s.fresh {
		return nil
	}
	if err := s.eachLayer(false, func(layer int, part []byte) error {
		if clone.recurrent == nil {
			return clone.model.states.store(clone, layer, part)
		}
		copy(clone.recurrent.Bytes()[layer*len(part):], part)
		return nil
	}); err != nil {
		return err
	}
	clone.fresh = false
	return nil
}

// Len is the number of tokens whose effect is in the state.
func (s *State) Len() int { return s.length }

// Tentative is the number of guessed rows waiting for Accept.
func (s *State) Tentative() int { return s.tentative }

// Err is nil, or an error that matches ErrBroken.
func (s *State) Err() error { return s.broken }

// Idle is nil, or says why the state can be neither computed with nor copied: it is broken, or a pass over it is under
// way.
func (s *State) Idle() error {
	if s.broken == nil && s.computing.Load() {
		return errComputing
	}
	return s.broken
}

func (s *State) spoil(cause error) {
	if s.broken == nil {
		s.broken = fmt.Errorf("graph: %w: its pass failed: %w", ErrBroken, cause)
	}
}

// kda is a KDA layer's part of the recurrent state, which is in memory.
func (s *State) kda(index int) []float32 {
	n := recurrentFloats(s.model.config)
	return s.recurrent.Float32s()[index*n:][:n]
}

// kdaParts divides a KDA layer's part of a recurrent state into its matrices and the convolution history.
func (m *Model) kdaParts(part []float32) (matrices, history []float32) {
	matrix := m.config.KDAWidth() * m.config.KDA.HeadDim
	return part[:matrix], part[matrix:]
}

// latent returns the cache rows of block b of an MLA layer: latentRows positions of kvl+rope.
func (s *State) latent(index, b int) []float32 {
	n := latentRows * (s.model.config.MLA.LatentRank + s.model.config.MLA.RopeDim)
	return s.latents[b].Float32s()[index*n:][:n]
}

// guess returns what a tentative row keeps for a KDA layer: its convolution inputs, its decay and its beta.
func (s *State) guess(index, row, rows int) (q, k, v, alpha, beta []float32) {
	p, hk := s.model.config.KDAWidth(), s.model.config.KDA.Heads
	n := 4*p + hk
	all := s.guesses.Float32s()[(index*rows+row)*n:][:n]
	return all[:p], all[p:][:p], all[2*p:][:p], all[3*p:][:p], all[4*p:]
}

// grow makes room for the latents of positions below n, and for the guesses of the coming pass.
func (s *State) grow(n, tentative int) error {
	c := s.model.config
	_, position := StateBytes(c)
	if position > 0 {
		for i := s.length / latentRows; i*latentRows < n; i++ {
			if i < len(s.latents) && s.latents[i].owners.Load() == 1 {
				continue
			}
			// A new block, or one of its own for the positions it has shared so far.
			b, err := s.model.account.Allocate("latents", position*latentRows)
			if err != nil {
				return err
			}
			own := &latentBlock{Block: b}
			own.owners.Store(1)
			if i == len(s.latents) {
				s.latents = append(s.latents, own)
				continue
			}
			copy(b.Bytes(), s.latents[i].Bytes())
			s.latents[i].release()
			s.latents[i] = own
		}
	}
	need := tentative * GuessBytes(c)
	if tentative > 0 && (s.guesses == nil || len(s.guesses.Bytes()) < need) {
		s.guesses.Free()
		b, err := s.model.account.Allocate("guesses", need)
		if err != nil {
			s.guesses = nil
			return err
		}
		s.guesses = b
	}
	return nil
}

// Accept makes the first n tentative rows of the last pass part of the sequence and forgets the others. The rows' effect
// on the recurrent state is replayed from what they kept; the weights are not read again.
func (s *State) Accept(n int) error {
	if err := s.Idle(); err != nil {
		return err
	}
	if n < 0 || n > s.tentative {
		return fmt.Errorf("graph: accept %d of %d tentative rows", n, s.tentative)
	}
	if n > 0 {
		done := false
		defer func() {
			if !done {
				s.spoil(errLeft)
			}
		}()
		if err := s.replay(n); err != nil {
			s.spoil(err)
			return err
		}
		done = true
	}
	s.length += n
	s.tentative = 0
	return nil
}

// replay makes the first n guesses part of the recurrent state, layer by layer.
func (s *State) replay(n int) error {
	var kda []*kdaLayer
	for _, l := range s.model.layers {
		if l.kda != nil {
			kda = append(kda, l.kda)
		}
	}
	return s.eachLayer(true, func(layer int, part []byte) error {
		s.model.replay(kda[layer], s, memory.Float32s(part), n)
		return nil
	})
}

// Bytes is the length of what WriteTo writes.
func (s *State) Bytes() int64 { return stateBytes(s.model.config, s.length) }

func stateBytes(c *checkpoint.Config, positions int) int64 {
	fixed, position := StateBytes(c)
	return int64(fixed) + int64(position)*int64(positions)
}

// WriteTo writes the state as little-endian float32: the recurrent part layer by layer, then the latents of every position,
// position by position and layer by layer. Tentative rows are not part of it.
func (s *State) WriteTo(w io.Writer) (int64, error) {
	if err := s.Idle(); err != nil {
		return 0, err
	}
	written := int64(0)
	err := s.eachLayer(false, func(_ int, part []byte) error {
		n, err := w.Write(part)
		written += int64(n)
		return err
	})
	err = errors.Join(err, s.eachLatent(s.length, func(row []byte) error {
		n, err := w.Write(row)
		written += int64(n)
		return err
	}))
	return written, err
}

// Restore puts what WriteTo wrote for a state of the given length into a new state. After an error the state is broken.
func (s *State) Restore(r io.Reader, length int) error {
	if s.length != 0 || s.broken != nil || length < 0 || length > s.model.context {
		return fmt.Errorf("graph: restore a state: %w: %d tokens do not fit into %d", ErrContext, length, s.model.context)
	}
	err := s.grow(length, 0)
	if err == nil {
		err = s.eachLayer(true, func(_ int, part []byte) error {
			_, err := io.ReadFull(r, part)
			return err
		})
	}
	if err == nil {
		err = s.eachLatent(length, func(row []byte) error {
			_, err := io.ReadFull(r, row)
			return err
		})
	}
	if err != nil {
		err = fmt.Errorf("graph: restore a state: %w", err)
		s.spoil(err)
		return err
	}
	s.length = length
	return nil
}

// eachLatent calls f with the cached row of each MLA layer for every position below n.
func (s *State) eachLatent(n int, f func(row []byte) error) error {
	row := 4 * (s.model.config.MLA.LatentRank + s.model.config.MLA.RopeDim)
	for p := range n {
		for layer := range s.model.mlaLayers {
			at := (layer*latentRows + p%latentRows) * row
			if err := f(s.latents[p/latentRows].Bytes()[at:][:row]); err != nil {
				return err
			}
		}
	}
	return nil
}
