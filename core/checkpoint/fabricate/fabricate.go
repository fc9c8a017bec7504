// Package fabricate makes synthetic checkpoints of Kimi K3's architecture: of any geometry, with random weights that compute
// something lively, or as sparse files of any apparent size that take next to no room.
//
// The same options give the same bytes on every system. The layout is the released one: with the full geometry the names and
// sizes of all files that hold or index weights are those of the released checkpoint, to the byte.
package fabricate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/counted"
)

var (
	// ErrOptions says that the options describe no checkpoint that can be made.
	ErrOptions = errors.New("impossible checkpoint")
	// ErrExists says that there is something in the directory that would be overwritten.
	ErrExists = errors.New("directory is not empty")
	// ErrForeign says that there is something in the directory which is not replaced, even by Force.
	ErrForeign = errors.New("directory cannot be used")
	// ErrBusy says that another process is making a checkpoint in the directory.
	ErrBusy = errors.New("another k3 is making a checkpoint there")
	// ErrSpace says that the disk has not enough room.
	ErrSpace = errors.New("not enough room on the disk")
)

// Options says what to make. Config is needed; the zero value of every other field is the released form.
type Options struct {
	// Config is the geometry. ModelType, Quantized and what is not in config.json are ignored.
	Config *checkpoint.Config
	// Vision adds tensors of the released vision tower and projector, which the text model ignores.
	Vision bool
	// Experts is the type of the routed experts: U8 or 0 for MXFP4, or BF16, F16 or F32.
	Experts checkpoint.DType
	// Trunk is the type of all else that is released as BF16: BF16 or 0, F16 or F32.
	Trunk checkpoint.DType
	// Seed chooses the weights.
	Seed uint64
	// Shards is the number of files; 0 is the released way: one a layer, one for what is outside the layers, and two for Vision.
	Shards int
	// Sparse leaves holes in place of the routed experts and of most of the large tensors. What is there has the values it
	// would have otherwise: enough for ids below 1536 to choose different experts and different next ids.
	Sparse bool
	// Extra are more files to write, such as a tokenizer's, by name.
	Extra map[string][]byte
	// Force replaces a checkpoint that is in the directory.
	Force bool
	// Progress is told, now and then, how many bytes of how many are written. Calls do not overlap.
	Progress func(done, total int64)
}

// Result is what was made.
type Result struct {
	Tensors int
	Shards  int
	Bytes   int64 // of all shards together, holes included
	Written int64 // of all files, without holes
}

const (
	indexName = "model.safetensors.index.json"
	// partial is the directory, in the one asked for, in which the files are made.
	partial = "partial"
	// mark is a file in that directory that says whose it is, locked as long as somebody works there.
	mark = ".k3-fabricate"
	// maxTensors bounds the work of planning, and the memory it takes, to far above any model.
	maxTensors = 4_000_000
	// maxHeader is what the header of one shard may have; readers refuse more.
	maxHeader = 100_000_000
	// chunk is how much is made and written at a time, a multiple of grain.
	chunk = 4 << 20
)

func isRouter(name string) bool { return strings.HasSuffix(name, ".block_sparse_moe.gate.weight") }

// Write makes a checkpoint in dir, which need not exist. Its files get their names when all of them are complete; after an
// error or a cancelled context none of them is left. Errors about the options match ErrOptions, those about the geometry
// checkpoint.ErrConfig.
func Write(ctx context.Context, dir string, o Options) (Result, error) {
	w := &writer{dir: dir, o: o}
	err := w.plan(ctx)
	if err == nil {
		err = w.run(ctx)
	}
	if err != nil {
		return Result{}, fmt.Errorf("fabricate: write %s: %w", dir, err)
	}
	return w.result, nil
}

// writer makes one checkpoint.
type writer struct {
	dir    string
	o      Options
	config *checkpoint.Config
	small  map[string][]byte // config.json and others
	shards []unit
	result Result
	index  int64 // bytes of the index file
	todo   int64 // bytes of weights to write

	mutex sync.Mutex
	done  int64
	err   error // the first, of whichever goroutine
	stop  context.CancelFunc
}

