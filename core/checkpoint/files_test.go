package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

// memFiles is a checkpoint in memory, of which tests change bytes.
type memFiles map[string]*memFile

type memFile struct {
	name   string
	data   []byte
	size   int64 // above len(data): what lies behind is never read
	fail   int64 // reads that touch this offset fail, if it is above 0
	slow   bool  // one byte a read
	opened *int  // files that are open
}

var errDisk = errors.New("the disk is on fire")

func (m memFiles) Name() string            { return "memory" }
func (m memFiles) List() ([]string, error) { return slices.Sorted(maps.Keys(m)), nil }

func (m memFiles) Open(name string) (disk.File, error) {
	f, ok := m[name]
	if !ok {
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	}
	if f.opened != nil {
		*f.opened++
	}
	return f, nil
}

func (m memFiles) put(name string, data []byte) {
	m[name] = &memFile{name: name, data: data, size: int64(len(data))}
}

func (m memFiles) clone() memFiles {
	c := memFiles{}
	for name, f := range m {
		g := *f
		c[name] = &g
	}
	return c
}

func (f *memFile) Name() string { return "memory/" + f.name }
func (f *memFile) Size() int64  { return f.size }

func (f *memFile) Close() error {
	if f.opened != nil {
		*f.opened--
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	if f.fail > 0 && off <= f.fail && f.fail < off+int64(len(p)) {
		return 0, errDisk
	}
	if off >= int64(len(f.data)) {
		return 0, io.EOF
	}
	if f.slow {
		p = p[:min(1, len(p))]
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// raw is a .safetensors file of this header and this much data.
func raw(header string, data int) []byte {
	p := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	p = append(p, header...)
	return append(p, make([]byte, data)...)
}

// released is the geometry of the released checkpoint.
func released() *Config {
	c := &Config{Hidden: 7168, Layers: 93, Vocab: 163840, NormEps: 1e-5, DenseLayers: 1, DenseIntermediate: 33792,
		ResidualBlock: 12, SituBeta: 4, SituLinearBeta: 25, MaxPositions: 1 << 20, BOS: 163584, EOS: []int{163586},
		ModelType: "kimi_k3", Quantized: true}
	c.KDA.Heads, c.KDA.HeadDim, c.KDA.ConvKernel, c.KDA.GateLowerBound = 96, 128, 4, -5
	c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim = 96, 1536, 512, 128, 64, 128
	c.MLA.OutputGate = true
	c.MoE.Experts, c.MoE.TopK, c.MoE.Shared, c.MoE.Latent, c.MoE.Intermediate, c.MoE.ScalingFactor = 896, 16, 2, 3584, 3072, 1
	c.MoE.Renormalize, c.MoE.LatentNorm = true, true
	c.FullAttention = make([]bool, 93)
	for i := 3; i < 93; i += 4 {
		c.FullAttention[i] = true
	}
	c.FullAttention[92] = true
	return c
}

// releasedFiles are the headers, and maybe the index file, of a checkpoint of the released size and number of tensors.
// There is no data.
func releasedFiles(b testing.TB, config []byte, withIndex bool) memFiles {
	const tensors, shards = 497_220, 96
	m := memFiles{}
	m.put("config.json", config)
	var index, header []byte
	var at int64
	n, file := 0, ""
	finish := func() {
		if n > 0 {
			h := append(header, '}')
			m[file] = &memFile{name: file, data: raw(string(h), 0), size: int64(8+len(h)) + at}
		}
	}
	add := func(name string, dtype DType, shape []int) {
		if s := n * shards / tensors; n == 0 || s != (n-1)*shards/tensors {
			finish()
			file, header, at = shardName(s, shards), append(header[:0], `{"__metadata__":{"format":"pt"}`...), 0
		}
		size, _ := byteSize(dtype, shape)
		header = append(append(append(header, `,"`...), name...), `":{"dtype":"`...)
		header = append(append(header, dtype.String()...), `","shape":[`...)
		for i, d := range shape {
			if i > 0 {
				header = append(header, ',')
			}
			header = strconv.AppendInt(header, int64(d), 10)
		}
		header = strconv.AppendInt(append(header, `],"data_offsets":[`...), at, 10)
		at += size
		header = append(strconv.AppendInt(append(header, ','), at, 10), "]}"...)
		if withIndex {
			index = append(append(append(append(append(index, '"'), name...), `": "`...), file...), "\",\n"...)
		}
		n++
	}
	for s := range Required(released(), true) {
		add(s.Name(), s.DType, s.Shape)
	}
	for i := 0; n < tensors; i++ {
		add(fmt.Sprintf("vision_tower.encoder.blocks.%d.part%d.weight", i/12, i%12), BF16, []int{1152})
	}
	finish()
	if withIndex {
		m.put(indexFile, fmt.Appendf(nil, `{"metadata":{"total_size":1560936091448},"weight_map":{%s}}`, index[:len(index)-2]))
	}
	return m
}

func jsonShape(shape []int) string {
	s := []byte{'['}
	for i, d := range shape {
		if i > 0 {
			s = append(s, ',')
		}
		s = fmt.Append(s, d)
	}
	return string(append(s, ']'))
}

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func releasedConfig(t testing.TB) []byte { return testdata(t, "released-size.json") }
