package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/fault"
	"github.com/k3infer/k3/core/internal/strictjson"
)

const indexFile = "model.safetensors.index.json"

// placement is what the index file says: which tensor is in which shard.
type placement struct {
	names  *names // shared with the index
	table  table
	shard  []uint32
	seen   []bool
	shards []string // sorted
	next   int      // behind the tensor found last
}

// found notes that a tensor is in shard n, or tells the shard where the index file puts it.
func (p *placement) found(k key, n int) (want string, ok bool) {
	i, ok := p.table.near(p.next, k)
	if !ok {
		return "", true // the index file says nothing about it
	}
	p.next = i + 1
	p.seen[i] = true
	return p.shards[p.shard[i]], int(p.shard[i]) == n
}

// missing lists the tensors that are in no shard.
func (p *placement) missing() (list some) {
	for i, seen := range p.seen {
		if !seen {
			list.add(func() string { return p.names.show(p.table.keys[i]) + " (" + p.shards[p.shard[i]] + ")" })
		}
	}
	return list
}

// readPlacement reads the index file; without one the error matches fs.ErrNotExist.
func readPlacement(ctx context.Context, files disk.Files, n *names) (*placement, error) {
	f, err := files.Open(indexFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &placement{names: n, table: newTable()}
	ids := map[string]uint32{}
	var r strictjson.Reader
	r.Reset(reading(ctx, f), 0, f.Size())
	have := false
	r.Object(func(field []byte) {
		if string(field) != "weight_map" {
			r.Skip()
			return
		}
		if have {
			r.Fail("a second weight_map")
		}
		have = true
		r.Object(func(name []byte) {
			if bytes.IndexByte(name, 0) >= 0 {
				r.Fail("a tensor's name with a NUL in it")
				return
			}
			k, ok := n.key(name)
			if !ok {
				r.Fail("tensor %s: %s", show(string(name)), n.differs())
				return
			}
			if _, fresh := p.table.insert(k); !fresh {
				r.Fail("tensor %s a second time", n.show(k))
				return
			}
			file := r.Str()
			id, ok := ids[string(file)]
			if !ok {
				if r.Err() == nil && !plainName(string(file)) {
					r.Fail("tensor %s is in %s, which is not the name of a file beside the index", n.show(k), quote(string(file)))
				}
				id = uint32(len(p.shards))
				p.shards = append(p.shards, string(file))
				ids[p.shards[id]] = id
			}
			p.shard = append(p.shard, id)
		})
	})
	r.End()
	if r.Err() == nil && len(p.shards) == 0 {
		r.Fail("no tensors in weight_map")
	}
	if err := r.Err(); err != nil {
		if what := foreign(f); what != nil {
			return nil, fmt.Errorf("%s: %w", indexFile, what)
		}
		return nil, jsonFault(indexFile+": ", err)
	}
	p.seen = make([]bool, len(p.shard))

	order := slices.Clone(p.shards)
	sort.Strings(order)
	rank := make([]uint32, len(order))
	for i, name := range order {
		rank[ids[name]] = uint32(i)
	}
	for i, id := range p.shard {
		p.shard[i] = rank[id]
	}
	p.shards = order
	return p, nil
}

// plainName reports whether a name stays in its folder on every system.
func plainName(name string) bool {
	return name != "." && name != ".." && name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return strings.ContainsRune(`/\:`, r) || !unicode.IsPrint(r)
	})
}

// listShards names the shards of a checkpoint without an index file: model.safetensors, or all model-*.safetensors.
func listShards(files disk.Files) ([]string, error) {
	all, err := files.List()
	if err != nil {
		return nil, err
	}
	if slices.Contains(all, "model.safetensors") {
		return []string{"model.safetensors"}, nil
	}
	var shards []string
	for _, name := range all {
		if strings.HasPrefix(name, "model-") && strings.HasSuffix(name, ".safetensors") {
			shards = append(shards, name)
		}
	}
	if len(shards) == 0 {
		return nil, fault.Errorf(ErrFormat, "no %s, model.safetensors or model-*.safetensors", indexFile)
	}
	return shards, wholeSet(shards)
}

// wholeSet checks that shards named model-I-of-N are N in number.
func wholeSet(shards []string) error {
	var missing some
	m, err := eachMissing(shards, func(name string) { missing.add(func() string { return name }) })
	if err == nil && missing.n > 0 {
		err = fault.Errorf(ErrFormat, "%d of %d shards are missing: %s", missing.n, m, &missing)
	}
	return err
}

// eachMissing names the shards model-I-of-N that are not there and returns N.
func eachMissing(shards []string, missing func(name string)) (int, error) {
	have := map[int]bool{}
	first, total := "", "" // the text of I and N in one of the names
	for _, name := range shards {
		i, of, ok := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(name, "model-"), ".safetensors"), "-of-")
		n, err := strconv.Atoi(i)
		m, err2 := strconv.Atoi(of)
		if !ok || err != nil || err2 != nil {
			continue // not numbered
		}
		if total != "" && of != total {
			return 0, fault.Errorf(ErrFormat, "%s beside shards of %s: two checkpoints in one folder", name, total)
		}
		if n < 1 || n > m || m > 1_000_000 {
			return 0, fault.Errorf(ErrFormat, "%s: not a shard number from 1 to %s", name, of)
		}
		if have[n] {
			return 0, fault.Errorf(ErrFormat, "%s: shard %d a second time", name, n)
		}
		first, total, have[n] = i, of, true
	}
	m, _ := strconv.Atoi(total)
	for n := 1; n <= m; n++ {
		if !have[n] {
			missing(fmt.Sprintf("model-%0*d-of-%s.safetensors", len(first), n, total))
		}
	}
	return m, nil
}

// notExist reports whether err says that a file is missing.
func notExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }
