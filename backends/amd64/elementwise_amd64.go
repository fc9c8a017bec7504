//go:build amd64 && !noasm

package amd64

import (
	"math"
	"unsafe"

	"github.com/k3infer/k3/core/kernel"
)

// The element-wise kernels. The assembly takes whole registers; what is left over goes through it in a block of its own, so
// that the same code computes every element.

// lanes is the number of float32 in a register.
func (b backend) lanes() int {
	if b.set == avx512 {
		return 16
	}
	return 8
}

// callElements bounds one call of a function whose elements cost some nanoseconds each.
const callElements = 1 << 14

// pieces calls f for pieces of n elements that the assembly can take, and last for the elements left over, fewer than a
// register holds.
func (b backend) pieces(n int, f func(from, n int), last func(from, n int)) {
	whole := n &^ (b.lanes() - 1)
	for from := 0; from < whole; from += callElements {
		f(from, min(callElements, whole-from))
	}
	if whole < n {
		last(whole, n-whole)
	}
}

type register [16]float32

func (b backend) sigmoid(y, x *float32, n int) {
	if b.set == avx512 {
		sigmoidAVX512(y, x, n)
	} else {
		sigmoidAVX2(y, x, n)
	}
}

// Sigmoid is generic.Backend.Sigmoid.
func (b backend) Sigmoid(y, x []float32) {
	b.pieces(len(y), func(i, n int) {
		b.sigmoid(&y[i], &x[i], n)
	}, func(i, n int) {
		var r register
		copy(r[:n], x[i:])
		b.sigmoid(&r[0], &r[0], b.lanes())
		copy(y[i:], r[:n])
	})
}

func (b backend) gate(y, g *float32, n int) {
	if b.set == avx512 {
		gateAVX512(y, g, n)
	} else {
		gateAVX2(y, g, n)
	}
}

// Gate is generic.Backend.Gate.
func (b backend) Gate(y, g []float32) {
	b.pieces(len(y), func(i, n int) {
		b.gate(&y[i], &g[i], n)
	}, func(i, n int) {
		var r, s register
		copy(r[:n], y[i:])
		copy(s[:n], g[i:])
		b.gate(&r[0], &s[0], b.lanes())
		copy(y[i:], r[:n])
	})
}

func (b backend) situ(y, g, u *float32, n int, b1, b2 float32) {
	if b.set == avx512 {
		situAVX512(y, g, u, n, &b1, &b2)
	} else {
		situAVX2(y, g, u, n, &b1, &b2)
	}
}

// SiTU is generic.Backend.SiTU.
func (b backend) SiTU(y, g, u []float32, b1, b2 float32) {
	b.pieces(len(y), func(i, n int) {
		b.situ(&y[i], &g[i], &u[i], n, b1, b2)
	}, func(i, n int) {
		var r, s register
		copy(r[:n], g[i:])
		copy(s[:n], u[i:])
		b.situ(&r[0], &r[0], &s[0], b.lanes(), b1, b2)
		copy(y[i:], r[:n])
	})
}

func (b backend) decay(alpha, z, bias *float32, n int, scale, lower float32) {
	if b.set == avx512 {
		decayAVX512(alpha, z, bias, n, &scale, &lower)
	} else {
		decayAVX2(alpha, z, bias, n, &scale, &lower)
	}
}

// Decay is generic.Backend.Decay.
func (b backend) Decay(alpha, z, bias []float32, scale, lower float32) {
	b.pieces(len(alpha), func(i, n int) {
		b.decay(&alpha[i], &z[i], &bias[i], n, scale, lower)
	}, func(i, n int) {
		var r, s register
		copy(r[:n], z[i:])
		copy(s[:n], bias[i:])
		b.decay(&r[0], &r[0], &s[0], b.lanes(), scale, lower)
		copy(alpha[i:], r[:n])
	})
}

// Axpy is generic.Backend.Axpy.
func (b backend) Axpy(y []float32, a float32, x []float32) {
	b.pieces(len(y), func(i, n int) {
		if b.set == avx512 {
			axpyAVX512(&y[i], &x[i], n, &a)
		} else {
			axpyAVX2(&y[i], &x[i], n, &a)
		}
	}, func(i, n int) {
		for ; n > 0; i, n = i+1, n-1 {
			y[i] = kernel.FMA(a, x[i], y[i])
		}
	})
}

// ShortConv is generic.Backend.ShortConv.
func (b backend) ShortConv(y, w []float32, taps int, x []float32, stride int) {
	if taps != 4 {
		b.Backend.ShortConv(y, w, taps, x, stride)
		return
	}
	b.pieces(len(y), func(i, n int) {
		if b.set == avx512 {
			shortConvAVX512(&y[i], &w[4*i], &x[i], uintptr(4*stride), n)
		} else {
			shortConvAVX2(&y[i], &w[4*i], &x[i], uintptr(4*stride), n)
		}
	}, func(i, n int) {
		b.Backend.ShortConv(y[i:], w[4*i:], taps, x[i:], stride)
	})
}

