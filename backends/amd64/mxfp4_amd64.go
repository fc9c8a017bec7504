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
			t.bytes[s][0][n], t.bytes[s][1][n] = byte(bits>>24), byte(bits>>16)
		}
	}
	return t
})

type scaledTables struct {
	wide  [256][16]uint32  // as float32
	bytes [256][2][16]byte // the upper bytes of the bfloat16 numbers they are, exactly, then the lower ones
}

// table is the table of the dot products.
func (b backend) table() *byte {
	if b.set == avx512 {
		return (*byte)(unsafe.Pointer(&scaled().wide))
	}
	return (*byte)(unsafe.Pointer(&scaled().bytes))
}

// decodePanel widens n blocks of each row of w, from block p, to bfloat16 in rows of dst, so many bytes apart. With AVX2 and
// several vectors that costs less than looking the weights up for each of them. It asks memory for the panel after.
func decodePanel(dst []byte, row int, w kernel.Tile, p, n int) {
	const bytes = kernel.GroupSize / 2
	groups := w.Cols / kernel.GroupSize
	ahead := n * bytes
	if p+n == groups {
		ahead = (w.Rows*groups - p) * bytes
	}
	for r := range w.Rows {
		at := r*groups + p
		decode(dst[r*row:], w.Data[at*bytes:][:n*bytes], w.Scale[at:][:n], ahead)
	}
}

// decode widens whole groups to bfloat16, and asks memory for what is so many bytes ahead of them.
func decode(dst, w, scale []byte, ahead int) {
	n := len(scale) &^ 1
	if n > 0 {
		decodeAVX2(&dst[0], &w[0], &scale[0], n/2, (*byte)(unsafe.Pointer(&scaled().bytes)), ahead)
	}
	if n < len(scale) {
		t := &scaled().wide[scale[n]]
		for i, c := range w[16*n:][:16] {
			even, odd := t[c&15]>>16, t[c>>4]>>16
			at := dst[64*n+4*i:]
			at[0], at[1], at[2], at[3] = byte(even), byte(even>>8), byte(odd), byte(odd>>8)
		}
	}
}
