//go:build amd64 && !noasm

package amd64

import (
	"math"
	"strings"
	"sync"
	"unsafe"

	"github.com/klauspost/cpuid/v2"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/kernel"
)

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

// dotArgs is the argument of the dot product functions, which count in the last fields how far they have come.
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
	tail           *byte // last blocks of the rows, 128 bytes apart, or nil
	tailX          *float32

	// The functions of many vectors ask memory for the next group, and after the last for what is next bytes beyond w.
	next uintptr

	// A call may do a panel of the columns (not with the AVX2 function for MXFP4).
	first, last uintptr  // not 0 for the first and the last panel
	sums        *float32 // accumulators between sweeps and panels, 32 for each row and vector
	sumsStep    uintptr  // bytes from a group's to the next group's, 0 where there is one panel

	// How many bytes the functions have advanced beyond the pointers.
	dstAt, wAt, scaleAt, tailAt, sumsAt uintptr
}

const (
	// callWeights bounds one call of an assembly function, which cannot be interrupted, to well below 100 microseconds.
	callWeights = 1 << 19
	// chunkRows is the number of rows whose tails are copied together, and that go through the panels together. All the
	// numbers of rows that a function takes divide it.
	chunkRows = 24
	// chunkBytes bounds the rows that several sweeps find in the second-level cache, the first excepted.
	chunkBytes = 256 << 10
	// panelBlocks is the width of a panel: what a sweep reads of the vectors beside it, 16 KB, fits the first-level cache.
	panelBlocks = 32
	// decodeRows is the number of rows that are decoded together: a panel of them fits the first-level cache beside the vectors.
	decodeRows = 6
	// panelVectors is the number of vectors from which panels pay.
	panelVectors = 3
)

