package pack

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/internal/strictjson"
)

const (
	align       = 4096      // what the runs of a pack are aligned to
	maxManifest = 100 << 20 // the size above which a file cannot be a list of tensors
	maxRank     = 8
)

// manifest is the list of what a pack has, its .json file.
type manifest struct {
	count      int64 // n_layers
	compressed bool
	layers     []layer // of a compressed pack the last one has lm_head
}

// encoding marks the list of a compressed pack.
const encoding = "bf16-window-8"

// layer is the run of bytes of one layer.
type layer struct {
	number int64
	shard  string // where the run came from, "" if unknown
	start  int64
	bytes  int64 // with the zeros behind it
	offset int64 // in the pack
	// tensors are sorted by name.
	tensors []entry
}

// entry is a tensor of a run.
type entry struct {
	name       string
	off, bytes int64 // in the run
	dtype      string
	shape      []int // nil if unknown
	// frameRows is the number of rows of a frame, and frames are their sizes, where the tensor is compressed.
	frameRows int64
	frames    []uint32
}

// ends is where the frames end, nil for a tensor that has none.
func (e *entry) ends() *Frames {
	if e.frameRows == 0 {
		return nil
	}
	f := &Frames{Rows: int(e.frameRows), Ends: make([]int64, len(e.frames))}
	end := int64(0)
	for i, n := range e.frames {
		end += int64(n)
		f.Ends[i] = end
	}
	return f
}

// object reads an object whose keys have a reader each; others are skipped. needed keys must be there, and no key twice.
func object(r *strictjson.Reader, what string, needed []string, fields map[string]func()) {
	var seen []string
	r.Object(func(key []byte) {
		read := fields[string(key)]
		if read == nil {
			r.Skip()
			return
		}
		if slices.Contains(seen, string(key)) {
			r.Fail("%s has %s twice", what, key)
			return
		}
		seen = append(seen, string(key))
		read()
	})
	for _, key := range needed {
		if !slices.Contains(seen, key) {
			r.Fail("%s has no %s", what, key)
		}
	}
}

// parseManifest reads a manifest; r has the error.
func parseManifest(r *strictjson.Reader) *manifest {
	list := &manifest{}
	object(r, "the list", []string{"n_layers", "layers"}, map[string]func(){
		"n_layers": func() { list.count = r.Size() },
		"align": func() {
			if n := r.Size(); n != align {
				r.Fail("align is %d, not %d", n, align)
			}
		},
		"encoding": func() {
			if s := string(r.Str()); s != encoding {
				r.Fail("the encoding is %q, not %q", s, encoding)
			}
			list.compressed = true
		},
		"layers": func() { r.Array(func() { list.layers = append(list.layers, parseLayer(r)) }) },
	})
	r.End()
	return list
}

func parseLayer(r *strictjson.Reader) layer {
	var l layer
	object(r, "a layer", []string{"layer", "nbytes", "file_off", "tensors"}, map[string]func(){
		"layer":     func() { l.number = r.Size() },
		"shard":     func() { l.shard = string(r.Str()) },
		"run_start": func() { l.start = r.Size() },
		"nbytes":    func() { l.bytes = r.Size() },
		"file_off":  func() { l.offset = r.Size() },
		"tensors": func() {
			r.Object(func(name []byte) {
				e := entry{name: string(name)}
				e.parse(r)
				l.tensors = append(l.tensors, e)
			})
		},
	})
	slices.SortFunc(l.tensors, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return l
}

func (e *entry) parse(r *strictjson.Reader) {
	object(r, "a tensor", []string{"off", "nbytes", "dtype"}, map[string]func(){
		"off":    func() { e.off = r.Size() },
		"nbytes": func() { e.bytes = r.Size() },
		"dtype":  func() { e.dtype = string(r.Str()) },
		"shape": func() {
			e.shape = []int{}
			r.Array(func() {
				if len(e.shape) == maxRank {
					r.Fail("a shape of more than %d dimensions", maxRank)
				}
				e.shape = append(e.shape, int(r.Size()))
			})
		},
		"frame_rows": func() { e.frameRows = r.Size() },
		"frames": func() {
			r.Array(func() {
				n := r.Size()
				if n < 1 || n > math.MaxUint32 {
					r.Fail("a frame of %d bytes", n)
				}
				e.frames = append(e.frames, uint32(n))
			})
		},
	})
}

// check looks for contradictions in the list itself, and with the size of the pack's file.
func (list *manifest) check(size int64) error {
	switch {
	case len(list.layers) == 0:
		return fmt.Errorf("it has no layers")
	case list.count != int64(len(list.layers)) && (!list.compressed || list.count != int64(len(list.layers)-1)):
		return fmt.Errorf("n_layers is %d, but there are %d layers", list.count, len(list.layers))
	}
	end := int64(0)
	for i, l := range list.layers {
		switch {
		case l.number != int64(i):
			return fmt.Errorf("layer %d is in the place of layer %d", l.number, i)
		case l.offset < end || l.offset%align != 0:
			return fmt.Errorf("layer %d: file_off %d is not a multiple of %d behind the layer before, which ends at %d", i, l.offset,
				align, end)
		case l.bytes > math.MaxInt64-l.offset || l.offset+l.bytes > size:
			return fmt.Errorf("layer %d: %d bytes from %d on leave the file, which has %d", i, l.bytes, l.offset, size)
		case len(l.tensors) == 0:
			return fmt.Errorf("layer %d has no tensors", i)
		}
		end = l.offset + l.bytes
		if err := l.check(list.compressed); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	if size-end >= align {
		return fmt.Errorf("the file has %d bytes, %d more than the layers", size, size-end)
	}
	return nil
}

func (l *layer) check(compressed bool) error {
	order := slices.Clone(l.tensors)
	slices.SortFunc(order, func(a, b entry) int { return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.bytes, b.bytes)) })
	end := int64(0)
	for _, e := range order {
		switch {
		case e.bytes > l.bytes || e.off > l.bytes-e.bytes:
			return fmt.Errorf("tensor %q: %d bytes from %d on leave the run of %d", e.name, e.bytes, e.off, l.bytes)
		case e.off < end:
			return fmt.Errorf("tensor %q begins at %d, inside the one before", e.name, e.off)
		}
		end = e.off + e.bytes
		if err := e.check(compressed); err != nil {
			return fmt.Errorf("tensor %q: %w", e.name, err)
		}
	}
	for i, e := range l.tensors[1:] {
		if e.name == l.tensors[i].name {
			return fmt.Errorf("tensor %q is there twice", e.name)
		}
	}
	return nil
}

