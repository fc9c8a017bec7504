//go:build amd64 && !noasm

package amd64

import (
	"math"
	"sync"
	"unsafe"

	"github.com/k3infer/k3/core/kernel"
)

// scaled holds, for each scale byte, the 16 weights times its factor, computed by the definition, so that the subnormal, the
// infinite and the refused scales need no code of their own. A real matrix uses a handful of scales: a few cache lines.
var scaled = sync.OnceValue(func() *scaledTables {
	t := new(scaledTables)
	for s := range 256 {
		for n := range 16 {
			bits := math.Float32bits(kernel.E2M1(byte(n)) * kernel.Scale(byte(s)))
			t.wide[s][n] = bits
			t.half[s][n] = uint16(bits >> 16)
			t.bytes[s][0][n], t.bytes[s][1][n] = byte(bits>>24), byte(bits>>16)
		}
	}
	return t
})

type scaledTables struct {
	wide  [256][16]uint32  // as float32
	half  [256][16]uint16  // as bfloat16, which is exact
	bytes [256][2][16]byte // the upper bytes of those, then the lower ones
}

// table is the table of the one-vector dot product.
func (b backend) table() *byte {
	if b.set == avx512 {
		return (*byte)(unsafe.Pointer(&scaled().wide))
	}
	return (*byte)(unsafe.Pointer(&scaled().bytes))
}

// decodeVectors is the number of vectors from which decoding rows to bfloat16 first is the faster way.
const decodeVectors = 3

// decodeBytes is the size of the buffer that rows are decoded to: a part of the second-level cache.
const decodeBytes = 256 << 10

// dotDecoded is Dot for MXFP4 by way of bfloat16.
func (b backend) dotDecoded(dst []float32, stride int, w kernel.Tile, x []float32, vectors int, s *scratch) {
	rows := decodeBytes / (2 * w.Cols)
	if rows > chunkRows {
		rows = rows / chunkRows * chunkRows
	}
	wide := kernel.Tile{Format: kernel.BF16, Cols: w.Cols, Stride: w.Cols}
	for r := 0; r < w.Rows; r += rows {
		n := min(rows, w.Rows-r)
		part := w.Slice(r, r+n)
		wide.Rows, wide.Data = n, s.wide[:2*n*w.Cols]
		b.decode(wide.Data, part.Data, part.Scale)
		b.dotRows(dst[r:], stride, wide, x, vectors, nil, s)
	}
}

// decode widens whole groups to bfloat16.
func (b backend) decode(dst, w, scale []byte) {
	if b.set == avx512 {
		decodeAVX512(&dst[0], &w[0], &scale[0], len(scale), (*byte)(unsafe.Pointer(&scaled().half)))
		return
	}
	n := len(scale) &^ 1
	if n > 0 {
		decodeAVX2(&dst[0], &w[0], &scale[0], n/2, (*byte)(unsafe.Pointer(&scaled().bytes)))
	}
	if n < len(scale) {
		t := &scaled().half[scale[n]]
		for i, c := range w[16*n:][:16] {
			even, odd := t[c&15], t[c>>4]
			at := dst[64*n+4*i:]
			at[0], at[1], at[2], at[3] = byte(even), byte(even>>8), byte(odd), byte(odd>>8)
		}
	}
}
