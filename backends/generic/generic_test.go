package generic_test

import (
	"encoding/binary"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/kernel"
)

// matrix draws a matrix and returns it with its values.
func matrix(rng *rand.Rand, f kernel.Format, rows, cols int) (kernel.Tile, []float32) {
	t := kernel.Tile{Format: f, Rows: rows, Cols: cols, Stride: cols, Data: make([]byte, f.RowBytes(rows*cols))}
	le := binary.LittleEndian
	for i := range rows * cols {
		bits := math.Float32bits(float32(rng.NormFloat64()))
		switch f {
		case kernel.F32:
			le.PutUint32(t.Data[4*i:], bits)
		case kernel.BF16:
			le.PutUint16(t.Data[2*i:], uint16(bits>>16))
		case kernel.F16:
			le.PutUint16(t.Data[2*i:], uint16(rng.IntN(0x2000)+0x2800)|uint16(rng.IntN(2)<<15))
		case kernel.MXFP4:
			t.Data[i/2] = byte(bits >> 8)
		}
	}
	if f == kernel.MXFP4 {
		t.Scale = make([]byte, rows*cols/kernel.GroupSize)
		for i := range t.Scale {
			t.Scale[i] = byte(120 + rng.IntN(10))
		}
	}
	t.Check()
	return t, kernel.Widen(nil, f, t.Data, t.Scale)
}

// A sum of n rounded products is within (n+1) half units of the sum of their magnitudes, and 32 accumulators make that
// n/32 + 6.
func TestDotIsWithinTheRoundingErrorOf32Lanes(t *testing.T) {
	rng := random.New(t, 1, 1)
	b := generic.Backend{}
	for _, f := range []kernel.Format{kernel.F32, kernel.BF16, kernel.F16, kernel.MXFP4} {
		for n := 1; n <= 400; n = n*5/4 + 1 {
			cols := n
			if f == kernel.MXFP4 {
				cols = (n + 31) / 32 * 32
			}
			rows, vectors := 1+rng.IntN(4), 1+rng.IntN(8)
			w, wide := matrix(rng, f, rows, cols)
			x := make([]float32, cols*vectors)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			dst := make([]float32, rows*vectors)
			b.Dot(dst, rows, w, x, vectors)
			for v := range vectors {
				for r := range rows {
					exact, size := new(big.Float).SetPrec(300), 0.0
					for i, wi := range wide[r*cols:][:cols] {
						p := new(big.Float).SetPrec(100).SetFloat64(float64(wi))
						exact.Add(exact, p.Mul(p, new(big.Float).SetFloat64(float64(x[v*cols+i]))))
						size += math.Abs(float64(wi) * float64(x[v*cols+i]))
					}
					truth, _ := exact.Float64()
					limit := size * float64(cols/32+7) * 0x1p-24
					if got := float64(dst[v*rows+r]); math.Abs(got-truth) > limit {
						t.Fatalf("%v, %d elements: %g, exactly %g: off by %g, more than %g", f, cols, got, truth, math.Abs(got-truth), limit)
					}
				}
			}
		}
	}
}

func TestTransposedAddsTheRowsToWhatIsThere(t *testing.T) {
	rng := random.New(t, 2, 2)
	for _, f := range []kernel.Format{kernel.F32, kernel.BF16, kernel.F16, kernel.MXFP4} {
		const rows, cols, vectors = 37, 96, 3
		w, wide := matrix(rng, f, rows, cols)
		x, dst := make([]float32, vectors*rows), make([]float32, vectors*cols)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		for i := range dst {
			dst[i] = 1
		}
		generic.Backend{}.Transposed(dst, cols, w, x, rows, vectors)
		for v := range vectors {
			for c := range cols {
				truth, size := 1.0, 1.0
				for r := range rows {
					p := float64(wide[r*cols+c]) * float64(x[v*rows+r])
					truth, size = truth+p, size+math.Abs(p)
				}
				if got := float64(dst[v*cols+c]); math.Abs(got-truth) > size*rows*0x1p-24 {
					t.Fatalf("%v: column %d of vector %d is %g, not %g", f, c, v, got, truth)
				}
			}
		}
	}
}

// The recurrence against the formulas of docs/model.md in float64.
func TestKDAFollowsTheRecurrence(t *testing.T) {
	rng := random.New(t, 3, 3)
	const dim, tokens, stride = 24, 6, 30
	draw := func(n int, scale float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64() * scale)
		}
		return x
	}
	n := tokens * stride
	q, k, v, alpha, s := draw(n, 0.2), draw(n, 0.2), draw(n, 1), draw(n, 0), draw(dim*dim, 0.1)
	beta, o := draw(tokens*2, 0), make([]float32, n)
	for i := range alpha {
		alpha[i] = float32(0.5 + rng.Float64()/2)
	}
	for i := range beta {
		beta[i] = rng.Float32()
	}
	truth := make([]float64, dim*dim)
	for i := range truth {
		truth[i] = float64(s[i])
	}
	generic.Backend{}.KDA(s, dim, tokens, q, k, v, alpha, stride, beta, 2, o)
	for t0 := range tokens {
		at := t0 * stride
		for j := range dim {
			var u, out float64
			for i := range dim {
				truth[i*dim+j] *= float64(alpha[at+i])
				u += float64(k[at+i]) * truth[i*dim+j]
			}
			for i := range dim {
				truth[i*dim+j] += float64(k[at+i]) * float64(beta[t0*2]) * (float64(v[at+j]) - u)
				out += float64(q[at+i]) * truth[i*dim+j]
			}
			if math.Abs(float64(o[at+j])-out) > 1e-5 {
				t.Fatalf("token %d: output %d is %g, not %g", t0, j, o[at+j], out)
			}
		}
	}
	for i := range truth {
		if math.Abs(float64(s[i])-truth[i]) > 1e-5 {
			t.Fatalf("state %d is %g, not %g", i, s[i], truth[i])
		}
	}
}

