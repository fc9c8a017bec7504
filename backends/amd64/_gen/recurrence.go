package main

import "fmt"

// recurrenceKernels write the KDA step for one token and `parts` registers of columns: columns are independent of each other.
// The first loop reads the state; the second repeats the decay, which is one product, rather than having stored it, writes
// the state once, and gives the output. A block of columns is small enough for the second loop, and the steps of further
// tokens, to find it in the first-level cache.
func recurrenceKernels(f *file, s isa) {
	for _, parts := range []int{8, 1} {
		recurrence(f, s, parts)
	}
}

func recurrence(f *file, s isa, parts int) {
	name := fmt.Sprintf("kdaC%d%s", parts, s.name)
	f.function(fmt.Sprintf(`%s advances %d columns of the state of a head by one token. It is the body of generic.Backend.KDA.`, name, parts*s.lanes),
		name, "a *kdaArgs")
	f.p("MOVQ a+0(FP), AX")
	f.p("MOVQ kdaArgs_row(AX), R9")
	f.p("MOVQ kdaArgs_k(AX), R10")
	f.p("MOVQ kdaArgs_alpha(AX), R11")
	f.p("MOVQ kdaArgs_q(AX), R12")
	// Registers: u and o, then one or more for the state, then the broadcasts. Where u and o do not both fit, they share
	// registers, and what u became is read from memory.
	spill := 2*parts+4 > s.regs
	first := parts
	if spill {
		first = 0
	}
	states := min(parts, s.regs-first-parts-3)
	u := func(p int) string { return s.r(p) }
	o := func(p int) string { return s.r(first + p) }
	t := func(p int) string { return s.r(first + parts + p%states) }
	alpha, k, q := s.r(first+parts+states), s.r(first+parts+states+1), s.r(first+parts+states+2)
	for p := range parts {
		f.p("VXORPS %s, %s, %s", u(p), u(p), u(p))
		if !spill {
			f.p("VXORPS %s, %s, %s", o(p), o(p), o(p))
		}
	}
	f.p("MOVQ kdaArgs_s(AX), SI")
	f.p("MOVQ kdaArgs_dim(AX), CX")
	f.p("MOVQ kdaArgs_first(AX), R8")
	f.p("MOVQ kdaArgs_ask(AX), R13")
	f.p("XORQ BX, BX")
	f.p("read:")
	f.p("VBROADCASTSS (R11)(BX*4), %s", alpha)
	f.p("VBROADCASTSS (R10)(BX*4), %s", k)
	for p := range parts {
		f.p("VMULPS %d(SI), %s, %s", p*s.bytes(), alpha, t(p))
		f.p("VFMADD231PS %s, %s, %s", t(p), k, u(p))
	}
	// The first token asks memory for rows to come.
	f.p("TESTQ R8, R8")
	f.p("JEQ readOn")
	for i := 0; i < parts*s.bytes(); i += 64 {
		f.p("PREFETCHT0 %d(SI)(R9*4)", i)
	}
	f.p("readOn:")
	f.p("ADDQ R9, SI")
	f.p("INCQ BX")
	f.p("CMPQ BX, CX")
	f.p("JNE read")
	// u becomes beta*(v-u).
	f.p("MOVQ kdaArgs_v(AX), DI")
	f.p("MOVQ kdaArgs_beta(AX), DX")
	f.p("VBROADCASTSS (DX), %s", k)
	for p := range parts {
		f.p("VMOVUPS %d(DI), %s", p*s.bytes(), t(p))
		f.p("VSUBPS %s, %s, %s", u(p), t(p), u(p))
		f.p("VMULPS %s, %s, %s", u(p), k, u(p))
		if spill {
			f.p("VMOVUPS %s, kdaArgs_w+%d(AX)", u(p), p*s.bytes())
			f.p("VXORPS %s, %s, %s", o(p), o(p), o(p))
		}
	}
	f.p("MOVQ kdaArgs_s(AX), SI")
	f.p("XORQ BX, BX")
	f.p("write:")
	f.p("VBROADCASTSS (R11)(BX*4), %s", alpha)
	f.p("VBROADCASTSS (R10)(BX*4), %s", k)
	f.p("VBROADCASTSS (R12)(BX*4), %s", q)
	for p := range parts {
		f.p("VMULPS %d(SI), %s, %s", p*s.bytes(), alpha, t(p))
		if spill {
			f.p("VFMADD231PS kdaArgs_w+%d(AX), %s, %s", p*s.bytes(), k, t(p))
		} else {
			f.p("VFMADD231PS %s, %s, %s", u(p), k, t(p))
		}
		f.p("VFMADD231PS %s, %s, %s", t(p), q, o(p))
		f.p("VMOVUPS %s, %d(SI)", t(p), p*s.bytes())
	}
	// Where a head is several blocks, memory would rest during this loop: it is asked for the head's next block. The next head
	// may be another thread's, and its lines must stay there.
	f.p("TESTQ R13, R13")
	f.p("JEQ writeOn")
	for i := 0; i < parts*s.bytes(); i += 64 {
		f.p("PREFETCHT1 %d(SI)(R13*1)", i)
	}
	f.p("writeOn:")
	f.p("ADDQ R9, SI")
	f.p("INCQ BX")
	f.p("CMPQ BX, CX")
	f.p("JNE write")
	f.p("MOVQ kdaArgs_o(AX), DI")
	v := newVec(f, s)
	v.free = []int{first + parts}
	for p := range parts {
		v.canonical(reg(first + p))
		v.store(reg(first+p), fmt.Sprintf("%d(DI)", p*s.bytes()))
	}
	f.p("VZEROUPPER")
	f.p("RET")
}
