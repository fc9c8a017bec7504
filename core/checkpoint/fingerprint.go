package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/k3infer/k3/core/disk"
)

// Fingerprint names a model by its weights, whatever its path, its shards and its settings. Packs, sessions and kept states
// carry it, to be used with no other.
type Fingerprint struct {
	// Samples is a hash of the geometry, of the names, types and shapes of all tensors of the text model, and of samples: four
	// of every matrix of the trunk, all of its small tensors, and one of each matrix of some experts of every layer.
	Samples string
	// Exact is a hash of the geometry and of every byte of those tensors, as their checksums have it; "" where there are none.
	Exact string
}

// Matches reports whether two fingerprints can be of the same model: they are of the same samples and, where both know it,
// of the same bytes.
func (f Fingerprint) Matches(g Fingerprint) bool {
	return f.Samples == g.Samples && (f.Exact == "" || g.Exact == "" || f.Exact == g.Exact)
}

// What is sampled. A model that was trained further, or that an adapter was merged into, differs in nearly every byte of the
// matrices it was changed in.
const (
	wholeTensor    = 16 << 10 // bytes up to which all of a tensor of the trunk is taken
	sampleBytes    = 1 << 10
	tensorSamples  = 4
	tableSamples   = 64 // of the embedding and of lm_head, whose rows may differ one by one
	sampledExperts = 8  // per layer
	sampleReaders  = 16
)

// sample is a stretch of a tensor that is part of the fingerprint.
type sample struct {
	tensor Tensor
	from   int64
	data   []byte
}

// Fingerprint is the model's fingerprint, computed by the first call. cache is a directory where that of files that have not
// changed since is found again, "" for none; that it cannot be read or written is no error. The error matches disk.ErrChanged
// if the files are no longer those that were opened.
func (m *Model) Fingerprint(ctx context.Context, cache string) (Fingerprint, error) {
	m.fingerprinting.Lock()
	defer m.fingerprinting.Unlock()
	if m.known.Samples != "" {
		return m.known, nil
	}
	f, err := m.fingerprint(ctx, cache)
	if err != nil {
		return Fingerprint{}, fmt.Errorf("checkpoint: fingerprint of %s: %w", m.Files.Name(), err)
	}
	m.known = f
	return f, nil
}

func (m *Model) fingerprint(ctx context.Context, cache string) (f Fingerprint, err error) {
	if err := m.Changed(); err != nil {
		return f, err
	}
	geometry := m.geometry()
	f.Exact = m.exact(geometry)
	remembered := ""
	if stamp := m.Stamp(); stamp != "" && cache != "" {
		sum := sha256.Sum256([]byte(geometry + stamp))
		remembered = filepath.Join(cache, fingerprintPrefix+hex.EncodeToString(sum[:16]))
		if data, err := os.ReadFile(remembered); err == nil && isFingerprint(string(data)) {
			f.Samples = string(data)
			return f, nil
		}
	}
	if f.Samples, err = m.sampled(ctx, geometry); err != nil {
		return f, err
	}
	if remembered != "" {
		if out, err := disk.Create(remembered); err == nil {
			defer out.Abandon()
			if _, err := io.WriteString(out, f.Samples); err == nil && out.Commit() == nil {
				forget(cache)
			}
		}
	}
	return f, nil
}

const (
	fingerprintPrefix = "fingerprint-"
	hashPrefix        = "sha256:"
	rememberedMost    = 256
)

func isFingerprint(s string) bool {
	digits, ok := strings.CutPrefix(s, hashPrefix)
	data, err := hex.DecodeString(digits)
	return ok && err == nil && len(data) == sha256.Size
}

// forget removes fingerprints from a cache that has too many of them, the oldest first.
func forget(cache string) {
	names, err := filepath.Glob(filepath.Join(cache, fingerprintPrefix+"*"))
	if err != nil || len(names) <= rememberedMost {
		return
	}
	age := func(name string) int64 {
		if info, err := os.Stat(name); err == nil {
			return info.ModTime().UnixNano()
		}
		return 0
	}
	slices.SortFunc(names, func(a, b string) int { return int(min(max(age(a)-age(b), -1), 1)) })
	for _, name := range names[:len(names)-rememberedMost] {
		os.Remove(name)
	}
}

// geometry is every number of the configuration that changes what the model computes, and the tensors it has. MaxPositions
// and the ids are settings: editing them makes no other model.
func (m *Model) geometry() string {
	c := m.Config
	var b strings.Builder
	number := func(name string, values ...int) { fmt.Fprintln(&b, name, values) }
	real := func(name string, value float32) { fmt.Fprintf(&b, "%s %08x\n", name, math.Float32bits(value)) }
	flag := func(name string, values ...bool) { fmt.Fprintln(&b, name, values) }
	number("hidden, layers, vocab", c.Hidden, c.Layers, c.Vocab)
	number("kda", c.KDA.Heads, c.KDA.HeadDim, c.KDA.ConvKernel)
	number("mla", c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim)
	number("moe", c.MoE.Experts, c.MoE.TopK, c.MoE.Shared, c.MoE.Latent, c.MoE.Intermediate)
	number("dense, residual", c.DenseLayers, c.DenseIntermediate, c.ResidualBlock)
	flag("gate, renormalize, latent norm, quantized", c.MLA.OutputGate, c.MoE.Renormalize, c.MoE.LatentNorm, m.Quantized)
	flag("full attention", c.FullAttention...)
	real("eps", c.NormEps)
	real("lower bound", c.KDA.GateLowerBound)
	real("scaling", c.MoE.ScalingFactor)
	real("beta", c.SituBeta)
	real("linear beta", c.SituLinearBeta)
	return b.String()
}

