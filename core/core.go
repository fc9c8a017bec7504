// Package core is the engine: it opens a checkpoint of Kimi K3's architecture and computes with it.
//
//	engine, err := core.Open(ctx, core.Options{Files: disk.Dir("model")})
//	sequence, err := engine.NewSequence()
//	outcome, err := engine.Generate(ctx, sequence, prompt, core.GenerateOptions{MaxTokens: 20}, nil)
//
// There is one operation, the pass: rows of any number of sequences go once through all layers. Generate is a loop of
// passes and choices. Same checkpoint, same ids, same logits, bit for bit, whatever the backend, the threads, the size of
// the passes and the company in them.
//
// Backends are drivers, as in database/sql: a program imports those it wants, usually with
//
//	import _ "github.com/k3infer/k3/backends/all"
package core

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tape"
	"github.com/k3infer/k3/core/tokenizer"
)

// Errors that callers tell apart, with errors.Is. Those about files are checkpoint.ErrConfig, checkpoint.ErrFormat and
// tokenizer.ErrFormat; the one about backends is kernel.ErrBackend.
var (
	// ErrBroken: a pass over this sequence failed or was cancelled; it must be reopened from a session or its prompt.
	ErrBroken = graph.ErrBroken
	// ErrContext: the sequence has no room for the rows; nothing was computed.
	ErrContext = graph.ErrContext
	// ErrNumbers: NaN or infinity appeared; the message names the layer.
	ErrNumbers = graph.ErrNumbers
	// ErrToken: an id that is not in the vocabulary.
	ErrToken = graph.ErrToken
	// ErrPrompt: there is nothing to go on from.
	ErrPrompt = errors.New("nothing to compute: the prompt is empty")
)

// Defaults of Options.
const (
	DefaultContext      = 8192
	DefaultPrefillChunk = 64
)

// Options says what to open and what to compute with. The zero value of each field but Files is a sensible choice.
type Options struct {
	Files        disk.Files // the checkpoint
	Backend      string     // name of a registered backend; "" or "auto" is the fastest that runs here
	Threads      int        // 0: kernel.DefaultThreads
	Context      int        // most tokens of a sequence; 0: DefaultContext, or the model's own limit if that is lower
	PrefillChunk int        // most rows of a pass; 0: DefaultPrefillChunk
	// Routed is told the experts each row chose, in descending order of biased score: pass after pass, layer after layer, row
	// after row.
	Routed func(layer int, experts []int)
	// Probe is shown intermediate values of every pass: the layer, their name, and width values for each row, valid during
	// the call. It serves tests and studies.
	Probe func(layer int, what string, values []float32, width int)
}

// Engine is an open model. Its methods may be called from several goroutines; passes run one at a time.
type Engine struct {
	options Options
	model   *checkpoint.Model
	account memory.Account
	pool    *kernel.Pool
	tape    tape.Tape
	experts experts.Store
	graph   *graph.Model

	passing sync.Mutex // held during a pass, and by whatever uses the graph's workspace
	logits  *memory.Block

	tokenizerOnce sync.Once
	tokenizer     *tokenizer.Tokenizer
	tokenizerErr  error

	fingerprintOnce sync.Once
	fingerprint     string
	fingerprintErr  error
}

// Open opens a checkpoint. Everything that can be wrong with its files short of damaged weights is reported here.
func Open(ctx context.Context, o Options) (*Engine, error) {
	e := &Engine{options: o}
	if err := e.open(ctx); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Engine) open(ctx context.Context) error {
	o := &e.options
	backend, err := kernel.Select(o.Backend)
	if err != nil {
		return fmt.Errorf("core: open: %w", err)
	}
	if e.model, err = checkpoint.Open(ctx, o.Files); err != nil {
		return err
	}
	limit := e.model.Config.MaxPositions
	switch {
	case o.Context < 0 || o.PrefillChunk < 0 || o.Threads < 0:
		return fmt.Errorf("core: open: context %d, prefill chunk %d, threads %d: none may be negative", o.Context, o.PrefillChunk, o.Threads)
	case o.Context == 0 && limit > 0:
		o.Context = min(DefaultContext, limit)
	case o.Context == 0:
		o.Context = DefaultContext
	case limit > 0 && o.Context > limit:
		return fmt.Errorf("core: open: %w: %d tokens asked for, the model was made for at most %d", ErrContext, o.Context, limit)
	}
	if o.PrefillChunk == 0 {
		o.PrefillChunk = DefaultPrefillChunk
	}
	if o.Threads == 0 {
		o.Threads = kernel.DefaultThreads()
	}
	e.pool = kernel.NewPool(backend, o.Threads)
	layout, err := graph.Layout(e.model)
	if err != nil {
		return err
	}
	trunk, err := tape.Load(ctx, e.model, layout, &e.account)
	if err != nil {
		return err
	}
	e.tape = trunk
	store, err := experts.Load(ctx, e.model, &e.account)
	if err != nil {
		return err
	}
	e.experts = store
	e.graph, err = graph.New(graph.Options{
		Source: e.model, Pool: e.pool, Account: &e.account, Tape: e.tape, Experts: e.experts,
		MaxRows: min(o.PrefillChunk, o.Context), Context: o.Context,
	})
	return err
}

// Close frees everything the engine holds. Its sequences must be closed before, and no pass may be running.
func (e *Engine) Close() error {
	var errs []error
	if e.graph != nil {
		e.graph.Close()
	}
	if e.tape != nil {
		errs = append(errs, e.tape.Close())
	}
	if e.experts != nil {
		errs = append(errs, e.experts.Close())
	}
	if e.pool != nil {
		e.pool.Close()
	}
	if e.model != nil {
		errs = append(errs, e.model.Close())
	}
	e.logits.Free()
	return errors.Join(errs...)
}

// Config is the model's geometry.
func (e *Engine) Config() *checkpoint.Config { return e.model.Config }

// Backend is the name of the backend in use.
func (e *Engine) Backend() string { return e.pool.Backend().Name() }

// Threads is the number of threads in use.
func (e *Engine) Threads() int { return e.pool.Threads() }

// Context is the most tokens a sequence can have.
func (e *Engine) Context() int { return e.graph.Context() }

// MaxRows is the most rows a pass can have.
func (e *Engine) MaxRows() int { return e.graph.MaxRows() }

// Memory is what the engine has allocated outside the Go heap, in bytes by purpose.
func (e *Engine) Memory() map[string]int64 { return e.account.Bytes() }

// Tokenizer loads the checkpoint's tokenizer, once. A checkpoint without one gives an error that matches fs.ErrNotExist.
func (e *Engine) Tokenizer() (*tokenizer.Tokenizer, error) {
	e.tokenizerOnce.Do(func() { e.tokenizer, e.tokenizerErr = tokenizer.Load(e.options.Files) })
	return e.tokenizer, e.tokenizerErr
}

// StopIDs are the ids that end a text: eos_token_id of the configuration files and, where there is a tokenizer, its end
// of text.
func (e *Engine) StopIDs() ([]int, error) {
	ids := slices.Clone(e.model.StopIDs)
	t, err := e.Tokenizer()
	if errors.Is(err, fs.ErrNotExist) {
		return ids, nil
	}
	if err != nil {
		return nil, err
	}
	if id, ok := t.EOS(); ok && !slices.Contains(ids, id) {
		ids = append(ids, id)
	}
	return ids, nil
}
