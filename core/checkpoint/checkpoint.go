// Package checkpoint reads a model's directory: config.json to a validated geometry, and the headers of its safetensors
// shards to an index of all tensors. Everything that can be known without reading weights is checked before Open returns,
// and what is wrong is listed all at once.
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"github.com/k3infer/k3/core/checksum"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/internal/fault"
)

// Model is an opened checkpoint. Its shard files stay open until Close. It may be used by several goroutines.
type Model struct {
	Files     disk.Files
	Config    *Config
	Index     *Index
	StopIDs   []int // eos_token_id of config.json, then of generation_config.json, without repeats; may be empty
	Quantized bool  // routed experts are MXFP4: weight_packed and weight_scale
	shards    []disk.File

	fingerprinting sync.Mutex
	known          Fingerprint // once it was computed
}

const configFile = "config.json"

// maxConfig is the size of config.json above which it cannot be one.
const maxConfig = 1 << 20

// Open reads and checks a checkpoint. The error names every missing, mis-sized or damaged shard, or the tensors that are
// missing and all that do not have the shape config.json gives them; it matches ErrConfig or ErrFormat unless reading failed.
func Open(ctx context.Context, files disk.Files) (*Model, error) {
	m := &Model{Files: files}
	if err := m.open(ctx); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *Model) open(ctx context.Context) error {
	p := &problems{where: "checkpoint: open " + m.Files.Name()}
	refuse := func(err error) error { return &problems{p.where, []error{err}} }
	var foreign some // shards that are something else, all for one reason most of the time
	var what *foreignError
	var absent []string
	placement, err := m.walk(ctx, visitor{
		where: p.where,
		open: func(name string) (disk.File, error) {
			f, _, err := checksum.Open(m.Files, name)
			return f, err
		},
		file: func(name string, err error) error {
			switch {
			case name == configFile && notExist(err):
				return refuse(fault.Errorf(ErrFormat, "config.json is missing"))
			case name == indexFile:
				return refuse(err)
			}
			return err
		},
		list: func(_ []string, err error) error {
			if err != nil {
				return refuse(err)
			}
			return nil
		},
		absent: func(_ int, name string, err error) {
			if notExist(err) {
				absent = append(absent, name)
			} else {
				p.add(err)
			}
		},
		read: func(_ int, name string, err error, _ bool) {
			switch {
			case errors.As(err, &what):
				foreign.add(func() string { return name })
			case err != nil:
				p.add(fmt.Errorf("%s: %w", name, err))
			}
		},
	})
	if err != nil {
		return err
	}
	if foreign.n > 0 {
		p.add(fmt.Errorf("%s: %w", foreign.short(), what))
	}
	if absent != nil {
		partial := &Partial{Files: m.Files.Name(), Missing: absent}
		if placement != nil {
			partial.Layers, partial.Of = m.layersHere(placement), m.Config.Layers
		}
		p.add(partial)
	}
	if err := p.err(); err != nil {
		return err
	}
	if placement != nil {
		if list := placement.missing(); list.n > 0 {
			p.add(fault.Errorf(ErrFormat, "%d tensors are not in the shards %s names: %s", list.n, indexFile, &list))
		}
	}
	m.check(p)
	return p.err()
}

// layersHere is the number of layers all of whose shards are open.
func (m *Model) layersHere(p *placement) int {
	const marker = ".layers." + number + "."
	inLayer := make([]bool, len(p.names.pattern))
	for i, pattern := range p.names.pattern {
		inLayer[i] = strings.Contains(pattern, marker) && !strings.HasPrefix(pattern, "vision_tower.")
	}
	here := map[uint32]bool{}
	for i, k := range p.table.keys {
		if inLayer[k.pattern] {
			whole, seen := here[k.a]
			here[k.a] = m.shards[p.shard[i]] != nil && (whole || !seen)
		}
	}
	n := 0
	for _, whole := range here {
		if whole {
			n++
		}
	}
	return n
}

// check compares the index with what the geometry needs.
func (m *Model) check(p *problems) {
	m.Quantized = m.quantized()
	if m.Quantized && (m.Config.MoE.Latent%mxfp4Group != 0 || m.Config.MoE.Intermediate%mxfp4Group != 0) {
		p.add(fault.Errorf(ErrConfig, "config.json: %s", unevenGroups(m.Config)))
		return
	}
	var missing, wrong some
	var t Tensor
	var ok bool
	for s := range Required(m.Config, m.Quantized) {
		switch t, ok = m.Index.at(s, t); {
		case !ok:
			missing.add(s.Name)
		case !s.Accepts(t.DType, t.Shape):
			wrong.add(func() string {
				return fmt.Sprintf("%s is %s %v, not %s %v", s.Name(), t.DType, t.Shape, s.DType, s.Shape)
			})
		}
	}
	if missing.n > 0 {
		p.add(fault.Errorf(ErrFormat, "%d tensors that config.json asks for are missing: %s", missing.n, &missing))
	}
	if wrong.n > 0 {
		p.add(fault.Errorf(ErrFormat, "%d tensors do not fit config.json: %s", wrong.n, &wrong))
	}
	m.Index.setExperts(m.Config, m.Quantized)
}

// quantized reports which form of routed experts the checkpoint has: the files decide, and config.json when they have none.
func (m *Model) quantized() bool {
	has := func(quantized bool) bool {
		for _, r := range groups(m.Config, quantized).expert {
			if _, ok := m.Index.names.ids[r.pattern]; ok {
				return true
			}
		}
		return false
	}
	return has(true) || m.Config.Quantized && !has(false)
}

// readSmall reads a small file and gives the name by which to call it in messages.
func readSmall(files disk.Files, name string) (string, []byte, error) {
	f, err := files.Open(name)
	if err != nil {
		return name, nil, err
	}
	defer f.Close()
	if f.Size() > maxConfig {
		return f.Name(), nil, fault.Errorf(ErrConfig, "checkpoint: read %s: %d bytes, at most %d are expected", f.Name(), f.Size(), maxConfig)
	}
	data := make([]byte, f.Size())
	if err := disk.ReadFull(f, data, 0); err != nil {
		return f.Name(), nil, fmt.Errorf("checkpoint: %w", err)
	}
	return f.Name(), data, nil
}

// Read fills p with the bytes [from, from+len(p)) of tensor t. The error names the file, the offset and the tensor.
func (m *Model) Read(p []byte, t Tensor, from int64) error {
	if from < 0 || from > t.Bytes || int64(len(p)) > t.Bytes-from {
		return fmt.Errorf("checkpoint: read tensor %s: bytes %d to %d of %d", t, from, from+int64(len(p)), t.Bytes)
	}
	if t.Shard >= len(m.shards) || m.shards[t.Shard] == nil {
		return fmt.Errorf("checkpoint: read tensor %s: %w", t, fs.ErrClosed)
	}
	if err := disk.ReadFull(m.shards[t.Shard], p, t.Offset+from); err != nil {
		return fmt.Errorf("checkpoint: read tensor %s: %w", t, err)
	}
	return nil
}

// Shard is the open file of shard i of Index.Shards. It belongs to the model.
func (m *Model) Shard(i int) disk.File { return m.shards[i] }

// Close closes the shard files.
func (m *Model) Close() error {
	var first error
	for _, f := range m.shards {
		if f == nil {
			continue // Examine could not open it
		}
		if err := f.Close(); err != nil && first == nil {
			first = fmt.Errorf("checkpoint: close: %w", err)
		}
	}
	m.shards = nil
	return first
}
