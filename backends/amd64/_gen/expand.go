package main

// expandKernel makes bfloat16 of compressed weights: 256 a chunk, in 8 groups of 32 bytes of sign and mantissa, and three
// times 32 bytes of exponent bits (docs/packs.md).
func expandKernel(f *file, s isa) {
	if s != avx2 {
		return
	}
	f.function(`expandAVX2 makes chunks of 256 weights from chunks of 352 bytes whose exponents begin at lowest. It is pack.Expand of a
		block without exceptions. It serves both instruction sets.`, "expandAVX2", "dst *byte", "src *byte", "chunks int", "lowest *byte")
	f.p("MOVQ dst+0(FP), DI")
	f.p("MOVQ src+8(FP), SI")
	f.p("MOVQ chunks+16(FP), CX")
	f.p("MOVQ lowest+24(FP), AX")
	f.p("VPBROADCASTB (AX), Y15")
	f.p("VMOVDQU %s, Y14", f.constant("lowBits", 0x03030303))
	f.p("VMOVDQU %s, Y13", f.constant("highBit", 0x04040404))
	f.p("VMOVDQU %s, Y12", f.constant("mantissa", 0x007f007f))
	f.p("VMOVDQU %s, Y11", f.constant("sign", 0x80008000))
	f.p("VMOVDQU %s, Y10", f.constant("exponent", 0x7f807f80))
	f.p("loop:")
	f.p("VMOVDQU 256(SI), Y0") // lower two bits of groups 0 to 3
	f.p("VMOVDQU 288(SI), Y1") // and of groups 4 to 7
	f.p("VMOVDQU 320(SI), Y2") // third bits
	for g := range 8 {
		if g < 6 {
			f.p("PREFETCHT0 %d(SI)", 4096+64*g) // a chunk's lines: without, a third slower from memory
		}
		// Y4: the exponents.
		low := g / 4
		if g%4 > 0 {
			f.p("VPSRLW $%d, Y%d, Y4", 2*(g%4), low)
			low = 4
		}
		f.p("VPAND Y14, Y%d, Y4", low)
		third := 2
		if g < 2 {
			f.p("VPSLLW $%d, Y2, Y5", 2-g)
			third = 5
		} else if g > 2 {
			f.p("VPSRLW $%d, Y2, Y5", g-2)
			third = 5
		}
		f.p("VPAND Y13, Y%d, Y5", third)
		f.p("VPADDB Y15, Y4, Y4")
		f.p("VPADDB Y5, Y4, Y4")
		f.p("VMOVDQU %d(SI), Y6", 32*g) // signs and mantissas
		// Weights 0 to 15 are in the even bytes.
		f.p("VPAND Y12, Y6, Y7")
		f.p("VPSLLW $8, Y6, Y8")
		f.p("VPAND Y11, Y8, Y8")
		f.p("VPSLLW $8, Y4, Y9")
		f.p("VPSRLW $1, Y9, Y9")
		f.p("VPOR Y7, Y8, Y8")
		f.p("VPOR Y8, Y9, Y9")
		f.p("VMOVDQU Y9, %d(DI)", 64*g)
		// Weights 16 to 31 are in the odd ones.
		f.p("VPSRLW $8, Y6, Y7")
		f.p("VPAND Y12, Y7, Y7")
		f.p("VPAND Y11, Y6, Y6")
		f.p("VPSRLW $1, Y4, Y4")
		f.p("VPAND Y10, Y4, Y4")
		f.p("VPOR Y7, Y6, Y6")
		f.p("VPOR Y6, Y4, Y4")
		f.p("VMOVDQU Y4, %d(DI)", 64*g+32)
	}
	f.p("ADDQ $352, SI")
	f.p("ADDQ $512, DI")
	f.p("DECQ CX")
	f.p("JNZ loop")
	f.p("VZEROUPPER")
	f.p("RET")
}
