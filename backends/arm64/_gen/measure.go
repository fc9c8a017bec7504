package main

func measureKernels(f *file) {
	params := []param{{"p", "*byte"}, {"lines", "int"}, {"sum", "*uint64"}}
	f.function("readNEON reads 64-byte lines and sets sum to something made of all of them.", "readNEON", params...)
	f.load(0, 0, params...)
	for v := range 4 {
		f.zero(v)
	}
	loop := f.newLabel("line")
	f.p("%s:", loop)
	f.pair(0, "R0", 4, 5)
	f.pair(32, "R0", 6, 7)
	for v := range 4 {
		f.p("VEOR V%d.B16, V%d.B16, V%d.B16", 4+v, v, v)
	}
	f.p("ADD $64, R0")
	f.p("SUB $1, R1")
	f.p("CBNZ R1, %s", loop)
	for v := range 3 {
		f.p("VEOR V%d.B16, V0.B16, V0.B16", 1+v)
	}
	f.p("VEXT $8, V0.B16, V0.B16, V1.B16")
	f.p("VEOR V1.B16, V0.B16, V0.B16")
	f.p("FMOVD F0, (R2)")
	f.p("RET")

	params = []param{{"rounds", "int"}}
	f.function("peakNEON does rounds of peakFlops multiplications and additions that wait for nothing.", "peakNEON", params...)
	f.load(0, 0, params...)
	const accumulators = 24
	for v := range accumulators + 1 {
		f.zero(v)
	}
	loop = f.newLabel("round")
	f.p("%s:", loop)
	for v := range accumulators {
		f.fma(v, accumulators, accumulators)
	}
	f.p("SUB $1, R0")
	f.p("CBNZ R0, %s", loop)
	f.p("RET")
}
