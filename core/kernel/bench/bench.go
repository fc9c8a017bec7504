// Package bench measures the kernels at the shapes of the released model, with weights that come from memory and not from
// a cache, beside the machine's own read bandwidth in the same run. `k3 bench kernels` prints it; the package's benchmarks
// are the same cases for benchstat.
package bench

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"github.com/k3infer/k3/core/kernel"
)

// ArenaBytes is the size of the memory that weights are taken from, one piece after the other. Larger than the caches of
// the machines at hand, so that a piece that comes round again has left them.
const ArenaBytes = 1 << 30

// Arena is memory full of plausible weights.
type Arena struct {
	data   []byte // words whose both halves are bfloat16 numbers below 1
	scales []byte // scale bytes from 2^-9 to 2^-2
	states []byte // float32 numbers that cases change
	at     int
	state  int
	unmap  func()
}

// NewArena maps and fills an arena of ArenaBytes, half as much for states, and a sixteenth for scales; Close gives it back.
func NewArena() (*Arena, error) { return newArena(ArenaBytes) }

func newArena(size int) (*Arena, error) {
	scaleBytes := size / 16
	p, unmap, err := mapArena(size + scaleBytes + size/2)
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < 1<<20; i += 2 {
		bits := rng.Uint32()
		p[i], p[i+1] = byte(bits), byte(bits>>8)&0x80|0x3c|byte(bits>>16)&3
	}
	for i := 1 << 20; i < size; i *= 2 {
		copy(p[i:size], p[:i])
	}
	for i := range scaleBytes {
		p[size+i] = byte(118 + rng.Uint32N(8))
	}
	copy(p[size+scaleBytes:], p[:size/2])
	return &Arena{data: p[:size], scales: p[size:][:scaleBytes], states: p[size+scaleBytes:], unmap: unmap}, nil
}

// Close unmaps the arena.
func (a *Arena) Close() { a.unmap() }

// take returns the next n bytes.
func (a *Arena) take(n int) []byte {
	if a.at+n > len(a.data) {
		a.at = 0
	}
	p := a.data[a.at:][:n:n]
	a.at += (n + 4095) / 4096 * 4096
	return p
}

// Tile returns the next matrix.
func (a *Arena) Tile(f kernel.Format, rows, cols int) kernel.Tile {
	t := kernel.Tile{Format: f, Rows: rows, Cols: cols, Stride: cols, Data: a.take(f.RowBytes(rows * cols))}
	if f == kernel.MXFP4 {
		n := rows * cols / kernel.GroupSize
		at := (a.at / 16) % (len(a.scales) - n)
		t.Scale = a.scales[at:][:n:n]
	}
	return t
}

// floats returns the next n elements as float32.
func (a *Arena) floats(n int) []float32 { return float32s(a.take(4 * n)) }

// next returns the next n elements of states.
func (a *Arena) next(n int) []float32 {
	if a.state+4*n > len(a.states) {
		a.state = 0
	}
	p := a.states[a.state:][:4*n]
	a.state += 4 * n
	return float32s(p)
}

func float32s(p []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/4)
}

// Env is what a case runs with.
type Env struct {
	Pool  *kernel.Pool
	Arena *Arena
	x     []float32 // activations
	y, z  []float32 // results
	buf   []float32 // packed vectors
	// Keys short enough not to blow up the state of the recurrence, nor to give scores far apart; and a decay.
	key, alpha []float32
	scores     []float32
}

const widest = 33792 // of the released model's activations

// NewEnv prepares buffers for the cases.
func NewEnv(b kernel.Backend, threads int, a *Arena) *Env {
	e := &Env{Pool: kernel.NewPool(b, threads), Arena: a}
	rng := rand.New(rand.NewPCG(3, 4))
	e.x = make([]float32, kernel.MaxVectors*widest)
	for i := range e.x {
		e.x[i] = float32(rng.NormFloat64())
	}
	e.y, e.z = make([]float32, kernel.MaxVectors*widest), make([]float32, kernel.MaxVectors*widest)
	e.buf = make([]float32, kernel.MaxVectors*(widest+kernel.Lanes))
	e.key, e.alpha = make([]float32, kernel.MaxVectors*kdaWidth), make([]float32, kernel.MaxVectors*kdaWidth)
	for i := range e.key {
		e.key[i], e.alpha[i] = 0.08*e.x[i], 0.9
	}
	return e
}

// Close ends the threads.
func (e *Env) Close() { e.Pool.Close() }

// product multiplies the next matrix with vectors.
func (e *Env) product(f kernel.Format, rows, cols, vectors int) {
	e.times(f, vectors, cols, rows)
}

