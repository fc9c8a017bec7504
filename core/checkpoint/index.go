package checkpoint

import (
	"iter"
	"math"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Tensor is where one tensor lies.
type Tensor struct {
	Name   string // empty in what Index.Expert gives; String has the name of any tensor
	DType  DType
	Shape  []int // shared with other tensors, do not change; empty for a scalar
	Shard  int   // position in Index.Shards
	Offset int64 // of its first byte in the shard's file
	Bytes  int64

	index *Index
	id    int
}

// String is the tensor's name.
func (t Tensor) String() string {
	if t.Name == "" && t.index != nil {
		return t.index.names.join(t.index.table.keys[t.id])
	}
	return t.Name
}

// Shard is one .safetensors file.
type Shard struct {
	Name string
	Size int64 // bytes
}

// Index is the directory of all tensors of a checkpoint. It takes about 36 bytes a tensor, whatever the names, as long as
// these differ in numbers only: a name is kept as a pattern, shared by all layers and experts, and up to two numbers; type
// and shape are kept once for all tensors that have them.
//
// It may be used by several goroutines.
type Index struct {
	shards  []Shard
	names   names
	table   table   // tensor names, in the order of entries
	entries []entry // by shard, then by offset
	kinds   []kind
	kindIDs map[string]uint32
	experts []uint32 // patterns of an expert's tensors, in the order Expert gives them
}

// entry has what a tensor does not share with others.
type entry struct {
	offset int64
	kind   uint32
	shard  uint32
}

// kind is a type and shape.
type kind struct {
	dtype DType
	shape []int
	bytes int64
}

func newIndex() *Index {
	return &Index{names: newNames(), table: newTable(), kindIDs: map[string]uint32{}}
}

// modelIndex is the index of a checkpoint, in which tensors of the text model have their released names.
func modelIndex() *Index {
	x := newIndex()
	x.names.model = true
	return x
}

// Len is the number of tensors.
func (x *Index) Len() int { return len(x.entries) }

// Shards lists the files, sorted by name. Do not change it.
func (x *Index) Shards() []Shard { return x.shards }

// All gives every tensor, shard by shard, in the order of their data.
func (x *Index) All() iter.Seq[Tensor] {
	return func(yield func(Tensor) bool) {
		for i := range x.entries {
			t := x.tensor(i)
			t.Name = t.String()
			if !yield(t) {
				return
			}
		}
	}
}

// Lookup finds a tensor by its full name, as released.
func (x *Index) Lookup(name string) (Tensor, bool) {
	k, ok := x.names.lookup(name)
	if !ok {
		return Tensor{}, false
	}
	i, ok := x.table.find(k)
	if !ok {
		return Tensor{}, false
	}
	t := x.tensor(i)
	t.Name = name
	return t, true
}

// at finds the tensor that a spec asks for, without building its name. It looks behind the tensor last first.
func (x *Index) at(s Spec, last Tensor) (Tensor, bool) {
	pattern, ok := x.names.ids[s.pattern]
	if !ok {
		return Tensor{}, false
	}
	i, ok := x.table.near(last.id+1, key{pattern, uint32(max(s.Layer, 0)), uint32(max(s.Expert, 0))})
	if !ok {
		return Tensor{}, false
	}
	return x.tensor(i), true
}

// Expert appends to parts the tensors of one routed expert: w1.weight_packed, w1.weight_scale, the same of w2 and w3, or in
// an unquantized checkpoint w1.weight, w2.weight, w3.weight. It appends nothing for an expert that is not there. It builds
// no strings and, with room in parts, allocates nothing.
func (x *Index) Expert(layer, expert int, parts []Tensor) []Tensor {
	if uint64(layer)|uint64(expert) > math.MaxUint32 {
		return parts
	}
	i, ok := -1, false
	for n, pattern := range x.experts {
		if i, ok = x.table.near(i+1, key{pattern, uint32(layer), uint32(expert)}); !ok {
			return parts[:len(parts)-n]
		}
		parts = append(parts, x.tensor(i))
	}
	return parts
}

// setExperts notes which tensors an expert of this model has.
func (x *Index) setExperts(c *Config, quantized bool) {
	for _, r := range groups(c, quantized).expert {
		if id, ok := x.names.ids[r.pattern]; ok {
			x.experts = append(x.experts, id)
		}
	}
}

func (x *Index) tensor(i int) Tensor {
	e := x.entries[i]
	k := x.kinds[e.kind]
	return Tensor{DType: k.dtype, Shape: k.shape, Shard: int(e.shard), Offset: e.offset, Bytes: k.bytes, index: x, id: i}
}

// number stands for a number in a pattern; a NUL cannot be in a tensor's name.
const number = "\x00"

// names knows the patterns of tensor names.
type names struct {
	ids     map[string]uint32
	pattern []string
	scratch []byte
	model   bool // of a checkpoint, whose text model has canonical names
	form    form // in which its files name the text model
	full    []byte
}

func newNames() names { return names{ids: map[string]uint32{}} }

// key is a name: a pattern with its numbers, 0 for a number that the pattern has not.
type key struct{ pattern, a, b uint32 }

// split appends the pattern of a name to dst. The first two parts between dots that are plain numbers are taken out.
func split(dst, name []byte) (pattern []byte, a, b uint32) {
	found, copied := 0, 0
	for i := 0; i < len(name); i++ {
		n, start := uint32(0), i
		for i < len(name) && i-start < 9 && '0' <= name[i] && name[i] <= '9' {
			n = n*10 + uint32(name[i]-'0')
			i++
		}
		whole := i > start && (i == len(name) || name[i] == '.') && (name[start] != '0' || i == start+1)
		if whole {
			if found++; found == 1 {
				a = n
			} else {
				b = n
			}
			dst = append(append(dst, name[copied:start]...), number...)
			copied = i
			if found == 2 {
				break
			}
		}
		for i < len(name) && name[i] != '.' {
			i++
		}
	}
	return append(dst, name[copied:]...), a, b
}

// key gives the key of any name, noting a new pattern. It reports false for a name that is not of the form of those before it.
func (n *names) key(name []byte) (k key, ok bool) {
	if ok = true; n.model {
		name, ok = n.canonical(name)
	}
	return n.intern(name), ok
}

func (n *names) intern(name []byte) key {
	pattern, a, b := split(n.scratch[:0], name)
	n.scratch = pattern
	id, ok := n.ids[string(pattern)]
	if !ok {
		id = uint32(len(n.pattern))
		n.pattern = append(n.pattern, string(pattern))
		n.ids[n.pattern[id]] = id
	}
	return key{id, a, b}
}

// lookup gives the key of a name whose pattern is known.
func (n *names) lookup(name string) (key, bool) {
	var text, room [128]byte
	pattern, a, b := split(room[:0], append(text[:0], name...))
	id, ok := n.ids[string(pattern)]
	return key{id, a, b}, ok && !strings.Contains(name, number)
}

func (n *names) join(k key) string {
	name := n.pattern[k.pattern]
	for _, v := range [...]uint32{k.a, k.b} {
		name = strings.Replace(name, number, strconv.FormatUint(uint64(v), 10), 1)
	}
	return name
}

// show is the name for a message.
func (n *names) show(k key) string { return show(n.join(k)) }

// table is an open-addressed hash table of keys: 12 bytes a key and 5 to 11 for its slots, where a map would take 60.
type table struct {
	keys  []key
	slots []uint32 // position in keys plus one, 0 when free; a power of two of them, at most three quarters used
	seed  uint64   // so that no file can be made to collide
}

func newTable() table { return table{slots: make([]uint32, 64), seed: rand.Uint64()} }

func (t *table) slot(k key) int {
	hi, lo := bits.Mul64(uint64(k.a)<<32|uint64(k.b)^t.seed, 0x9E3779B97F4A7C15)
	hi, lo = bits.Mul64(hi^lo^uint64(k.pattern), 0xD6E8FEB86659FD93^t.seed|1)
	return int((hi ^ lo) & uint64(len(t.slots)-1))
}

func (t *table) find(k key) (int, bool) {
	for s := t.slot(k); ; s = (s + 1) & (len(t.slots) - 1) {
		i := int(t.slots[s]) - 1
		if i < 0 || t.keys[i] == k {
			return i, i >= 0
		}
	}
}

// near is find for a key that is likely to be at position i: names come in the same order again and again, and a look
// there spares the memory two cache misses.
func (t *table) near(i int, k key) (int, bool) {
	if i < len(t.keys) && t.keys[i] == k {
		return i, true
	}
	return t.find(k)
}

// insert adds a key and gives its position, or the position it has already and false.
func (t *table) insert(k key) (int, bool) {
	s := t.slot(k)
	for ; t.slots[s] != 0; s = (s + 1) & (len(t.slots) - 1) {
		if i := int(t.slots[s]) - 1; t.keys[i] == k {
			return i, false
		}
	}
	t.keys = append(t.keys, k)
	t.slots[s] = uint32(len(t.keys))
	if len(t.keys) > len(t.slots)/4*3 {
		t.slots = make([]uint32, 2*len(t.slots))
		for i, k := range t.keys {
			s := t.slot(k)
			for t.slots[s] != 0 {
				s = (s + 1) & (len(t.slots) - 1)
			}
			t.slots[s] = uint32(i + 1)
		}
	}
	return len(t.keys) - 1, true
}

// reserve makes room for n tensors.
func (x *Index) reserve(n int) {
	x.entries = make([]entry, 0, n)
	x.table.reserve(n)
}

func (t *table) reserve(n int) {
	t.keys = make([]key, 0, n)
	size := len(t.slots)
	for n > size/4*3 {
		size *= 2
	}
	t.slots = make([]uint32, size)
}
