package main

import "github.com/k3infer/k3/backends/_gen/assembly"

// decodeKernels widens MXFP4 to bfloat16, which holds every scaled weight exactly. With AVX2 and several vectors that
// is done once for a few rows, which then go through the bfloat16 dot product.
func decodeKernels(f *file, s isa) {
	if s != avx2 {
		return
	}
	const (
		dst, w, scale, pairs, table, ahead = "DI", "SI", "DX", "CX", "R8", "R9"
		table0, table1                     = "AX", "BX" // offsets of the tables of the two groups
	)
	f.function(`decodeAVX2 widens pairs of groups of 32 weights, one after the other, to bfloat16: dst[i] is E2M1 nibble i
		of w times the factor of its scale byte. It is kernel.Widen. It
		prefetches the weights the given number of bytes ahead.`,
		"decodeAVX2", argument{"dst", "*byte", dst}, argument{"w", "*byte", w}, argument{"scale", "*byte", scale},
		argument{"pairs", "int", pairs}, argument{"table", "*byte", table}, argument{"ahead", "int", ahead})
	all := newRegisters(s, assembly.OldestFirst, 0)
	even, odd := all.take(), all.take()                    // nibbles
	high, low := all.take(), all.take()                    // tables: upper and lower bytes of the bfloat16 of each nibble
	evenHigh, evenLow := all.take(), all.take()            // bytes of the even weights
	oddHigh, oddLow := all.take(), all.take()              // and of the odd ones
	evens, odds, out := all.take(), all.take(), all.take() // whole bfloat16
	f.Label("loop")
	f.Note("Prefetch, and find the tables of the scales of two groups: 32 bytes each.")
	f.P("PREFETCHT1 (%s)(%s*1)", w, ahead)
	f.P("MOVBLZX (%s), %s", scale, table0)
	f.P("SHLQ $5, %s", table0)
	f.P("MOVBLZX 1(%s), %s", scale, table1)
	f.P("SHLQ $5, %s", table1)
	f.Note("Load the groups and their tables, a group in each half: even and odd nibbles, upper and lower bytes.")
	f.P("VMOVDQU (%s), %s", w, even)
	f.P("VMOVDQU (%s)(%s*1), %s", table, table0, high.x())
	f.P("VINSERTI128 $1, (%s)(%s*1), %s, %s", table, table1, high, high)
	f.P("VMOVDQU 16(%s)(%s*1), %s", table, table0, low.x())
	f.P("VINSERTI128 $1, 16(%s)(%s*1), %s, %s", table, table1, low, low)
	f.P("VPSRLW $4, %s, %s", even, odd)
	f.P("VPAND %s, %s, %s", f.nibble(), even, even)
	f.P("VPAND %s, %s, %s", f.nibble(), odd, odd)
	f.Note("Look the bytes of all weights up.")
	f.P("VPSHUFB %s, %s, %s", even, high, evenHigh)
	f.P("VPSHUFB %s, %s, %s", even, low, evenLow)
	f.P("VPSHUFB %s, %s, %s", odd, high, oddHigh)
	f.P("VPSHUFB %s, %s, %s", odd, low, oddLow)
	at := 0
	for _, half := range []string{"L", "H"} {
		f.Note("Interleave bytes to words and even with odd weights: store weights %d to %d of each group.",
			at/2, at/2+15)
		f.P("VPUNPCK%sBW %s, %s, %s", half, evenHigh, evenLow, evens)
		f.P("VPUNPCK%sBW %s, %s, %s", half, oddHigh, oddLow, odds)
		for _, quarter := range []string{"L", "H"} {
			f.P("VPUNPCK%sWD %s, %s, %s", quarter, odds, evens, out)
			f.P("VMOVDQU %s, %d(%s)", out.x(), at, dst)
			f.P("VEXTRACTI128 $1, %s, %d(%s)", out, at+64, dst)
			at += 16
		}
	}
	f.Note("On to the next pair of groups.")
	f.P("ADDQ $2, %s", scale)
	f.P("ADDQ $32, %s", w)
	f.P("ADDQ $128, %s", dst)
	f.P("DECQ %s", pairs)
	f.P("JNZ loop")
	f.end()
}

// packKernel takes vectors apart into even and odd elements.
func packKernel(f *file, s isa) {
	if s != avx2 {
		return
	}
	const dst, x, blocks = "DI", "SI", "CX"
	f.function(`packSplit copies blocks of 32 elements of x to dst, of each the 16 even ones first, then the 16 odd ones.
		It serves both instruction sets.`,
		"packSplit", argument{"dst", "*float32", dst}, argument{"x", "*float32", x}, argument{"blocks", "int", blocks})
	all := newRegisters(s, assembly.OldestFirst, 0)
	first, second, even, odd := all.take(), all.take(), all.take(), all.take()
	f.Label("loop")
	for half := range 2 {
		f.Note("Take elements %d to %d apart; the quarters that come out of order are put right.", 16*half, 16*half+15)
		f.P("VMOVUPS %d(%s), %s", 64*half, x, first)
		f.P("VMOVUPS %d(%s), %s", 64*half+32, x, second)
		f.P("VSHUFPS $%s, %s, %s, %s", evenSlots, second, first, even)
		f.P("VSHUFPS $%s, %s, %s, %s", oddSlots, second, first, odd)
		f.P("VPERMPD $%s, %s, %s", middleSwapped, even, even)
		f.P("VPERMPD $%s, %s, %s", middleSwapped, odd, odd)
		f.P("VMOVUPS %s, %d(%s)", even, 32*half, dst)
		f.P("VMOVUPS %s, %d(%s)", odd, 64+32*half, dst)
	}
	f.P("ADDQ $128, %s", x)
	f.P("ADDQ $128, %s", dst)
	f.P("DECQ %s", blocks)
	f.P("JNZ loop")
	f.end()
}

// Choices of four slots, two bits each, the first in the lowest.
const (
	lowSlots      = "0x44" // 0 1 0 1
	highSlots     = "0xee" // 2 3 2 3
	evenSlots     = "0x88" // 0 2 0 2
	oddSlots      = "0xdd" // 1 3 1 3
	middleSwapped = "0xd8" // 0 2 1 3

	// The lower, or upper, halves of two registers.
	lowHalves  = "0x20"
	highHalves = "0x31"
)