// required calls f with each tensor that the text model needs, always in the same order.
func (m *Model) required(f func(Spec, Tensor)) {
	var t Tensor
	for s := range Required(m.Config, m.Quantized) {
		t, _ = m.Index.at(s, t)
		f(s, t)
	}
}

// describe appends what a tensor is, without its bytes.
func (s Spec) describe(b []byte, t Tensor) []byte {
	b = append(b, s.pattern...)
	for _, n := range []int{s.Layer, s.Expert, len(t.Shape)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	for _, n := range t.Shape {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return append(b, t.DType.String()...)
}

// exact is the hash of every byte by checksums, "" if a tensor has none.
func (m *Model) exact(geometry string) string {
	sum := sha256.New()
	io.WriteString(sum, geometry)
	var line []byte
	complete := true
	m.required(func(s Spec, t Tensor) {
		if !complete {
			return
		}
		_, sums := disk.Unchecked(m.shards[t.Shard])
		if sums == nil {
			complete = false
			return
		}
		crc, ok := sums.Range(t.Offset, t.Bytes)
		complete = ok
		line = binary.LittleEndian.AppendUint32(s.describe(line[:0], t), crc)
		sum.Write(line)
	})
	if !complete {
		return ""
	}
	return "crc32c-" + hashPrefix + hex.EncodeToString(sum.Sum(nil))
}

// sampled is the hash of samples.
func (m *Model) sampled(ctx context.Context, geometry string) (string, error) {
	sum := sha256.New()
	io.WriteString(sum, geometry)
	var line []byte
	var samples []sample
	m.required(func(s Spec, t Tensor) {
		line = s.describe(line[:0], t)
		sum.Write(line)
		for i, n := 0, m.samples(s, t); i < n; i++ {
			length := min(t.Bytes, sampleBytes)
			from := int64(0)
			switch {
			case s.Expert < 0 && t.Bytes <= wholeTensor:
				length = t.Bytes
			case n > 1:
				from = (t.Bytes - length) / int64(n-1) * int64(i)
			default:
				from = (t.Bytes - length) / 2
			}
			samples = append(samples, sample{tensor: t, from: from, data: make([]byte, length)})
		}
	})
	if err := m.readSamples(ctx, samples); err != nil {
		return "", err
	}
	for _, s := range samples {
		sum.Write(s.data)
	}
	return hashPrefix + hex.EncodeToString(sum.Sum(nil)), nil
}

// samples is how many samples are taken of a tensor.
func (m *Model) samples(s Spec, t Tensor) int {
	switch {
	case t.Bytes == 0:
		return 0
	case s.Expert >= 0:
		// Other experts in each layer, spread over all of them.
		count := m.Config.MoE.Experts
		step := max(1, count/sampledExperts)
		if (s.Expert+s.Layer)%step == 0 {
			return 1
		}
		return 0
	case t.Bytes <= wholeTensor:
		return 1
	case s.Layer < 0:
		return tableSamples
	}
	return tensorSamples
}

// readSamples fills the samples. They are read past their checksums, which are of much larger stretches.
func (m *Model) readSamples(ctx context.Context, samples []sample) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var readers sync.WaitGroup
	for range min(sampleReaders, len(samples)) {
		readers.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(samples) {
					return
				}
				s := &samples[i]
				f, _ := disk.Unchecked(m.shards[s.tensor.Shard])
				err := ctx.Err()
				if err == nil {
					err = disk.ReadFull(f, s.data, s.tensor.Offset+s.from)
				}
				if err != nil {
					err = fmt.Errorf("tensor %s: %w", s.tensor, err)
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	readers.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Changed tells whether the shards still are what they were when they were opened; the error, which matches disk.ErrChanged, names the
// first that is not.
func (m *Model) Changed() error {
	for _, f := range m.shards {
		if err := disk.Changed(f); err != nil {
			return err
		}
	}
	return nil
}

// Stamp tells the shards from what they were before or will be after a change, by their paths, sizes and times; "" for files that are not
// of a directory.
func (m *Model) Stamp() string {
	var b strings.Builder
	for _, f := range m.shards {
		stamp := disk.Stamp(f)
		if stamp == "" {
			return ""
		}
		fmt.Fprintln(&b, stamp)
	}
	return b.String()
}

// Checked is how many of the shards have checksums, so that every read of them is checked, and how much memory those take.
func (m *Model) Checked() (shards int, memory int64) {
	for _, f := range m.shards {
		if _, sums := disk.Unchecked(f); sums != nil {
			shards++
			memory += sums.Memory()
		}
	}
	return shards, memory
}
