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
// Backends and cache policies are drivers, as in database/sql: a program imports those it wants, usually with
//
//	import (
//		_ "github.com/k3infer/k3/backends/all"
//		_ "github.com/k3infer/k3/policies"
//	)
package core

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/estimate"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/pack"
	"github.com/k3infer/k3/core/tape"
	"github.com/k3infer/k3/core/tokenizer"
)

// Errors that callers tell apart, with errors.Is. Those about files are checkpoint.ErrConfig, checkpoint.ErrFormat,
// pack.ErrNone, pack.ErrFormat, pack.ErrOther and tokenizer.ErrFormat; the one about backends is kernel.ErrBackend.
var (
	// ErrBroken: a pass over this sequence failed or was cancelled; it must be reopened from a session or its prompt.
	ErrBroken = graph.ErrBroken
	// ErrContext: the sequence has no room for the rows; nothing was computed.
	ErrContext = graph.ErrContext
	// ErrNumbers: NaN or infinity appeared, or logits that are all equal; the message names the layer, or the tensor.
	ErrNumbers = graph.ErrNumbers
	// ErrToken: an id that is not in the vocabulary.
	ErrToken = graph.ErrToken
	// ErrChanged: a file of the checkpoint or the pack was changed, replaced or removed while it was open.
	ErrChanged = disk.ErrChanged
	// ErrChecksum: what was read is not what was verified.
	ErrChecksum = disk.ErrChecksum
	// ErrNoFit: the memory given is too small; the message says by how much, and what would fit. Opening more sequences
	// than the plan has room for matches it as well.
	ErrNoFit = memory.ErrNoFit
	// ErrPrompt: there is nothing to go on from.
	ErrPrompt = errors.New("nothing to compute: the prompt is empty")
)

// DefaultContext is the most tokens of a sequence unless Options say otherwise.
const DefaultContext = 8192

// Options says what to open and what to compute with. The zero value of each field but Files is a sensible choice.
type Options struct {
	Files        disk.Files // the checkpoint
	Trunk        disk.Files // a pack of its trunk, which is read in place of the checkpoint; nil: none
	Backend      string     // name of a registered backend; "" or "auto" is the fastest that runs here
	Threads      int        // 0: kernel.DefaultThreads
	Context      int        // most tokens of a sequence; 0: DefaultContext, or the model's own limit if that is lower
	PrefillChunk int        // most rows of a prompt that share a pass; 0: what the plan finds best

	// Memory is a promise about the peak resident memory of the whole process, in bytes; 0: nine tenths of what the machine
	// has free. Weights that do not fit into it are read in every pass that needs them, with the same results.
	Memory int64
	// TrunkMemory and ExpertMemory divide memory by hand; 0 leaves it to the plan.
	TrunkMemory, ExpertMemory int64
	Sequences                 int    // most that are open at a time, which the plan makes room for; 0: 1
	Tokens                    int    // most of all open sequences together; 0: Context for each
	Guesses                   int    // most guessed rows of a sequence in a pass
	AllLogits                 bool   // the plan makes room for the logits of every row
	Policy                    string // name of a registered cache policy; "" is DefaultPolicy
	Readers                   int    // reads at a time; 0: DefaultReaders
	TileBytes                 int    // about the size of the tape's tiles; 0: tape.DefaultTileBytes, or less in a small model
	TrunkIfThere              bool   // Trunk may be missing or of another checkpoint; it then plays no part
	Buffered                  bool   // read through the page cache even where files can be read around it
	Unchecked                 bool   // do not compare what is read with the checksums beside the checkpoint and the pack
	Cache                     string // directory that remembers fingerprints of checkpoints; "": none
	// Notice is told, once each, of things worth knowing that are no errors, such as a disk that refuses direct reads.
	// It is called from any goroutine, one call at a time, and must not wait for the engine.
	Notice func(string)

	// Routed and Probe are hooks of a pass: see Engine.
	//
	// Routed is told the experts each row chose, in descending order of biased score: pass after pass, layer after layer, row
	// after row.
	Routed func(layer int, experts []int)
	// Probe is shown intermediate values of every pass: the layer, their name, and width values for each row, valid during
	// the call. It serves tests and studies.
	Probe func(layer int, what string, values []float32, width int)
}

// leastTiles is how many tiles the trunk is cut into at least, about.
const leastTiles = 64

