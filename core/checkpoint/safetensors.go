package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/fault"
	"github.com/k3infer/k3/core/internal/strictjson"
)

const (
	maxHeader   = 100_000_000 // bytes of JSON
	maxRank     = 64
	maxMetadata = 1 << 16 // entries
)

// ReadFile reads the directory of one .safetensors file, whatever its tensors are called. A damaged file gives an error that
// matches ErrFormat and names the file, the tensor and the cause.
func ReadFile(files disk.Files, name string) (*Index, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: read %s: %w", name, err)
	}
	defer f.Close()
	x := newIndex()
	x.shards = []Shard{{name, f.Size()}}
	b := builder{index: x}
	if err := b.shard(context.Background(), f, 0); err != nil {
		return nil, fmt.Errorf("checkpoint: read %s: %w", f.Name(), err)
	}
	return x, nil
}

// builder reads headers into an index.
type builder struct {
	index     *Index
	placement *placement // nil without an index file
	reader    strictjson.Reader
	pending   []pending // the tensors of one shard, before their layout is checked
	dims      []int
	kindKey   []byte
	// each, if not nil, is told of every fault after which the rest can be read, and the reading goes on.
	each func(tensor string, err error)
}

// wrong is a fault after which the rest of a shard can be read: Open ends with it, Examine goes on.
func (b *builder) wrong(k key, format string, args ...any) error {
	name := b.index.names.show(k)
	err := fault.Errorf(ErrFormat, "tensor "+name+": "+format, args...)
	if b.each == nil {
		return err
	}
	b.each(name, err)
	return nil
}

type pending struct {
	key        key
	kind       uint32
	start, end int64 // in the data, which begins after the header
}

// shard adds the tensors of the index's shard number n.
func (b *builder) shard(ctx context.Context, f disk.File, n int) error {
	var length [8]byte
	if f.Size() < int64(len(length)) {
		if what := foreign(f); what != nil {
			return what
		}
		return fault.Errorf(ErrFormat, "%d bytes are too few for a safetensors file", f.Size())
	}
	if err := disk.ReadFull(f, length[:], 0); err != nil {
		return err
	}
	header, room := binary.LittleEndian.Uint64(length[:]), uint64(f.Size())-uint64(len(length))
	if header == 0 || header > room || header > maxHeader {
		if what := foreign(f); what != nil {
			return what
		}
	}
	switch {
	case header == 0:
		return fault.Errorf(ErrFormat, "the header length is 0: it begins with zeros, as a download does that was not finished")
	case header > room:
		return fault.Errorf(ErrFormat, "the header length %d is more than the %d bytes that follow", header, room)
	case header > maxHeader:
		return fault.Errorf(ErrFormat, "the header length %d is more than %d", header, maxHeader)
	}
	data := int64(len(length)) + int64(header)
	b.reader.Reset(reading(ctx, f), int64(len(length)), data)
	if err := b.header(f.Size() - data); err != nil {
		return err
	}
	return b.add(n, data)
}

// reading reads pieces of f until ctx is done.
func reading(ctx context.Context, f disk.File) func(p []byte, off int64) error {
	return func(p []byte, off int64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return disk.ReadFull(f, p, off)
	}
}

// jsonFault turns a syntax error into a fault of the file and leaves errors of reading alone.
func jsonFault(where string, err error) error {
	if syntax := (*strictjson.SyntaxError)(nil); errors.As(err, &syntax) {
		return fault.Errorf(ErrFormat, "%s%v", where, syntax)
	}
	return err
}

// header reads the entries into pending and checks that they cover size bytes of data without overlap or hole.
func (b *builder) header(size int64) error {
	r, names := &b.reader, &b.index.names
	b.pending = b.pending[:0]
	metadata := false
	var current string
	r.Object(func(name []byte) {
		switch {
		case string(name) == "__metadata__":
			if metadata {
				r.Fail("__metadata__ a second time")
			}
			metadata = true
			b.metadata()
			return
		case bytes.IndexByte(name, 0) >= 0:
			r.Fail("a tensor's name with a NUL in it")
			return
		}
		k, ok := names.key(name)
		if !ok {
			r.Fail("tensor %s: %s", show(string(name)), names.differs())
			return
		}
		t := pending{key: k}
		if b.tensor(&t); r.Err() != nil {
			current = "tensor " + names.show(t.key) + ": "
			return
		}
		b.pending = append(b.pending, t)
	})
	r.End()
	if err := r.Err(); err != nil {
		return jsonFault("header: "+current, err)
	}

	order := func(a, b pending) int { return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.end, b.end)) }
	if !slices.IsSortedFunc(b.pending, order) {
		slices.SortFunc(b.pending, order)
	}
	var last pending
	for i, t := range b.pending {
		var err error
		switch {
		case t.start == last.end:
		case i == 0:
			err = b.wrong(t.key, "it is first but starts at byte %d of the data", t.start)
		case t.start < last.end:
			err = b.wrong(t.key, "it overlaps %s", names.show(last.key))
		default:
			err = b.wrong(t.key, "%d unused bytes between %s and it", t.start-last.end, names.show(last.key))
		}
		if err != nil {
			return err
		}
		if t.end >= last.end {
			last = t
		}
	}
	switch {
	case last.end > size:
		return b.wrong(last.key, "it ends at byte %d of the data, but the file is %d bytes too short for that", last.end, last.end-size)
	case last.end < size:
		return fault.Errorf(ErrFormat, "the file is %d bytes longer than its header says", size-last.end)
	}
	return nil
}

