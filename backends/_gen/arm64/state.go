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
	f.P("MOVD a+0(FP), R0")
	f.P("MOVD transposedArgs_w(R0), R1")
	f.P("MOVD transposedArgs_row(R0), R2")
	f.P("MOVD transposedArgs_x(R0), R3")
	f.P("MOVD transposedArgs_xStride(R0), R11")
	f.P("MOVD transposedArgs_dst(R0), R8")
	f.P("MOVD transposedArgs_stride(R0), R9")
	f.P("MOVD transposedArgs_rows(R0), R7")
	for v := 1; v < vectors; v++ {
		f.P("ADD R11, %s, %s", xAt(v-1), xAt(v))
	}
	f.zero(zeros)
	all := newRegisters(0)
	var sums [][]int
	for range vectors {
		sums = append(sums, all.TakeN(chunks))
	}
	dst := func(move mover) {
		f.P("MOVD R8, R10")
		for v, of := range sums {
			if v > 0 {
				f.P("ADD R9, R10")
			}
			move(0, "R10", of)
		}
	}
	f.Note("Load dst[v][c].")
	dst(f.loadAll)
	x := all.TakeN(4)
	w := [][]int{all.TakeN(4), all.TakeN(4)} // in turn
	loop := f.NewLabel("row")
	f.Label(loop)
	f.Note("x[v][r] in all lanes, for each vector.")
	for v := range vectors {
		f.P("VLD1R.P 4(%s), [V%d.S4]", xAt(v), x[v])
	}
	for c := 0; c < chunks; c += 4 {
		f.Note("Columns %d to %d: dst[v][c] = fma(w[r][c], x[v][r], dst[v][c]).", 4*c, 4*c+15)
		for i, wide := range loadWide(f, format, "R1", 4*c, 4, w[c/4%2][0]) {
			for v, of := range sums {
				f.fma(of[c+i], wide, x[v])
			}
		}
	}
	f.Note("On to the next row.")
	f.P("ADD R2, R1")
	f.P("SUB $1, R7")
	f.P("CBNZ R7, %s", loop)
	f.Note("Store dst[v][c].")
	dst(f.storeAll)
	f.P("RET")
}

// kda goes down the keys twice with 32 values. The first time it only reads the state: decaying it again costs less
// than writing it.
func kda(f *file) {
	all := newRegisters(0)
	u, o, s := all.TakeN(8), all.TakeN(8), all.TakeN(8) // s is a row of the state
	alpha, key, query, nan, scratch := all.Take(), all.Take(), all.Take(), all.Take(), all.Take()
	f.function("kdaNEON does one token of the KDA recurrence for a.dim keys and 32 values. It is "+
		"generic.Backend.KDA.", "kdaNEON", param{"a", "*kdaArgs"})
	f.P("MOVD a+0(FP), R0")
	f.P("MOVD kdaArgs_dim(R0), R7")
	f.P("LSL $2, R7, R8")
	begin := func() (loop string) {
		f.P("MOVD kdaArgs_s(R0), R1")
		f.P("MOVD kdaArgs_alpha(R0), R2")
		f.P("MOVD kdaArgs_k(R0), R3")
		f.P("MOVD kdaArgs_q(R0), R4")
		f.P("MOVD R7, R9")
		loop = f.NewLabel("key")
		f.Label(loop)
		f.P("VLD1R.P 4(R2), [V%d.S4]", alpha)
		f.P("VLD1R.P 4(R3), [V%d.S4]", key)
		f.Note("s[i][c] = alpha[i]*s[i][c].")
		f.loadAll(0, "R1", s)
		for _, row := range s {
			f.word3("fmul", row, row, alpha)
		}
		return loop
	}
	end := func(loop string) {
		f.P("ADD R8, R1")
		f.P("SUB $1, R9")
		f.P("CBNZ R9, %s", loop)
	}
	f.Note("First loop, over the keys i: u[c] is what the decayed state says of the key.")
	for _, r := range u {
		f.zero(r)
	}
	loop := begin()
	f.Note("u[c] = fma(k[i], s[i][c], u[c]).")
	for c := range u {
		f.fma(u[c], key, s[c])
	}
	end(loop)
	f.Note("u[c] = beta*(v[c]-u[c]).")
	f.P("MOVD kdaArgs_v(R0), R5")
	f.P("MOVD kdaArgs_beta(R0), R6")
	f.P("VLD1R (R6), [V%d.S4]", alpha)
	beta, v := alpha, s
	f.loadAll(0, "R5", v)
	for c, r := range u {
		f.word3("fsub", r, v[c], r)
		f.word3("fmul", r, r, beta)
	}
	f.Note("Second loop, over the keys i: write the state, and read it for the output.")
	for _, r := range o {
		f.zero(r)
	}
	loop = begin()
	f.Note("s[i][c] = fma(k[i], u[c], s[i][c]), o[c] = fma(q[i], s[i][c], o[c]).")
	f.P("VLD1R.P 4(R4), [V%d.S4]", query)
	for c := range s {
		f.fma(s[c], key, u[c])
	}
	f.storeAll(0, "R1", s)
	for c := range o {
		f.fma(o[c], query, s[c])
	}
	end(loop)
	f.Note("Store o, with canonical NaN.")
	f.setNaN(nan)
	for _, r := range o {
		f.canonical(r, nan, scratch)
	}
	f.P("MOVD kdaArgs_o(R0), R5")
	f.storeAll(0, "R5", o)
	f.P("RET")
}

func axpy(f *file) {
	params := []param{{"y", "*float32"}, {"a", "float32"}, {"x", "*float32"}, {"blocks", "int"}}
	f.function("axpyNEON sets y[i] = fma(a, x[i], y[i]) for blocks of 16 elements. It is generic.Backend.Axpy.",
		"axpyNEON", params...)
	const y, x, blocks = "R0", "R1", "R2"
	const a = 16 // after all others
	f.load(0, a, params...)
	all := newRegisters(0)
	ys, xs := all.TakeN(4), all.TakeN(4)
	loop := f.NewLabel("block")
	f.Label(loop)
	f.Note("16 elements: y = fma(a, x, y).")
	for c := 0; c < 4; c += 2 {
		f.loadAll(16*c, y, ys[c:c+2])
		f.loadAll(16*c, x, xs[c:c+2])
	}
	for c := range ys {
		f.fma(ys[c], a, xs[c])
	}
	f.storeAll(0, y, ys)
	f.P("ADD $64, %s", y)
	f.P("ADD $64, %s", x)
	f.P("SUB $1, %s", blocks)
	f.P("CBNZ %s, %s", blocks, loop)
	f.P("RET")
}
