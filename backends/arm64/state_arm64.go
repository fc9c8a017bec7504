//go:build !noasm

package arm64

import "github.com/k3infer/k3/core/kernel"

// transposedArgs is the argument of the functions for Transposed.
type transposedArgs struct {
	dst     *float32
	stride  int // bytes from a vector's results to the next vector's
	w       *byte
	row     int // bytes from a row to the next
	x       *float32
	xStride int // bytes from a vector to the next
	rows    int // at least 1
}

const (
	// transposedColumns is the number of columns, times vectors, that one function takes.
	transposedColumns = 64
	// transposedRows is the number of rows that stay in a cache while all columns and vectors pass by.
	transposedRows = 96
)

// Transposed is generic.Backend.Transposed.
func (backend) Transposed(dst []float32, stride int, w kernel.Tile, x []float32, xStride, vectors int) {
	if w.Rows == 0 {
		return
	}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	f := decodedAs(w.Format, kernel.MaxVectors)
	whole := w.Cols / transposedColumns * transposedColumns
	chunk, panel := transposedRows, whole
	if f != w.Format {
		chunk, panel = chunkRows, panelBlocks*block
	}
	for from := 0; from < w.Rows; from += chunk {
		rows := w.Slice(from, min(from+chunk, w.Rows))
		for at := 0; at < whole; at += panel {
			n := min(panel, whole-at)
			data, row := rows.Data[w.Format.RowBytes(at):], w.Format.RowBytes(w.Stride)
			if f != w.Format {
				data, row = s.decode(rows, at/block, n/block), f.RowBytes(n)
			}
			a := transposedArgs{stride: 4 * stride, row: row, xStride: 4 * xStride, rows: rows.Rows}
			for v := 0; v < vectors; {
				group := group(vectors - v)
				a.x = &x[v*xStride+from]
				for c := 0; c < n; c += transposedColumns / group {
					a.dst, a.w = &dst[v*stride+at+c], &data[f.RowBytes(c)]
					a.call(f, group)
				}
				v += group
			}
		}
		if whole < w.Cols {
			transposedTail(dst, stride, rows, whole, x[from:], xStride, vectors)
		}
	}
}

// call calls the function for a format and a number of vectors. Calls through function values would make the argument escape.
func (a *transposedArgs) call(f kernel.Format, vectors int) {
	switch {
	case f == kernel.BF16 && vectors == 4:
		transposedBF16V4(a)
	case f == kernel.BF16 && vectors == 2:
		transposedBF16V2(a)
	case f == kernel.BF16:
		transposedBF16V1(a)
	case vectors == 4:
		transposedF32V4(a)
	case vectors == 2:
		transposedF32V2(a)
	default:
		transposedF32V1(a)
	}
}

// transposedTail does the columns from `from` on, which no function takes.
func transposedTail(dst []float32, stride int, w kernel.Tile, from int, x []float32, xStride, vectors int) {
	var buffer [transposedColumns]float32
	row := w.Format.RowBytes(w.Stride)
	for r := range w.Rows {
		var scale []byte
		if w.Format == kernel.MXFP4 {
			scale = w.Scale[(r*w.Cols+from)/kernel.GroupSize:]
		}
		data := w.Data[r*row:]
		wide := kernel.Widen(buffer[:0], w.Format, data[w.Format.RowBytes(from):w.Format.RowBytes(w.Cols)], scale)
		for v := range vectors {
			a, d := x[v*xStride+r], dst[v*stride+from:][:len(wide)]
			for c, weight := range wide {
				d[c] = kernel.FMA(weight, a, d[c])
			}
		}
	}
}

// kdaArgs is the argument of kdaNEON: one token, and the first of 32 values where there is more than one.
type kdaArgs struct {
	s           *float32
	dim         int
	q, k, alpha *float32
	v           *float32
	beta        *float32
	o           *float32
}

// KDA is generic.Backend.KDA, for all tokens with 32 values at a time, so that their part of the state stays in a cache.
func (b backend) KDA(s []float32, dim, tokens int, q, k, v, alpha []float32, stride int, beta []float32, betaStride int, o []float32) {
	if dim%block != 0 {
		b.Backend.KDA(s, dim, tokens, q, k, v, alpha, stride, beta, betaStride, o)
		return
	}
	for j := 0; j < dim; j += block {
		for t := range tokens {
			at := t * stride
			kdaNEON(&kdaArgs{&s[j], dim, &q[at], &k[at], &alpha[at], &v[at+j], &beta[t*betaStride], &o[at+j]})
		}
	}
}

// Axpy is generic.Backend.Axpy.
func (backend) Axpy(y []float32, a float32, x []float32) {
	const width = 16
	whole := len(y) / width * width
	for i := 0; i < whole; i += pieceElements {
		axpyNEON(&y[i], a, &x[i], min(pieceElements, whole-i)/width)
	}
	for i := whole; i < len(y); i++ {
		y[i] = kernel.FMA(a, x[i], y[i])
	}
}