// Defaults of Options.
const (
	DefaultPolicy  = "adaptive"
	DefaultReaders = 8
)

// Engine is an open model. Its methods may be called from several goroutines; passes run one at a time.
//
// The hooks of a pass (Options.Routed, Options.Probe, GenerateOptions.Progress) are called from its goroutine. They may
// call whatever does not compute, such as Costs and NewSequence. Save and Prefixes.Keep work for sequences that are not
// in the pass and return an error for those that are. Pass, Generate, Accept and Close return an error, because they
// would wait for the pass. What Generate calls between its passes (OnLogits, OnPrefill and emit) may call anything.
//
// If a hook panics, the pass ends and its sequences are broken; the engine and all other sequences go on.
type Engine struct {
	options   Options
	model     *checkpoint.Model
	pack      *pack.Pack // nil: none
	account   memory.Account
	pool      *kernel.Pool
	plan      memory.Plan
	tiles     *tape.Tiles
	matrices  []tape.Matrix  // of the tape
	layerTime []atomic.Int64 // nanoseconds spent in each layer, lm_head last
	counted   []Cost         // what the passes so far have been told of
	limited   int64          // its share of the limit of the Go heap
	disk      *disk.Pool
	tape      *tape.Stream
	experts   *experts.Cache
	graph     *graph.Model

	turn     turn // of a pass, and of whatever uses the graph's workspace
	room     *room
	noticing sync.Mutex // held during a call of Options.Notice

	tokenizerOnce sync.Once
	tokenizer     *tokenizer.Tokenizer
	tokenizerErr  error
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
	backend, err := e.prepare(ctx)
	if err != nil {
		return err
	}
	o := &e.options
	// What the Go heap must not grow beyond, so that the promise about the whole process holds.
	e.limited = e.plan.GoLimit
	limitHeap(e.limited)
	e.room = newRoom(o.Sequences, min(graph.Pages(o.Tokens)+o.Sequences-1, o.Sequences*graph.Pages(o.Context)))
	e.pool = kernel.NewPool(backend, o.Threads)
	e.disk = disk.NewPool(disk.Config{Readers: o.Readers, Buffered: o.Buffered, Fallback: func(file string, why error) {
		e.notice("%s is read through the page cache: %v", file, why)
	}})
	if e.tape, err = tape.Open(e.tiles, tape.Options{Pool: e.disk, Account: &e.account, Workers: e.pool, Pinned: e.plan.Pinned, Ring: e.plan.Ring}); err != nil {
		return err
	}
	if e.experts, err = experts.Open(e.model, experts.Options{Pool: e.disk, Account: &e.account, Slots: e.plan.Slots, Policy: o.Policy}); err != nil {
		return err
	}
	e.graph, err = graph.New(graph.Options{
		Source: e.model, Pool: e.pool, Account: &e.account, Tape: e.tape, Experts: e.experts, MaxRows: e.plan.MaxRows, Context: o.Context,
	})
	return err
}

