package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/kernel"
)

// CheckKernels checks every kernel of b against the generic backend, bit for bit, on random shapes and values drawn from
// seed and on the shapes and values that break implementations: tails, strides, unaligned addresses, memory that ends with
// the data, huge and tiny numbers, NaN and infinities, extreme scale bytes. The error names, for each kernel that differs,
// the first difference and its circumstances.
func CheckKernels(b kernel.Backend, seed uint64) error {
	var errs []error
	for _, k := range kernels {
		errs = append(errs, checkKernel(b, k, seed))
	}
	return errors.Join(errs...)
}

type kernelCheck struct {
	name string
	run  func(*kernelChecker)
}

var kernels = []kernelCheck{
	{"Pack", (*kernelChecker).pack},
	{"DotF32", func(c *kernelChecker) { c.dots(kernel.F32) }},
	{"DotBF16", func(c *kernelChecker) { c.dots(kernel.BF16) }},
	{"DotF16", func(c *kernelChecker) { c.dots(kernel.F16) }},
	{"DotMXFP4", func(c *kernelChecker) { c.dots(kernel.MXFP4) }},
	{"TransposedF32", func(c *kernelChecker) { c.transposes(kernel.F32) }},
	{"TransposedBF16", func(c *kernelChecker) { c.transposes(kernel.BF16) }},
	{"TransposedF16", func(c *kernelChecker) { c.transposes(kernel.F16) }},
	{"TransposedMXFP4", func(c *kernelChecker) { c.transposes(kernel.MXFP4) }},
	{"KDA", (*kernelChecker).kda},
	{"ShortConv", (*kernelChecker).shortConv},
	{"Decay", (*kernelChecker).decay},
	{"RMSNorm", (*kernelChecker).rmsNorm},
	{"L2Norm", (*kernelChecker).l2Norm},
	{"Softmax", (*kernelChecker).softmax},
	{"SiTU", (*kernelChecker).situ},
	{"Sigmoid", (*kernelChecker).sigmoid},
	{"Gate", (*kernelChecker).gate},
	{"Axpy", (*kernelChecker).axpy},
}

// kernelChecker compares one backend with the generic one. A difference ends the kernel's check with a panic of type mismatch.
type kernelChecker struct {
	b, g kernel.Backend
	rng  *rand.Rand
	values
	weights, scales *fence
	// outputs are the buffers with guard words of the current call.
	outputs []guarded
	about   string
}

type mismatch struct{ text string }

func checkKernel(b kernel.Backend, k kernelCheck, seed uint64) (err error) {
	c := &kernelChecker{b: b, g: generic.Backend{}, rng: rand.New(rand.NewPCG(seed, 0x6b33))}
	for _, f := range []struct {
		fence **fence
		size  int
	}{{&c.weights, 4 << 20}, {&c.scales, 64 << 10}} { // the most are 330 rows of 3039 F32, or of 3008 with scales
		// Without it the check would pass a kernel that reads beyond its data.
		if *f.fence, err = newFence(f.size); err != nil {
			return fmt.Errorf("conformance: backend %s: %s: memory that ends with the data: %w", b.Name(), k.name, err)
		}
		defer (*f.fence).close()
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case mismatch:
			err = fmt.Errorf("conformance: backend %s: %s: %s: %s", b.Name(), k.name, c.about, p.text)
		case error: // a fault, an index out of range
			err = fmt.Errorf("conformance: backend %s: %s: %s: %w", b.Name(), k.name, c.about, p)
		default:
			panic(p)
		}
	}()
	for v := range allValues {
		c.values = v
		k.run(c)
	}
	return nil
}

// values are the kinds of numbers a check draws.
type values int

const (
	ordinary values = iota // around 1
	wide                   // any exponent
	tiny                   // subnormal, and products that become so
	special                // infinities, NaNs and zeros among others
	allValues
)

func (v values) String() string {
	return [...]string{"ordinary values", "values of all magnitudes", "subnormal values", "special values"}[v]
}

