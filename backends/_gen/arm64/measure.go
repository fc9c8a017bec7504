package main

func measureKernels(f *file) {
	params := []param{{"p", "*byte"}, {"lines", "int"}, {"sum", "*uint64"}}
	f.function("readNEON reads 64-byte lines and sets sum to something made of all of them.", "readNEON", params...)
	f.load(0, 0, params...)
	for v := range 4 {
		f.zero(v)
	}
	loop := f.NewLabel("line")
	f.Label(loop)
	f.Note("Combine a line, each register of it with one of its own.")
	f.pair(0, "R0", 4, 5)
	f.pair(32, "R0", 6, 7)
	for v := range 4 {
		f.P("VEOR V%d.B16, V%d.B16, V%d.B16", 4+v, v, v)
	}
	f.P("ADD $64, R0")
	f.P("SUB $1, R1")
	f.P("CBNZ R1, %s", loop)
	f.Note("Combine the registers, then their halves.")
	for v := range 3 {
		f.P("VEOR V%d.B16, V0.B16, V0.B16", 1+v)
	}
	f.P("VEXT $8, V0.B16, V0.B16, V1.B16")
	f.P("VEOR V1.B16, V0.B16, V0.B16")
	f.P("FMOVD F0, (R2)")
	f.P("RET")

	params = []param{{"rounds", "int"}}
	f.function("peakNEON does rounds of peakFlops multiplications and additions that wait for nothing.",
		"peakNEON", params...)
	f.load(0, 0, params...)
	const accumulators = 24
	f.Note("The sums, and the factor after them, are zero.")
	for v := range accumulators + 1 {
		if v == accumulators/2 {
			f.Note("The other half.")
		}
		f.zero(v)
	}
	loop = f.NewLabel("round")
	f.Label(loop)
	f.Note("sum[i] = sum[i] + factor*factor.")
	for v := range accumulators {
		if v == accumulators/2 {
			f.Note("The other half.")
		}
		f.fma(v, accumulators, accumulators)
	}
	f.P("SUB $1, R0")
	f.P("CBNZ R0, %s", loop)
	f.P("RET")
}
