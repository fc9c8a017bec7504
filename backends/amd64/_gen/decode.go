package main

// decodeKernels widens MXFP4 to bfloat16, which holds every scaled weight exactly. With AVX2 and several vectors that is done
// once for a few rows, which then go through the bfloat16 dot product.
func decodeKernels(f *file, s isa) {
	if s != avx2 {
		return
	}
	f.function(`decodeAVX2 widens pairs of groups of 32 weights, one after the other, to bfloat16: dst[i] is E2M1 nibble i of w times the
		factor of its scale byte. It is kernel.Widen. It asks memory for the weights so many bytes ahead.`, "decodeAVX2", "dst *byte", "w *byte", "scale *byte", "pairs int", "table *byte", "ahead int")
	f.p("MOVQ dst+0(FP), DI")
	f.p("MOVQ w+8(FP), SI")
	f.p("MOVQ scale+16(FP), DX")
	f.p("MOVQ pairs+24(FP), CX")
	f.p("MOVQ table+32(FP), R8")
	f.p("MOVQ ahead+40(FP), R9")
	f.p("loop:")
	f.p("PREFETCHT1 (SI)(R9*1)")
	f.p("MOVBLZX (DX), AX")
	f.p("SHLQ $5, AX")
	f.p("MOVBLZX 1(DX), BX")
	f.p("SHLQ $5, BX")
	f.p("VMOVDQU (SI), Y0") // a group in each half
	f.p("VMOVDQU (R8)(AX*1), X2")
	f.p("VINSERTI128 $1, (R8)(BX*1), Y2, Y2")
	f.p("VMOVDQU 16(R8)(AX*1), X3")
	f.p("VINSERTI128 $1, 16(R8)(BX*1), Y3, Y3")
	f.p("VPSRLW $4, Y0, Y1")
	f.p("VPAND %s, Y0, Y0", f.constant("nibble", 0x0f0f0f0f))
	f.p("VPAND %s, Y1, Y1", f.constant("nibble", 0x0f0f0f0f))
	f.p("VPSHUFB Y0, Y2, Y4") // upper bytes of the even weights
	f.p("VPSHUFB Y0, Y3, Y5")
	f.p("VPSHUFB Y1, Y2, Y6") // upper bytes of the odd weights
	f.p("VPSHUFB Y1, Y3, Y7")
	at := 0
	for _, half := range []string{"L", "H"} {
		f.p("VPUNPCK%sBW Y4, Y5, Y8", half)
		f.p("VPUNPCK%sBW Y6, Y7, Y9", half)
		for _, quarter := range []string{"L", "H"} {
			f.p("VPUNPCK%sWD Y9, Y8, Y10", quarter)
			f.p("VMOVDQU X10, %d(DI)", at)
			f.p("VEXTRACTI128 $1, Y10, %d(DI)", at+64)
			at += 16
		}
	}
	f.p("ADDQ $2, DX")
	f.p("ADDQ $32, SI")
	f.p("ADDQ $128, DI")
	f.p("DECQ CX")
	f.p("JNZ loop")
	f.p("VZEROUPPER")
	f.p("RET")
}

// packKernel takes vectors apart into even and odd elements.
func packKernel(f *file, s isa) {
	if s != avx2 {
		return
	}
	f.function(`packSplit copies blocks of 32 elements of x to dst, of each the 16 even ones first, then the 16 odd ones. It serves both
		instruction sets.`, "packSplit", "dst *float32", "x *float32", "blocks int")
	f.p("MOVQ dst+0(FP), DI")
	f.p("MOVQ x+8(FP), SI")
	f.p("MOVQ blocks+16(FP), CX")
	f.p("loop:")
	for half := range 2 {
		f.p("VMOVUPS %d(SI), Y0", 64*half)
		f.p("VMOVUPS %d(SI), Y1", 64*half+32)
		f.p("VSHUFPS $0x88, Y1, Y0, Y2")
		f.p("VSHUFPS $0xdd, Y1, Y0, Y3")
		f.p("VPERMPD $0xd8, Y2, Y2")
		f.p("VPERMPD $0xd8, Y3, Y3")
		f.p("VMOVUPS Y2, %d(DI)", 32*half)
		f.p("VMOVUPS Y3, %d(DI)", 64+32*half)
	}
	f.p("ADDQ $128, SI")
	f.p("ADDQ $128, DI")
	f.p("DECQ CX")
	f.p("JNZ loop")
	f.p("VZEROUPPER")
	f.p("RET")
}