// dot is the dot product of x with itself.
func (b backend) dot(x []float32) float32 {
	var sum float32
	a := dotArgs{dst: &sum, blocks: uintptr(len(x) / block), groups: 1, first: 1, last: 1, w: (*byte)(unsafe.Pointer(&x[0])), x: &x[0]}
	var w, v [block]float32
	if rest := x[len(x)/block*block:]; len(rest) > 0 {
		copy(w[:], rest)
		padVector(&v, rest)
		a.tail, a.tailX = (*byte)(unsafe.Pointer(&w)), &v[0]
	}
	if b.set == avx512 {
		dotF32R1V1AVX512(&a)
	} else {
		dotF32R1V1AVX2(&a)
	}
	return sum
}

func inverseRoot(x float32) float32 { return float32(1 / float32(math.Sqrt(float64(x)))) }

// RMSNorm is generic.Backend.RMSNorm.
func (b backend) RMSNorm(y, x, w []float32, eps float32) {
	if len(y) == 0 {
		return
	}
	inv := inverseRoot(float32(b.dot(x)/float32(len(x))) + eps)
	if w == nil {
		b.scale(y, x, inv, 1)
		return
	}
	b.pieces(len(y), func(i, n int) {
		if b.set == avx512 {
			normAVX512(&y[i], &x[i], &w[i], n, &inv)
		} else {
			normAVX2(&y[i], &x[i], &w[i], n, &inv)
		}
	}, func(i, n int) {
		for ; n > 0; i, n = i+1, n-1 {
			y[i] = kernel.Canonical(float32(float32(x[i]*inv) * w[i]))
		}
	})
}

// L2Norm is generic.Backend.L2Norm.
func (b backend) L2Norm(y, x []float32, eps, scale float32) {
	if len(y) == 0 {
		return
	}
	b.scale(y, x, inverseRoot(b.dot(x)+eps), scale)
}

func (b backend) scale(y, x []float32, inv, scale float32) {
	b.pieces(len(y), func(i, n int) {
		if b.set == avx512 {
			scaleAVX512(&y[i], &x[i], n, &inv, &scale)
		} else {
			scaleAVX2(&y[i], &x[i], n, &inv, &scale)
		}
	}, func(i, n int) {
		for ; n > 0; i, n = i+1, n-1 {
			y[i] = kernel.Canonical(float32(float32(x[i]*inv) * scale))
		}
	})
}

var minusInfinity = float32(math.Inf(-1))

// Softmax is generic.Backend.Softmax.
func (b backend) Softmax(x []float32) {
	lanes := b.lanes()
	var m register
	for i := range m {
		m[i] = minusInfinity
	}
	b.pieces(len(x), func(i, n int) {
		if b.set == avx512 {
			maximumAVX512(&x[i], n, &m[0])
		} else {
			maximumAVX2(&x[i], n, &m[0])
		}
	}, func(i, n int) {
		for _, v := range x[i:] {
			if v > m[0] {
				m[0] = v
			}
		}
	})
	for _, v := range m[1:lanes] {
		if v > m[0] {
			m[0] = v
		}
	}
	// The elements after the last block go through a block of their own. What fills it up has the exponential 0; where
	// every weight is NaN anyway, because the maximum is minus infinity, it may add NaN.
	var sums, last [block]float32
	whole := len(x) / block
	for from := 0; from < whole; from += callElements / block {
		b.expSum(&x[from*block], min(callElements/block, whole-from), &m[0], &sums)
	}
	if rest := x[whole*block:]; len(rest) > 0 {
		n := copy(last[:], rest)
		for i := n; i < block; i++ {
			last[i] = minusInfinity
		}
		b.expSum(&last[0], 1, &m[0], &sums)
		copy(rest, last[:])
	}
	for h := block / 2; h > 0; h /= 2 {
		for l := range h {
			sums[l] += sums[l+h]
		}
	}
	b.pieces(len(x), func(i, n int) {
		if b.set == avx512 {
			divideAVX512(&x[i], n, &sums[0])
		} else {
			divideAVX2(&x[i], n, &sums[0])
		}
	}, func(i, n int) {
		for ; n > 0; i, n = i+1, n-1 {
			x[i] = kernel.Canonical(float32(x[i] / sums[0]))
		}
	})
}

func (b backend) expSum(x *float32, blocks int, m *float32, sums *[block]float32) {
	if b.set == avx512 {
		expSumAVX512(x, blocks, m, &sums[0])
	} else {
		expSumAVX2(x, blocks, m, &sums[0])
	}
}
