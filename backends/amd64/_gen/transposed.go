package main

import "fmt"

// transposedKernels write the transposed product: `parts` registers of columns for `vectors` vectors stay in registers while
// the rows go by. Every (column, vector) pair is independent and takes the rows in order.
func transposedKernels(f *file, s isa) {
	for _, k := range transposedVariants(s) {
		k.emit(f)
	}
}

type transposedKernel struct {
	s              isa
	format         string
	parts, vectors int
}

func transposedVariants(s isa) (all []transposedKernel) {
	shapes := [][2]int{{4, 4}, {1, 4}, {8, 1}, {4, 1}, {1, 1}}
	if s == avx2 {
		shapes = [][2]int{{2, 4}, {1, 4}, {8, 1}, {2, 1}, {1, 1}}
	}
	for _, format := range []string{"F32", "BF16", "F16"} {
		for _, n := range shapes {
			all = append(all, transposedKernel{s, format, n[0], n[1]})
		}
	}
	return all
}

func (k transposedKernel) name() string {
	return fmt.Sprintf("transposed%sC%dV%d%s", k.format, k.parts, k.vectors, k.s.name)
}

func (k transposedKernel) emit(f *file) {
	f.function(fmt.Sprintf(`%s adds w[r][c]*x[v][r] to dst[v][c] over the rows r ascending, for %d columns and %d vectors. It is
		generic.Backend.Transposed for %s weights.`, k.name(), k.parts*k.s.lanes, k.vectors, k.format), k.name(), "a *transposedArgs")
	f.p("MOVQ a+0(FP), AX")
	f.p("MOVQ transposedArgs_dst(AX), DI")
	f.p("MOVQ transposedArgs_w(AX), SI")
	f.p("MOVQ transposedArgs_row(AX), R9")
	f.p("MOVQ transposedArgs_x(AX), R10")
	f.p("MOVQ transposedArgs_rows(AX), CX")
	if k.vectors > 1 {
		f.p("MOVQ transposedArgs_xStride(AX), R11")
		f.p("LEAQ (R11)(R11*2), R12")
		f.p("MOVQ transposedArgs_stride(AX), R8")
		f.p("LEAQ (R8)(R8*2), R13")
	}
	dst := func(v, p int) string {
		return fmt.Sprintf("%d%s", p*k.s.bytes(), []string{"(DI)", "(DI)(R8*1)", "(DI)(R8*2)", "(DI)(R13*1)"}[v])
	}
	x := func(v int) string { return []string{"(R10)", "(R10)(R11*1)", "(R10)(R11*2)", "(R10)(R12*1)"}[v] }
	acc := func(v, p int) string { return k.s.r(v*k.parts + p) }
	free := k.parts * k.vectors
	for v := range k.vectors {
		for p := range k.parts {
			f.p("VMOVUPS %s, %s", dst(v, p), acc(v, p))
		}
	}
	f.p("loop:")
	if k.vectors == 1 {
		a := k.s.r(free)
		f.p("VBROADCASTSS %s, %s", x(0), a)
		for p := range k.parts {
			if k.format == "F32" {
				f.p("VFMADD231PS %d(SI), %s, %s", p*k.s.bytes(), a, acc(0, p))
				continue
			}
			t := free + 1 + p%4
			k.widen(f, p, t)
			f.p("VFMADD231PS %s, %s, %s", k.s.r(t), a, acc(0, p))
		}
	} else {
		for p := range k.parts {
			k.widen(f, p, free+p)
		}
		for v := range k.vectors {
			a := k.s.r(free + k.parts + v%2)
			f.p("VBROADCASTSS %s, %s", x(v), a)
			for p := range k.parts {
				f.p("VFMADD231PS %s, %s, %s", k.s.r(free+p), a, acc(v, p))
			}
		}
	}
	for i := 0; i < k.parts*k.columnBytes(); i += 64 {
		f.p("PREFETCHT0 %d(SI)(R9*8)", i)
	}
	f.p("ADDQ R9, SI")
	f.p("ADDQ $4, R10")
	f.p("DECQ CX")
	f.p("JNZ loop")
	for v := range k.vectors {
		for p := range k.parts {
			f.p("VMOVUPS %s, %s", acc(v, p), dst(v, p))
		}
	}
	f.p("VZEROUPPER")
	f.p("RET")
}

// widen loads a register of columns in their order.
func (k transposedKernel) widen(f *file, p, t int) {
	r := k.s.r(t)
	switch k.format {
	case "F32":
		f.p("VMOVUPS %d(SI), %s", p*k.s.bytes(), r)
	case "F16":
		f.p("VCVTPH2PS %d(SI), %s", p*k.s.bytes()/2, r)
	case "BF16":
		f.p("VPMOVZXWD %d(SI), %s", p*k.s.bytes()/2, r)
		f.p("VPSLLD $16, %s, %s", r, r)
	}
}

// columnBytes is the size of a register of columns.
func (k transposedKernel) columnBytes() int {
	if k.format == "F32" {
		return k.s.bytes()
	}
	return k.s.bytes() / 2
}