func TestNormsAndSoftmaxFollowTheirFormulas(t *testing.T) {
	rng := random.New(t, 4, 4)
	b := generic.Backend{}
	for n := 1; n < 300; n = n*3/2 + 1 {
		x, w := make([]float32, n), make([]float32, n)
		var squares, largest, total float64
		for i := range x {
			x[i], w[i] = float32(rng.NormFloat64()*3), float32(rng.NormFloat64())
			squares += float64(x[i]) * float64(x[i])
			largest = max(largest, float64(x[i]))
		}
		for i := range x {
			total += math.Exp(float64(x[i]) - largest)
		}
		norm, plain, l2, soft := make([]float32, n), make([]float32, n), make([]float32, n), append([]float32(nil), x...)
		b.RMSNorm(norm, x, w, 1e-5)
		b.RMSNorm(plain, x, nil, 1e-5)
		b.L2Norm(l2, x, 1e-6, 0.5)
		b.Softmax(soft)
		for i := range x {
			rms := float64(x[i]) / math.Sqrt(squares/float64(n)+1e-5)
			for _, c := range []struct {
				what      string
				got       float32
				want, tol float64
			}{
				{"rmsnorm", norm[i], rms * float64(w[i]), 1e-6}, {"rmsnorm without weights", plain[i], rms, 1e-6},
				{"l2norm", l2[i], 0.5 * float64(x[i]) / math.Sqrt(squares+1e-6), 1e-6},
				{"softmax", soft[i], math.Exp(float64(x[i])-largest) / total, 1e-6},
			} {
				if math.Abs(float64(c.got)-c.want) > c.tol*(1+math.Abs(c.want)) {
					t.Fatalf("%s of %d: element %d is %g, not %g", c.what, n, i, c.got, c.want)
				}
			}
		}
	}
}

func TestTheSoftmaxOfANaNIsNaNEverywhere(t *testing.T) {
	x := []float32{1, float32(math.NaN()), 3}
	generic.Backend{}.Softmax(x)
	for i, v := range x {
		if math.Float32bits(v) != 0x7fc00000 {
			t.Errorf("weight %d is %08x", i, math.Float32bits(v))
		}
	}
}

func TestAScaleByteOf255MakesTheGroupZero(t *testing.T) {
	w := kernel.Tile{Format: kernel.MXFP4, Rows: 1, Cols: 64, Stride: 64, Data: make([]byte, 32), Scale: []byte{255, 127}}
	for i := range w.Data {
		w.Data[i] = 0x22 // ones
	}
	x, dst := make([]float32, 64), make([]float32, 1)
	for i := range x {
		x[i] = 1
	}
	generic.Backend{}.Dot(dst, 1, w, x, 1)
	if dst[0] != 32 {
		t.Errorf("the sum is %g, want 32", dst[0])
	}
}

// BenchmarkDot beside BenchmarkPlainLoop: what the fixed order costs.
func BenchmarkDot(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, f := range []kernel.Format{kernel.F32, kernel.BF16, kernel.MXFP4} {
		b.Run(f.String(), func(b *testing.B) {
			w, _ := matrix(rng, f, 16, 3584)
			x, dst := activations(rng), make([]float32, 16)
			b.SetBytes(16 * 3584) // so that MB/s are million weights a second
			for range b.N {
				generic.Backend{}.Dot(dst, 16, w, x, 1)
			}
		})
	}
}

var sink float32 // keeps the compiler from dropping the loop

// BenchmarkPlainLoop is the loop one would write without a contract: one accumulator, product and sum rounded apart.
func BenchmarkPlainLoop(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 5))
	for _, f := range []kernel.Format{kernel.F32, kernel.BF16, kernel.MXFP4} {
		b.Run(f.String(), func(b *testing.B) {
			w, wide := matrix(rng, f, 16, 3584)
			x, dst := activations(rng), make([]float32, 16)
			b.SetBytes(16 * 3584)
			for range b.N {
				for r := range 16 {
					sum := float32(0)
					switch f {
					case kernel.F32:
						for i, v := range wide[r*3584:][:3584] {
							sum += v * x[i]
						}
					case kernel.BF16:
						row := w.Data[r*2*3584:][:2*3584]
						for i, v := range x {
							sum += math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:]))<<16) * v
						}
					case kernel.MXFP4:
						row, scale := w.Data[r*3584/2:][:3584/2], w.Scale[r*3584/32:]
						for i, c := range row {
							s := kernel.Scale(scale[i/16])
							sum += kernel.E2M1(c)*s*x[2*i] + kernel.E2M1(c>>4)*s*x[2*i+1]
						}
					}
					dst[r] = sum
				}
			}
			sink = dst[0]
		})
	}
}

func activations(rng *rand.Rand) []float32 {
	x := make([]float32, 3584)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}