// times packs vectors once and multiplies them with one matrix for each number of rows.
func (e *Env) times(f kernel.Format, vectors, cols int, rows ...int) {
	packed := e.Pool.Pack(e.buf, f, e.x, cols, widest, vectors)
	for _, r := range rows {
		e.Pool.Product(e.y, widest, e.Arena.Tile(f, r, cols), packed)
	}
}

// expert is one expert of the mixture.
func (e *Env) expert(vectors int) {
	const latent, wide = 3584, 3072
	e.Pool.Product(e.y, widest, e.Arena.Tile(kernel.MXFP4, wide, latent), e.Pool.Pack(e.buf, kernel.MXFP4, e.x, latent, widest, vectors))
	e.Pool.Product(e.z, widest, e.Arena.Tile(kernel.MXFP4, wide, latent), e.Pool.Pack(e.buf, kernel.MXFP4, e.x, latent, widest, vectors))
	for v := range vectors {
		e.situ(e.y[v*widest:][:wide], e.z[v*widest:][:wide])
	}
	e.Pool.Product(e.z, widest, e.Arena.Tile(kernel.MXFP4, latent, wide), e.Pool.Pack(e.buf, kernel.MXFP4, e.y, wide, widest, vectors))
}

func (e *Env) situ(g, u []float32) {
	t := e.Pool.Threads()
	n := (len(g)/t + 15) / 16 * 16
	e.Pool.Run((len(g)+n-1)/n, kernel.Func(func(i, _ int) {
		to := min((i+1)*n, len(g))
		e.Pool.Backend().SiTU(g[i*n:to], g[i*n:to], u[i*n:to], 4, 25)
	}))
}

const (
	heads, dim = 96, 128
	kdaWidth   = heads * dim
)

// kdaStep advances the next state of 96 heads by some tokens.
func (e *Env) kdaStep(tokens int) {
	s := e.Arena.next(heads * dim * dim)
	b := e.Pool.Backend()
	e.Pool.Run(heads, kernel.Func(func(h, _ int) {
		at := h * dim
		b.KDA(s[at*dim:][:dim*dim], dim, tokens, e.x[at:], e.key[at:], e.x[2*dim+at:], e.alpha[at:], kdaWidth, e.alpha[h:], heads, e.y[at:])
	}))
}

// attend is latent attention of 96 heads over positions whose latents are in tiles. A part does some heads; it takes each
// tile of latents once for all of them.
func (e *Env) attend(positions int) {
	const rank, kvl, tile, together = 576, 512, kernel.LatentRows, kernel.MaxVectors
	latents := e.Arena.floats(positions * rank)
	b := e.Pool.Backend()
	part := heads / e.Pool.Threads()
	// The scores of all heads at a position would fall into one cache set were their rows a power of two apart.
	stride := positions + kernel.Lanes
	if len(e.scores) < heads*stride {
		e.scores = make([]float32, heads*stride)
	}
	e.Pool.Run(heads/part, kernel.Func(func(i, _ int) {
		packed, scores, mixed := e.buf[i*part*rank:], e.scores[i*part*stride:], e.y[i*part*kvl:][:part*kvl]
		for h := range part {
			b.Pack(kernel.F32, packed[h*rank:][:rank], e.key[(i*part+h)*rank:][:rank])
		}
		for at := 0; at < positions; at += tile {
			keys := kernel.Float32Tile(latents[at*rank:], min(tile, positions-at), rank, rank)
			for h := 0; h < part; h += together {
				b.Dot(scores[h*stride+at:], stride, keys, packed[h*rank:], min(together, part-h))
			}
		}
		for h := range part {
			b.Softmax(scores[h*stride:][:positions])
		}
		clear(mixed)
		for at := 0; at < positions; at += tile {
			values := kernel.Float32Tile(latents[at*rank:], min(tile, positions-at), kvl, rank)
			for h := 0; h < part; h += together {
				b.Transposed(mixed[h*kvl:], kvl, values, scores[h*stride+at:], stride, min(together, part-h))
			}
		}
	}))
}

// Case is one thing to measure.
type Case struct {
	Name  string
	Shape string
	// Bytes is what is read from memory, weights or state; Flops the multiplications and additions.
	Bytes, Flops int64
	Vectors      int
	Run          func(e *Env)
	// Writes says that the bytes are written as well.
	Writes bool
	// Count is how often a token needs it: the layer cases add up to a token.
	Count float64
}