// float draws a number.
func (c *kernelChecker) float() float32 {
	switch c.values {
	case wide:
		for {
			if f := math.Float32frombits(c.rng.Uint32()); f-f == 0 {
				return f
			}
		}
	case tiny:
		switch c.rng.IntN(3) {
		case 0:
			return math.Float32frombits(c.rng.Uint32() & 0x80ffffff)
		case 1:
			return float32(c.rng.NormFloat64()) * 0x1p-63
		}
		return float32(c.rng.NormFloat64())
	case special:
		switch c.rng.IntN(40) {
		case 0:
			return float32(math.Inf(1 - 2*c.rng.IntN(2)))
		case 1:
			return math.Float32frombits(0x7f800001 + c.rng.Uint32N(0x7fffff) | c.rng.Uint32()&(1<<31))
		case 2, 3:
			return math.Float32frombits(c.rng.Uint32() & (1 << 31)) // zeros of both signs
		case 4:
			return math.MaxFloat32 * float32(1-2*c.rng.IntN(2))
		}
		return float32(c.rng.NormFloat64() * 30)
	}
	return float32(c.rng.NormFloat64())
}

// floats draws n numbers at an address that may be any multiple of four.
func (c *kernelChecker) floats(n int) []float32 {
	x := make([]float32, n+16)[c.rng.IntN(16):][:n:n]
	for i := range x {
		x[i] = c.float()
	}
	return x
}

// length draws a size: small ones with every tail, now and then a large one.
func (c *kernelChecker) length(i int) int {
	if i < 200 {
		return i + 1
	}
	return 1 + c.rng.IntN(3000)
}

// guarded is a buffer between words that no kernel may change.
type guarded struct {
	all  []float32
	from int
	n    int
}

const guardWords, guardBits = 32, 0x7fa5a5a5

// buffer returns a copy of x between guard words.
func (c *kernelChecker) buffer(x []float32) []float32 {
	g := guarded{all: make([]float32, len(x)+2*guardWords+16), from: guardWords + c.rng.IntN(16), n: len(x)}
	for i := range g.all {
		g.all[i] = math.Float32frombits(guardBits)
	}
	copy(g.all[g.from:], x)
	c.outputs = append(c.outputs, g)
	return g.all[g.from:][:g.n:g.n]
}

// guards reports guard words that were changed, and forgets the buffers.
func (c *kernelChecker) guards() {
	for _, g := range c.outputs {
		for i, f := range g.all {
			if (i < g.from || i >= g.from+g.n) && math.Float32bits(f) != guardBits {
				panic(mismatch{fmt.Sprintf("wrote to index %d of a buffer of %d", i-g.from, g.n)})
			}
		}
	}
	c.outputs = c.outputs[:0]
}

// same requires got and want to be equal bit for bit, or any two NaN where anyNaN says so.
func (c *kernelChecker) same(got, want []float32, anyNaN bool) {
	for i := range want {
		a, b := math.Float32bits(got[i]), math.Float32bits(want[i])
		if a != b && !(anyNaN && got[i] != got[i] && want[i] != want[i]) {
			panic(mismatch{fmt.Sprintf("element %d is %g (%08x), not %g (%08x)", i, got[i], a, want[i], b)})
		}
	}
	c.guards()
}

func (c *kernelChecker) say(format string, args ...any) {
	c.about = fmt.Sprintf(format, args...) + ", " + c.values.String()
}

