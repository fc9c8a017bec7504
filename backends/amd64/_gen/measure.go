package main

// readKernel sums memory up as fast as plain loads go, for measuring.
func readKernel(f *file, s isa) {
	f.function("read"+s.name+" returns the sum, as 64-bit words, of lines of 64 bytes. It is what `k3 bench kernels` measures memory with.",
		"read"+s.name, "p *byte", "lines int", "sum *uint64")
	f.p("MOVQ p+0(FP), SI")
	f.p("MOVQ lines+8(FP), CX")
	f.p("SHRQ $2, CX")
	n := 256 / s.bytes()
	for i := range n {
		f.p("VPXOR X%d, X%d, X%d", i, i, i)
	}
	f.p("TESTQ CX, CX")
	f.p("JZ done")
	f.p("loop:")
	for i := range n {
		f.p("VPADDQ %d(SI), %s, %s", i*s.bytes(), s.r(i), s.r(i))
	}
	f.p("ADDQ $256, SI")
	f.p("DECQ CX")
	f.p("JNZ loop")
	f.p("done:")
	for h := n / 2; h > 0; h /= 2 {
		for i := range h {
			f.p("VPADDQ %s, %s, %s", s.r(i+h), s.r(i), s.r(i))
		}
	}
	f.p("MOVQ sum+16(FP), DI")
	f.p("MOVQ X0, AX")
	f.p("ADDQ AX, (DI)")
	f.p("VZEROUPPER")
	f.p("RET")
}

// peakKernel multiplies and adds as fast as the processor can, for measuring.
func peakKernel(f *file, s isa) {
	name := "peak" + s.name
	f.function(name+" does n rounds of 16 fused multiply-adds of a register, none waiting for another. It is what `k3 bench kernels` measures arithmetic with.",
		name, "n int")
	f.p("MOVQ n+0(FP), CX")
	n := s.regs - 2
	if n > 16 {
		n = 16
	}
	for i := range s.regs {
		f.p("VXORPS %s, %s, %s", s.x(i), s.x(i), s.x(i))
	}
	f.p("loop:")
	for i := range 16 {
		f.p("VFMADD231PS %s, %s, %s", s.r(s.regs-1), s.r(s.regs-2), s.r(i%n))
	}
	f.p("DECQ CX")
	f.p("JNZ loop")
	f.p("VZEROUPPER")
	f.p("RET")
}