// plan decides all names and sizes and refuses what cannot be done, before anything is written.
func (w *writer) plan(ctx context.Context) error {
	o := &w.o
	if o.Experts == 0 {
		o.Experts = checkpoint.U8
	}
	if o.Trunk == 0 {
		o.Trunk = checkpoint.BF16
	}
	floats := []checkpoint.DType{checkpoint.BF16, checkpoint.F16, checkpoint.F32}
	if !slices.Contains(floats, o.Trunk) || o.Experts != checkpoint.U8 && !slices.Contains(floats, o.Experts) {
		return fmt.Errorf("%w: a trunk of %s and experts of %s", ErrOptions, o.Trunk, o.Experts)
	}
	released := *o.Config
	released.ModelType = "kimi_k3"
	text, err := config(&released, o.Experts == checkpoint.U8, o.Vision)
	if err != nil {
		return fmt.Errorf("%w: config.json: %w", ErrOptions, err)
	}
	if w.config, err = checkpoint.ParseConfig(text); err != nil {
		return err
	}
	c := w.config
	if n := float64(c.Layers) * (float64(c.MoE.Experts)*6 + 30); n > maxTensors {
		return fmt.Errorf("%w: about %.0f tensors, more than %d", ErrOptions, n, maxTensors)
	}
	generation, err := generationConfig(o.Config)
	if err != nil {
		return fmt.Errorf("%w: generation_config.json: %w", ErrOptions, err)
	}
	w.small = map[string][]byte{"config.json": text, "generation_config.json": generation}
	for name, data := range o.Extra {
		if _, taken := w.small[name]; taken || name != filepath.Base(name) || name == indexName || strings.HasSuffix(name, ".safetensors") {
			return fmt.Errorf("%w: an extra file called %q", ErrOptions, name)
		}
		w.small[name] = data
	}
	if w.shards, err = divide(units(c, *o), c.Layers, o.Shards); err != nil {
		return err
	}
	w.result.Shards = len(w.shards)
	needed := int64(0)
	for i, s := range w.shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := w.header(i)
		if err != nil {
			return err
		}
		if len(header) > maxHeader {
			return fmt.Errorf("%w: a shard with a header of %d bytes, more than the %d that readers accept: it takes more shards",
				ErrOptions, len(header), maxHeader)
		}
		offset := int64(len(header))
		for j := range s {
			t := &s[j]
			t.offset = offset
			offset += t.bytes
			for _, r := range o.stretches(t) {
				w.todo += r.bytes
				needed += r.bytes
				if o.Sparse {
					needed += block // its ends may share blocks with holes
				}
			}
		}
		w.result.Tensors += len(s)
		w.result.Bytes += offset
		w.result.Written += int64(len(header))
		needed += int64(len(header)) + block
	}
	size := &counted.Writer{W: io.Discard}
	if err := w.writeIndex(size); err != nil {
		return err
	}
	w.index = size.N
	w.result.Written += w.todo + w.index
	needed += w.index
	for _, data := range w.small {
		w.result.Written += int64(len(data))
		needed += int64(len(data)) + block
	}
	return w.room(needed)
}

