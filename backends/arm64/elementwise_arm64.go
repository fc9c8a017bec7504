//go:build !noasm

package arm64

import (
	"math"

	"github.com/k3infer/k3/core/kernel"
)

const (
	// width is the number of elements that the element-wise functions take at a time.
	width = 8
	// pieceElements bounds one call of such a function, which cannot be interrupted, to well below 100 microseconds.
	pieceElements = 8192
)

// elements calls whole for pieces that are multiples of width, and then rest with the elements that are left over, at most
// width-1 of them from i on, if there are any.
func elements(n int, whole func(i, n int), rest func(i int)) {
	end := n / width * width
	for i := 0; i < end; i += pieceElements {
		whole(i, min(pieceElements, end-i))
	}
	if end < n {
		rest(end)
	}
}

// padded is the elements of x from i on and zeros after them.
func padded(x []float32, i int) (p [width]float32) {
	copy(p[:], x[i:])
	return p
}

// Sigmoid is generic.Backend.Sigmoid.
func (backend) Sigmoid(y, x []float32) {
	elements(len(y), func(i, n int) { sigmoidNEON(&y[i], &x[i], n) }, func(i int) {
		p := padded(x, i)
		sigmoidNEON(&p[0], &p[0], width)
		copy(y[i:], p[:])
	})
}

// Gate is generic.Backend.Gate.
func (backend) Gate(y, g []float32) {
	elements(len(y), func(i, n int) { gateNEON(&y[i], &g[i], n) }, func(i int) {
		p, q := padded(y, i), padded(g, i)
		gateNEON(&p[0], &q[0], width)
		copy(y[i:], p[:])
	})
}

// SiTU is generic.Backend.SiTU.
func (backend) SiTU(y, g, u []float32, b1, b2 float32) {
	elements(len(y), func(i, n int) { situNEON(&y[i], &g[i], &u[i], b1, b2, n) }, func(i int) {
		p, q := padded(g, i), padded(u, i)
		situNEON(&p[0], &p[0], &q[0], b1, b2, width)
		copy(y[i:], p[:])
	})
}

// Decay is generic.Backend.Decay.
func (backend) Decay(alpha, z, bias []float32, scale, lower float32) {
	elements(len(alpha), func(i, n int) { decayNEON(&alpha[i], &z[i], &bias[i], scale, lower, n) }, func(i int) {
		p, q := padded(z, i), padded(bias, i)
		decayNEON(&p[0], &p[0], &q[0], scale, lower, width)
		copy(alpha[i:], p[:])
	})
}

// ShortConv is generic.Backend.ShortConv.
func (b backend) ShortConv(y, w []float32, taps int, x []float32, stride int) {
	const convTaps, width = 4, 4
	if taps != convTaps {
		b.Backend.ShortConv(y, w, taps, x, stride)
		return
	}
	whole := len(y) / width * width
	for i := 0; i < whole; i += pieceElements {
		shortConvNEON(&y[i], &w[i*taps], &x[i], 4*stride, min(pieceElements, whole-i))
	}
	if rest := len(y) - whole; rest > 0 {
		var wide, in [convTaps * width]float32
		var out [width]float32
		copy(wide[:], w[whole*taps:])
		for j := range taps {
			copy(in[j*width:][:rest], x[j*stride+whole:])
		}
		shortConvNEON(&out[0], &wide[0], &in[0], 4*width, width)
		copy(y[whole:], out[:])
	}
}

// sum adds up accumulators.
func sum(acc *[block]float32) (s float32) {
	treeNEON(&s, &acc[0], 1)
	return s
}

// square is the dot product of x and itself.
func square(x []float32) float32 {
	var acc [block]float32
	whole := len(x) / block * block
	for i := 0; i < whole; i += pieceElements {
		squaresNEON(&acc[0], &x[i], min(pieceElements, whole-i)/block)
	}
	for l, v := range x[whole:] {
		acc[l] = kernel.FMA(v, v, acc[l])
	}
	return sum(&acc)
}

func inverseRoot(x float32) float32 { return float32(1 / float32(math.Sqrt(float64(x)))) }

// InverseRMS is generic.Backend.InverseRMS.
func (backend) InverseRMS(x []float32, eps float32) float32 {
	return kernel.Canonical(inverseRoot(float32(square(x)/float32(len(x))) + eps))
}

// RMSNorm is generic.Backend.RMSNorm.
func (b backend) RMSNorm(y, x, w []float32, eps float32) {
	inv := b.InverseRMS(x, eps)
	if w == nil {
		scale(y, x, inv, 1)
		return
	}
	elements(len(y), func(i, n int) { normNEON(&y[i], &x[i], &w[i], inv, n) }, func(i int) {
		p, q := padded(x, i), padded(w, i)
		normNEON(&p[0], &p[0], &q[0], inv, width)
		copy(y[i:], p[:])
	})
}

// L2Norm is generic.Backend.L2Norm.
func (backend) L2Norm(y, x []float32, eps, factor float32) {
	scale(y, x, inverseRoot(square(x)+eps), factor)
}

// scale sets y[i] = (x[i]*inv) * factor.
func scale(y, x []float32, inv, factor float32) {
	elements(len(y), func(i, n int) { scaleNEON(&y[i], &x[i], inv, factor, n) }, func(i int) {
		p := padded(x, i)
		scaleNEON(&p[0], &p[0], inv, factor, width)
		copy(y[i:], p[:])
	})
}

// Softmax is generic.Backend.Softmax.
func (backend) Softmax(x []float32) {
	inf := float32(math.Inf(-1))
	most := [width]float32{inf, inf, inf, inf, inf, inf, inf, inf}
	m := inf
	elements(len(x), func(i, n int) { maximumNEON(&most[0], &x[i], n) }, func(i int) { m = maximum(m, x[i:]) })
	m = maximum(m, most[:])

	elements(len(x), func(i, n int) { expNEON(&x[i], m, n) }, func(i int) {
		p := padded(x, i)
		expNEON(&p[0], m, width)
		copy(x[i:], p[:])
	})

	var acc [block]float32
	whole := len(x) / block * block
	for i := 0; i < whole; i += pieceElements {
		sumsNEON(&acc[0], &x[i], min(pieceElements, whole-i)/block)
	}
	for l, e := range x[whole:] {
		acc[l] += e
	}
	total := sum(&acc)

	elements(len(x), func(i, n int) { divideNEON(&x[i], total, n) }, func(i int) {
		p := padded(x, i)
		divideNEON(&p[0], total, width)
		copy(x[i:], p[:])
	})
}

// maximum is the greatest of m and x, among which NaN is none.
func maximum(m float32, x []float32) float32 {
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}
