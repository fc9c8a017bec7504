package fabricate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/k3infer/k3/core/checkpoint"
)

// tensor is one to write.
type tensor struct {
	name   string
	dtype  checkpoint.DType
	shape  []int
	expert int // -1 for all but routed experts
	bytes  int64
	offset int64 // in its shard's file
}

// The sizes of the released vision tower and projector.
const (
	visionHidden, visionIntermediate, visionAttention, visionLayers = 1024, 4096, 1536, 27
	visionPatch, visionGrid, visionMerged                           = 14, 64, 4 * visionHidden
)

// unit is tensors that the released layout has in one shard: a layer, what is outside of the layers, a part of the vision.
type unit []tensor

// units lists what to write in the released order: unit by unit, in a unit routed experts last, then wide types first, then
// by name. So a layer's trunk is one run of bytes, and each of its experts is another.
func units(c *checkpoint.Config, o Options) []unit {
	all := make([]unit, c.Layers+1)
	for s := range checkpoint.Required(c, o.Experts == checkpoint.U8) {
		dtype := s.DType
		switch {
		case dtype == checkpoint.BF16 && s.Expert >= 0:
			dtype = o.Experts
		case dtype == checkpoint.BF16:
			dtype = o.Trunk
		}
		at := s.Layer
		if at < 0 {
			at = c.Layers
		}
		all[at] = append(all[at], newTensor(s.Name(), dtype, s.Shape, s.Expert))
	}
	if o.Vision {
		all = append(all, visionUnits(c.Hidden)...)
	}
	for _, u := range all {
		slices.SortFunc(u, func(a, b tensor) int {
			return cmp.Or(cmp.Compare(min(a.expert, 0), min(b.expert, 0)), cmp.Compare(b.dtype.Bits(), a.dtype.Bits()),
				cmp.Compare(a.name, b.name))
		})
	}
	return all
}

func newTensor(name string, dtype checkpoint.DType, shape []int, expert int) tensor {
	bytes := int64(dtype.Bits() / 8)
	for _, n := range shape {
		bytes *= int64(n) // fits: the configuration was checked
	}
	return tensor{name: name, dtype: dtype, shape: shape, expert: expert, bytes: bytes}
}

// visionUnits are the projector and the vision tower.
func visionUnits(hidden int) []unit {
	const e = visionHidden
	bf16 := func(name string, shape ...int) tensor { return newTensor(name+".weight", checkpoint.BF16, shape, -1) }
	projector := unit{
		bf16("mm_projector.post_norm", hidden), bf16("mm_projector.proj.0", visionMerged, visionMerged),
		bf16("mm_projector.proj.2", hidden, visionMerged),
	}
	tower := unit{
		bf16("vision_tower.patch_embed.proj", e, 3, visionPatch, visionPatch),
		bf16("vision_tower.patch_embed.pos_emb", visionGrid, visionGrid, e), bf16("vision_tower.encoder.final_layernorm", e),
	}
	for n := range visionLayers {
		p := fmt.Sprintf("vision_tower.encoder.blocks.%d.", n)
		tower = append(tower, bf16(p+"norm0", e), bf16(p+"norm1", e), bf16(p+"wqkv", 3*visionAttention, e), bf16(p+"wo", e, visionAttention),
			bf16(p+"mlp.fc0", visionIntermediate, e), bf16(p+"mlp.fc1", e, visionIntermediate))
	}
	return []unit{projector, tower}
}

// runs cuts units into the pieces that must stay together: the trunk of a layer, one expert, one tensor outside the layers.
func runs(all []unit, layers int) []unit {
	var out []unit
	for i, u := range all {
		start := 0
		for j := range u {
			if j > 0 && (i >= layers || u[j].expert != u[j-1].expert) {
				out = append(out, u[start:j])
				start = j
			}
		}
		out = append(out, u[start:])
	}
	return out
}

// divide gives n shards their tensors; 0 is one shard for each unit, as released. More shards than units cut layers between
// experts, fewer hold several whole units; both are balanced by bytes.
func divide(all []unit, layers, n int) ([]unit, error) {
	if n == 0 || n == len(all) {
		return all, nil
	}
	parts := all
	if n > len(all) {
		parts = runs(all, layers)
	}
	if n < 0 || n > len(parts) || n > maxShards {
		return nil, fmt.Errorf("%w: %d shards, not 1 to %d", ErrOptions, n, min(len(parts), maxShards))
	}
	size := func(u unit) (bytes int64) {
		for _, t := range u {
			bytes += t.bytes
		}
		return bytes
	}
	total := 0.0
	for _, u := range parts {
		total += float64(size(u))
	}
	shards, done := make([]unit, 0, n), 0.0
	for i, u := range parts {
		bytes := float64(size(u))
		// Begin the next shard if most of this part lies beyond the end of the last, or if there are just enough parts left.
		open := len(shards)
		if open == 0 || open < n && (done+bytes/2 > total*float64(open)/float64(n) || len(parts)-i <= n-open) {
			shards = append(shards, nil)
		}
		last := &shards[len(shards)-1]
		*last = append(*last, u...)
		done += bytes
	}
	return shards, nil
}

// maxShards is as many as the names of the files can number.
const maxShards = 99999

// shardName is the file of shard i of n, from 0.
func shardName(i, n int) string { return fmt.Sprintf("model-%05d-of-%06d.safetensors", i+1, n) }

// stretch is bytes of a file that come from one tensor.
type stretch struct {
	tensor *tensor
	from   int64 // in the tensor
	bytes  int64
}

func (s stretch) offset() int64 { return s.tensor.offset + s.from }

// block is what a file system allocates at a time.
const block = 4096

// Of a sparse checkpoint these are real: tensors of the trunk up to wholeUpTo bytes; one block of each larger one; one block of
// the first realRows rows of embed_tokens and lm_head, so that such ids tell each other apart; one block of realExperts rows of each
// router, so that they choose different experts.
const (
	wholeUpTo   = 64 << 10
	realRows    = 1536
	realExperts = 64
)

// stretches are what is written of a tensor.
func (o Options) stretches(t *tensor) []stretch {
	switch {
	case !o.Sparse || t.expert < 0 && t.bytes <= wholeUpTo:
		return []stretch{{t, 0, t.bytes}}
	case t.expert >= 0:
		return nil
	}
	rows, every, count := t.shape[0], 1, 1
	switch name := t.name; {
	case name == checkpoint.Embedding || name == checkpoint.Head:
		count = min(rows, realRows)
	case isRouter(name):
		count = min(rows, realExperts)
		every = rows / count
	}
	row := t.bytes / int64(rows)
	var out []stretch
	for i := range count {
		// The first whole block of the file in the row, which costs one where others cost two.
		from := int64(i*every) * row
		from += -(t.offset + from) & (block - 1)
		end := min(from+block, t.bytes)
		from = (from + grain - 1) / grain * grain
		if from < end {
			out = append(out, stretch{t, from, end - from})
		}
	}
	return out
}
