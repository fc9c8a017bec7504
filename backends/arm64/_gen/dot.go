package main

import "fmt"

// rows is the number of rows a dot product takes at a time.
const rows = 2

// dotKernel is a function that goes down pairs of rows with some vectors. With more vectors fewer of the 32 lanes fit the
// registers at a time, so that the columns are swept `parts` times, for 32/parts lanes each.
type dotKernel struct {
	format         string
	vectors, parts int
}

func dotKernels(f *file) {
	for _, format := range []string{"BF16", "F32"} {
		for _, k := range []dotKernel{{format, 1, 1}, {format, 2, 2}, {format, 4, 4}} {
			k.emit(f)
		}
	}
	dotMXFP4(f)
	decodeMXFP4(f)
	decodeF16(f)
	trees(f)
}

// Registers of the dot products.
const (
	args   = "R0" // *dotArgs
	row0   = "R1"
	row1   = "R2"
	count  = "R7"  // blocks to go
	sums   = "R8"  // of the pair of rows
	rowLen = "R9"  // bytes from row to row
	pairs  = "R10" // pairs of rows to go
	sumsOf = "R11" // of a vector
	first  = "R12" // row0 at the first column
	tmp    = "R13"
)

// xAt is the register that points into vector v.
func xAt(v int) string { return fmt.Sprintf("R%d", 3+v) }

const zeros = 31 // the vector register that is 0

// begin loads the arguments and opens the loop over pairs of rows. setup, which may be nil, comes before the loop.
func (k dotKernel) begin(f *file, setup func()) (label string) {
	f.function(fmt.Sprintf("dot%sV%d adds w[r][i]*x[v][i], i ascending and one fma each, to accumulator i mod 32 "+
		"of row r and vector v in "+
		"a.sums, for a.pairs pairs of rows and %d vectors. It is the inner loop of generic.Backend.Dot for %s weights.",
		k.format, k.vectors, k.vectors, k.format), fmt.Sprintf("dot%sV%d", k.format, k.vectors), param{"a", "*dotArgs"})
	f.p("MOVD a+0(FP), %s", args)
	f.p("MOVD dotArgs_w(%s), %s", args, first)
	f.p("MOVD dotArgs_row(%s), %s", args, rowLen)
	f.p("MOVD dotArgs_sums(%s), %s", args, sums)
	f.p("MOVD dotArgs_pairs(%s), %s", args, pairs)
	f.zero(zeros)
	if setup != nil {
		setup()
	}
	label = f.newLabel("pair")
	f.p("%s:", label)
	return label
}

// end goes on to the next pair of rows.
func (k dotKernel) end(f *file, label string) {
	f.p("ADD %s<<1, %s, %s", rowLen, first, first)
	f.p("ADD $%d, %s", rows*128, sums)
	f.p("SUB $1, %s", pairs)
	f.p("CBNZ %s, %s", pairs, label)
	f.p("RET")
}

// accumulators loads or stores those of a part.
func (k dotKernel) accumulators(f *file, op string, part, chunks int) {
	for v := range k.vectors {
		at := sums
		if v > 0 {
			at = sumsOf
			f.p("ADD $(%d*const_sumsStride), %s, %s", v, sums, at)
		}
		for r := range rows {
			for c := 0; c < chunks; c += 2 {
				acc := (r*k.vectors+v)*chunks + c
				where := fmt.Sprintf("%d(%s)", r*128+(part*chunks+c)*16, at)
				if op == "FLDPQ" {
					f.p("FLDPQ %s, (F%d, F%d)", where, acc, acc+1)
				} else {
					f.p("FSTPQ (F%d, F%d), %s", acc, acc+1, where)
				}
			}
		}
	}
}