// prepare opens the checkpoint, settles the options and makes the plan. It reads no weights but samples of a pack's.
func (e *Engine) prepare(ctx context.Context) (kernel.Backend, error) {
	o := &e.options
	backend, err := kernel.Select(o.Backend)
	if err != nil {
		return nil, fmt.Errorf("core: open: %w", err)
	}
	if o.Policy == "" {
		o.Policy = DefaultPolicy
	}
	if err := experts.CheckPolicy(o.Policy); err != nil {
		return nil, fmt.Errorf("core: open: %w", err)
	}
	if o.Unchecked {
		o.Files = checksum.Ignore(o.Files)
		if o.Trunk != nil {
			o.Trunk = checksum.Ignore(o.Trunk)
		}
	}
	if e.model, err = checkpoint.Open(ctx, o.Files); err != nil {
		return nil, err
	}
	c := e.model.Config
	switch limit := c.MaxPositions; {
	case o.Context < 0 || o.PrefillChunk < 0 || o.Threads < 0 || o.Sequences < 0 || o.Tokens < 0 || o.Guesses < 0 || o.Readers < 0:
		return nil, fmt.Errorf("core: open: context %d, prefill chunk %d, threads %d, sequences %d, guesses %d, readers %d: none may be negative",
			o.Context, o.PrefillChunk, o.Threads, o.Sequences, o.Guesses, o.Readers)
	case o.Context == 0 && limit > 0:
		o.Context = min(DefaultContext, limit)
	case o.Context == 0:
		o.Context = DefaultContext
	case limit > 0 && o.Context > limit:
		return nil, fmt.Errorf("core: open: %w: %d tokens asked for, the model was made for at most %d", ErrContext, o.Context, limit)
	}
	if o.Threads == 0 {
		o.Threads = kernel.DefaultThreads()
	}
	if o.Readers == 0 {
		o.Readers = DefaultReaders
	}
	o.Sequences = max(o.Sequences, 1)
	if o.Tokens == 0 {
		o.Tokens = o.Sequences * o.Context
	}
	var free memory.Limit // where nothing is promised
	if o.Memory == 0 {
		machine := memory.Probe()
		for _, w := range machine.Warnings {
			e.notice("%s", w)
		}
		free = machine.Free()
		o.Memory = free.Free / 10 * 9
	}
	layout, err := graph.Layout(e.model)
	if err != nil {
		return nil, err
	}
	e.matrices, e.layerTime = layout, make([]atomic.Int64, c.Layers+1)
	if err := e.openPack(ctx, backend); err != nil {
		return nil, err
	}
	if o.TileBytes == 0 {
		// A small model gets small tiles, so that its trunk, too, can be in memory in part.
		var trunk int64
		for _, m := range layout {
			trunk += m.Tensor.Bytes
		}
		o.TileBytes = int(min(trunk/leastTiles, tape.DefaultTileBytes))
	}
	if e.tiles, err = tape.Cut(layout, e.locate, o.TileBytes); err != nil {
		return nil, err
	}
	if e.plan, err = e.makePlan(backend); err != nil {
		if free.Source != "" && free.Source != "host" && errors.Is(err, ErrNoFit) {
			err = fmt.Errorf("%w (%s leaves %d MiB)", err, free.Source, free.Free>>20)
		}
		return nil, err
	}
	if left, limited := memory.AddressSpace(); limited {
		if need := mapped(e.plan); need > left {
			return nil, fmt.Errorf("core: open: %w: %d MiB of it are still to be mapped, and ulimit -v leaves %d MiB", ErrNoFit, need>>20, left>>20)
		}
	}
	return backend, nil
}

// mapped is what of a plan Open maps outside the Go heap.
func mapped(p memory.Plan) int64 {
	return p.Total - p.Unused - p.Bytes(memory.Program) - p.Bytes(memory.Heap)
}

// openPack opens the pack of the trunk, if there is one.
func (e *Engine) openPack(ctx context.Context, backend kernel.Backend) (err error) {
	o := &e.options
	if o.Trunk == nil {
		return nil
	}
	e.pack, err = pack.Open(ctx, o.Trunk, e.model, o.Cache)
	if o.TrunkIfThere && errors.Is(err, pack.ErrOther) {
		e.notice("the trunk is read from the checkpoint: %v", err)
		return nil
	}
	if o.TrunkIfThere && errors.Is(err, pack.ErrNone) {
		return nil
	}
	if err == nil {
		e.findPacked(backend)
	}
	return err
}

// locate says where the tape finds a tensor that is stored as it is.
func (e *Engine) locate(t checkpoint.Tensor) (disk.File, int64, error) {
	if e.pack != nil {
		if file, off, _, ok := e.pack.Locate(t); ok {
			return file, off, nil
		}
	}
	return e.model.Shard(t.Shard), t.Offset, nil
}

// threadBytes is the part of a compressed tile that a thread expands: what a core's own cache can hold.
const threadBytes = 512 << 10

// findPacked notes which matrices of the tape are stored compressed.
func (e *Engine) findPacked(backend kernel.Backend) {
	expand := pack.ExpandWith(backend)
	for i := range e.matrices {
		if file, off, frames, ok := e.pack.Locate(e.matrices[i].Tensor); ok && frames != nil {
			e.matrices[i].Packed = &tape.Packed{
				File: file, Off: off, Rows: frames.Rows, Ends: frames.Ends, TileBytes: e.options.Threads * threadBytes, Expand: expand,
			}
		}
	}
}