// scratch is memory for a call of Dot.
type scratch struct {
	sums [chunkRows * kernel.MaxVectors * kernel.Lanes]float32
	wide [decodeRows * panelBlocks * block * 2]byte // weights decoded to bfloat16
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// shape is what a function takes at a time.
type shape struct{ rows, vectors int }

// shapes lists the functions for a format and a number of vectors, those for most vectors first. Each has a twin for one row.
func (b backend) shapes(f kernel.Format, vectors int) []shape {
	switch {
	case b.set == avx512 && f == kernel.F32:
		return shapes[1:]
	case b.set == avx512:
		return shapes
	case f == kernel.MXFP4:
		return shapeMXFP4AVX2
	case vectors == 2:
		return shapeTwoAVX2
	case f == kernel.F32:
		return shapes[3:]
	}
	return shapes
}

var (
	shapes         = []shape{{3, 8}, {3, 4}, {3, 3}, {3, 2}, {3, 1}}
	shapeMXFP4AVX2 = []shape{{2, 1}}
	// shapeTwoAVX2 is for two vectors alone, which wait for memory: the function that goes through the rows once.
	shapeTwoAVX2 = []shape{{1, 2}}
)

// Dot is generic.Backend.Dot.
func (b backend) Dot(dst []float32, stride int, w kernel.Tile, x []float32, vectors int) {
	if w.Rows == 0 {
		return
	}
	var s *scratch
	if vectors > 1 {
		s = scratches.Get().(*scratch)
		defer scratches.Put(s)
	}
	tail := w.Cols % block
	if tail == 0 {
		b.dotRows(dst, stride, w, x, vectors, nil, s)
		return
	}
	row, size := w.Format.RowBytes(w.Stride), w.Format.RowBytes(tail)
	from := w.Format.RowBytes(w.Cols - tail)
	var tails [chunkRows][128]byte
	for r := 0; r < w.Rows; r += chunkRows {
		n := min(chunkRows, w.Rows-r)
		for i := range n {
			copy(tails[i][:size], w.Data[(r+i)*row+from:])
		}
		b.dotRows(dst[r:], stride, w.Slice(r, r+n), x, vectors, &tails[0][0], s)
	}
}

// dotRows is Dot for rows of whole blocks, or with the last block of each in tails.
func (b backend) dotRows(dst []float32, stride int, w kernel.Tile, x []float32, vectors int, tails *byte, s *scratch) {
	packed := b.PackedLen(w.Format, w.Cols)
	blocks := w.Cols / block
	format, list := w.Format, b.shapes(w.Format, vectors)
	a := dotArgs{stride: uintptr(4 * stride), row: uintptr(w.Format.RowBytes(w.Stride)), xStride: uintptr(4 * packed)}
	if w.Format == kernel.MXFP4 {
		a.scaleRow = uintptr(w.Cols / kernel.GroupSize)
		a.table = b.table()
	}
	// One or two vectors go through whole rows, as many at a time as one call may. More go through a few rows panel by panel,
	// so that vectors and weights come from the caches the second time and every time after.
	chunk, panel := w.Rows, max(1, blocks)
	decoded := b.set == avx2 && w.Format == kernel.MXFP4 && vectors >= panelVectors
	switch {
	case decoded:
		chunk, panel = decodeRows, panelBlocks
		format, list, a.row = kernel.BF16, shapes, uintptr(kernel.BF16.RowBytes(panel*block))
	case vectors >= panelVectors && blocks > panelBlocks:
		chunk, panel = chunkRows, panelBlocks
	case vectors >= panelVectors || vectors > list[0].vectors:
		chunk = max(1, chunkBytes/int(a.row)/chunkRows) * chunkRows
	}
	for from := 0; from < w.Rows; from += chunk {
		to := min(from+chunk, w.Rows)
		for p := 0; p == 0 || p < blocks; p += panel {
			n := min(panel, blocks-p)
			a.blocks = uintptr(n)
			a.first, a.last = 0, 0
			if p == 0 {
				a.first = 1
			}
			a.next = uintptr(format.RowBytes(n * block))
			end := p+n == blocks
			if end {
				a.last = 1
				a.next = uintptr((to-from)*int(a.row) - format.RowBytes(p*block))
			}
			if decoded {
				decodePanel(s.wide[:], int(a.row), w.Slice(from, to), p, n)
				a.w, a.next = &s.wide[0], 0
			} else {
				a.w = &w.Data[from*int(a.row)+format.RowBytes(p*block)]
			}
			for v := 0; v < vectors; {
				shape := take(list, vectors-v)
				a.x = &x[v*packed+p*block]
				a.tail, a.tailX = nil, nil
				if end && tails != nil {
					a.tail, a.tailX = (*byte)(unsafe.Add(unsafe.Pointer(tails), from*128)), &x[v*packed+blocks*block]
				}
				a.dst = &dst[v*stride+from]
				if format == kernel.MXFP4 {
					a.scale = &w.Scale[from*int(a.scaleRow)+p]
				}
				if s != nil {
					a.sums = &s.sums[v*chunkRows*kernel.Lanes]
				}
				a.dstAt, a.wAt, a.scaleAt, a.tailAt, a.sumsAt = 0, 0, 0, 0, 0
				b.calls(format, shape, to-from, n, &a)
				v += shape.vectors
			}
		}
	}
}

// take returns the shape of the function for the most of some vectors.
func take(shapes []shape, vectors int) shape {
	for _, s := range shapes {
		if s.vectors <= vectors {
			return s
		}
	}
	panic("amd64: no vectors")
}

// calls takes some rows through the function of a shape, and what is left over of them through that for one row.
func (b backend) calls(f kernel.Format, s shape, rows, blocks int, a *dotArgs) {
	perCall := max(1, callWeights/(max(1, blocks)*block)/s.rows) * s.rows
	for rows > 0 {
		n := min(perCall, rows)
		group := s.rows
		if n < group {
			group = 1
		}
		a.groups = uintptr(n / group)
		if a.first+a.last < 2 {
			a.sumsStep = uintptr(4 * group * s.vectors * kernel.Lanes)
		}
		b.call(f, group, s.vectors, a)
		rows -= n / group * group
	}
}

// call calls one function, which moves a on to the rows after.
func (b backend) call(f kernel.Format, rows, vectors int, a *dotArgs) {
	switch {
	case b.set == avx512:
		dotAVX512(f, rows, vectors, a)
	case f != kernel.MXFP4 || rows > 1:
		dotAVX2(f, rows, vectors, a)
	default:
		// The function always takes two rows: here the same twice.
		one := *a
		var two [2]float32
		one.dst, one.dstAt, one.row, one.scaleRow = &two[0], 0, 0, 0
		dotAVX2(f, 2, vectors, &one)
		*(*float32)(unsafe.Add(unsafe.Pointer(a.dst), a.dstAt)) = two[0]
	}
}

// Read returns something made of all of p, a multiple of 256 bytes, by plain reads: how fast memory is for the bench.
func (b backend) Read(p []byte) uint64 {
	var sum uint64
	if len(p) > 0 {
		if b.set == avx512 {
			readAVX512(&p[0], len(p)/64, &sum)
		} else {
			readAVX2(&p[0], len(p)/64, &sum)
		}
	}
	return sum
}

// Peak does about flops multiplications and additions, as fast as they go: how fast the processor is for the bench.
func (b backend) Peak(flops int) {
	const round = 16 * 2
	for n := flops / round / b.lanes(); n > 0; n -= 1 << 14 {
		if b.set == avx512 {
			peakAVX512(min(n, 1<<14))
		} else {
			peakAVX2(min(n, 1<<14))
		}
	}
}