// tile draws a matrix. Its memory ends where the data ends.
func (c *kernelChecker) tile(f kernel.Format, rows, cols int) kernel.Tile {
	t := kernel.Tile{Format: f, Rows: rows, Cols: cols, Stride: cols}
	if f == kernel.MXFP4 {
		t.Cols = (cols + kernel.GroupSize - 1) / kernel.GroupSize * kernel.GroupSize
		t.Stride = t.Cols
		t.Scale = make([]byte, rows*t.Cols/kernel.GroupSize)
		for i := range t.Scale {
			switch s := c.rng.IntN(256); {
			case c.values == ordinary:
				t.Scale[i] = byte(118 + s%12)
			case c.values == tiny || s < 64:
				t.Scale[i] = [...]byte{0, 1, 2, 3, 252, 253, 254, 255}[s%8]
			default:
				t.Scale[i] = byte(s)
			}
		}
		t.Scale = c.scales.bytes(t.Scale, 0)
	} else if c.rng.IntN(2) == 0 {
		t.Stride += c.rng.IntN(40)
	}
	n := f.RowBytes((rows-1)*t.Stride + t.Cols)
	data := make([]byte, n)
	switch {
	case f == kernel.F32:
		for i := 0; i < n; i += 4 {
			put32(data[i:], math.Float32bits(c.float()))
		}
	case f == kernel.BF16:
		for i := 0; i < n; i += 2 {
			bits := math.Float32bits(c.float()) >> 16
			data[i], data[i+1] = byte(bits), byte(bits>>8)
		}
	case f == kernel.F16 && c.values == ordinary:
		for i := 0; i < n; i += 2 {
			bits := 0x3000 + c.rng.IntN(0x1000) | c.rng.IntN(2)<<15
			data[i], data[i+1] = byte(bits), byte(bits>>8)
		}
	default:
		for i := range data {
			data[i] = byte(c.rng.Uint32())
		}
		if f == kernel.F16 && c.values != special {
			for i := 1; i < n; i += 2 {
				data[i] &^= 0x40 // no infinities and NaNs, or every sum is one
			}
		}
	}
	t.Data = c.weights.bytes(data, c.rng.IntN(2)*c.rng.IntN(64))
	t.Check()
	return t
}