func (b *builder) metadata() {
	r := &b.reader
	if r.Kind() == strictjson.Null {
		r.Null()
		return
	}
	seen := map[string]bool{}
	r.Object(func(key []byte) {
		if seen[string(key)] {
			r.Fail("the key %s of __metadata__ a second time", quote(string(key)))
		}
		if len(seen) == maxMetadata {
			r.Fail("more than %d entries of __metadata__", maxMetadata)
		}
		seen[string(key)] = true
		r.Str()
	})
}

// tensor reads one entry of the header.
func (b *builder) tensor(t *pending) {
	r := &b.reader
	var dtype DType
	var shape, offsets bool
	r.Object(func(field []byte) {
		switch string(field) {
		case "dtype":
			if dtype != 0 {
				r.Fail("a second dtype")
			}
			name := r.Str()
			var ok bool
			if dtype, ok = parseDType(name); !ok {
				r.Fail("unknown dtype %s", quote(string(name)))
			}
		case "shape":
			if shape {
				r.Fail("a second shape")
			}
			shape = true
			b.dims = b.dims[:0]
			r.Array(func() {
				if len(b.dims) == maxRank {
					r.Fail("a shape of more than %d dimensions", maxRank)
				}
				b.dims = append(b.dims, int(r.Size()))
			})
		case "data_offsets":
			if offsets {
				r.Fail("a second data_offsets")
			}
			offsets = true
			n := 0
			r.Array(func() {
				switch n++; n {
				case 1:
					t.start = r.Size()
				case 2:
					t.end = r.Size()
				default:
					r.Fail("data_offsets with more than two numbers")
				}
			})
			if n < 2 {
				r.Fail("data_offsets with %d of two numbers", n)
			}
		default:
			r.Skip()
		}
	})
	switch {
	case r.Err() != nil:
		return
	case dtype == 0:
		r.Fail("the dtype is missing")
		return
	case !shape:
		r.Fail("the shape is missing")
		return
	case !offsets:
		r.Fail("data_offsets is missing")
		return
	}
	if names := &b.index.names; dtype == F8E8M0 && names.model && strings.HasSuffix(names.pattern[t.key.pattern], scale) {
		dtype = U8
	}
	size, ok := byteSize(dtype, b.dims)
	switch {
	case !ok:
		r.Fail("%s %v is no whole number of bytes below 2^63", dtype, b.dims)
	case t.end-t.start != size: // both are at least 0, so this does not overflow
		r.Fail("data_offsets [%d,%d] are not the %d bytes of %s %v", t.start, t.end, size, dtype, b.dims)
	case t.end > math.MaxInt64-maxHeader-8:
		r.Fail("data_offsets [%d,%d] are beyond any file", t.start, t.end)
	}
	t.kind = b.kind(dtype, size)
}

// byteSize is the size of a tensor, false when that is not a whole number of bytes or overflows.
func byteSize(dtype DType, shape []int) (int64, bool) {
	n := uint64(dtype.Bits())
	for _, d := range shape {
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 {
			return 0, false
		}
		n = lo
	}
	return int64(n / 8), n%8 == 0
}

// kind gives the number of a type and the shape in dims.
func (b *builder) kind(dtype DType, size int64) uint32 {
	k := append(b.kindKey[:0], byte(dtype))
	for _, d := range b.dims {
		k = binary.LittleEndian.AppendUint64(k, uint64(d))
	}
	b.kindKey = k
	x := b.index
	id, ok := x.kindIDs[string(k)]
	if !ok {
		id = uint32(len(x.kinds))
		x.kinds = append(x.kinds, kind{dtype, slices.Clone(b.dims), size})
		x.kindIDs[string(k)] = id
	}
	return id
}

// add moves the pending tensors of shard n, whose data begins at byte data, into the index.
func (b *builder) add(n int, data int64) error {
	x := b.index
	for _, t := range b.pending {
		i, fresh := x.table.insert(t.key)
		if !fresh {
			err := error(nil)
			if other := int(x.entries[i].shard); other != n {
				err = b.wrong(t.key, "it is in %s too", x.shards[other].Name)
			} else {
				err = b.wrong(t.key, "the header has it twice")
			}
			if err != nil {
				return err
			}
			continue
		}
		x.entries = append(x.entries, entry{data + t.start, t.kind, uint32(n)})
		if b.placement != nil {
			if want, ok := b.placement.found(t.key, n); !ok {
				if err := b.wrong(t.key, "%s puts it in %s", indexFile, want); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
