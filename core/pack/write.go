package pack

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/journal"
	"github.com/k3infer/k3/core/memory"
)

// Options say how to write a pack.
type Options struct {
	// Compress stores matrices of BF16 compressed, without loss; lm_head is then part of the pack.
	Compress bool
	// Force replaces a pack that is there, once the new one is whole, and a partial one that cannot be continued at once. One of the
	// other kind goes, too, unless it is a whole pack of the same checkpoint.
	Force bool
	// Cache is that of checkpoint.Model.Fingerprint: the fingerprint is noted beside the pack.
	Cache string
	// Workers is the number of pieces to work on at a time; 0 is 4.
	Workers int
	// Room, if not nil, is told once, before anything is written, how many bytes that will take and how many the disk has free,
	// -1 where it does not say.
	Room func(needed, free int64)
	// Progress, if not nil, is told how far the work is. It is called often.
	Progress func(Progress)
}

// Progress is how far the work is. Bytes are those of the pack.
type Progress struct {
	Done, Total int64
	Verifying   bool // it is read back
}

// Result is a pack that is whole.
type Result struct {
	Layers int
	Bytes  int64 // of its data
	Raw    int64 // of the same tensors in the checkpoint
	// Before is whether it was there and whole before, and Continued how many layers an earlier attempt had written.
	Before    bool
	Continued int
}

// Other files beside a pack: what is not complete yet, what of it is written, and checksums in the form of sha256sum.
const (
	partial       = ".bin.partial"
	journalEnding = ".partial"
	sums          = ".sha256"
)

// Write writes a pack of m's trunk into directory dir, or continues what an earlier call began there. The pack gets its name
// when it is complete and was read back from the disk. An interrupted call leaves a partial pack for the next. A pack that is
// there already and belongs to m is only read back. Errors match ErrExists where something would be overwritten, ErrBusy, ErrSpace,
// ErrFormat where what was read back is not what was written, or are those of reading and writing.
func Write(ctx context.Context, m *checkpoint.Model, dir string, o Options) (Result, error) {
	name := plainName
	if o.Compress {
		name = compressedName
	}
	w := &writer{ctx: ctx, m: m, o: o, base: filepath.Join(dir, name), files: disk.Dir(dir), freeSpace: disk.FreeSpace}
	if w.o.Workers < 1 {
		w.o.Workers = 4
	}
	r, err := w.run(dir)
	if err != nil {
		return Result{}, fmt.Errorf("pack: write %s: %w", dir, err)
	}
	return r, nil
}

type writer struct {
	ctx   context.Context
	m     *checkpoint.Model
	of    checkpoint.Fingerprint // of m
	o     Options
	base  string // path of the pack's files without their endings
	files disk.Files
	runs  []run
	total int64 // bytes of the pack, for the progress; of a compressed one an estimate from above, until it is known
	raw   int64 // bytes of its tensors in the checkpoint

	out     *os.File // the partial pack
	log     *journal.Writer
	done    []layer    // what is written
	sums    []string   // of their bytes
	whole   string     // checksum of all, once it was read back
	checked *disk.Sums // for checking every read of it
	written func()     // for tests: called before the pack is read back
	told    bool       // Options.Room was

	freeSpace func(path string) (int64, error) // disk.FreeSpace, but in tests
}

// run is what a layer's entry will be made of.
type run struct {
	tensors []checkpoint.Tensor // in the order of their bytes
	bytes   int64
}

