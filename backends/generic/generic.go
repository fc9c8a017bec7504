// Package generic is the backend in plain Go. It runs everywhere and is the definition of every bit: docs/numerics.md
// says in words what it does, and each other backend is tested against it.
package generic

import (
	"encoding/binary"
	"math"

	"github.com/k3infer/k3/core/kernel"
)

func init() {
	kernel.Register(kernel.Driver{
		Name:    "generic",
		Missing: func() string { return "" },
		New:     func() kernel.Backend { return Backend{} },
	})
}

// Backend implements kernel.Backend. Other backends embed it and override what they do faster.
type Backend struct{}

// Name is "generic".
func (Backend) Name() string { return "generic" }

// PackedLen is n: vectors are used as they are.
func (Backend) PackedLen(_ kernel.Format, n int) int { return n }

// Pack copies x.
func (Backend) Pack(_ kernel.Format, dst, x []float32) { copy(dst, x) }

const lanes = kernel.Lanes

// tree adds up the accumulators of a dot product in the contract's order and stores NaN as the canonical one.
func tree(acc *[lanes]float32) float32 {
	for h := lanes / 2; h > 0; h /= 2 {
		for l := range h {
			acc[l] += acc[l+h]
		}
	}
	return kernel.Canonical(acc[0])
}

// accumulate adds the products of a block to the accumulators: acc[l] = kernel.FMA(w[l], x[l], acc[l]), whose usual case is
// written out, because a call an element would cost several times as much.
func accumulate(acc, w, x *[lanes]float32) {
	a, wl, xl := acc[:], w[:], x[:]
	for l, c := range a {
		s := float64(wl[l])*float64(xl[l]) + float64(c)
		if !kernel.DoublyRounded(s) {
			a[l] = float32(s)
			continue
		}
		a[l] = kernel.FMA(wl[l], xl[l], c)
	}
}

// Dot widens each row 32 elements at a time and feeds them to the accumulators of every vector.
func (Backend) Dot(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
	row := w.Format.RowBytes(w.Stride)
	n := w.Cols
	var wide [lanes]float32
	for r := range w.Rows {
		var acc [kernel.MaxVectors][lanes]float32
		data := w.Data[r*row:]
		i := 0
		for ; i+lanes <= n; i += lanes {
			widen(&wide, w, data, r, i, lanes)
			for v := range vectors {
				accumulate(&acc[v], &wide, (*[lanes]float32)(x[v*n+i:]))
			}
		}
		if i < n {
			widen(&wide, w, data, r, i, n-i)
			for v := range vectors {
				for l := range n - i {
					acc[v][l] = kernel.FMA(wide[l], x[v*n+i+l], acc[v][l])
				}
			}
		}
		for v := range vectors {
			dst[v*stride+r] = tree(&acc[v])
		}
	}
}

// widen puts elements i to i+n of row r, whose bytes start at data, into wide. n is at most lanes, and i is a multiple of
// lanes, which is also the MXFP4 group size.
func widen(wide *[lanes]float32, w kernel.Tile, data []byte, r, i, n int) {
	le := binary.LittleEndian
	switch w.Format {
	case kernel.F32:
		d := data[4*i : 4*(i+n)]
		for l := range wide[:n] {
			wide[l] = math.Float32frombits(le.Uint32(d))
			d = d[4:]
		}
	case kernel.BF16:
		d := data[2*i : 2*(i+n)]
		for l := range wide[:n] {
			wide[l] = math.Float32frombits(uint32(le.Uint16(d)) << 16)
			d = d[2:]
		}
	case kernel.F16:
		d := data[2*i : 2*(i+n)]
		for l := range n {
			wide[l] = kernel.HalfToFloat32(le.Uint16(d[2*l:]))
		}
	case kernel.MXFP4:
		scale := kernel.Scale(w.Scale[(r*w.Cols+i)/kernel.GroupSize])
		for l, b := range data[i/2 : (i+n)/2] {
			wide[2*l] = float32(kernel.E2M1(b) * scale)
			wide[2*l+1] = float32(kernel.E2M1(b>>4) * scale)
		}
	}
}

// Transposed goes down the rows; columns and vectors are independent.
func (Backend) Transposed(dst []float32, stride int, w kernel.Tile, x []float32, xStride, vectors int) {
	row := w.Format.RowBytes(w.Stride)
	var wide [lanes]float32
	for r := range w.Rows {
		data := w.Data[r*row:]
		for i := 0; i < w.Cols; i += lanes {
			n := min(lanes, w.Cols-i)
			widen(&wide, w, data, r, i, n)
			for v := range vectors {
				a, d := x[v*xStride+r], dst[v*stride+i:][:n]
				for l := range d {
					d[l] = kernel.FMA(wide[l], a, d[l])
				}
			}
		}
	}
}

