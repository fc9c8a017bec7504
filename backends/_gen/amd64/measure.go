package main

import "github.com/k3infer/k3/backends/_gen/assembly"

func measureKernels(f *file, s isa) {
	readKernel(f, s)
	peakKernel(f, s)
}

// readKernel sums memory up as fast as plain loads go, for measuring.
func readKernel(f *file, s isa) {
	const p, rounds, sum, total = "SI", "CX", "DI", "AX"
	const roundBytes = 256 // four lines
	name := "read" + s.name
	f.function(name+" returns the sum, as 64-bit words, of lines of 64 bytes. It is what `k3 bench kernels` measures "+
		"memory with.", name, argument{"p", "*byte", p}, argument{"lines", "int", rounds}, argument{"sum", "*uint64", ""})
	f.P("SHRQ $2, %s", rounds)
	sums := newRegisters(s, assembly.OldestFirst, 0).takeN(roundBytes / s.bytes())
	for _, r := range sums {
		f.P("VPXOR %s, %s, %s", r.x(), r.x(), r.x())
	}
	f.P("TESTQ %s, %s", rounds, rounds)
	f.P("JZ done")
	f.Label("loop")
	f.Note("Add four lines, each register of them to sums of its own.")
	for i, r := range sums {
		f.P("VPADDQ %d(%s), %s, %s", i*s.bytes(), p, r, r)
	}
	f.P("ADDQ $%d, %s", roundBytes, p)
	f.P("DECQ %s", rounds)
	f.P("JNZ loop")
	f.Label("done")
	f.Note("Add the registers up; of the result, the lowest word is something made of all the memory.")
	for h := len(sums) / 2; h > 0; h /= 2 {
		for i := range h {
			f.P("VPADDQ %s, %s, %s", sums[i+h], sums[i], sums[i])
		}
	}
	f.P("MOVQ sum+16(FP), %s", sum)
	f.P("MOVQ %s, %s", sums[0].x(), total)
	f.P("ADDQ %s, (%s)", total, sum)
	f.end()
}

// peakKernel multiplies and adds as fast as the processor can, for measuring.
func peakKernel(f *file, s isa) {
	const rounds = "CX"
	const operations = 16 // a round
	name := "peak" + s.name
	f.function(name+" does n rounds of 16 fused multiply-adds of a register, none waiting for another. It is what "+
		"`k3 bench kernels` measures arithmetic with.", name, argument{"n", "int", rounds})
	f.Note("All registers are zero.")
	all := newRegisters(s, assembly.OldestFirst, 0).takeN(s.regs)
	for i, r := range all {
		if i == operations {
			f.Note("And the other half of them.")
		}
		f.zeroShort(r)
	}
	sums, a, b := all[:s.regs-2], all[s.regs-2], all[s.regs-1]
	sums = sums[:min(len(sums), operations)]
	f.Label("loop")
	f.Note("sum[i] = a*b + sum[i] for %d sums.", len(sums))
	for i := range operations {
		f.P("VFMADD231PS %s, %s, %s", b, a, sums[i%len(sums)])
	}
	f.P("DECQ %s", rounds)
	f.P("JNZ loop")
	f.end()
}