// makePlan divides the memory.
func (e *Engine) makePlan(backend kernel.Backend) (memory.Plan, error) {
	vectors, err := graph.VectorBytes(e.model)
	if err != nil {
		return memory.Plan{}, err
	}
	slot, err := experts.SlotBytes(e.model)
	if err != nil {
		return memory.Plan{}, err
	}
	_, index := e.model.Checked()
	index += int64(e.model.Index.Len()) * indexBytes
	if e.pack != nil {
		index += int64(e.pack.Frames())*frameBytes + e.pack.Checksums()
	}
	return plan(e.options, e.model.Config, backend, memory.Request{
		Index: index, Vectors: int64(vectors),
		TrunkBytes: e.tiles.Bytes(), TileBuffer: int64(e.tiles.BufferBytes()), TileScratch: int64(e.tiles.ScratchBytes()),
		ExpertSlot: int64(slot),
	})
}

// plan completes a request, which has the sizes of a checkpoint's parts, by options and geometry, and divides the memory.
func plan(o Options, c *checkpoint.Config, backend kernel.Backend, r memory.Request) (memory.Plan, error) {
	state, position := graph.StateBytes(c)
	r.Total, r.Trunk, r.Experts = o.Memory, o.TrunkMemory, o.ExpertMemory
	r.Workspace = func(rows, context int) int64 {
		return int64(graph.WorkspaceBytes(c, backend, rows, context, o.Threads))
	}
	r.Tokenizer, r.Logits, r.AllLogits = int64(c.Vocab)*tokenizerBytes, 4*int64(c.Vocab), o.AllLogits
	r.State, r.Position, r.Guess = int64(state), int64(position), int64(graph.GuessBytes(c))
	r.Sequences, r.Context, r.Guesses, r.PrefillRows = o.Sequences, o.Context, o.Guesses, o.PrefillChunk
	r.Tokens = o.Tokens
	r.ExpertsAll, r.TopK = (c.Layers-c.DenseLayers)*c.MoE.Experts, c.MoE.TopK
	return memory.Make(r)
}

// PlanGeometry returns, nearly, the plan for a checkpoint of a geometry that is not there yet, stored as released.
// Options.Memory and Options.Context must be set.
func PlanGeometry(c *checkpoint.Config, quantized bool, o Options) (memory.Plan, error) {
	backend, err := kernel.Select(o.Backend)
	if err != nil {
		return memory.Plan{}, fmt.Errorf("core: plan: %w", err)
	}
	if o.Threads == 0 {
		o.Threads = kernel.DefaultThreads()
	}
	o.Sequences = max(o.Sequences, 1)
	var r memory.Request
	for s := range checkpoint.Required(c, quantized) {
		r.Index += indexBytes
		if n := s.Bytes(); s.Expert < 0 && n < 1<<20 {
			r.Vectors += 2 * n // widened; most are BF16
		}
	}
	w := estimate.WeightsOf(c, quantized)
	r.TrunkBytes, r.TileBuffer, r.ExpertSlot = w.Trunk, tape.DefaultTileBytes, w.Expert+2*disk.Block
	return plan(o, c, backend, r)
}

// MostContext returns how many tokens, up to limit, a sequence can have at most within Options.Memory, or what the machine has free.
// Weights are not counted, so that a plan has room for fewer; nothing is read.
func MostContext(c *checkpoint.Config, o Options, limit int) (int, error) {
	backend, err := kernel.Select(o.Backend)
	if err != nil {
		return 0, fmt.Errorf("core: plan: %w", err)
	}
	if o.Threads == 0 {
		o.Threads = kernel.DefaultThreads()
	}
	if o.Memory == 0 {
		o.Memory = memory.Probe().Free().Free / 10 * 9
	}
	o.Sequences, o.TrunkMemory, o.ExpertMemory = max(o.Sequences, 1), 0, 0
	return sort.Search(limit, func(n int) bool {
		o.Context = n + 1
		_, err := plan(o, c, backend, memory.Request{})
		return err != nil
	}), nil
}

// What the plan counts for each tensor of the index, for each frame of a compressed pack and for each id of the vocabulary;
// tests measure the first and the last.
const (
	indexBytes     = 64
	frameBytes     = 16
	tokenizerBytes = 32
)

func (e *Engine) notice(format string, args ...any) {
	if e.options.Notice == nil {
		return
	}
	e.noticing.Lock()
	defer e.noticing.Unlock()
	e.options.Notice(fmt.Sprintf(format, args...))
}

