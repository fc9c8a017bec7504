package main

import "fmt"

func stateKernels(f *file) {
	for _, format := range []string{"BF16", "F32"} {
		for _, vectors := range []int{1, 2, 4} {
			transposed(f, format, vectors)
		}
	}
	kda(f)
	axpy(f)
}

// transposed keeps 16 registers of results and goes down the rows: the more vectors, the fewer columns.
func transposed(f *file, format string, vectors int) {
	chunks := 16 / vectors // registers of columns
	f.function(fmt.Sprintf("transposed%sV%d adds w[r][c]*x[v][r] to dst[v][c], one fma each, over a.rows rows r "+
		"ascending, for %d columns c and %d "+
		"vectors v. It is generic.Backend.Transposed for %s weights.", format, vectors, 4*chunks, vectors, format),
		fmt.Sprintf("transposed%sV%d", format, vectors), param{"a", "*transposedArgs"})
	f.p("MOVD a+0(FP), R0")
	f.p("MOVD transposedArgs_w(R0), R1")
	f.p("MOVD transposedArgs_row(R0), R2")
	f.p("MOVD transposedArgs_x(R0), R3")
	f.p("MOVD transposedArgs_xStride(R0), R11")
	f.p("MOVD transposedArgs_dst(R0), R8")
	f.p("MOVD transposedArgs_stride(R0), R9")
	f.p("MOVD transposedArgs_rows(R0), R7")
	for v := 1; v < vectors; v++ {
		f.p("ADD R11, %s, %s", xAt(v-1), xAt(v))
	}
	f.zero(zeros)
	dst := func(op string) {
		f.p("MOVD R8, R10")
		for v := range vectors {
			if v > 0 {
				f.p("ADD R9, R10")
			}
			for c := 0; c < chunks; c += 2 {
				if op == "FLDPQ" {
					f.pair(16*c, "R10", v*chunks+c, v*chunks+c+1)
				} else {
					f.p("FSTPQ (F%d, F%d), %d(R10)", v*chunks+c, v*chunks+c+1, 16*c)
				}
			}
		}
	}
	dst("FLDPQ")
	const x, w = 16, 20
	loop := f.newLabel("row")
	f.p("%s:", loop)
	for v := range vectors {
		f.p("VLD1R.P 4(%s), [V%d.S4]", xAt(v), x+v)
	}
	for c := 0; c < chunks; c += 4 {
		at := w + c%8
		for i, wide := range loadWide(f, format, "R1", 4*c, 4, at) {
			for v := range vectors {
				f.fma(v*chunks+c+i, wide, x+v)
			}
		}
	}
	f.p("ADD R2, R1")
	f.p("SUB $1, R7")
	f.p("CBNZ R7, %s", loop)
	dst("FSTPQ")
	f.p("RET")
}

// kda goes down the keys twice with 32 values. The first time it only reads the state: decaying it again costs less than
// writing it.
func kda(f *file) {
	const (
		u, o, s        = 0, 8, 16
		alpha, key, qu = 24, 25, 26
		nan, scratch   = 27, 28
	)
	f.function("kdaNEON does one token of the KDA recurrence for a.dim keys and 32 values. It is "+
		"generic.Backend.KDA.", "kdaNEON", param{"a", "*kdaArgs"})
	f.p("MOVD a+0(FP), R0")
	f.p("MOVD kdaArgs_dim(R0), R7")
	f.p("LSL $2, R7, R8")
	eight := func(load bool, pointer string, v int) {
		for c := 0; c < 8; c += 2 {
			if load {
				f.pair(16*c, pointer, v+c, v+c+1)
			} else {
				f.p("FSTPQ (F%d, F%d), %d(%s)", v+c, v+c+1, 16*c, pointer)
			}
		}
	}
	begin := func() (loop string) {
		f.p("MOVD kdaArgs_s(R0), R1")
		f.p("MOVD kdaArgs_alpha(R0), R2")
		f.p("MOVD kdaArgs_k(R0), R3")
		f.p("MOVD kdaArgs_q(R0), R4")
		f.p("MOVD R7, R9")
		loop = f.newLabel("key")
		f.p("%s:", loop)
		f.p("VLD1R.P 4(R2), [V%d.S4]", alpha)
		f.p("VLD1R.P 4(R3), [V%d.S4]", key)
		eight(true, "R1", s)
		for c := range 8 {
			f.word3("fmul", s+c, s+c, alpha)
		}
		return loop
	}
	end := func(loop string) {
		f.p("ADD R8, R1")
		f.p("SUB $1, R9")
		f.p("CBNZ R9, %s", loop)
	}
	f.p("// u: what the decayed state says of the key")
	for c := range 8 {
		f.zero(u + c)
	}
	loop := begin()
	for c := range 8 {
		f.fma(u+c, key, s+c)
	}
	end(loop)
	f.p("// w = beta*(v-u)")
	f.p("MOVD kdaArgs_v(R0), R5")
	f.p("MOVD kdaArgs_beta(R0), R6")
	f.p("VLD1R (R6), [V%d.S4]", alpha)
	eight(true, "R5", s)
	for c := range 8 {
		f.word3("fsub", u+c, s+c, u+c)
		f.word3("fmul", u+c, u+c, alpha)
	}
	f.p("// write, and read for the output")
	for c := range 8 {
		f.zero(o + c)
	}
	loop = begin()
	f.p("VLD1R.P 4(R4), [V%d.S4]", qu)
	for c := range 8 {
		f.fma(s+c, key, u+c)
	}
	eight(false, "R1", s)
	for c := range 8 {
		f.fma(o+c, qu, s+c)
	}
	end(loop)
	f.setNaN(nan)
	for c := range 8 {
		f.canonical(o+c, nan, scratch)
	}
	f.p("MOVD kdaArgs_o(R0), R5")
	eight(false, "R5", o)
	f.p("RET")
}

func axpy(f *file) {
	params := []param{{"y", "*float32"}, {"a", "float32"}, {"x", "*float32"}, {"blocks", "int"}}
	f.function("axpyNEON sets y[i] = fma(a, x[i], y[i]) for blocks of 16 elements. It is generic.Backend.Axpy.",
		"axpyNEON", params...)
	f.load(0, 16, params...)
	loop := f.newLabel("block")
	f.p("%s:", loop)
	for c := 0; c < 4; c += 2 {
		f.pair(16*c, "R0", c, c+1)
		f.pair(16*c, "R1", 4+c, 4+c+1)
	}
	for c := range 4 {
		f.fma(c, 16, 4+c)
	}
	f.p("FSTPQ (F0, F1), 0(R0)")
	f.p("FSTPQ (F2, F3), 32(R0)")
	f.p("ADD $64, R0")
	f.p("ADD $64, R1")
	f.p("SUB $1, R2")
	f.p("CBNZ R2, %s", loop)
	f.p("RET")
}
