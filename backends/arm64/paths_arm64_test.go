//go:build !noasm

package arm64

import (
	"math"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/kernel"
)

// Without the generic backend inside, anything left to it panics: at the widths of the released model nothing is, and one call
// of each kernel runs the assembly to the end.
func TestAssemblyAloneDoesTheReleasedWidths(t *testing.T) {
	neon, want := backend{}, generic.Backend{}
	rng := random.New(t, 1, 2)
	floats := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	// Each case computes into fresh copies of the arguments it changes, and returns them.
	var (
		x, g, u    = floats(7168), floats(7168), floats(7168)
		state      = floats(128 * 128)
		q, k, v, a = floats(256), floats(256), floats(256), floats(256)
		beta       = floats(2)
		taps       = floats(4 * 3072)
		weights    = floats(6 * 7168)
	)
	clone := func(x []float32) []float32 { return append([]float32(nil), x...) }
	tile := func(f kernel.Format, cols int) kernel.Tile {
		w := kernel.Tile{Format: f, Rows: 6, Cols: cols, Stride: cols, Data: make([]byte, f.RowBytes(6*cols))}
		for i := range w.Data {
			w.Data[i] = byte(rng.Uint32()) & 0xbf // no infinities, which would hide the rest
		}
		if f == kernel.MXFP4 {
			w.Scale = make([]byte, 6*cols/kernel.GroupSize)
			for i := range w.Scale {
				w.Scale[i] = byte(120 + rng.IntN(8))
			}
		}
		return w
	}
	type compute func(b kernel.Backend) []float32
	cases := map[string]compute{
		"KDA": func(b kernel.Backend) []float32 {
			s, o := clone(state), make([]float32, 256)
			b.KDA(s, 128, 2, q, k, v, a, 128, beta, 1, o)
			return append(s, o...)
		},
		"ShortConv": func(b kernel.Backend) []float32 {
			y := make([]float32, 1536)
			b.ShortConv(y, taps, 4, x, 1600)
			return y
		},
		"Decay": func(b kernel.Backend) []float32 {
			y := make([]float32, 128)
			b.Decay(y, x[:128], g[:128], 1.5, -5)
			return y
		},
		"InverseRMS": func(b kernel.Backend) []float32 { return []float32{b.InverseRMS(x, 1e-5)} },
		"RMSNorm": func(b kernel.Backend) []float32 {
			y := make([]float32, 7168)
			b.RMSNorm(y, x, g, 1e-5)
			return y
		},
		"L2Norm": func(b kernel.Backend) []float32 {
			y := make([]float32, 128)
			b.L2Norm(y, x[:128], 1e-6, 0.1)
			return y
		},
		"Softmax": func(b kernel.Backend) []float32 {
			y := clone(x)
			b.Softmax(y)
			return y
		},
		"SiTU": func(b kernel.Backend) []float32 {
			y := make([]float32, 7168)
			b.SiTU(y, g, u, 4, 25)
			return y
		},
		"Sigmoid": func(b kernel.Backend) []float32 {
			y := make([]float32, 7168)
			b.Sigmoid(y, x)
			return y
		},
		"Gate": func(b kernel.Backend) []float32 {
			y := clone(x)
			b.Gate(y, g)
			return y
		},
		"Axpy": func(b kernel.Backend) []float32 {
			y := clone(x)
			b.Axpy(y, 0.3, g)
			return y
		},
	}
	for _, f := range []kernel.Format{kernel.F32, kernel.BF16, kernel.F16, kernel.MXFP4} {
		for _, vectors := range []int{1, 2, 4, 8} {
			w := tile(f, 3584)
			y := floats(8 * 3584)
			cases["Dot "+f.String()+string(rune('0'+vectors))] = func(b kernel.Backend) []float32 {
				dst := make([]float32, 6*vectors)
				b.Dot(dst, 6, w, y, vectors)
				return dst
			}
			cases["Transposed "+f.String()+string(rune('0'+vectors))] = func(b kernel.Backend) []float32 {
				dst := clone(y)
				b.Transposed(dst, 3584, w, weights, 6, vectors)
				return dst
			}
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a, b := c(neon), c(want)
			for i := range b {
				if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
					t.Fatalf("element %d is %g, not %g", i, a[i], b[i])
				}
			}
		})
	}
}

// Nothing on the way of a product allocates: the argument blocks stay on the stack.
func TestKernelsDoNotAllocate(t *testing.T) {
	b := backend{}
	x, y, s := make([]float32, 4096), make([]float32, 4096), make([]float32, 128*128)
	w := kernel.Float32Tile(s, 128, 128, 128)
	for name, run := range map[string]func(){
		"Dot":        func() { b.Dot(y, 128, w, x, 3) },
		"Transposed": func() { b.Transposed(y, 128, w, x, 128, 3) },
		"KDA":        func() { b.KDA(s, 128, 1, x, x, x, x, 128, x, 1, y) },
		"SiTU":       func() { b.SiTU(y[:99], x[:99], x[:99], 4, 25) },
		"ShortConv":  func() { b.ShortConv(y[:99], x, 4, x, 100) },
		"Softmax":    func() { b.Softmax(y[:99]) },
		"RMSNorm":    func() { b.RMSNorm(y[:99], x[:99], x[:99], 1e-5) },
	} {
		if n := testing.AllocsPerRun(20, run); n >= 1 {
			t.Errorf("%s: %g allocations", name, n)
		}
	}
}

// A bench that skips memory would measure caches: a change in any word is seen.
func TestReadReadsEverything(t *testing.T) {
	b := backend{}
	p := make([]byte, 1024)
	for i := range p {
		p[i] = 1
		if sum := b.Read(p); sum != 1<<(8*(i%8)) {
			t.Fatalf("byte %d leaves %x", i, sum)
		}
		p[i] = 0
	}
	b.Peak(1 << 22)
	b.Peak(0)
}