func (w *writer) run(dir string) (r Result, err error) {
	if err := w.collect(); err != nil {
		return r, err
	}
	if w.of, err = w.m.Fingerprint(w.ctx, w.o.Cache); err != nil {
		return r, err
	}
	identity := w.identity()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) { // no directory is made in vain
		if err := w.room(dir); err != nil {
			return r, err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return r, err
	}
	unlock, err := disk.Lock(w.base + lockEnding)
	if errors.Is(err, disk.ErrLocked) {
		return r, ErrBusy
	}
	if err != nil {
		return r, err
	}
	defer unlock()
	found, err := w.resume(identity)
	if err != nil {
		return r, err
	}
	r.Layers, r.Continued, r.Raw = w.m.Config.Layers, len(w.done), w.raw
	if !found {
		if before, err := w.existing(); err != nil {
			return r, err
		} else if before {
			r.Before, r.Bytes = true, w.total
			return r, nil
		}
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if w.whole == "" {
		if err := w.room(dir); err != nil {
			return r, err
		}
	}
	if !found {
		if err := w.create(identity); err != nil {
			return r, err
		}
	}
	if w.whole == "" {
		for i := len(w.done); i < len(w.runs); i++ {
			if err := w.layer(i); err != nil {
				return r, err
			}
		}
		if w.written != nil {
			w.written()
		}
	}
	if err := w.verify(); err != nil {
		return r, err
	}
	if err := w.m.Changed(); err != nil {
		return r, err
	}
	r.Bytes = w.end()
	if err := w.publish(); err != nil || !w.o.Force {
		return r, err
	}
	return r, w.removeStale()
}

// removeStale removes a pack of the other kind that is no whole pack of this checkpoint: it would stand in the new one's way.
func (w *writer) removeStale() error {
	name := compressedName
	if w.o.Compress {
		name = plainName
	}
	p, err := open(w.ctx, w.files, name, w.m, w.o.Cache)
	if err == nil {
		return p.Close()
	}
	if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrOther) {
		return nil
	}
	base := filepath.Join(filepath.Dir(w.base), name)
	unlock, err := disk.Lock(base + lockEnding)
	if errors.Is(err, disk.ErrLocked) {
		return nil // it is being replaced
	}
	if err != nil {
		return err
	}
	defer unlock()
	for _, ending := range []string{listEnding, sums, dataEnding} { // the list first: without it there is no pack
		if err := os.Remove(base + ending); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return checksum.Remove(filepath.Dir(base), name+dataEnding)
}

// collect finds the trunk of each layer.
func (w *writer) collect() error {
	w.runs = make([]run, w.m.Config.Layers)
	if w.o.Compress {
		w.runs = append(w.runs, run{})
	}
	for t := range w.m.Index.All() { // in the order of the files
		n := layerOfTensor(t.Name, w.m.Config.Layers)
		if n < 0 || n >= len(w.runs) {
			continue
		}
		w.runs[n].tensors = append(w.runs[n].tensors, t)
		w.runs[n].bytes += t.Bytes
		w.raw += t.Bytes
	}
	for i, r := range w.runs {
		if len(r.tensors) == 0 {
			return fmt.Errorf("layer %d has no tensors", i)
		}
		w.total += roundUp(r.bytes)
		for _, t := range r.tensors {
			if w.frameRows(t) > 0 {
				w.total -= t.Bytes / 4 // 12 bits or less a weight, in all models there are
			}
		}
	}
	return nil
}

// frameBytes is the size of a frame, expanded, about: enough of them in a tile for every thread to have one.
const frameBytes = 256 << 10

// frameRows is the number of rows of a frame of a tensor, 0 for one that is not compressed.
func (w *writer) frameRows(t checkpoint.Tensor) int64 {
	if !w.o.Compress || t.DType != checkpoint.BF16 || len(t.Shape) != 2 || t.Bytes < 2*chunkWeights {
		return 0
	}
	return min(int64(t.Shape[0]), max(1, frameBytes/(2*int64(t.Shape[1]))))
}

func roundUp(n int64) int64 { return (n + align - 1) / align * align }

// identity tells the checkpoint, as far as a pack is concerned, from all others, and from itself after a change.
func (w *writer) identity() string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n", w.of.Samples, w.m.Stamp())
	for _, r := range w.runs {
		for _, t := range r.tensors {
			fmt.Fprintf(sum, "%q %v %v %s %d\n", t.Name, t.DType, t.Shape, w.m.Index.Shards()[t.Shard].Name, t.Offset)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// existing tells whether a whole pack of this checkpoint is there. Anything else that is there is an error, unless it may be
// replaced.
func (w *writer) existing() (bool, error) {
	var there []string
	for _, ending := range []string{listEnding, dataEnding} {
		if _, err := os.Lstat(w.base + ending); err == nil {
			there = append(there, filepath.Base(w.base+ending))
		} else if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	if len(there) == 0 || w.o.Force {
		return false, nil
	}
	p, err := open(w.ctx, w.files, filepath.Base(w.base), w.m, w.o.Cache)
	if errors.Is(err, ErrNone) {
		return false, fmt.Errorf("%w: there is %s, which is no whole pack", ErrExists, strings.Join(there, " and "))
	}
	if (errors.Is(err, ErrFormat) || errors.Is(err, ErrOther)) && !errors.Is(err, errSum) {
		return false, fmt.Errorf("%w: there is %w", ErrExists, err)
	}
	if err != nil {
		return false, err
	}
	defer p.Close()
	want, err := readSums(w.files, filepath.Base(w.base))
	if err != nil {
		return false, fmt.Errorf("%w: there is a pack of this checkpoint without checksums (%w)", ErrExists, err)
	}
	w.total = p.file.Size()
	plain, sums := disk.Unchecked(p.file) // what is on the disk, whatever was noted of it
	list, err := readManifest(w.files, filepath.Base(w.base))
	if err != nil {
		return false, err
	}
	w.done = list.layers
	whole, _, err := w.hash(plain, []int64{p.file.Size()})
	if err != nil {
		return false, err
	}
	data, err := os.ReadFile(w.base + listEnding)
	if err != nil {
		return false, err
	}
	for name, got := range map[string]string{dataEnding: whole, listEnding: hexSum(data)} {
		if got != want[filepath.Base(w.base+name)] {
			return false, fmt.Errorf("%w: %s %w", ErrFormat, filepath.Base(w.base+name), errSum)
		}
	}
	if sums == nil { // an earlier k3 wrote it
		return true, w.saveSums()
	}
	return true, nil
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// readSums reads the SHA-256 checksums beside the pack of a name, by the names of the files.
func readSums(files disk.Files, name string) (map[string]string, error) {
	data, err := disk.ReadAll(files, name+sums, 1<<16)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if sum, name, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "  "); ok {
			all[name] = sum
		}
	}
	for _, ending := range []string{dataEnding, listEnding} {
		if all[name+ending] == "" {
			return nil, fmt.Errorf("%s has none of %s: %w", name+sums, name+ending, fs.ErrNotExist)
		}
	}
	return all, nil
}

// record is a line of the journal: whose pack is being written, a layer that is, or the checksum of all of them.
type record struct {
	Pack  string          `json:"pack,omitempty"`
	Layer json.RawMessage `json:"layer,omitempty"`
	Sum   string          `json:"sha256,omitempty"`
}

// resume looks for what an earlier attempt has left.
func (w *writer) resume(identity string) (found bool, err error) {
	in, err := os.Open(w.base + journalEnding)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	valid, whose, err := w.replay(in)
	in.Close()
	if err != nil {
		return false, err
	}
	if whose != identity {
		if valid > 0 && !w.o.Force {
			return false, fmt.Errorf("%w: there is a partial pack of another checkpoint, %s", ErrExists, filepath.Base(w.base+partial))
		}
		return false, w.discard()
	}
	if w.log, err = journal.Append(w.base+journalEnding, valid); err == nil {
		w.out, err = os.OpenFile(w.base+partial, os.O_RDWR, 0)
	}
	if errors.Is(err, fs.ErrNotExist) && w.whole != "" {
		if info, err := os.Stat(w.base + dataEnding); err == nil && info.Size() == w.end() {
			return true, nil // it has its name already
		}
	}
	if err == nil {
		var info os.FileInfo
		if info, err = w.out.Stat(); err == nil && info.Size() < w.end() {
			err = fmt.Errorf("%w: %s is shorter than what was written to it", ErrFormat, w.out.Name())
		}
	}
	if err != nil {
		if errors.Is(err, ErrFormat) || errors.Is(err, fs.ErrNotExist) {
			return false, w.discard() // it is of no use
		}
		w.close()
		return false, err
	}
	return true, nil
}

// replay reads a journal up to the first line that is torn. What is there belongs to identity whose.
func (w *writer) replay(in io.Reader) (valid int64, whose string, err error) {
	first := true
	valid, err = journal.Read(in, func(line []byte) bool {
		var x record
		if json.Unmarshal(line, &x) != nil || first != (x.Pack != "") || w.whole != "" {
			return false
		}
		first = false
		switch {
		case x.Pack != "":
			whose = x.Pack
		case x.Layer == nil:
			w.whole = x.Sum
		default:
			l, err := layerOf(x.Layer)
			if err != nil || l.number != int64(len(w.done)) || len(w.done) == len(w.runs) || l.offset != w.end() {
				return false
			}
			w.done, w.sums = append(w.done, l), append(w.sums, x.Sum)
		}
		return true
	})
	return valid, whose, err
}

// discard forgets an earlier attempt.
func (w *writer) discard() error {
	w.close()
	w.done, w.sums, w.whole = nil, nil, ""
	for _, ending := range []string{journalEnding, partial} {
		if err := os.Remove(w.base + ending); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// close leaves the files as they are.
func (w *writer) close() (err error) {
	if w.out != nil {
		err = w.out.Close()
		w.out = nil
	}
	if w.log != nil {
		err = errors.Join(err, w.log.Close())
		w.log = nil
	}
	return err
}

// create begins a partial pack.
func (w *writer) create(identity string) (err error) {
	if w.out, err = os.OpenFile(w.base+partial, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644); err != nil {
		return err
	}
	if w.log, err = journal.Append(w.base+journalEnding, 0); err != nil {
		return err
	}
	return w.note(record{Pack: identity})
}

// note adds a line to the journal, which says nothing that is not durable.
func (w *writer) note(x record) error {
	data, err := json.Marshal(x)
	if err == nil {
		err = w.log.Add(data)
	}
	return errors.Join(err, w.log.Sync())
}

// room looks whether the disk has room for what is left to write. A pack that is to be replaced stays until the new one is
// whole, so its room is none of what is free.
func (w *writer) room(dir string) error {
	const reserve = 16 << 20 // the list, the journal and the checksums
	has := w.end()
	if w.out != nil { // what an earlier attempt wrote after its last whole layer is written over
		if info, err := w.out.Stat(); err == nil {
			has = max(has, info.Size())
		}
	}
	needed := max(0, w.total-has) + reserve
	free, err := w.freeSpace(dir)
	if err != nil { // where it cannot be told, writing will tell
		free = -1
	}
	if w.o.Room != nil && !w.told {
		w.told = true
		w.o.Room(needed, free)
	}
	if err == nil && free < needed {
		return fmt.Errorf("%w: %d bytes needed, %d free", ErrSpace, needed, free)
	}
	return nil
}

// end is the size of what is written.
func (w *writer) end() int64 {
	if len(w.done) == 0 {
		return 0
	}
	l := w.done[len(w.done)-1]
	return l.offset + l.bytes
}

// pieceBytes is how much of a tensor is read at once, about.
const pieceBytes = 4 << 20

// piece is some of a tensor as the pack has it.
type piece struct {
	tensor int // index into those of the layer
	data   []byte
	frames []uint32 // sizes, of a tensor that is compressed
	err    error
}

// layer writes a layer and notes it.
func (w *writer) layer(i int) error {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	queue := make(chan chan piece, w.o.Workers)
	go func() {
		defer close(queue)
		for n, t := range w.runs[i].tensors {
			step, frame := int64(pieceBytes), int64(0)
			if rows := w.frameRows(t); rows > 0 {
				frame = rows * 2 * int64(t.Shape[1])
				step = max(1, pieceBytes/frame) * frame
			}
			for from := int64(0); from < t.Bytes || from == 0; from += step {
				c := make(chan piece, 1)
				select {
				case queue <- c:
				case <-ctx.Done():
					return
				}
				go func() {
					p := piece{tensor: n, data: make([]byte, min(step, t.Bytes-from))}
					if p.err = w.m.Read(p.data, t, from); p.err == nil && frame > 0 {
						p.compress(frame)
					}
					c <- p
				}()
			}
		}
	}()
	// However this ends, the readers must have ended before.
	defer func() {
		cancel()
		for c := range queue {
			<-c
		}
	}()

	first := w.runs[i].tensors[0]
	l := layer{number: int64(i), shard: filepath.Base(w.m.Index.Shards()[first.Shard].Name), start: first.Offset, offset: w.end()}
	for _, t := range w.runs[i].tensors {
		l.tensors = append(l.tensors, entry{name: t.Name, dtype: t.DType.String(), shape: t.Shape, frameRows: w.frameRows(t)})
	}
	sum := sha256.New()
	write := func(data []byte) error {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if _, err := w.out.WriteAt(data, l.offset+l.bytes); err != nil {
			return err
		}
		sum.Write(data)
		l.bytes += int64(len(data))
		w.progress(l.offset+l.bytes, false)
		return nil
	}
	last := -1
	for c := range queue {
		p := <-c
		if p.err != nil {
			return p.err
		}
		e := &l.tensors[p.tensor]
		if p.tensor != last {
			last, e.off = p.tensor, l.bytes
		}
		if err := write(p.data); err != nil {
			return err
		}
		e.bytes += int64(len(p.data))
		e.frames = append(e.frames, p.frames...)
	}
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if err := write(make([]byte, roundUp(l.bytes)-l.bytes)); err != nil {
		return err
	}
	slices.SortFunc(l.tensors, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	if err := w.out.Sync(); err != nil {
		return err
	}
	if err := w.m.Changed(); err != nil {
		return err
	}
	w.done, w.sums = append(w.done, l), append(w.sums, hex.EncodeToString(sum.Sum(nil)))
	return w.note(record{Layer: l.text(), Sum: w.sums[i]})
}

// compress replaces weights by frames of so many bytes of them.
func (p *piece) compress(frame int64) {
	weights, out := p.data, make([]byte, 0, len(p.data)/4*3)
	for from := int64(0); from < int64(len(weights)); from += frame {
		start := len(out)
		out = compress(out, weights[from:min(from+frame, int64(len(weights)))])
		p.frames = append(p.frames, uint32(len(out)-start))
	}
	p.data = out
}

func (w *writer) progress(done int64, verifying bool) {
	if w.o.Progress != nil {
		w.o.Progress(Progress{Done: done, Total: max(w.total, done), Verifying: verifying})
	}
}

// verify reads back what was written.
func (w *writer) verify() error {
	name := w.base + partial
	if w.out == nil {
		name = w.base + dataEnding
	}
	f, err := w.files.Open(filepath.Base(name))
	if err != nil {
		return err
	}
	defer f.Close()
	var ends []int64
	for _, l := range w.done {
		ends = append(ends, l.offset+l.bytes)
	}
	whole, parts, err := w.hash(f, ends)
	if err != nil {
		return err
	}
	for i, sum := range parts {
		if sum != w.sums[i] {
			err := fmt.Errorf("%w: layer %d was read back other than it was written: the disk or the memory fails", ErrFormat, i)
			return errors.Join(err, w.discard())
		}
	}
	if w.out == nil || w.whole == whole {
		w.whole = whole
		return nil
	}
	if err := w.out.Truncate(w.end()); err != nil { // an earlier attempt may have written more
		return err
	}
	w.whole = whole
	return w.note(record{Sum: whole})
}

// hash reads a file around the page cache, as far as that goes, and returns the checksums of all of it up to the last end, and
// of each part.
func (w *writer) hash(f disk.File, ends []int64) (whole string, parts []string, err error) {
	const size = 4 * disk.DefaultPiece
	var account memory.Account
	var buffers [2]*memory.Block
	for i := range buffers {
		if buffers[i], err = account.Allocate("verify", size); err != nil {
			return "", nil, err
		}
		defer buffers[i].Free()
	}
	pool := disk.NewPool(disk.Config{Readers: w.o.Workers})
	defer pool.Close() // before the buffers go
	all, part, adder := sha256.New(), sha256.New(), checksum.NewAdder(w.units(ends[len(ends)-1]))
	end := ends[len(ends)-1]
	done := make(chan error, 1)
	load := func(at int64) {
		n := int(min(size, end-at))
		run := disk.Run{File: f, Off: at, Len: n, Mem: buffers[at/size%2].Bytes()}
		pool.Start(w.ctx, disk.Ahead, []disk.Run{run}, func(err error) { done <- err })
	}
	load(0)
	for at := int64(0); at < end; at += size {
		if err := <-done; err != nil {
			return "", nil, err
		}
		if at+size < end {
			load(at + size)
		}
		data := buffers[at/size%2].Bytes()[:min(size, end-at)]
		summed := make(chan struct{})
		go func() {
			all.Write(data)
			close(summed)
		}()
		adder.Write(data)
		for from := at; from < at+int64(len(data)); {
			to := min(ends[len(parts)], at+int64(len(data)))
			part.Write(data[from-at : to-at])
			if from = to; to == ends[len(parts)] {
				parts = append(parts, take(part))
			}
		}
		<-summed
		w.progress(min(at+size, end), true)
	}
	w.checked = adder.Sums()
	return take(all), parts, nil
}

// units gives the lengths of the units that checksums are made of, one after the other: the frames of compressed matrices,
// a few rows of others, and the zeros between tensors. The file has size bytes.
func (w *writer) units(size int64) func() int64 {
	var lengths []int64
	add := func(n, unit int64) {
		for ; n > 0; n -= min(n, unit) {
			lengths = append(lengths, min(n, unit))
		}
	}
	for i, l := range w.done {
		tensors := slices.SortedFunc(slices.Values(l.tensors), func(a, b entry) int { return cmp.Compare(a.off, b.off) })
		at := int64(0)
		for _, e := range tensors {
			add(e.off-at, wholeUnit)
			t, _ := w.m.Index.Lookup(e.name)
			if e.frames != nil {
				for _, n := range e.frames {
					add(int64(n), wholeUnit)
				}
			} else {
				add(e.bytes, t.UnitBytes())
			}
			at = e.off + e.bytes
		}
		next := size // also what is between the layers
		if i+1 < len(w.done) {
			next = w.done[i+1].offset
		}
		add(next-l.offset-at, wholeUnit)
	}
	n := 0
	return func() int64 {
		n++
		return lengths[n-1]
	}
}

// wholeUnit is what even the longest unit is divided by.
const wholeUnit = 1 << 30

// saveSums notes the checksums of the pack, and whose it is.
func (w *writer) saveSums() error {
	name := filepath.Base(w.base + dataEnding)
	of := checksum.Of(w.of)
	f := checksum.File{Header: checksum.Header{Name: name, Size: w.checked.Size(), Of: &of}, Sums: w.checked}
	if info, err := os.Stat(w.base + dataEnding); err == nil {
		f.Changed = info.ModTime()
	}
	return f.Save(filepath.Dir(w.base))
}

func take(h hash.Hash) string {
	s := hex.EncodeToString(h.Sum(nil))
	h.Reset()
	return s
}

// publish gives the pack its name. The list comes last: without it there is no pack.
func (w *writer) publish() error {
	if w.out != nil {
		if err := w.out.Close(); err != nil {
			return err
		}
		w.out = nil
		if err := os.Remove(w.base + listEnding); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Rename(w.base+partial, w.base+dataEnding); err != nil {
			return err
		}
	}
	if err := w.saveSums(); err != nil {
		return err
	}
	text := (&manifest{count: int64(w.m.Config.Layers), compressed: w.o.Compress, layers: w.done}).text()
	lines := fmt.Sprintf("%s  %s\n%s  %s\n", w.whole, filepath.Base(w.base+dataEnding), hexSum(text), filepath.Base(w.base+listEnding))
	for _, f := range []struct {
		ending string
		data   []byte
	}{{sums, []byte(lines)}, {listEnding, text}} {
		n, err := disk.Create(w.base + f.ending)
		if err != nil {
			return err
		}
		if _, err := n.Write(f.data); err != nil {
			n.Abandon()
			return err
		}
		if err := n.Commit(); err != nil {
			return err
		}
	}
	p, err := open(w.ctx, w.files, filepath.Base(w.base), w.m, w.o.Cache)
	if err != nil {
		return err
	}
	err = w.log.Close()
	w.log = nil
	return errors.Join(err, p.Close(), os.Remove(w.base+journalEnding))
}
