//go:build amd64 && !noasm

package amd64

import "github.com/k3infer/k3/core/kernel"

// transposedArgs is the argument of the transposed product functions.
type transposedArgs struct {
	dst     *float32
	stride  uintptr // bytes from a vector's sums to the next vector's
	w       *byte
	row     uintptr // bytes from a row to the next
	rows    uintptr
	x       *float32
	xStride uintptr // bytes from a vector to the next
}

// Transposed is generic.Backend.Transposed.
func (b backend) Transposed(dst []float32, stride int, w kernel.Tile, x []float32, xStride, vectors int) {
	if w.Format == kernel.MXFP4 {
		b.Backend.Transposed(dst, stride, w, x, xStride, vectors)
		return
	}
	if w.Rows == 0 {
		return
	}
	a := transposedArgs{stride: uintptr(4 * stride), row: uintptr(w.Format.RowBytes(w.Stride)), xStride: uintptr(4 * xStride)}
	lanes := b.lanes()
	// Rows go through in stretches which the next columns and vectors find in the second-level cache.
	stretch := max(1, chunkBytes/int(a.row))
	for from := 0; from < w.Rows; from += stretch {
		a.rows = uintptr(min(stretch, w.Rows-from))
		for c := 0; c+lanes <= w.Cols; {
			// As many columns as the vectors' sums leave room for; all vectors, while the columns are in the first-level cache.
			parts := 8
			if vectors >= 4 {
				parts = lanes / 4
			}
			if c+parts*lanes > w.Cols {
				parts = 1
			}
			a.w = &w.Data[from*int(a.row)+w.Format.RowBytes(c)]
			for v := 0; v < vectors; {
				n := 1
				if vectors-v >= 4 {
					n = 4
				}
				a.dst, a.x = &dst[v*stride+c], &x[v*xStride+from]
				if b.set == avx512 {
					transposedAVX512(w.Format, parts, n, &a)
				} else {
					transposedAVX2(w.Format, parts, n, &a)
				}
				v += n
			}
			c += parts * lanes
		}
	}
	if c := w.Cols / lanes * lanes; c < w.Cols {
		rest := w
		rest.Cols, rest.Data = w.Cols-c, w.Data[w.Format.RowBytes(c):]
		b.Backend.Transposed(dst[c:], stride, rest, x, xStride, vectors)
	}
}

// kdaArgs is the argument of the KDA functions.
type kdaArgs struct {
	s           *float32
	row         uintptr // bytes from a row of the state to the next
	dim         uintptr
	first       uintptr // not 0 for the first token, which finds the state in memory
	ask         uintptr // bytes to the columns of the head that are wanted next, or 0 when there are none or they were asked for
	q, k, alpha *float32
	v, o        *float32
	beta        *float32
	w           [64]float32 //lint:ignore U1000 scratch of the assembly
}

// KDA is generic.Backend.KDA.
func (b backend) KDA(s []float32, dim, tokens int, q, k, v, alpha []float32, stride int, beta []float32, betaStride int, o []float32) {
	lanes := b.lanes()
	if dim%lanes != 0 {
		b.Backend.KDA(s, dim, tokens, q, k, v, alpha, stride, beta, betaStride, o)
		return
	}
	a := kdaArgs{row: uintptr(4 * dim), dim: uintptr(dim)}
	for c := 0; c < dim; {
		parts := 8
		if c+parts*lanes > dim {
			parts = 1
		}
		a.s = &s[c]
		for t := range tokens {
			a.first, a.ask = 0, 0
			if next := c + parts*lanes; t == 0 {
				a.first = 1
				if next < dim {
					a.ask = uintptr(4 * (next - c))
				}
			}
			at := t * stride
			a.q, a.k, a.alpha = &q[at], &k[at], &alpha[at]
			a.v, a.o, a.beta = &v[at+c], &o[at+c], &beta[t*betaStride]
			switch {
			case b.set == avx512 && parts == 8:
				kdaC8AVX512(&a)
			case b.set == avx512:
				kdaC1AVX512(&a)
			case parts == 8:
				kdaC8AVX2(&a)
			default:
				kdaC1AVX2(&a)
			}
		}
		c += parts * lanes
	}
}
