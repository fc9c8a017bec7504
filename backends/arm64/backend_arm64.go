//go:build !noasm

package arm64

import (
	"math"
	"sync"
	"unsafe"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/kernel"
)

func init() {
	kernel.Register(kernel.Driver{
		Name: "neon", Speed: 20,
		Missing: func() string { return "" }, // every arm64 processor that Go runs on has NEON
		New:     func() kernel.Backend { return backend{generic.Backend{}} },
	})
}

// backend is the NEON backend. What it has no assembly for it leaves to the generic backend inside.
type backend struct{ kernel.Backend }

// Name is "neon".
func (backend) Name() string { return "neon" }

const (
	block = kernel.Lanes // the columns that assembly takes at a time

	// chunkRows is the number of rows whose accumulators are in memory at the same time. It is even.
	chunkRows = 24
	// panelBlocks is the width of a panel: the pieces of four vectors and of two rows beside it fit a first-level cache.
	panelBlocks = 32
	// callWeights bounds one call of an assembly function, which cannot be interrupted, to well below 100 microseconds.
	callWeights = 1 << 18

	// sumsStride is the bytes from a vector's accumulators to the next vector's, for the assembly.
	sumsStride = 4 * chunkRows * block
)

var _ [0]struct{} = [sumsStride - unsafe.Sizeof(scratch{}.sums[0])]struct{}{}

// dotArgs is the argument of the dot product functions.
type dotArgs struct {
	w      *byte // the first of the pairs' rows, at the first block
	row    int   // bytes from a row to the next
	x      *float32
	blocks int // at least 1
	pairs  int // of rows, at least 1
	sums   *float32

	xStride int // bytes from a vector to the next; not for one vector

	scale    *byte // MXFP4 only
	scaleRow int   // bytes from a row's scales to the next row's
	table    *scaledTables
}

// scratch is memory for a call of Dot or Transposed.
type scratch struct {
	sums [kernel.MaxVectors][chunkRows][block]float32
	wide [chunkRows * panelBlocks * block * 4]byte // decoded panel
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// decodedAs is the format that assembly reads after decoding f, or f.
func decodedAs(f kernel.Format, vectors int) kernel.Format {
	switch {
	case f == kernel.F16:
		return kernel.F32
	case f == kernel.MXFP4 && vectors > 1:
		return kernel.BF16
	}
	return f
}

// Dot is generic.Backend.Dot. One vector goes down whole rows. More go down panels of columns, so that their pieces stay in the
// first-level cache while the rows of a chunk pass by.
func (backend) Dot(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	blocks := w.Cols / block
	chunk, panel := max(2, min(chunkRows, callWeights/w.Cols&^1)), blocks
	if vectors > 1 || decodedAs(w.Format, vectors) != w.Format {
		chunk, panel = chunkRows, panelBlocks
	}
	for from := 0; from < w.Rows; from += chunk {
		rows := w.Slice(from, min(from+chunk, w.Rows))
		for v := range vectors {
			clear(s.sums[v][:rows.Rows])
		}
		for at := 0; at < blocks; at += panel {
			s.panel(rows, at, min(panel, blocks-at), x, vectors)
		}
		s.tail(rows, x, vectors)
		for v := range vectors {
			treeNEON(&dst[v*stride+from], &s.sums[v][0][0], rows.Rows)
		}
	}
}

// panel adds some blocks of columns from block `at` on to the accumulators.
func (s *scratch) panel(w kernel.Tile, at, blocks int, x []float32, vectors int) {
	f := decodedAs(w.Format, vectors)
	a := dotArgs{blocks: blocks, xStride: 4 * w.Cols}
	data := w.Data[w.Format.RowBytes(at*block):]
	a.row = w.Format.RowBytes(w.Stride)
	if f != w.Format {
		data = s.decode(w, at, blocks)
		a.row = f.RowBytes(blocks * block)
	}
	if f == kernel.MXFP4 {
		a.scaleRow = w.Cols / kernel.GroupSize
		a.table = scaled()
	}
	for v := 0; v < vectors; {
		n := group(vectors - v)
		a.x = &x[v*w.Cols+at*block]
		// Of a row that is left over two copies are computed, the second into accumulators that nobody reads.
		for r := 0; r < w.Rows; r += 2 * a.pairs {
			b := a
			b.pairs = max(1, (w.Rows-r)/2)
			if w.Rows-r == 1 {
				b.row, b.scaleRow = 0, 0
			}
			b.w = &data[r*a.row]
			b.sums = &s.sums[v][r][0]
			if f == kernel.MXFP4 {
				b.scale = &w.Scale[r*a.scaleRow]
			}
			b.call(f, n)
			a.pairs = b.pairs
		}
		v += n
	}
}

// group is how many of some vectors one function takes.
func group(vectors int) int {
	switch {
	case vectors >= 4:
		return 4
	case vectors >= 2:
		return 2
	}
	return 1
}

// call calls the function for a format and a number of vectors. Calls through function values would make the argument escape.
func (a *dotArgs) call(f kernel.Format, vectors int) {
	switch {
	case f == kernel.MXFP4:
		dotMXFP4V1(a)
	case f == kernel.BF16 && vectors == 4:
		dotBF16V4(a)
	case f == kernel.BF16 && vectors == 2:
		dotBF16V2(a)
	case f == kernel.BF16:
		dotBF16V1(a)
	case vectors == 4:
		dotF32V4(a)
	case vectors == 2:
		dotF32V2(a)
	default:
		dotF32V1(a)
	}
}

// decode widens some blocks of columns of all rows, one row after the other.
func (s *scratch) decode(w kernel.Tile, at, blocks int) []byte {
	row := w.Format.RowBytes(w.Stride)
	for r := range w.Rows {
		data := w.Data[r*row+w.Format.RowBytes(at*block):]
		if w.Format == kernel.F16 {
			decodeF16(&s.wide[r*blocks*4*block], &data[0], blocks)
		} else {
			decodeMXFP4(&s.wide[r*blocks*2*block], &data[0], &w.Scale[r*w.Cols/kernel.GroupSize+at], blocks, scaled())
		}
	}
	return s.wide[:]
}

// tail adds the columns after the last whole block, which MXFP4 has not.
func (s *scratch) tail(w kernel.Tile, x []float32, vectors int) {
	from := w.Cols / block * block
	if from == w.Cols {
		return
	}
	var buffer [block]float32
	row := w.Format.RowBytes(w.Stride)
	for r := range w.Rows {
		data := w.Data[r*row:]
		wide := kernel.Widen(buffer[:0], w.Format, data[w.Format.RowBytes(from):w.Format.RowBytes(w.Cols)], nil)
		for v := range vectors {
			acc := &s.sums[v][r]
			for l, weight := range wide {
				acc[l] = kernel.FMA(weight, x[v*w.Cols+from+l], acc[l])
			}
		}
	}
}

// scaledTables holds, for each scale byte, the upper and then the next byte of the 16 scaled weights as float32, of which the
// other bytes are 0. They are computed by the definition, so that the subnormal, the infinite and the refused scales need no code
// of their own. A real matrix uses a handful of scales: a few cache lines.
type scaledTables [256][2][16]byte

var scaled = sync.OnceValue(func() *scaledTables {
	t := new(scaledTables)
	for s := range t {
		for n := range 16 {
			bits := math.Float32bits(kernel.E2M1(byte(n)) * kernel.Scale(byte(s)))
			t[s][0][n], t[s][1][n] = byte(bits>>24), byte(bits>>16)
		}
	}
	return t
})