// maxFrame is the size, expanded, above which a frame must be a single row.
const maxFrame = 4 << 20

// check looks whether the frames of a tensor, if it has any, can be what its shape needs.
func (e *entry) check(compressed bool) error {
	if e.frameRows == 0 && e.frames == nil {
		return nil
	}
	switch {
	case !compressed:
		return fmt.Errorf("it has frames, in a pack that is not compressed")
	case e.dtype != "BF16" || len(e.shape) != 2 || e.shape[0] < 1 || e.shape[1] < 1 || e.shape[1] > math.MaxInt64/4/e.shape[0]:
		return fmt.Errorf("frames of %s %v", e.dtype, e.shape)
	}
	rows, row := int64(e.shape[0]), 2*int64(e.shape[1])
	var sum int64
	for _, n := range e.frames {
		sum += int64(n)
	}
	switch {
	case e.frameRows < 1 || e.frameRows > rows || e.frameRows > max(1, maxFrame/row):
		return fmt.Errorf("frames of %d rows of %v", e.frameRows, e.shape)
	case int64(len(e.frames)) != (rows-1)/e.frameRows+1:
		return fmt.Errorf("%d frames of %d rows for %v", len(e.frames), e.frameRows, e.shape)
	case sum != e.bytes:
		return fmt.Errorf("frames of together %d bytes in %d", sum, e.bytes)
	}
	return nil
}

// matches compares the list with a checkpoint's tensors.
func (list *manifest) matches(m *checkpoint.Model) error {
	if n := m.Config.Layers; list.count != int64(n) {
		return fmt.Errorf("it has %d layers, the checkpoint %d", list.count, n)
	}
	for i, l := range list.layers {
		for _, e := range l.tensors {
			t, ok := m.Index.Lookup(e.name)
			switch {
			case !ok:
				return fmt.Errorf("tensor %q is not in the checkpoint", e.name)
			case layerOfTensor(e.name, m.Config.Layers) != i:
				return fmt.Errorf("tensor %q is not of the trunk of layer %d", e.name, i)
			case e.dtype != t.DType.String() || e.shape != nil && !slices.Equal(e.shape, t.Shape) || e.frameRows == 0 && e.bytes != t.Bytes:
				return fmt.Errorf("tensor %s is %s %v of %d bytes, in the checkpoint %s %v of %d", e.name, e.dtype, e.shape, e.bytes,
					t.DType, t.Shape, t.Bytes)
			}
		}
	}
	return nil
}

// layerOfTensor is the layer in a pack of a model of n layers that a tensor belongs to: n for lm_head, which only compressed
// packs have, and -1 for what no pack has.
func layerOfTensor(name string, n int) int {
	if name == checkpoint.Head {
		return n
	}
	if t, ok := checkpoint.ParseName(name); ok && t.Expert < 0 && t.Layer < n {
		return t.Layer
	}
	return -1
}

// text is the manifest as its file has it, spaced as the public packs are.
func (list *manifest) text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"n_layers": %d, "align": %d, `, list.count, align)
	if list.compressed {
		fmt.Fprintf(&b, `"encoding": %s, `, quote(encoding))
	}
	b.WriteString(`"layers": [`)
	for i, l := range list.layers {
		if i > 0 {
			b.WriteString(", ")
		}
		b.Write(l.text())
	}
	b.WriteString("]}")
	return b.Bytes()
}

// text is the layer's entry in the list.
func (l *layer) text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"layer": %d, "shard": %s, "run_start": %d, "nbytes": %d, "file_off": %d, "tensors": {`,
		l.number, quote(l.shard), l.start, l.bytes, l.offset)
	for i, e := range l.tensors {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, `%s: {"off": %d, "nbytes": %d, "dtype": %s, "shape": %s`, quote(e.name), e.off, e.bytes, quote(e.dtype),
			numbers(e.shape))
		if e.frameRows > 0 {
			fmt.Fprintf(&b, `, "frame_rows": %d, "frames": %s`, e.frameRows, numbers(e.frames))
		}
		b.WriteString("}")
	}
	b.WriteString("}}")
	return b.Bytes()
}

func quote(s string) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // strings encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func numbers[T int | uint32](list []T) string {
	return strings.ReplaceAll(fmt.Sprint(list), " ", ", ")
}

// layerOf reads the entry of one layer.
func layerOf(text []byte) (layer, error) {
	r := strictjson.New(text)
	l := parseLayer(r)
	r.End()
	return l, r.Err()
}