// room looks whether dir may be written, and whether its disk has room for so many bytes.
func (w *writer) room(needed int64) error {
	entries, err := os.ReadDir(w.dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 && !w.o.Force {
		return fmt.Errorf("%w: it has %s", ErrExists, entries[0].Name())
	}
	if free, err := disk.FreeSpace(w.dir); err == nil && free < needed { // where it cannot be told, writing will
		return fmt.Errorf("%w: %d bytes needed, %d free", ErrSpace, needed, free)
	}
	return nil
}

// header is the header of shard i.
func (w *writer) header(i int) ([]byte, error) {
	named := make([]checkpoint.Named, len(w.shards[i]))
	for j, t := range w.shards[i] {
		named[j] = checkpoint.Named{Name: t.name, DType: t.dtype, Shape: t.shape}
	}
	return checkpoint.Header(named)
}

// writeIndex writes the index file, spaced as the released one.
func (w *writer) writeIndex(to io.Writer) error {
	b := bufio.NewWriterSize(to, 1<<20)
	total := int64(0)
	for _, s := range w.shards {
		for _, t := range s {
			total += t.bytes
		}
	}
	fmt.Fprintf(b, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {", total)
	separator := "\n    \""
	for i, s := range w.shards {
		file := shardName(i, len(w.shards))
		for _, t := range s {
			b.WriteString(separator)
			b.WriteString(t.name) // letters, digits, dots and underscores
			b.WriteString("\": \"")
			b.WriteString(file)
			separator = "\",\n    \""
		}
	}
	b.WriteString("\"\n  }\n}")
	return b.Flush()
}

// run makes the files and gives them their names.
func (w *writer) run(ctx context.Context) (err error) {
	_, statErr := os.Stat(w.dir)
	made := errors.Is(statErr, os.ErrNotExist)
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return err
	}
	work := filepath.Join(w.dir, partial)
	release, err := w.claim(work)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, release())
		if err != nil && made {
			os.Remove(w.dir) // if it is empty
		}
	}()
	if err := w.weights(ctx, work); err != nil {
		return err
	}
	if err := w.file(filepath.Join(work, indexName), w.writeIndex); err != nil {
		return err
	}
	for name, data := range w.small {
		write := func(to io.Writer) error { _, err := to.Write(data); return err }
		if err := w.file(filepath.Join(work, name), write); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return w.publish(work)
}

// claim makes the directory work, or takes over that of an attempt that was killed. release removes it.
func (w *writer) claim(work string) (release func() error, err error) {
	err = os.Mkdir(work, 0o755)
	if there := errors.Is(err, os.ErrExist); there && w.o.Force {
		if _, err := os.Lstat(filepath.Join(work, mark)); errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%w: it has %s, which was not made by this command: move it away", ErrForeign, partial)
		}
	} else if there {
		return nil, fmt.Errorf("%w: it has %s", ErrExists, partial)
	} else if err != nil {
		return nil, err
	}
	unlock, err := disk.Lock(filepath.Join(work, mark))
	if errors.Is(err, disk.ErrLocked) || errors.Is(err, os.ErrNotExist) { // at work, or just done
		return nil, ErrBusy
	}
	if err != nil {
		return nil, err
	}
	release = func() error {
		err := w.clear(work)
		unlock()
		os.Remove(work) // unless somebody has taken it over
		return err
	}
	if err := w.clear(work); err != nil {
		unlock()
		return nil, err
	}
	// Somebody may have been faster since the directory was found empty.
	entries, err := os.ReadDir(w.dir)
	if err == nil && !w.o.Force && len(entries) > 1 {
		err = fmt.Errorf("%w: it has %s", ErrExists, entries[0].Name())
	}
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return release, nil
}

// clear removes what was made in the directory work, and refuses what was not.
func (w *writer) clear(work string) error {
	entries, err := os.ReadDir(work)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == mark {
			continue
		}
		if _, extra := w.o.Extra[e.Name()]; !extra && !isModelFile(e.Name()) || !e.Type().IsRegular() {
			return fmt.Errorf("%w: it has %s, which was not made by this command: move it away", ErrForeign, filepath.Join(partial, e.Name()))
		}
		if err := os.Remove(filepath.Join(work, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// file writes one of the files beside the shards.
func (w *writer) file(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Sync(), f.Close())
}

// publish moves the files to where they belong: config.json, without which nothing is a checkpoint, leaves first and comes
// last.
func (w *writer) publish(work string) error {
	old, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	for _, e := range old { // sorted by name
		if w.o.Force && isModelFile(e.Name()) {
			if err := os.Remove(filepath.Join(w.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(work)
	if err != nil {
		return err
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(b.Name(), a.Name()) }) // config.json comes last
	for _, e := range entries {
		if e.Name() == mark {
			continue
		}
		if err := os.Rename(filepath.Join(work, e.Name()), filepath.Join(w.dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// isModelFile reports whether a file belongs to a checkpoint, so that it must go before another one comes.
func isModelFile(name string) bool {
	switch name {
	case "config.json", "generation_config.json", indexName, "model.safetensors", "tiktoken.model", "tokenizer.json", "tokenizer_config.json":
		return true
	}
	return strings.HasPrefix(name, "model-") && strings.HasSuffix(name, ".safetensors")
}