func product(f kernel.Format, rows, cols, vectors int) Case {
	bytes := int64(f.RowBytes(rows * cols))
	if f == kernel.MXFP4 {
		bytes += int64(rows * cols / kernel.GroupSize)
	}
	return Case{Name: "product " + f.String(), Shape: fmt.Sprintf("%dx%d", rows, cols), Bytes: bytes, Flops: 2 * int64(rows*cols*vectors),
		Vectors: vectors, Run: func(e *Env) { e.product(f, rows, cols, vectors) }}
}

func layer(name string, count float64, weights int64, run func(e *Env)) Case {
	return Case{Name: "layer", Shape: name, Bytes: 2 * weights, Flops: 2 * weights, Vectors: 1, Run: run, Count: count}
}

// expertBytes is the size of an expert.
const expertBytes = 3 * 3072 * 3584 * 17 / 32

// Cases lists what is measured.
func Cases() []Case {
	var all []Case
	for _, vectors := range []int{1, 8} {
		for _, n := range [][2]int{{7168, 12288}, {12288, 7168}, {7168, 33792}} {
			all = append(all, product(kernel.BF16, n[0], n[1], vectors))
		}
	}
	all = append(all, product(kernel.BF16, 896, 7168, 1))
	for _, vectors := range []int{1, 8} {
		all = append(all, product(kernel.MXFP4, 3072, 3584, vectors), product(kernel.MXFP4, 3584, 3072, vectors))
		all = append(all, Case{Name: "expert", Shape: "3x 3072x3584", Bytes: expertBytes, Flops: 6 * 3072 * 3584 * int64(vectors), Vectors: vectors,
			Run: func(e *Env) { e.expert(vectors) }})
	}
	state := int64(4 * heads * dim * dim)
	all = append(all,
		Case{Name: "KDA step", Shape: "96x 128x128", Bytes: state, Flops: state / 4 * 7, Vectors: 1, Writes: true, Run: func(e *Env) { e.kdaStep(1) }},
		Case{Name: "KDA step", Shape: "96x 128x128", Bytes: state, Flops: 8 * state / 4 * 7, Vectors: 8, Writes: true, Run: func(e *Env) { e.kdaStep(8) }},
		Case{Name: "attention", Shape: "96x 8192 of 576", Bytes: 8192 * 576 * 4, Flops: 2 * heads * 8192 * (576 + 512), Vectors: 1, Run: func(e *Env) { e.attend(8192) }},
		Case{Name: "KDA layer", Shape: "8 rows", Bytes: 2 * kdaWeights, Flops: 16 * kdaWeights, Vectors: 8, Run: func(e *Env) { e.kdaLayer(8) }},
		Case{Name: "MLA layer", Shape: "context 1024", Bytes: 2*mlaWeights + 1024*576*4, Flops: 2*mlaWeights + 2*heads*1024*(576+512), Vectors: 1, Run: func(e *Env) { e.mlaLayer(1024) }},
		Case{Name: "situ", Shape: "3072", Vectors: 1, Run: func(e *Env) { e.Pool.Backend().SiTU(e.y[:3072], e.x[:3072], e.x[4096:][:3072], 4, 25) }},
		Case{Name: "sigmoid", Shape: "12288", Vectors: 1, Run: func(e *Env) { e.Pool.Backend().Sigmoid(e.y[:12288], e.x[:12288]) }},
		Case{Name: "rmsnorm", Shape: "7168", Vectors: 1, Run: func(e *Env) { e.Pool.Backend().RMSNorm(e.y[:7168], e.x[:7168], e.x[8192:][:7168], 1e-5) }},
	)
	return append(all, Layers()...)
}

// kdaWeights is the number of weights of a KDA layer.
const kdaWeights = 7168*(5*kdaWidth+dim+heads) + dim*kdaWidth

// kdaLayer is a KDA layer for some rows of one sequence.
func (e *Env) kdaLayer(rows int) {
	e.times(kernel.BF16, rows, 7168, kdaWidth, kdaWidth, kdaWidth, dim, heads, kdaWidth)
	e.times(kernel.BF16, rows, dim, kdaWidth)
	b := e.Pool.Backend()
	e.Pool.Run(heads, kernel.Func(func(h, _ int) {
		at := h * dim
		for range rows {
			for range 3 {
				b.ShortConv(e.z[at:][:dim], e.x[at*4:][:4*dim], 4, e.x[at:], kdaWidth)
			}
			b.L2Norm(e.z[at:][:dim], e.x[at:][:dim], 1e-6, 1)
			b.L2Norm(e.z[at:][:dim], e.x[at:][:dim], 1e-6, 1)
			b.Decay(e.z[at:][:dim], e.x[at:][:dim], e.x[at+dim:][:dim], 1, -5)
			b.RMSNorm(e.z[at:][:dim], e.x[at:][:dim], e.x[:dim], 1e-5)
			b.Gate(e.z[at:][:dim], e.x[at:][:dim])
		}
	}))
	e.kdaStep(rows)
	e.times(kernel.BF16, rows, kdaWidth, 7168)
}