// pointers sets the pointers of rows and vectors to a part of the first block.
func (k dotKernel) pointers(f *file, wOffset, xOffset int) {
	f.p("MOVD dotArgs_x(%s), %s", args, xAt(0))
	if xOffset > 0 {
		f.p("ADD $%d, %s", xOffset, xAt(0))
	}
	if k.vectors > 1 {
		f.p("MOVD dotArgs_xStride(%s), %s", args, tmp)
	}
	for v := 1; v < k.vectors; v++ {
		f.p("ADD %s, %s, %s", tmp, xAt(v-1), xAt(v))
	}
	f.p("ADD $%d, %s, %s", wOffset, first, row0)
	f.p("ADD %s, %s, %s", rowLen, row0, row1)
	f.p("MOVD dotArgs_blocks(%s), %s", args, count)
}

func (k dotKernel) emit(f *file) {
	size := map[string]int{"F32": 4, "BF16": 2}[k.format]
	chunks := 8 / k.parts   // registers of four lanes a row, vector and part
	some := min(4, chunks)  // of them at a time
	const x = rows * 8      // first register after the accumulators, which are always 16
	w := x + k.vectors*some // first register of the weights: four a row if they fit
	label := k.begin(f, nil)
	for part := range k.parts {
		f.p("// lanes %d to %d", part*4*chunks, (part+1)*4*chunks-1)
		k.accumulators(f, "FLDPQ", part, chunks)
		k.pointers(f, part*4*chunks*size, part*4*chunks*4)
		loop := f.newLabel("block")
		f.p("%s:", loop)
		for c := 0; c < chunks; c += some {
			for v := range k.vectors {
				for i := 0; i < some; i += 2 {
					f.pair(16*(c+i), xAt(v), x+v*some+i, x+v*some+i+1)
				}
			}
			for r, pointer := range []string{row0, row1} {
				at := w + r*some
				if at+some > zeros {
					at = w
				}
				wide := loadWide(f, k.format, pointer, 4*c, some, at)
				for i := range some {
					for v := range k.vectors {
						f.fma((r*k.vectors+v)*chunks+c+i, wide[i], x+v*some+i)
					}
				}
			}
		}
		for v := range k.vectors {
			f.p("ADD $128, %s", xAt(v))
		}
		f.p("ADD $%d, %s", 32*size, row0)
		f.p("ADD $%d, %s", 32*size, row1)
		f.p("SUB $1, %s", count)
		f.p("CBNZ %s, %s", count, loop)
		k.accumulators(f, "FSTPQ", part, chunks)
	}
	k.end(f, label)
}

// loadWide loads 4*n weights (n is 2 or 4), from that of index i on, into the n registers from v on, and says which has which.
func loadWide(f *file, format, pointer string, i, n, v int) []int {
	switch {
	case format == "F32":
		for c := 0; c < n; c += 2 {
			f.pair(4*i+16*c, pointer, v+c, v+c+1)
		}
		return []int{v, v + 1, v + 2, v + 3}[:n]
	case n == 2:
		f.p("FMOVQ %d(%s), F%d", 2*i, pointer, v)
		zip(f, v, v+1)
		return []int{v + 1, v}
	}
	f.pair(2*i, pointer, v, v+1)
	zip(f, v, v+2)
	zip(f, v+1, v+3)
	return []int{v + 2, v, v + 3, v + 1}
}

// zip widens the eight bfloat16 in v: the lower four to low, the upper four in place.
func zip(f *file, v, low int) {
	f.p("VZIP1 V%d.H8, V%d.H8, V%d.H8", v, zeros, low)
	f.p("VZIP2 V%d.H8, V%d.H8, V%d.H8", v, zeros, v)
}

// nibbles takes the 32 weights in v apart, in order, a byte each: the lower 16 to low, the upper 16 to high. mask has 15 in
// every byte.
func nibbles(f *file, v, low, high, mask int) {
	f.p("VAND V%d.B16, V%d.B16, V%d.B16", mask, v, high)
	f.p("VUSHR $4, V%d.B16, V%d.B16", v, v)
	f.p("VZIP1 V%d.B16, V%d.B16, V%d.B16", v, high, low)
	f.p("VZIP2 V%d.B16, V%d.B16, V%d.B16", v, high, high)
}

