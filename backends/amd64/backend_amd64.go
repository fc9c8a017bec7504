//go:build amd64 && !noasm

package amd64

import (
	"math"
	"strings"
	"unsafe"

	"github.com/klauspost/cpuid/v2"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/kernel"
)

//go:generate go run ./_gen

func init() {
	kernel.Register(kernel.Driver{
		Name: "avx2", Speed: 20,
		Missing: func() string { return missing(cpuid.AVX2, cpuid.FMA3, cpuid.F16C) },
		New:     func() kernel.Backend { return backend{set: avx2} },
	})
	kernel.Register(kernel.Driver{
		Name: "avx512", Speed: 30,
		Missing: func() string {
			return missing(cpuid.AVX2, cpuid.FMA3, cpuid.F16C, cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL)
		},
		New: func() kernel.Backend { return backend{set: avx512} },
	})
}

// missing names the features that the processor lacks or whose registers the operating system does not save.
func missing(features ...cpuid.FeatureID) string {
	var lack []string
	for _, f := range features {
		if !cpuid.CPU.Has(f) {
			lack = append(lack, f.String())
		}
	}
	if lack == nil {
		return ""
	}
	return "a processor (and operating system) with " + strings.Join(lack, ", ")
}

// instructions is what the backends choose functions by.
type instructions bool

const (
	avx2   instructions = false
	avx512 instructions = true
)

// backend overrides the kernels of the generic backend that have assembly. What has none is what nobody waits for.
type backend struct {
	generic.Backend
	set instructions
}

// Name is the name of the instruction set.
func (b backend) Name() string {
	if b.set == avx512 {
		return "avx512"
	}
	return "avx2"
}

// block is the number of elements that the dot products take at a time, the lanes of the contract.
const block = kernel.Lanes

// PackedLen is n rounded up to whole blocks.
func (backend) PackedLen(_ kernel.Format, n int) int { return (n + block - 1) / block * block }

// Pack fills the last block up with -0, which adds nothing to an accumulator, and takes even and odd elements apart for the
// formats whose weights come apart so.
func (backend) Pack(f kernel.Format, dst, x []float32) {
	split := f == kernel.BF16 || f == kernel.MXFP4
	whole := len(x) / block
	if !split {
		copy(dst, x)
	} else if whole > 0 {
		packSplit(&dst[0], &x[0], whole)
	}
	if rest := x[whole*block:]; len(rest) > 0 {
		var last [block]float32
		padVector(&last, rest)
		if split {
			packSplit(&dst[whole*block], &last[0], 1)
		} else {
			copy(dst[whole*block:][:block], last[:])
		}
	}
}

var minusZero = float32(math.Copysign(0, -1))

func padVector(block *[block]float32, x []float32) {
	n := copy(block[:], x)
	for i := n; i < len(block); i++ {
		block[i] = minusZero
	}
}

// dotArgs is the argument of the dot product functions, which advance w, scale, tail and dst from group to group.
type dotArgs struct {
	dst    *float32
	stride uintptr // bytes from a vector's results to the next vector's

	w        *byte
	row      uintptr // bytes from a row to the next
	scale    *byte   // MXFP4 only, as is table: the scaled weights of each scale byte
	scaleRow uintptr
	table    *byte

	x       *float32
	xStride uintptr // bytes from a packed vector to the next

	blocks, groups uintptr
	ahead          uintptr // how far beyond w to ask memory for weights
	tail           *byte   // last blocks of the rows, 128 bytes apart, or nil
	tailX          *float32

	spill [12 * 8]float32 // accumulators of the first of two sweeps
}

const (
	// callWeights bounds one call of an assembly function, which cannot be interrupted, to well below 100 microseconds.
	callWeights = 1 << 19
	// chunkBytes bounds the rows that several sweeps read one after the other, from the second-level cache but the first.
	chunkBytes = 256 << 10
	// tailRows is the number of rows whose tails are copied together.
	tailRows = 24
)

// shapes lists, for the vectors one sweep takes, the rows it takes.
type shape struct{ rows, vectors int }

func (b backend) shapes(f kernel.Format) []shape {
	switch {
	case f == kernel.MXFP4 && b.set == avx512:
		return shapesMXFP4AVX512
	case f == kernel.MXFP4:
		return shapesMXFP4AVX2
	case b.set == avx512:
		return shapesAVX512
	}
	return shapesAVX2
}

