package main

import "github.com/k3infer/k3/backends/_gen/assembly"

// expandKernel makes bfloat16 of compressed weights: 256 a chunk, in 8 groups of 32 bytes of sign and mantissa, and
// three times 32 bytes of exponent bits (docs/packs.md).
func expandKernel(f *file, s isa) {
	if s != avx2 {
		return
	}
	const (
		dst, src, chunks, lowest = "DI", "SI", "CX", "AX"
		groups                   = 8
		exponentsAt              = 256 // after the signs and mantissas
		chunkBytes               = 352
		aheadBytes               = 4096
	)
	f.function(`expandAVX2 makes chunks of 256 weights from chunks of 352 bytes whose exponents begin at lowest. It is
		pack.Expand of a block without exceptions. It serves both instruction sets.`, "expandAVX2",
		argument{"dst", "*byte", dst}, argument{"src", "*byte", src}, argument{"chunks", "int", chunks},
		argument{"lowest", "*byte", lowest})
	all := newRegisters(s, assembly.OldestFirst, 0)
	low := all.takeN(2) // the lower two bits of the exponents of groups 0 to 3, and of groups 4 to 7
	third := all.take() // the third bits of all groups
	_ = all.take()      // not needed
	exponents, thirds, bytes := all.take(), all.take(), all.take()
	mantissa, sign, wide := all.take(), all.take(), all.take()
	base, lowBits, highBit := all.takeLast(), all.takeLast(), all.takeLast()
	mantissaMask, signMask, exponentMask := all.takeLast(), all.takeLast(), all.takeLast()
	f.Note("Constants: the lowest exponent in every byte, and masks.")
	f.P("VPBROADCASTB (%s), %s", lowest, base)
	f.P("VMOVDQU %s, %s", f.constant("lowBits", 0x03030303), lowBits)
	f.P("VMOVDQU %s, %s", f.constant("highBit", 0x04040404), highBit)
	f.P("VMOVDQU %s, %s", f.constant("mantissa", 0x007f007f), mantissaMask)
	f.P("VMOVDQU %s, %s", f.constant("sign", 0x80008000), signMask)
	f.P("VMOVDQU %s, %s", f.constant("exponent", 0x7f807f80), exponentMask)
	f.Label("loop")
	f.Note("A chunk's exponent bits: the lower two of groups 0 to 3, of groups 4 to 7, and the third of all.")
	f.P("VMOVDQU %d(%s), %s", exponentsAt, src, low[0])
	f.P("VMOVDQU %d(%s), %s", exponentsAt+32, src, low[1])
	f.P("VMOVDQU %d(%s), %s", exponentsAt+64, src, third)
	for g := range groups {
		f.Note("Group %d, weights %d to %d: exponent = lowest + lower two bits + third bit.", g, 32*g, 32*g+31)
		if 64*g < chunkBytes {
			f.P("PREFETCHT0 %d(%s)", aheadBytes+64*g, src) // a chunk's lines: without, a third slower from memory
		}
		from := low[g/4]
		if g%4 > 0 {
			f.P("VPSRLW $%d, %s, %s", 2*(g%4), from, exponents)
			from = exponents
		}
		f.P("VPAND %s, %s, %s", lowBits, from, exponents)
		from = third
		if g < 2 {
			f.P("VPSLLW $%d, %s, %s", 2-g, third, thirds)
			from = thirds
		} else if g > 2 {
			f.P("VPSRLW $%d, %s, %s", g-2, third, thirds)
			from = thirds
		}
		f.P("VPAND %s, %s, %s", highBit, from, thirds)
		f.P("VPADDB %s, %s, %s", base, exponents, exponents)
		f.P("VPADDB %s, %s, %s", thirds, exponents, exponents)
		f.P("VMOVDQU %d(%s), %s", 32*g, src, bytes)
		f.Note("Weights %d to %d are in the even bytes: put mantissa, sign and exponent together.", 32*g, 32*g+15)
		f.P("VPAND %s, %s, %s", mantissaMask, bytes, mantissa)
		f.P("VPSLLW $8, %s, %s", bytes, sign)
		f.P("VPAND %s, %s, %s", signMask, sign, sign)
		f.P("VPSLLW $8, %s, %s", exponents, wide)
		f.P("VPSRLW $1, %s, %s", wide, wide)
		f.P("VPOR %s, %s, %s", mantissa, sign, sign)
		f.P("VPOR %s, %s, %s", sign, wide, wide)
		f.P("VMOVDQU %s, %d(%s)", wide, 64*g, dst)
		f.Note("Weights %d to %d are in the odd bytes.", 32*g+16, 32*g+31)
		f.P("VPSRLW $8, %s, %s", bytes, mantissa)
		f.P("VPAND %s, %s, %s", mantissaMask, mantissa, mantissa)
		f.P("VPAND %s, %s, %s", signMask, bytes, bytes)
		f.P("VPSRLW $1, %s, %s", exponents, exponents)
		f.P("VPAND %s, %s, %s", exponentMask, exponents, exponents)
		f.P("VPOR %s, %s, %s", mantissa, bytes, bytes)
		f.P("VPOR %s, %s, %s", bytes, exponents, exponents)
		f.P("VMOVDQU %s, %d(%s)", exponents, 64*g+32, dst)
	}
	f.Note("On to the next chunk.")
	f.P("ADDQ $%d, %s", chunkBytes, src)
	f.P("ADDQ $512, %s", dst)
	f.P("DECQ %s", chunks)
	f.P("JNZ loop")
	f.end()
}
