package main

import (
	"fmt"

	"github.com/k3infer/k3/backends/_gen/assembly"
)

// rows is the number of rows a dot product takes at a time.
const rows = 2

// dotKernel is a function that goes down pairs of rows with some vectors. With more vectors fewer of the 32 lanes fit
// the registers at a time, so that the columns are swept `parts` times, for 32/parts lanes each.
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
	f.P("MOVD a+0(FP), %s", args)
	f.P("MOVD dotArgs_w(%s), %s", args, first)
	f.P("MOVD dotArgs_row(%s), %s", args, rowLen)
	f.P("MOVD dotArgs_sums(%s), %s", args, sums)
	f.P("MOVD dotArgs_pairs(%s), %s", args, pairs)
	f.zero(zeros)
	if setup != nil {
		setup()
	}
	label = f.NewLabel("pair")
	f.Label(label)
	return label
}

// end goes on to the next pair of rows.
func (k dotKernel) end(f *file, label string) {
	f.Note("On to the next pair of rows.")
	f.P("ADD %s<<1, %s, %s", rowLen, first, first)
	f.P("ADD $%d, %s", rows*128, sums)
	f.P("SUB $1, %s", pairs)
	f.P("CBNZ %s, %s", pairs, label)
	f.P("RET")
}

// accumulators are registers of four lanes for each row and vector.
func (k dotKernel) accumulators(all *assembly.Registers, chunks int) (sums [rows][][]int) {
	for r := range rows {
		for range k.vectors {
			sums[r] = append(sums[r], all.TakeN(chunks))
		}
	}
	return sums
}

// mover is loadAll or storeAll.
type mover func(offset int, pointer string, all []int)

// moveSums loads or stores the accumulators of a part.
func (k dotKernel) moveSums(f *file, registers [rows][][]int, part int, move mover) {
	for v := range k.vectors {
		at := sums
		if v > 0 {
			at = sumsOf
			f.P("ADD $(%d*const_sumsStride), %s, %s", v, sums, at)
		}
		for r := range rows {
			of := registers[r][v]
			move(r*128+part*len(of)*16, at, of)
		}
	}
}

// pointers sets the pointers of rows and vectors to a part of the first block.
func (k dotKernel) pointers(f *file, wOffset, xOffset int) {
	f.P("MOVD dotArgs_x(%s), %s", args, xAt(0))
	if xOffset > 0 {
		f.P("ADD $%d, %s", xOffset, xAt(0))
	}
	if k.vectors > 1 {
		f.P("MOVD dotArgs_xStride(%s), %s", args, tmp)
	}
	for v := 1; v < k.vectors; v++ {
		f.P("ADD %s, %s, %s", tmp, xAt(v-1), xAt(v))
	}
	f.P("ADD $%d, %s, %s", wOffset, first, row0)
	f.P("ADD %s, %s, %s", rowLen, row0, row1)
	f.P("MOVD dotArgs_blocks(%s), %s", args, count)
}

func (k dotKernel) emit(f *file) {
	size := map[string]int{"F32": 4, "BF16": 2}[k.format]
	chunks := 8 / k.parts  // registers of four lanes a row, vector and part
	some := min(4, chunks) // of them at a time
	all := newRegisters(0)
	registers := k.accumulators(all, chunks)
	var x [][]int // the elements of each vector
	for range k.vectors {
		x = append(x, all.TakeN(some))
	}
	w := [rows][]int{all.TakeN(some)}
	w[1] = w[0] // the weights of each row, apart if they fit
	if w[0][some-1]+some < zeros {
		w[1] = all.TakeN(some)
	}
	label := k.begin(f, nil)
	for part := range k.parts {
		f.Note("Lanes %d to %d of two rows and %d vectors: load the accumulators.",
			part*4*chunks, (part+1)*4*chunks-1, k.vectors)
		k.moveSums(f, registers, part, f.loadAll)
		f.Note("Pointers to the first block.")
		k.pointers(f, part*4*chunks*size, part*4*chunks*4)
		loop := f.NewLabel("block")
		f.Label(loop)
		for c := 0; c < chunks; c += some {
			f.Note("Load elements %d to %d of the part from each vector.", 4*c, 4*(c+some)-1)
			for v := range k.vectors {
				f.loadAll(16*c, xAt(v), x[v])
			}
			for r, pointer := range []string{row0, row1} {
				f.Note("Load the weights of row %d as float32: acc = fma(w[r][i], x[v][i], acc).", r)
				for i, wide := range loadWide(f, k.format, pointer, 4*c, some, w[r][0]) {
					for v := range k.vectors {
						f.fma(registers[r][v][c+i], wide, x[v][i])
					}
				}
			}
		}
		f.Note("On to the next block.")
		for v := range k.vectors {
			f.P("ADD $128, %s", xAt(v))
		}
		f.P("ADD $%d, %s", 32*size, row0)
		f.P("ADD $%d, %s", 32*size, row1)
		f.P("SUB $1, %s", count)
		f.P("CBNZ %s, %s", count, loop)
		f.Note("Store the accumulators.")
		k.moveSums(f, registers, part, f.storeAll)
	}
	k.end(f, label)
}