// lookUp turns the 16 nibbles in n into bfloat16 by the two tables of their scale, the lower eight to low, the upper eight to
// high, and overwrites n.
func lookUp(f *file, n, tableHigh, tableLow, low, high int) {
	f.p("VTBL V%d.B16, [V%d.B16], V%d.B16", n, tableHigh, high)
	f.p("VTBL V%d.B16, [V%d.B16], V%d.B16", n, tableLow, n)
	f.p("VZIP1 V%d.B16, V%d.B16, V%d.B16", high, n, low)
	f.p("VZIP2 V%d.B16, V%d.B16, V%d.B16", high, n, high)
}

// dotMXFP4 looks the two upper bytes of each scaled weight up in the tables of its scale; from there on it is as for bfloat16.
func dotMXFP4(f *file) {
	k := dotKernel{"MXFP4", 1, 1}
	const (
		x                   = 16 // eight registers
		tableHigh, tableLow = 24, 25
		w, n1, n0, t        = 26, 27, 28, 29
		mask                = 30
		scale0, scale1      = "R4", "R5"
		scaleFirst          = "R6" // row 0 at the first column
		scaleRow            = "R14"
		table               = "R15"
	)
	label := k.begin(f, func() {
		f.p("MOVD dotArgs_scale(%s), %s", args, scaleFirst)
		f.p("MOVD dotArgs_scaleRow(%s), %s", args, scaleRow)
		f.p("MOVD dotArgs_table(%s), %s", args, table)
		f.p("VMOVI $15, V%d.B16", mask)
	})
	k.accumulators(f, "FLDPQ", 0, 8)
	k.pointers(f, 0, 0)
	f.p("MOVD %s, %s", scaleFirst, scale0)
	f.p("ADD %s, %s, %s", scaleRow, scale0, scale1)
	loop := f.newLabel("block")
	f.p("%s:", loop)
	for c := 0; c < 8; c += 2 {
		f.pair(16*c, xAt(0), x+c, x+c+1)
	}
	f.p("ADD $128, %s", xAt(0))
	for r, pointer := range []string{row0, row1} {
		scale := []string{scale0, scale1}[r]
		f.p("MOVBU.P 1(%s), %s", scale, tmp)
		f.p("ADD %s<<5, %s, %s", tmp, table, tmp)
		f.pair(0, tmp, tableHigh, tableLow)
		f.p("FMOVQ.P 16(%s), F%d", pointer, w)
		nibbles(f, w, n0, n1, mask)
		for half, n := range []int{n0, n1} {
			lookUp(f, n, tableHigh, tableLow, t, w)
			for i, v := range []int{t, w} {
				acc, xv := r*8+half*4+i*2, x+half*4+i*2
				zip(f, v, n)
				f.fma(acc, n, xv)
				f.fma(acc+1, v, xv+1)
			}
		}
	}
	f.p("SUB $1, %s", count)
	f.p("CBNZ %s, %s", count, loop)
	k.accumulators(f, "FSTPQ", 0, 8)
	f.p("ADD %s<<1, %s, %s", scaleRow, scaleFirst, scaleFirst)
	k.end(f, label)
}

// decodeMXFP4 is for more vectors than one, which share the work of decoding.
func decodeMXFP4(f *file) {
	params := []param{{"dst", "*byte"}, {"w", "*byte"}, {"scale", "*byte"}, {"groups", "int"}, {"table", "*scaledTables"}}
	f.function("decodeMXFP4 widens groups of 32 weights, one after the other, to bfloat16: dst[i] is E2M1 nibble i "+
		"of w times the "+
		"factor of its scale byte. It is kernel.Widen.", "decodeMXFP4", params...)
	f.load(0, 0, params...)
	f.p("VMOVI $15, V30.B16")
	loop := f.newLabel("group")
	f.p("%s:", loop)
	f.p("MOVBU.P 1(R2), R5")
	f.p("ADD R5<<5, R4, R5")
	f.pair(0, "R5", 0, 1)
	f.p("FMOVQ.P 16(R1), F2")
	nibbles(f, 2, 3, 4, 30)
	lookUp(f, 3, 0, 1, 5, 6)
	lookUp(f, 4, 0, 1, 7, 16)
	f.p("FSTPQ (F5, F6), 0(R0)")
	f.p("FSTPQ (F7, F16), 32(R0)")
	f.p("ADD $64, R0")
	f.p("SUB $1, R3")
	f.p("CBNZ R3, %s", loop)
	f.p("RET")
}