var (
	shapesAVX512      = []shape{{3, 4}, {4, 2}, {8, 1}}
	shapesAVX2        = []shape{{3, 2}, {2, 1}}
	shapesMXFP4AVX512 = []shape{{4, 1}}
	shapesMXFP4AVX2   = []shape{{2, 1}}
)

// Dot is generic.Backend.Dot.
func (b backend) Dot(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
	if w.Rows == 0 {
		return
	}
	if w.Format == kernel.MXFP4 && vectors >= decodeVectors {
		b.dotDecoded(dst, stride, w, x, vectors)
		return
	}
	tail := w.Cols % block
	if tail == 0 {
		b.dotRows(dst, stride, w, x, vectors, nil)
		return
	}
	row, size := w.Format.RowBytes(w.Stride), w.Format.RowBytes(tail)
	from := w.Format.RowBytes(w.Cols - tail)
	var tails [tailRows][128]byte
	for r := 0; r < w.Rows; r += tailRows {
		n := min(tailRows, w.Rows-r)
		for i := range n {
			copy(tails[i][:size], w.Data[(r+i)*row+from:])
		}
		b.dotRows(dst[r:], stride, w.Slice(r, r+n), x, vectors, &tails[0][0])
	}
}

// dotRows is Dot for rows of whole blocks, or with the last block of each in tails.
func (b backend) dotRows(dst []float32, stride int, w kernel.Tile, x []float32, vectors int, tails *byte) {
	packed := b.PackedLen(w.Format, w.Cols)
	row := w.Format.RowBytes(w.Stride)
	a := dotArgs{stride: uintptr(4 * stride), row: uintptr(row), xStride: uintptr(4 * packed), blocks: uintptr(w.Cols / block)}
	if w.Format == kernel.MXFP4 {
		a.scaleRow = uintptr(w.Cols / kernel.GroupSize)
		a.table = b.table()
	}
	shapes := b.shapes(w.Format)
	chunk := w.Rows
	if vectors > shapes[0].vectors {
		chunk = max(1, chunkBytes/row/24) * 24
	}
	for from := 0; from < w.Rows; from += chunk {
		to := min(from+chunk, w.Rows)
		for v := 0; v < vectors; {
			var s shape
			for _, s = range shapes {
				if s.vectors <= vectors-v {
					break
				}
			}
			a.x = &x[v*packed]
			a.tailX = nil
			if tails != nil {
				a.tailX = &x[v*packed+w.Cols/block*block]
			}
			perCall := max(1, callWeights/w.Cols/s.rows) * s.rows
			for r := from; r < to; {
				n := min(perCall, to-r)
				rows := s.rows
				if n < rows {
					rows = 1
				}
				n = n / rows * rows
				a.groups = uintptr(n / rows)
				a.ahead = uintptr(rows * row)
				a.w = &w.Data[r*row]
				a.dst = &dst[v*stride+r]
				if tails != nil {
					a.tail = (*byte)(unsafe.Add(unsafe.Pointer(tails), r*128))
				}
				b.call(w, r, rows, s.vectors, &a)
				r += n
			}
			v += s.vectors
		}
	}
}

// call does one call of a dot product function on rows from row r.
func (b backend) call(w kernel.Tile, r, rows, vectors int, a *dotArgs) {
	if w.Format != kernel.MXFP4 {
		if b.set == avx512 {
			dotAVX512(w.Format, rows, vectors, a)
		} else {
			dotAVX2(w.Format, rows, vectors, a)
		}
		return
	}
	a.scale = &w.Scale[r*int(a.scaleRow)]
	if b.set == avx512 {
		dotAVX512(w.Format, rows, vectors, a)
		return
	}
	if rows == 2 {
		dotMXFP4R2V1AVX2(a)
		return
	}
	// The AVX2 function always takes two rows: here the same twice.
	for range a.groups {
		one := *a
		var two [2]float32
		one.dst, one.row, one.scaleRow, one.groups = &two[0], 0, 0, 1
		dotMXFP4R2V1AVX2(&one)
		*a.dst = two[0]
		a.w, a.dst = (*byte)(unsafe.Add(unsafe.Pointer(a.w), a.row)), (*float32)(unsafe.Add(unsafe.Pointer(a.dst), 4))
		a.scale = (*byte)(unsafe.Add(unsafe.Pointer(a.scale), a.scaleRow))
	}
}
