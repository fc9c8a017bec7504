package conformance

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/kernel"
)

// available are the registered backends that this machine can run.
func available(t testing.TB) (all []kernel.Backend) {
	for _, d := range kernel.Drivers() {
		b, err := kernel.Select(d.Name)
		if err != nil {
			if !errors.Is(err, kernel.ErrBackend) {
				t.Fatal(err)
			}
			continue
		}
		all = append(all, b)
	}
	return all
}

// mistaken is the generic backend with one mistake.
type mistaken struct {
	generic.Backend
	dot        func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int)
	transposed func(dst []float32, stride int, w kernel.Tile, x []float32, xStride, vectors int)
	kda        func(s []float32, dim, tokens int, q, k, v, alpha []float32, stride int, beta []float32, betaStride int, o []float32)
	softmax    func(x []float32)
	situ       func(y, g, u []float32, b1, b2 float32)
	sigmoid    func(y, x []float32)
	rmsNorm    func(y, x, w []float32, eps float32)
	axpy       func(y []float32, a float32, x []float32)
}

func (m mistaken) Dot(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
	if m.dot != nil {
		m.dot(dst, stride, w, x, vectors)
		return
	}
	m.Backend.Dot(dst, stride, w, x, vectors)
}

func (m mistaken) Transposed(dst []float32, stride int, w kernel.Tile, x []float32, xStride, vectors int) {
	if m.transposed != nil {
		m.transposed(dst, stride, w, x, xStride, vectors)
		return
	}
	m.Backend.Transposed(dst, stride, w, x, xStride, vectors)
}

func (m mistaken) KDA(s []float32, dim, tokens int, q, k, v, alpha []float32, stride int, beta []float32, betaStride int, o []float32) {
	if m.kda != nil {
		m.kda(s, dim, tokens, q, k, v, alpha, stride, beta, betaStride, o)
		return
	}
	m.Backend.KDA(s, dim, tokens, q, k, v, alpha, stride, beta, betaStride, o)
}

func (m mistaken) Softmax(x []float32) {
	if m.softmax != nil {
		m.softmax(x)
		return
	}
	m.Backend.Softmax(x)
}

func (m mistaken) SiTU(y, g, u []float32, b1, b2 float32) {
	if m.situ != nil {
		m.situ(y, g, u, b1, b2)
		return
	}
	m.Backend.SiTU(y, g, u, b1, b2)
}

func (m mistaken) Sigmoid(y, x []float32) {
	if m.sigmoid != nil {
		m.sigmoid(y, x)
		return
	}
	m.Backend.Sigmoid(y, x)
}

func (m mistaken) RMSNorm(y, x, w []float32, eps float32) {
	if m.rmsNorm != nil {
		m.rmsNorm(y, x, w, eps)
		return
	}
	m.Backend.RMSNorm(y, x, w, eps)
}

func (m mistaken) Axpy(y []float32, a float32, x []float32) {
	if m.axpy != nil {
		m.axpy(y, a, x)
		return
	}
	m.Backend.Axpy(y, a, x)
}

// dotWith is a dot product that leaves to step how an element is added to the accumulators and to sum how those are added up.
func dotWith(step func(acc []float32, i int, w, x float32), sum func(acc []float32) float32) func([]float32, int, kernel.Tile, []float32, int) {
	return func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
		row := w.Format.RowBytes(w.Stride)
		for r := range w.Rows {
			var scale []byte
			if w.Format == kernel.MXFP4 {
				scale = w.Scale[r*w.Cols/kernel.GroupSize:]
			}
			wide := kernel.Widen(nil, w.Format, w.Data[r*row:][:w.Format.RowBytes(w.Cols)], scale)
			for v := range vectors {
				acc := make([]float32, kernel.Lanes)
				for i, wi := range wide {
					step(acc, i, wi, x[v*w.Cols+i])
				}
				dst[v*stride+r] = sum(acc)
			}
		}
	}
}

func fma(acc []float32, i int, w, x float32) {
	acc[i%kernel.Lanes] = kernel.FMA(w, x, acc[i%kernel.Lanes])
}

func halving(acc []float32) float32 {
	for h := kernel.Lanes / 2; h > 0; h /= 2 {
		for l := range h {
			acc[l] += acc[l+h]
		}
	}
	return acc[0]
}

func canonical(acc []float32) float32 { return kernel.Canonical(halving(acc)) }