// KDA is the recurrence as docs/model.md writes it, one token after the other, one key row after the other.
func (Backend) KDA(s []float32, dim, tokens int, q, k, v, alpha []float32, stride int, beta []float32, betaStride int, o []float32) {
	u := make([]float32, dim)
	for t := range tokens {
		at := t * stride
		q, k, v, alpha, o := q[at:][:dim], k[at:][:dim], v[at:][:dim], alpha[at:][:dim], o[at:][:dim]
		clear(u)
		for i := range dim {
			a, ki := alpha[i], k[i]
			for j, sij := range s[i*dim:][:dim] {
				sij = float32(sij * a)
				s[i*dim+j] = sij
				u[j] = kernel.FMA(ki, sij, u[j])
			}
		}
		for j := range u {
			u[j] = float32(beta[t*betaStride] * float32(v[j]-u[j]))
		}
		clear(o)
		for i := range dim {
			ki, qi := k[i], q[i]
			for j, sij := range s[i*dim:][:dim] {
				sij = kernel.FMA(ki, u[j], sij)
				s[i*dim+j] = sij
				o[j] = kernel.FMA(qi, sij, o[j])
			}
		}
		for j := range o {
			o[j] = kernel.Canonical(o[j])
		}
	}
}

// ShortConv is one short sum and one SiLU a channel.
func (Backend) ShortConv(y, w []float32, taps int, x []float32, stride int) {
	for c := range y {
		sum := float32(0)
		for j, wj := range w[c*taps:][:taps] {
			sum = kernel.FMA(wj, x[j*stride+c], sum)
		}
		y[c] = kernel.SiLU(sum)
	}
}

// Decay is element-wise.
func (Backend) Decay(alpha, z, bias []float32, scale, lower float32) {
	for i := range alpha {
		alpha[i] = kernel.Exp(float32(lower * kernel.Sigmoid(float32(scale*float32(z[i]+bias[i])))))
	}
}

// dot is the contract's dot product of two float32 vectors.
func dot(a, b []float32) float32 {
	var acc [lanes]float32
	i := 0
	for ; i+lanes <= len(a); i += lanes {
		accumulate(&acc, (*[lanes]float32)(a[i:]), (*[lanes]float32)(b[i:]))
	}
	for l := range len(a) - i {
		acc[l] = kernel.FMA(a[i+l], b[i+l], acc[l])
	}
	return tree(&acc)
}

func inverseRoot(x float32) float32 { return float32(1 / float32(math.Sqrt(float64(x)))) }

// InverseRMS divides the sum of squares by the length before adding eps.
func (Backend) InverseRMS(x []float32, eps float32) float32 {
	return kernel.Canonical(inverseRoot(float32(dot(x, x)/float32(len(x))) + eps))
}

// RMSNorm multiplies by the inverse first, then by the weight.
func (b Backend) RMSNorm(y, x, w []float32, eps float32) {
	inv := b.InverseRMS(x, eps)
	if w == nil {
		for i := range y {
			y[i] = kernel.Canonical(float32(x[i] * inv))
		}
		return
	}
	for i := range y {
		y[i] = kernel.Canonical(float32(float32(x[i]*inv) * w[i]))
	}
}

// L2Norm normalises by the sum of squares, not its mean.
func (Backend) L2Norm(y, x []float32, eps, scale float32) {
	inv := inverseRoot(dot(x, x) + eps)
	for i := range y {
		y[i] = kernel.Canonical(float32(float32(x[i]*inv) * scale))
	}
}

// Softmax subtracts the maximum first. A NaN anywhere makes every weight NaN.
func (Backend) Softmax(x []float32) {
	m := float32(math.Inf(-1))
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	var acc [lanes]float32
	for i, v := range x {
		e := kernel.Exp(float32(v - m))
		x[i] = e
		acc[i%lanes] += e // fma(e, 1, acc)
	}
	sum := tree(&acc)
	for i, e := range x {
		x[i] = kernel.Canonical(float32(e / sum))
	}
}

// SiTU is element-wise.
func (Backend) SiTU(y, g, u []float32, b1, b2 float32) {
	for i := range y {
		y[i] = kernel.SiTU(g[i], u[i], b1, b2)
	}
}

// Sigmoid is element-wise.
func (Backend) Sigmoid(y, x []float32) {
	for i := range y {
		y[i] = kernel.Sigmoid(x[i])
	}
}

// Gate is element-wise.
func (Backend) Gate(y, g []float32) {
	for i := range y {
		y[i] = kernel.Canonical(float32(y[i] * kernel.Sigmoid(g[i])))
	}
}

// Axpy is one fma an element.
func (Backend) Axpy(y []float32, a float32, x []float32) {
	for i := range y {
		y[i] = kernel.FMA(a, x[i], y[i])
	}
}