// MakePlan returns the plan that Open would make with these options, reading no weights, and the geometry it is for.
func MakePlan(ctx context.Context, o Options) (memory.Plan, *checkpoint.Config, error) {
	e := &Engine{options: o}
	_, err := e.prepare(ctx)
	var c *checkpoint.Config
	if e.pack != nil {
		err = errors.Join(err, e.pack.Close())
	}
	if e.model != nil {
		c = e.model.Config
		err = errors.Join(err, e.model.Close())
	}
	return e.plan, c, err
}

// Close frees everything the engine holds, once a pass that is running has ended. Its sequences must be closed before.
func (e *Engine) Close() error {
	if err := e.turn.take(false); err != nil {
		return fmt.Errorf("core: close: %w", err)
	}
	defer e.turn.give()
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
	if e.disk != nil {
		errs = append(errs, e.disk.Close())
	}
	if e.pool != nil {
		e.pool.Close()
	}
	if e.pack != nil {
		errs = append(errs, e.pack.Close())
	}
	if e.model != nil {
		errs = append(errs, e.model.Close())
	}
	if e.limited > 0 {
		limitHeap(-e.limited)
		e.limited = 0
	}
	return errors.Join(errs...)
}

// Checked tells how many of the files that weights are read from, the shards and the pack, have checksums that every read is
// compared with, and how many there are.
func (e *Engine) Checked() (checked, files int) {
	checked, _ = e.model.Checked()
	files = len(e.model.Index.Shards())
	if e.pack != nil {
		files++
		if e.pack.Checksums() > 0 {
			checked++
		}
	}
	return checked, files
}

// changed tells whether the files that weights are read from are still those that were opened.
func (e *Engine) changed() error {
	err := e.model.Changed()
	if err == nil && e.pack != nil {
		err = e.pack.Changed()
	}
	if err != nil {
		return fmt.Errorf("core: %w", err)
	}
	return nil
}

// Config is the model's geometry.
func (e *Engine) Config() *checkpoint.Config { return e.model.Config }

// Backend is the name of the backend in use.
func (e *Engine) Backend() string { return e.pool.Backend().Name() }

// Threads is the number of threads in use.
func (e *Engine) Threads() int { return e.pool.Threads() }

// Policy is the name of the policy that decides which experts stay in memory.
func (e *Engine) Policy() string { return e.options.Policy }

// Quantized tells whether the routed experts are stored as MXFP4.
func (e *Engine) Quantized() bool { return e.model.Quantized }

// Context is the most tokens a sequence can have.
func (e *Engine) Context() int { return e.graph.Context() }

// MaxRows is the most rows a pass can have.
func (e *Engine) MaxRows() int { return e.graph.MaxRows() }

// Plan is how the engine divides its memory.
func (e *Engine) Plan() memory.Plan { return e.plan }

// Residency is how much of the weights an engine has memory for.
type Residency struct {
	Tiles, KeptTiles           int   // of the trunk, and those that stay
	TrunkBytes, KeptTrunkBytes int64 // of weights in them
	Experts, ExpertSlots       int   // routed experts of the model, and those there is memory for
}

// Residency tells how much of the weights there is memory for.
func (e *Engine) Residency() Residency {
	s, c := e.tape.Stats(), e.model.Config
	all := (c.Layers - c.DenseLayers) * c.MoE.Experts
	return Residency{e.tiles.Len(), s.Kept, s.Bytes, s.KeptBytes, all, min(e.plan.Slots, all)}
}

// Memory is what the engine has allocated outside the Go heap, in bytes by purpose.
func (e *Engine) Memory() map[string]int64 { return e.account.Bytes() }

// Tokenizer loads the checkpoint's tokenizer, once. A checkpoint without one gives an error that matches fs.ErrNotExist.
func (e *Engine) Tokenizer() (*tokenizer.Tokenizer, error) {
	e.tokenizerOnce.Do(func() { e.tokenizer, e.tokenizerErr = tokenizer.Load(e.options.Files) })
	return e.tokenizer, e.tokenizerErr
}

// StopIDs are the ids that end a text: eos_token_id of the configuration files and, where there is a tokenizer, its end
// of text. If the tokenizer cannot be used, they are the former, beside the error.
func (e *Engine) StopIDs() ([]int, error) {
	ids := slices.Clone(e.model.StopIDs)
	t, err := e.Tokenizer()
	if errors.Is(err, fs.ErrNotExist) {
		return ids, nil
	}
	if err != nil {
		return ids, err
	}
	if id, ok := t.EOS(); ok && !slices.Contains(ids, id) {
		ids = append(ids, id)
	}
	return ids, nil
}