// firstMistake is CheckKernels for the kernels whose names begin so, up to the first that differs.
func firstMistake(b kernel.Backend, prefix string) error {
	for _, k := range kernels {
		if strings.HasPrefix(k.name, prefix) {
			if err := checkKernel(b, k, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestTheDotProductOfTheMistakesIsRightWithoutOne(t *testing.T) {
	if err := firstMistake(mistaken{dot: dotWith(fma, canonical)}, "Dot"); err != nil {
		t.Fatal(err)
	}
}

// A kernel that reads a byte more than it was given works, until that byte is on a page that is not there.
func TestAReadBeyondTheWeightsIsNoticedWhateverTheirSize(t *testing.T) {
	var longest int
	var beyond byte
	for _, size := range []int{0, 2 << 20} { // bytes of weights from which on the mistake is made
		err := firstMistake(mistaken{dot: func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
			if n := len(w.Data); n > size {
				beyond ^= *(*byte)(unsafe.Add(unsafe.Pointer(&w.Data[0]), n))
				longest = max(longest, n)
			}
			generic.Backend{}.Dot(dst, stride, w, x, vectors)
		}}, "DotF32")
		if err == nil && (size == 0 || longest > size) || err != nil && !strings.Contains(err.Error(), "fault") &&
			!strings.Contains(err.Error(), "invalid memory address") {
			t.Errorf("beyond more than %d bytes, of %d at most: %v, byte %d", size, longest, err, beyond)
		}
	}
}

func TestCheckKernelsNotices(t *testing.T) {
	g := generic.Backend{}
	for _, m := range []struct {
		kernel, mistake string
		b               mistaken
	}{
		{"Dot", "16 accumulators", mistaken{dot: dotWith(func(acc []float32, i int, w, x float32) {
			acc[i%16] = kernel.FMA(w, x, acc[i%16])
		}, canonical)}},
		{"Dot", "lanes in blocks instead of in turn", mistaken{dot: dotWith(func(acc []float32, i int, w, x float32) {
			fma(acc, i/2%kernel.Lanes, w, x)
		}, canonical)}},
		{"Dot", "product rounded before the addition", mistaken{dot: dotWith(func(acc []float32, i int, w, x float32) {
			acc[i%kernel.Lanes] += float32(w * x)
		}, canonical)}},
		{"Dot", "accumulators added up in order", mistaken{dot: dotWith(fma, func(acc []float32) float32 {
			s := acc[0]
			for _, a := range acc[1:] {
				s += a
			}
			return kernel.Canonical(s)
		})}},
		{"Dot", "neighbours added first", mistaken{dot: dotWith(fma, func(acc []float32) float32 {
			for n := kernel.Lanes; n > 1; n /= 2 {
				for l := range n / 2 {
					acc[l] = acc[2*l] + acc[2*l+1]
				}
			}
			return kernel.Canonical(acc[0])
		})}},
		{"Dot", "NaN stored as it came", mistaken{dot: dotWith(fma, halving)}},
		{"Dot", "tail filled up with the elements before it", mistaken{dot: func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
			dotWith(fma, func(acc []float32) float32 {
				if tail := w.Cols % kernel.Lanes; tail > 0 && w.Cols > kernel.Lanes {
					acc[tail] += acc[0]
				}
				return canonical(acc)
			})(dst, stride, w, x, vectors)
		}}},
		{"Dot", "tail left out", mistaken{dot: func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
			n := w.Cols / kernel.Lanes * kernel.Lanes
			dotWith(func(acc []float32, i int, w, x float32) {
				if i < n || n == 0 {
					fma(acc, i, w, x)
				}
			}, canonical)(dst, stride, w, x, vectors)
		}}},
		{"Dot", "subnormal results flushed", mistaken{dot: dotWith(fma, func(acc []float32) float32 {
			if s := canonical(acc); math.Abs(float64(s)) >= 0x1p-126 {
				return s
			}
			return 0
		})}},
		{"Dot", "scale byte 0 taken for zero", mistaken{dot: func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
			if w.Format == kernel.MXFP4 {
				w.Scale = slices.Clone(w.Scale)
				for i, s := range w.Scale {
					if s == 0 {
						w.Scale[i] = 255
					}
				}
			}
			g.Dot(dst, stride, w, x, vectors)
		}}},
		{"Dot", "scale byte 255 taken for 2^128", mistaken{dot: func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
			if w.Format == kernel.MXFP4 {
				w.Scale = slices.Clone(w.Scale)
				for i, s := range w.Scale {
					if s == 255 {
						w.Scale[i] = 254
					}
				}
			}
			g.Dot(dst, stride, w, x, vectors)
		}}},
		{"Dot", "nibbles swapped", mistaken{dot: func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
			if w.Format == kernel.MXFP4 {
				w.Data = slices.Clone(w.Data)
				for i, c := range w.Data {
					w.Data[i] = c<<4 | c>>4
				}
			}
			g.Dot(dst, stride, w, x, vectors)
		}}},
		{"Dot", "a result too many", mistaken{dot: func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
			g.Dot(dst, stride, w, x, vectors)
			if n := (vectors-1)*stride + w.Rows; cap(dst) > n {
				dst[:n+1][n] = 0
			} else if stride > w.Rows && vectors > 1 {
				dst[w.Rows] = 0
			}
		}}},
		{"Dot", "stride of the last rows ignored", mistaken{dot: func(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
			if w.Rows > 16 && w.Stride > w.Cols {
				w.Stride = w.Cols
			}
			g.Dot(dst, stride, w, x, vectors)
		}}},
		{"Transposed", "columns of the last vector forgotten", mistaken{transposed: func(dst []float32, stride int, w kernel.Tile, x []float32, xStride, vectors int) {
			if vectors == 8 {
				vectors = 7
			}
			g.Transposed(dst, stride, w, x, xStride, vectors)
		}}},
		{"Transposed", "rows in another order", mistaken{transposed: func(dst []float32, stride int, w kernel.Tile, x []float32, xStride, vectors int) {
			for r := w.Rows - 1; r >= 0; r-- {
				g.Transposed(dst, stride, w.Slice(r, r+1), x[r:], xStride, vectors)
			}
		}}},
		{"KDA", "decay after the read", mistaken{kda: func(s []float32, dim, tokens int, q, k, v, alpha []float32, stride int, beta []float32, betaStride int, o []float32) {
			one := slices.Repeat([]float32{1}, len(alpha))
			for t := range tokens {
				at := t * stride
				g.KDA(s, dim, 1, q[at:], k[at:], v[at:], one, stride, beta[t*betaStride:], betaStride, o[at:])
				for i := range dim {
					for j := range dim {
						s[i*dim+j] *= alpha[at+i]
					}
				}
			}
		}}},
		{"Softmax", "exponentials added up from left to right", mistaken{softmax: func(x []float32) {
			m := slices.Max(x)
			if m != m {
				g.Softmax(x)
				return
			}
			sum := float32(0)
			for i, v := range x {
				x[i] = kernel.Exp(v - m)
				sum += x[i]
			}
			for i := range x {
				x[i] = kernel.Canonical(x[i] / sum)
			}
		}}},
		{"RMSNorm", "reciprocal instead of division", mistaken{rmsNorm: func(y, x, w []float32, eps float32) {
			g.RMSNorm(y, x, nil, eps)
			for i := range w {
				y[i] = kernel.Canonical(y[i] * float32(1/(1/w[i])))
			}
		}}},
		{"SiTU", "sigmoid of the capped gate", mistaken{situ: func(y, gate, u []float32, b1, b2 float32) {
			for i := range y {
				t := b1 * kernel.Tanh(gate[i]/b1)
				y[i] = kernel.Canonical(float32(t*kernel.Sigmoid(t)) * float32(b2*kernel.Tanh(u[i]/b2)))
			}
		}}},
		{"Sigmoid", "sigmoid by math.Exp", mistaken{sigmoid: func(y, x []float32) {
			for i, v := range x {
				y[i] = kernel.Canonical(float32(1 / (1 + math.Exp(-float64(v)))))
			}
		}}},
		{"Sigmoid", "NaN of the argument kept", mistaken{sigmoid: func(y, x []float32) {
			for i, v := range x {
				if y[i] = kernel.Sigmoid(v); v != v {
					y[i] = v
				}
			}
		}}},
		{"Axpy", "axpy in two roundings", mistaken{axpy: func(y []float32, a float32, x []float32) {
			for i := range y {
				y[i] += float32(a * x[i])
			}
		}}},
		{"Axpy", "one element beyond the end read and written", mistaken{axpy: func(y []float32, a float32, x []float32) {
			g.Axpy(y[:len(y)&^7], a, x)
			g.Axpy(y[len(y)&^7:], a, x[len(y)&^7:])
			_ = y[:len(y)+1] // beyond the capacity
		}}},
	} {
		t.Run(m.mistake, func(t *testing.T) {
			err := firstMistake(m.b, m.kernel)
			if err == nil {
				t.Fatal("the mistake went unnoticed")
			}
			t.Log(err)
		})
	}
}