// mlaWeights is the number of weights of an MLA layer.
const mlaWeights = 7168*(1536+576+2*12288) + 1536*18432 + 24576*512

// mlaLayer is an MLA layer for one row after some positions.
func (e *Env) mlaLayer(positions int) {
	const rank, headRows = 512, 256
	e.times(kernel.BF16, 1, 7168, 1536, 576, 12288)
	e.times(kernel.BF16, 1, 1536, 18432)
	kvb := e.Arena.Tile(kernel.BF16, heads*headRows, rank)
	b := e.Pool.Backend()
	e.Pool.Run(heads, kernel.Func(func(h, _ int) {
		b.Transposed(e.y[h*rank:][:rank], rank, kvb.Slice(h*headRows, h*headRows+dim), e.x, dim, 1)
	}))
	if positions > 1 {
		e.attend(positions)
	}
	e.Pool.Run(heads, kernel.Func(func(h, _ int) {
		packed := e.buf[h*rank:][:rank]
		b.Pack(kernel.BF16, packed, e.x[h*rank:][:rank])
		b.Dot(e.z[h*dim:], dim, kvb.Slice(h*headRows+dim, (h+1)*headRows), packed, 1)
	}))
	b.Gate(e.y[:kdaWidth], e.x[:kdaWidth])
	e.times(kernel.BF16, 1, 12288, 7168)
}

// Layers are the products and the larger element-wise work of each kind of layer, at context 1 and for one row.
func Layers() []Case {
	const bf16 = kernel.BF16
	return []Case{
		layer("KDA", 69, kdaWeights, func(e *Env) { e.kdaLayer(1) }),
		layer("MLA", 24, mlaWeights, func(e *Env) { e.mlaLayer(1) }),
		layer("mixture", 92, 7168*(896+2*3584+3*6144)+8*expertBytes, func(e *Env) {
			e.times(bf16, 1, 7168, 896, 3584, 6144, 6144)
			e.situ(e.y[:6144], e.z[:6144])
			e.times(bf16, 1, 6144, 7168)
			for range 16 {
				e.expert(1)
				e.Pool.Backend().Axpy(e.x[:3584], 0.1, e.z)
			}
			e.times(bf16, 1, 3584, 7168)
		}),
		layer("dense", 1, 7168*3*33792, func(e *Env) {
			e.times(bf16, 1, 7168, 33792, 33792)
			e.situ(e.y[:33792], e.z[:33792])
			e.times(bf16, 1, 33792, 7168)
		}),
		layer("lm_head/8", 8, 7168*20480, func(e *Env) { e.times(bf16, 1, 7168, 20480) }),
	}
}

// reader and arithmetic are what a backend may offer to measure the machine with: plain reads as fast as they go, and so
// many floating-point operations.
type (
	reader     interface{ Read(p []byte) uint64 }
	arithmetic interface{ Peak(flops int) }
)

// Read reads n bytes of the arena on all threads and returns something made of them.
func (e *Env) Read(n int) uint64 {
	const part = 256 << 10
	p := e.Arena.take(n)
	sum := uint64(0)
	read := readWords
	if r, ok := e.Pool.Backend().(reader); ok {
		read = r.Read
	}
	sums := make([]uint64, 64*e.Pool.Threads())
	e.Pool.Run((n+part-1)/part, kernel.Func(func(i, worker int) {
		sums[64*worker] += read(p[i*part : min((i+1)*part, n)])
	}))
	for _, s := range sums {
		sum += s
	}
	return sum
}

// readWords reads eight bytes at a time.
func readWords(p []byte) uint64 {
	w := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(p))), len(p)/8)
	var a, b, c, d uint64
	for ; len(w) >= 8; w = w[8:] {
		a, b, c, d = a+w[0]^w[4], b+w[1]^w[5], c+w[2]^w[6], d+w[3]^w[7]
	}
	return a ^ b ^ c ^ d
}

// Copy reads and writes n bytes of states in place, as the update of a state does.
func (e *Env) Copy(n int) {
	const part = 64 << 10
	p := e.Arena.next(n / 4)
	b := e.Pool.Backend()
	e.Pool.Run((n+part-1)/part, kernel.Func(func(i, worker int) {
		y := p[i*part/4 : min((i+1)*part, n)/4]
		b.Axpy(y, 0, y)
	}))
}
