package checkpoint

import (
	"context"
	"fmt"

	"github.com/k3infer/k3/core/disk"
)

// visitor is told what a walk finds wrong. What it returns an error for ends the walk with that error.
type visitor struct {
	where string // what goes on, for errors
	open  func(shard string) (disk.File, error)
	// file is told why config.json, generation_config.json or the index file cannot be used; the last two may be missing.
	file func(name string, err error) error
	// list is told which shards there are, without an index file, and why those are not all.
	list func(names []string, err error) error
	// absent is told why shard n cannot be opened, and read how reading its header went, and whether some of it was taken in.
	absent func(n int, name string, err error)
	read   func(n int, name string, err error, some bool)
	// each, if it is not nil, is told what is wrong with single tensors of a shard, which is then read on.
	each func(n int, name, tensor string, err error)
}

// walk reads a checkpoint, from config.json to the header of the last shard, into m. The placement is nil without an index file.
func (m *Model) walk(ctx context.Context, v visitor) (*placement, error) {
	const generation = "generation_config.json"
	name, data, err := readSmall(m.Files, configFile)
	if err == nil {
		m.Config, err = parseConfig(name, data)
	}
	if err != nil {
		if err := v.file(configFile, err); err != nil {
			return nil, err
		}
	}
	vocab := maxVocab
	if m.Config != nil {
		vocab, m.StopIDs = m.Config.Vocab, union(nil, m.Config.EOS)
	}
	name, data, err = readSmall(m.Files, generation)
	if err == nil {
		var ids []int
		ids, err = parseGeneration(name, data, vocab)
		m.StopIDs = union(m.StopIDs, ids)
	}
	if err != nil && !notExist(err) {
		if err := v.file(generation, err); err != nil {
			return nil, err
		}
	}

	m.Index = modelIndex()
	b := builder{index: m.Index}
	var names []string
	b.placement, err = readPlacement(ctx, m.Files, &m.Index.names)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", v.where, ctx.Err())
	case err == nil:
		names = b.placement.shards
		m.Index.reserve(len(b.placement.shard))
	default:
		if b.placement = nil; !notExist(err) {
			if err := v.file(indexFile, err); err != nil {
				return nil, err
			}
		}
		names, err = listShards(m.Files)
		if err := v.list(names, err); err != nil {
			return nil, err
		}
	}
	for n, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", v.where, err)
		}
		f, err := v.open(name)
		if err != nil {
			m.shards, m.Index.shards = append(m.shards, nil), append(m.Index.shards, Shard{name, 0})
			v.absent(n, name, err)
			continue
		}
		m.shards, m.Index.shards = append(m.shards, f), append(m.Index.shards, Shard{name, f.Size()})
		if v.each != nil {
			b.each = func(tensor string, err error) { v.each(n, name, tensor, err) }
		}
		before := m.Index.Len()
		err = b.shard(ctx, f, n)
		v.read(n, name, err, m.Index.Len() > before)
	}
	return b.placement, nil
}