// loadWide loads 4*n weights (n is 2 or 4), from that of index i on, into the n registers from v on, and says which
// has which.
func loadWide(f *file, format, pointer string, i, n, v int) []int {
	switch {
	case format == "F32":
		for c := 0; c < n; c += 2 {
			f.pair(4*i+16*c, pointer, v+c, v+c+1)
		}
		return []int{v, v + 1, v + 2, v + 3}[:n]
	case n == 2:
		f.P("FMOVQ %d(%s), F%d", 2*i, pointer, v)
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
	f.P("VZIP1 V%d.H8, V%d.H8, V%d.H8", v, zeros, low)
	f.P("VZIP2 V%d.H8, V%d.H8, V%d.H8", v, zeros, v)
}

// nibbles takes the 32 weights in v apart, in order, a byte each: the lower 16 to low, the upper 16 to high. mask has
// 15 in every byte.
func nibbles(f *file, v, low, high, mask int) {
	f.P("VAND V%d.B16, V%d.B16, V%d.B16", mask, v, high)
	f.P("VUSHR $4, V%d.B16, V%d.B16", v, v)
	f.P("VZIP1 V%d.B16, V%d.B16, V%d.B16", v, high, low)
	f.P("VZIP2 V%d.B16, V%d.B16, V%d.B16", v, high, high)
}

// lookUp turns the 16 nibbles in n into bfloat16 by the two tables of their scale, the lower eight to low, the upper
// eight to high, and overwrites n.
func lookUp(f *file, n, tableHigh, tableLow, low, high int) {
	f.P("VTBL V%d.B16, [V%d.B16], V%d.B16", n, tableHigh, high)
	f.P("VTBL V%d.B16, [V%d.B16], V%d.B16", n, tableLow, n)
	f.P("VZIP1 V%d.B16, V%d.B16, V%d.B16", high, n, low)
	f.P("VZIP2 V%d.B16, V%d.B16, V%d.B16", high, n, high)
}

// dotMXFP4 looks the two upper bytes of each scaled weight up in the tables of its scale; from there on it is as for
// bfloat16.
func dotMXFP4(f *file) {
	k := dotKernel{"MXFP4", 1, 1}
	all := newRegisters(0)
	registers := k.accumulators(all, 8)
	x := all.TakeN(8)
	tables := all.TakeN(2) // upper and lower bytes of the bfloat16 of each nibble
	w, n1, n0, t, mask := all.Take(), all.Take(), all.Take(), all.Take(), all.Take()
	const (
		scale0, scale1 = "R4", "R5"
		scaleFirst     = "R6" // row 0 at the first column
		scaleRow       = "R14"
		table          = "R15"
	)
	label := k.begin(f, func() {
		f.P("MOVD dotArgs_scale(%s), %s", args, scaleFirst)
		f.P("MOVD dotArgs_scaleRow(%s), %s", args, scaleRow)
		f.P("MOVD dotArgs_table(%s), %s", args, table)
		f.P("VMOVI $15, V%d.B16", mask)
	})
	f.Note("Load the accumulators of two rows.")
	k.moveSums(f, registers, 0, f.loadAll)
	f.Note("Pointers to the first block and its scales.")
	k.pointers(f, 0, 0)
	f.P("MOVD %s, %s", scaleFirst, scale0)
	f.P("ADD %s, %s, %s", scaleRow, scale0, scale1)
	loop := f.NewLabel("block")
	f.Label(loop)
	f.Note("Load the 32 elements of the vector.")
	f.loadAll(0, xAt(0), x)
	f.P("ADD $128, %s", xAt(0))
	for r, pointer := range []string{row0, row1} {
		scale := []string{scale0, scale1}[r]
		f.Note("Row %d: load the tables of its scale, and take its 32 weights apart.", r)
		f.P("MOVBU.P 1(%s), %s", scale, tmp)
		f.P("ADD %s<<5, %s, %s", tmp, table, tmp)
		f.loadAll(0, tmp, tables)
		f.P("FMOVQ.P 16(%s), F%d", pointer, w)
		nibbles(f, w, n0, n1, mask)
		for half, n := range []int{n0, n1} {
			f.Note("Look up weights %d to %d, widen them: acc = fma(w[r][i], x[i], acc).", 16*half, 16*half+15)
			lookUp(f, n, tables[0], tables[1], t, w)
			for i, v := range []int{t, w} {
				c := half*4 + i*2
				zip(f, v, n)
				f.fma(registers[r][0][c], n, x[c])
				f.fma(registers[r][0][c+1], v, x[c+1])
			}
		}
	}
	f.P("SUB $1, %s", count)
	f.P("CBNZ %s, %s", count, loop)
	f.Note("Store the accumulators.")
	k.moveSums(f, registers, 0, f.storeAll)
	f.P("ADD %s<<1, %s, %s", scaleRow, scaleFirst, scaleFirst)
	k.end(f, label)
}

// decodeMXFP4 is for more vectors than one, which share the work of decoding.
func decodeMXFP4(f *file) {
	params := []param{{"dst", "*byte"}, {"w", "*byte"}, {"scale", "*byte"}, {"groups", "int"}, {"table", "*scaledTables"}}
	f.function("decodeMXFP4 widens groups of 32 weights, one after the other, to bfloat16: dst[i] is E2M1 nibble i "+
		"of w times the "+
		"factor of its scale byte. It is kernel.Widen.", "decodeMXFP4", params...)
	const dst, w, scale, groups, table, offset = "R0", "R1", "R2", "R3", "R4", "R5"
	f.load(0, 0, params...)
	all := newRegisters(0)
	tables := all.TakeN(2)
	bytes, n0, n1 := all.Take(), all.Take(), all.Take()
	out := append(all.TakeN(3), 16) // four more registers: any will do
	const mask = zeros - 1
	f.P("VMOVI $15, V%d.B16", mask)
	loop := f.NewLabel("group")
	f.Label(loop)
	f.Note("Load the tables of the group's scale, and take its 32 weights apart.")
	f.P("MOVBU.P 1(%s), %s", scale, offset)
	f.P("ADD %s<<5, %s, %s", offset, table, offset)
	f.loadAll(0, offset, tables)
	f.P("FMOVQ.P 16(%s), F%d", w, bytes)
	nibbles(f, bytes, n0, n1, mask)
	f.Note("Look up the two bytes of each, 16 weights at a time, and store them.")
	lookUp(f, n0, tables[0], tables[1], out[0], out[1])
	lookUp(f, n1, tables[0], tables[1], out[2], out[3])
	f.storeAll(0, dst, out)
	f.P("ADD $64, %s", dst)
	f.P("SUB $1, %s", groups)
	f.P("CBNZ %s, %s", groups, loop)
	f.P("RET")
}

func decodeF16(f *file) {
	params := []param{{"dst", "*byte"}, {"w", "*byte"}, {"blocks", "int"}}
	f.function("decodeF16 widens blocks of 32 float16 to float32. It is kernel.Widen.", "decodeF16", params...)
	f.load(0, 0, params...)
	loop := f.NewLabel("block")
	f.Label(loop)
	const dst, w, blocks = "R0", "R1", "R2"
	all := newRegisters(0)
	halves, wide := all.TakeN(2), all.TakeN(2)
	for half := range 2 {
		f.Note("Widen weights %d to %d: the lower and the upper four of each register.", 16*half, 16*half+15)
		f.loadAll(32*half, w, halves)
		for i, from := range halves {
			f.word2("fcvtl", wide[0], from)
			f.word2("fcvtl2", wide[1], from)
			f.storeAll(64*half+32*i, dst, wide)
		}
	}
	f.P("ADD $64, %s", w)
	f.P("ADD $128, %s", dst)
	f.P("SUB $1, %s", blocks)
	f.P("CBNZ %s, %s", blocks, loop)
	f.P("RET")
}

// trees adds accumulators up, and squares and sums fill them for the norms and softmax.
func trees(f *file) {
	params := []param{{"dst", "*float32"}, {"sums", "*float32"}, {"n", "int"}}
	f.function("treeNEON sets dst[r] to the sum of 32 accumulators from sums[32*r] on, for n of them: acc[l] += "+
		"acc[l+h] for h = 16, 8, "+
		"4, 2, 1, and NaN is canonical. It is the function tree of package generic.", "treeNEON", params...)
	f.load(0, 0, params...)
	const dst, from, n, nan = "R0", "R1", "R2", zeros - 1
	acc := newRegisters(0).TakeN(8)
	f.setNaN(nan)
	loop := f.NewLabel("sum")
	f.Label(loop)
	f.Note("Load 32 accumulators, and add h = 16, 8 and 4 of them on: whole registers.")
	f.loadAll(0, from, acc)
	for h := 4; h > 0; h /= 2 {
		for c := range h {
			f.word3("fadd", acc[c], acc[c], acc[c+h])
		}
	}
	f.Note("h = 2 and 1: the upper half to the lower, then neighbours. NaN becomes canonical.")
	sum, scratch := acc[0], acc[1]
	f.P("VEXT $8, V%d.B16, V%d.B16, V%d.B16", sum, sum, scratch)
	f.word3("fadd", sum, sum, scratch)
	f.word3("faddp", sum, sum, sum)
	f.canonical(sum, nan, scratch)
	f.P("FMOVS.P F%d, 4(%s)", sum, dst)
	f.P("ADD $128, %s", from)
	f.P("SUB $1, %s", n)
	f.P("CBNZ %s, %s", n, loop)
	f.P("RET")

	for _, k := range []struct{ name, comment string }{
		{"squaresNEON", "squaresNEON adds x[i]*x[i], i ascending and one fma each, to sums[i mod 32], for blocks of " +
			"32. It is the function dot of " +
			"package generic for a vector and itself."},
		{"sumsNEON", "sumsNEON adds x[i], i ascending, to sums[i mod 32], for blocks of 32. It is the sum of " +
			"generic.Backend.Softmax."},
	} {
		params := []param{{"sums", "*float32"}, {"x", "*float32"}, {"blocks", "int"}}
		f.function(k.comment, k.name, params...)
		f.load(0, 0, params...)
		const sums, x, blocks = "R0", "R1", "R2"
		acc, elements := newRegisters(0).TakeN(8), newRegisters(16).TakeN(8)
		f.Note("Load the sums.")
		f.loadAll(0, sums, acc)
		loop := f.NewLabel("block")
		f.Label(loop)
		f.Note("Load a block and add it.")
		f.loadAll(0, x, elements)
		for c, e := range elements {
			if k.name == "sumsNEON" {
				f.word3("fadd", acc[c], acc[c], e)
			} else {
				f.fma(acc[c], e, e)
			}
		}
		f.P("ADD $128, %s", x)
		f.P("SUB $1, %s", blocks)
		f.P("CBNZ %s, %s", blocks, loop)
		f.Note("Store the sums.")
		f.storeAll(0, sums, acc)
		f.P("RET")
	}
}