// FuzzKernels compares the backends on shapes and bits of the fuzzer's choice.
func FuzzKernels(f *testing.F) {
	f.Add(uint8(2), uint8(3), uint16(70), uint8(5), uint8(3), []byte("\x80\x3f\x00\x00\x80\xbf\xff\x7f"))
	f.Add(uint8(4), uint8(9), uint16(96), uint8(8), uint8(0), []byte("\x00\x01\xfe\xff\x7f\x80"))
	f.Add(uint8(1), uint8(1), uint16(1), uint8(1), uint8(0), []byte("\x01\x00\x00\x00\x00\x00\x80\x7f"))
	f.Add(uint8(3), uint8(25), uint16(1599), uint8(4), uint8(7), []byte{0xff, 0xfb, 1})
	backends := available(f)
	f.Fuzz(func(t *testing.T, format, rows uint8, cols uint16, vectors, pad uint8, bits []byte) {
		if len(bits) == 0 {
			return
		}
		w := kernel.Tile{Format: kernel.Format(format%4 + 1), Rows: int(rows%64) + 1, Cols: int(cols%2048) + 1}
		n := int(vectors)%kernel.MaxVectors + 1
		w.Stride = w.Cols + int(pad%16)
		if w.Format == kernel.MXFP4 {
			w.Cols = (w.Cols + kernel.GroupSize - 1) / kernel.GroupSize * kernel.GroupSize
			w.Stride = w.Cols
			w.Scale = cycle(bits, 5, w.Rows*w.Cols/kernel.GroupSize)
		}
		w.Data = cycle(bits, 0, w.Format.RowBytes(w.Rows*w.Stride))
		floats := func(from, n int) []float32 {
			raw := cycle(bits, from, 4*n)
			x := make([]float32, n)
			for i := range x {
				x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			}
			return x
		}
		x, y := floats(1, n*max(w.Cols, w.Rows)), floats(2, n*max(w.Cols, w.Rows))
		run := func(b kernel.Backend) (out [][]float32) {
			dot := make([]float32, n*w.Rows)
			packed := make([]float32, n*b.PackedLen(w.Format, w.Cols))
			for v := range n {
				b.Pack(w.Format, packed[v*b.PackedLen(w.Format, w.Cols):][:b.PackedLen(w.Format, w.Cols)], x[v*w.Cols:][:w.Cols])
			}
			b.Dot(dot, w.Rows, w, packed, n)
			down := slices.Clone(y[:n*w.Cols])
			b.Transposed(down, w.Cols, w, x, w.Rows, n)
			for i := range down {
				down[i] = kernel.Canonical(down[i])
			}
			out = append(out, dot, down)
			for _, f := range []func(z []float32){
				b.Softmax,
				func(z []float32) { b.Sigmoid(z, z) },
				func(z []float32) { b.Gate(z, y[:len(z)]) },
				func(z []float32) { b.SiTU(z, z, y[:len(z)], y[0], x[0]) },
				func(z []float32) { b.Decay(z, z, y[:len(z)], x[0], y[0]) },
				func(z []float32) { b.RMSNorm(z, z, y[:len(z)], 1e-5) },
				func(z []float32) { b.L2Norm(z, z, 1e-6, x[0]) },
				func(z []float32) { b.ShortConv(z[:len(z)/4], y, 4, x, len(z)/4) },
			} {
				z := slices.Clone(x[:w.Cols])
				f(z)
				out = append(out, z)
			}
			return out
		}
		want := run(generic.Backend{})
		for _, backend := range backends {
			for k, got := range run(backend) {
				for i := range got {
					if a, b := math.Float32bits(got[i]), math.Float32bits(want[k][i]); a != b {
						t.Fatalf("%s: kernel %d element %d is %08x, not %08x (%v %dx%d, %d vectors)", backend.Name(), k, i, a, b, w.Format, w.Rows, w.Cols, n)
					}
				}
			}
		}
	})
}

// cycle returns n bytes of bits, from some byte on, over and over.
func cycle(bits []byte, from, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = bits[(from+i)%len(bits)]
	}
	return p
}