func decodeF16(f *file) {
	params := []param{{"dst", "*byte"}, {"w", "*byte"}, {"blocks", "int"}}
	f.function("decodeF16 widens blocks of 32 float16 to float32. It is kernel.Widen.", "decodeF16", params...)
	f.load(0, 0, params...)
	loop := f.newLabel("block")
	f.p("%s:", loop)
	for half := range 2 {
		f.pair(32*half, "R1", 0, 1)
		for i := range 2 {
			f.word2("fcvtl", 2, i)
			f.word2("fcvtl2", 3, i)
			f.p("FSTPQ (F2, F3), %d(R0)", 64*half+32*i)
		}
	}
	f.p("ADD $64, R1")
	f.p("ADD $128, R0")
	f.p("SUB $1, R2")
	f.p("CBNZ R2, %s", loop)
	f.p("RET")
}

// trees adds accumulators up, and squares and sums fill them for the norms and softmax.
func trees(f *file) {
	params := []param{{"dst", "*float32"}, {"sums", "*float32"}, {"n", "int"}}
	f.function("treeNEON sets dst[r] to the sum of 32 accumulators from sums[32*r] on, for n of them: acc[l] += "+
		"acc[l+h] for h = 16, 8, "+
		"4, 2, 1, and NaN is canonical. It is the function tree of package generic.", "treeNEON", params...)
	f.load(0, 0, params...)
	f.setNaN(30)
	loop := f.newLabel("sum")
	f.p("%s:", loop)
	for c := 0; c < 8; c += 2 {
		f.pair(16*c, "R1", c, c+1)
	}
	for h := 4; h > 0; h /= 2 {
		for c := range h {
			f.word3("fadd", c, c, c+h)
		}
	}
	f.p("VEXT $8, V0.B16, V0.B16, V1.B16")
	f.word3("fadd", 0, 0, 1)
	f.word3("faddp", 0, 0, 0)
	f.canonical(0, 30, 1)
	f.p("FMOVS.P F0, 4(R0)")
	f.p("ADD $128, R1")
	f.p("SUB $1, R2")
	f.p("CBNZ R2, %s", loop)
	f.p("RET")

	for _, k := range []struct{ name, comment string }{
		{"squaresNEON", "squaresNEON adds x[i]*x[i], i ascending and one fma each, to sums[i mod 32], for blocks of " +
			"32. It is the function dot of " +
			"package generic for a vector and itself."},
		{"sumsNEON", "sumsNEON adds x[i], i ascending, to sums[i mod 32], for blocks of 32. It is the sum of generic.Backend.Softmax."},
	} {
		params := []param{{"sums", "*float32"}, {"x", "*float32"}, {"blocks", "int"}}
		f.function(k.comment, k.name, params...)
		f.load(0, 0, params...)
		for c := 0; c < 8; c += 2 {
			f.pair(16*c, "R0", c, c+1)
		}
		loop := f.newLabel("block")
		f.p("%s:", loop)
		for c := 0; c < 8; c += 2 {
			f.pair(16*c, "R1", 16+c, 16+c+1)
		}
		for c := range 8 {
			if k.name == "sumsNEON" {
				f.word3("fadd", c, c, 16+c)
			} else {
				f.fma(c, 16+c, 16+c)
			}
		}
		f.p("ADD $128, R1")
		f.p("SUB $1, R2")
		f.p("CBNZ R2, %s", loop)
		for c := 0; c < 8; c += 2 {
			f.p("FSTPQ (F%d, F%d), %d(R0)", c, c+1, 16*c)
		}
		f.p("RET")
	}
}