func put32(p []byte, v uint32) {
	p[0], p[1], p[2], p[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}

// packed packs vectors of n elements, stride apart in x, one after the other, in a buffer with guards.
func (c *kernelChecker) packed(b kernel.Backend, f kernel.Format, x []float32, n, stride, vectors int) []float32 {
	one := b.PackedLen(f, n)
	out := c.buffer(make([]float32, one*vectors))
	for v := range vectors {
		b.Pack(f, out[v*one:][:one:one], x[v*stride:][:n:n])
	}
	return out
}

func (c *kernelChecker) pack() {
	for _, f := range []kernel.Format{kernel.F32, kernel.BF16, kernel.F16, kernel.MXFP4} {
		for n := 1; n <= 100; n++ {
			x := c.floats(n)
			c.say("%v, %d elements", f, n)
			before := slices.Clone(x)
			c.packed(c.b, f, x, n, n, 1)
			c.same(x, before, false)
		}
	}
}

func (c *kernelChecker) dots(f kernel.Format) {
	for i := c.rng.IntN(every); i < 215; i += every {
		cols := c.length(i)
		rows := 1 + c.rng.IntN(30)
		if i%50 == 0 {
			rows += 300 // beyond what a backend may do in one go
		}
		c.dot(c.tile(f, rows, cols), 1+c.rng.IntN(kernel.MaxVectors))
	}
	for vectors := 1; vectors <= kernel.MaxVectors; vectors++ {
		for rows := 1; rows <= 10; rows++ {
			c.dot(c.tile(f, rows, 64+c.rng.IntN(2)*13), vectors)
		}
	}
}

func (c *kernelChecker) dot(w kernel.Tile, vectors int) {
	stride := w.Rows + c.rng.IntN(3)*c.rng.IntN(10)
	c.say("%v, %d rows of %d (stride %d), %d vectors", w.Format, w.Rows, w.Cols, w.Stride, vectors)
	x := c.floats(w.Cols * vectors)
	initial := c.floats((vectors-1)*stride + w.Rows) // what lies between the results must stay
	want := slices.Clone(initial)
	c.g.Dot(want, stride, w, x, vectors)
	got := c.buffer(initial)
	data := bytes.Clone(w.Data)
	c.b.Dot(got, stride, w, c.packed(c.b, w.Format, x, w.Cols, w.Cols, vectors), vectors)
	c.same(got, want, false)
	if !bytes.Equal(data, w.Data) {
		panic(mismatch{"the weights were changed"})
	}
}

func (c *kernelChecker) transposes(f kernel.Format) {
	for i := c.rng.IntN(every); i < 210; i += every {
		c.transposed(c.tile(f, 1+c.rng.IntN(20), c.length(i)), 1+c.rng.IntN(kernel.MaxVectors))
	}
	for vectors := 1; vectors <= kernel.MaxVectors; vectors++ {
		c.transposed(c.tile(f, 140, 512+c.rng.IntN(2)*29), vectors)
	}
}

func (c *kernelChecker) transposed(w kernel.Tile, vectors int) {
	stride, xStride := w.Cols+c.rng.IntN(3)*c.rng.IntN(10), w.Rows+c.rng.IntN(3)*c.rng.IntN(10)
	c.say("%v, %d rows of %d (stride %d), %d vectors", w.Format, w.Rows, w.Cols, w.Stride, vectors)
	x := c.floats((vectors-1)*xStride + w.Rows)
	initial := c.floats((vectors-1)*stride + w.Cols)
	if c.rng.IntN(2) == 0 {
		clear(initial)
	}
	want := slices.Clone(initial)
	c.g.Transposed(want, stride, w, x, xStride, vectors)
	got := c.buffer(initial)
	c.b.Transposed(got, stride, w, x, xStride, vectors)
	c.same(got, want, true)
}

func (c *kernelChecker) kda() {
	for i := c.rng.IntN(every); i < 60; i += every {
		dim := 1 + i
		if i > 40 {
			dim = []int{64, 80, 96, 128, 160}[i%5]
		}
		tokens := 1 + c.rng.IntN(5)
		stride, betaStride := dim+c.rng.IntN(2)*c.rng.IntN(50), 1+c.rng.IntN(4)
		c.say("state of %dx%d, %d tokens", dim, dim, tokens)
		n := (tokens-1)*stride + dim
		q, k, v, alpha := c.floats(n), c.floats(n), c.floats(n), c.floats(n)
		beta := c.floats((tokens-1)*betaStride + 1)
		s, o := c.floats(dim*dim), c.floats(n)
		wantS, wantO := slices.Clone(s), slices.Clone(o)
		c.g.KDA(wantS, dim, tokens, q, k, v, alpha, stride, beta, betaStride, wantO)
		gotS, gotO := c.buffer(s), c.buffer(o)
		c.b.KDA(gotS, dim, tokens, q, k, v, alpha, stride, beta, betaStride, gotO)
		// The output is canonical; what lies between the tokens of o keeps its bits, NaN or not.
		c.same(gotO, wantO, false)
		c.same(gotS, wantS, true)
	}
}

func (c *kernelChecker) shortConv() {
	for i := c.rng.IntN(every); i < 210; i += every {
		n, taps := c.length(i), 4
		if i%10 == 0 {
			taps = 1 + c.rng.IntN(6)
		}
		stride := n + c.rng.IntN(20)
		c.say("%d channels, %d taps", n, taps)
		w, x := c.floats(n*taps), c.floats((taps-1)*stride+n)
		want, got := make([]float32, n), c.buffer(make([]float32, n))
		c.g.ShortConv(want, w, taps, x, stride)
		c.b.ShortConv(got, w, taps, x, stride)
		c.same(got, want, false)
	}
}

// elements runs an element-wise kernel on all sizes. inputs are the arrays it reads, of which the result may take the
// place of those below alias (-1 for none).
func (c *kernelChecker) elements(inputs, alias int, run func(b kernel.Backend, y []float32, in [][]float32)) {
	for i := c.rng.IntN(every); i < 206; i += every {
		n := c.length(i)
		in := make([][]float32, inputs)
		for j := range in {
			in[j] = c.floats(n)
			if c.values != ordinary && i%3 == 0 {
				for k := range in[j] {
					in[j][k] = c.bend()
				}
			}
		}
		y := c.floats(n)
		for place := -1; place < alias; place++ {
			c.say("%d elements, result in place of input %d", n, place)
			both := func(b kernel.Backend) []float32 {
				args := slices.Clone(in)
				out := y
				if place >= 0 {
					out = in[place]
				}
				out = c.buffer(out)
				if place >= 0 {
					args[place] = out
				}
				run(b, out, args)
				return out
			}
			want := both(c.g)
			c.same(both(c.b), want, false)
		}
	}
}

// bend draws numbers at which the functions change their ways: around -110 to 110, 0.625, and the infinities.
func (c *kernelChecker) bend() float32 {
	switch c.rng.IntN(8) {
	case 0:
		return [...]float32{0, -110, 110, 89, -89, 88.72284, -88.72284, -103.97208, 0.625, -0.625, 87.3, -87.3}[c.rng.IntN(12)]
	case 1:
		return 0.625 * (1 + float32(c.rng.NormFloat64())*1e-6)
	case 2:
		return float32(c.rng.NormFloat64() * 1e-3)
	}
	return float32(c.rng.Float64()*260 - 130)
}

func (c *kernelChecker) decay() {
	c.elements(2, 1, func(b kernel.Backend, y []float32, in [][]float32) { b.Decay(y, in[0], in[1], 1.7, -5) })
	c.elements(2, 1, func(b kernel.Backend, y []float32, in [][]float32) {
		b.Decay(y, in[0], in[1], float32(math.Inf(1)), 40)
	})
}

func (c *kernelChecker) rmsNorm() {
	c.elements(2, 1, func(b kernel.Backend, y []float32, in [][]float32) { b.RMSNorm(y, in[0], in[1], 1e-5) })
	c.elements(1, 1, func(b kernel.Backend, y []float32, in [][]float32) { b.RMSNorm(y, in[0], nil, 1e-6) })
}

func (c *kernelChecker) l2Norm() {
	c.elements(1, 1, func(b kernel.Backend, y []float32, in [][]float32) { b.L2Norm(y, in[0], 1e-6, 0.088388346) })
}

func (c *kernelChecker) softmax() {
	softmax := func(b kernel.Backend, y []float32, in [][]float32) { b.Softmax(y) }
	c.elements(1, 1, softmax)
	c.elements(0, 0, func(b kernel.Backend, y []float32, in [][]float32) {
		for i := range y {
			y[i] = float32(math.Inf(-1))
		}
		b.Softmax(y)
	})
	c.elements(0, 0, func(b kernel.Backend, y []float32, in [][]float32) {
		for i := range y {
			y[i] = min(y[i], 5)
		}
		y[len(y)/2] = float32(math.Inf(-1))
		b.Softmax(y)
	})
}

func (c *kernelChecker) situ() {
	c.elements(2, 2, func(b kernel.Backend, y []float32, in [][]float32) { b.SiTU(y, in[0], in[1], 4, 25) })
	c.elements(2, 0, func(b kernel.Backend, y []float32, in [][]float32) { b.SiTU(y, in[0], in[1], 0.3, 7) })
}

func (c *kernelChecker) sigmoid() {
	c.elements(1, 1, func(b kernel.Backend, y []float32, in [][]float32) { b.Sigmoid(y, in[0]) })
}

func (c *kernelChecker) gate() {
	c.elements(1, 0, func(b kernel.Backend, y []float32, in [][]float32) { b.Gate(y, in[0]) })
}

func (c *kernelChecker) axpy() {
	for i := c.rng.IntN(every); i < 206; i += every {
		n := c.length(i)
		c.say("%d elements", n)
		x, y, a := c.floats(n), c.floats(n), c.float()
		want, got := slices.Clone(y), c.buffer(y)
		c.g.Axpy(want, a, x)
		c.b.Axpy(got, a, x)
		c.same(got, want, true)
	}
}

// fence is memory that ends at a page that cannot be read.
type fence struct {
	memory []byte
	close  func()
}

// bytes returns a copy of data that ends gap bytes before the end of readable memory. It is good until the next call.
func (f *fence) bytes(data []byte, gap int) []byte {
	n := len(data)
	if n+gap > len(f.memory) {
		panic(fmt.Sprintf("conformance: %d bytes of data, and %d before the page that cannot be read", n+gap, len(f.memory)))
	}
	p := f.memory[len(f.memory)-gap-n:][:n:n]
	copy(p, data)
	return p
}
