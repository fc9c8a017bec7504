package main

import (
	"fmt"

	"github.com/k3infer/k3/backends/_gen/assembly"
	"github.com/k3infer/k3/backends/_gen/exact"
)

// The dot products. A function handles `rows` rows and `vectors` vectors at a time and repeats that for a.groups
// groups of rows. Every (row, vector) pair has the 32 accumulators of the contract in registers: two of AVX-512, four
// of AVX2. F32 and F16 weights keep their order. BF16 and MXFP4 weights come apart cheaply into the even and the odd
// elements of a block of 32, so their vectors are packed as 16 even, then 16 odd elements a block ("split", below).
//
// Where the registers do not hold all accumulators of enough pairs, a group is swept several times: a sweep does one
// or two registers of each pair's lanes, of all vectors or of four. That changes no order, since accumulators are
// independent, and what a sweep widens serves more vectors.
//
// A row's tail, shorter than a block, is a block of its own, which the caller copies to a.tail and fills up with
// zeros; the packed vectors are filled up with -0. Their product, -0, changes no accumulator: x + -0 is x, whatever x
// is.

type dotKernel struct {
	s             isa
	format        string
	rows, vectors int
	sweeps        int
}

// dotRegisters are the vector registers of a loop over blocks.
type dotRegisters struct {
	sums []reg     // accumulators
	mask reg       // highHalf, in bfloat16 code for AVX-512
	all  registers // the others
}

// registers gives the accumulators, and what must stay, registers.
func (k dotKernel) registers() *dotRegisters {
	all := newRegisters(k.s, assembly.OldestFirst, 0)
	n := k.rows * k.together() * k.parts()
	if k.twoRows() {
		n = 8 // a row in each half
	}
	d := &dotRegisters{sums: all.takeN(n), all: all}
	if k.masks() {
		d.mask = all.takeLast()
	}
	return d
}

// sumOf is the accumulator of a row, a vector of the sweep, and a part.
func (k dotKernel) sumOf(d *dotRegisters, r, v, part int) reg { return d.sums[k.acc(r, v, part)] }

// twoRows says that the halves of a register are for two rows.
func (k dotKernel) twoRows() bool { return k.format == "MXFP4" && k.s == avx2 }

// masks says that a register holds highHalf throughout.
func (k dotKernel) masks() bool { return k.format == "BF16" && k.s == avx512 }

func (k dotKernel) name() string {
	return fmt.Sprintf("dot%sR%dV%d%s", k.format, k.rows, k.vectors, k.s.name)
}

// split says that accumulators hold even and odd elements apart.
func (k dotKernel) split() bool { return k.format == "BF16" || k.format == "MXFP4" }

// blockBytes is the size of a block of 32 weights.
func (k dotKernel) blockBytes() int {
	return map[string]int{"F32": 128, "BF16": 64, "F16": 64, "MXFP4": 16}[k.format]
}

// panels says that a call may do some of the columns only.
func (k dotKernel) panels() bool { return k.format != "MXFP4" || k.s == avx512 }

// ahead says that the loop asks memory for the next group while it computes.
func (k dotKernel) ahead() bool { return k.vectors >= 3 }

// moveSums loads or stores the accumulators of a sweep.
func (k dotKernel) moveSums(f *file, d *dotRegisters, sweep int, store bool) {
	verb := "Go on from the sums of the panels before"
	if store {
		verb = "Store the sums"
	}
	f.Note("%s: %d registers, in memory until the last panel.", verb, len(d.sums))
	k.address(f, "sums", rTmp)
	for i, sum := range d.sums {
		if i == 16 {
			f.Note("The rest of them.")
		}
		at := fmt.Sprintf("%d(%s)", (sweep*len(d.sums)+i)*k.s.bytes(), rTmp)
		if store {
			f.P("VMOVUPS %s, %s", sum, at)
		} else {
			f.P("VMOVUPS %s, %s", at, sum)
		}
	}
}

// prefetch asks memory for weights to come.
//
// With few vectors each row is a stream of its own, which keeps more requests under way than plain reads do: it is
// asked for aheadBytes ahead, and at its end, for the beginning of a row of the next group.
//
// Where a block is less than a cache line one stream is asked for, groupAheadBytes beyond the next group, and the
// next group's scales: the lookups wait for a scale, so that one missed costs more than a miss among the weights.
//
// With many vectors each sweep asks for its share of each row of the next group, so that memory is busy all the time.
func (k dotKernel) prefetch(f *file) {
	switch {
	case k.ahead():
		f.Note("Prefetch this sweep's share of the next group of rows.")
		for r := range k.rows {
			f.P("PREFETCHT0 %s", rowAddress(rAhead, r, 0))
		}
		f.P("ADDQ $%d, %s", k.blockBytes()/k.sweeps, rAhead)
	case k.streams():
		f.Note("Prefetch each row %d bytes ahead.", aheadBytes)
		for r := range k.rows {
			f.P("PREFETCHT0 %s", rowAddress(rAhead, r, aheadBytes))
		}
		f.P("ADDQ $%d, %s", k.blockBytes(), rAhead)
	default:
		f.Note("Prefetch weights and scales of groups of rows to come.")
		f.P("PREFETCHT0 %d(%s)", groupAheadBytes, rAhead)
		f.P("ADDQ $%d, %s", k.rows*k.blockBytes(), rAhead)
		f.P("PREFETCHT0 (%s)", rScaleAhead)
		f.P("ADDQ $%d, %s", k.rows, rScaleAhead)
	}
}

const (
	aheadBytes      = 2048
	groupAheadBytes = 6144
)

// streams says that the loop asks for each row apart.
func (k dotKernel) streams() bool { return !k.ahead() && k.format != "MXFP4" }

// leave lets what the loop asks for jump from the end of its rows, where they are aheadBytes from their ends, to the
// next group.
func (k dotKernel) leave(f *file) {
	f.Note("Near the end of the rows: prefetch the beginning of the next group's instead.")
	f.P("MOVQ dotArgs_blocks(%s), %s", rArgs, rTmp)
	f.P("IMUL3Q $%d, %s, %s", k.blockBytes(), rTmp, rTmp)
	f.P("SUBQ %s, %s", rTmp, rAhead)
	f.P("IMUL3Q $%d, %s, %s", k.rows, rRow, rTmp)
	f.P("ADDQ %s, %s", rTmp, rAhead)
	f.P("MOVQ $1, %s", rTmp)
}

// together is the number of vectors in a sweep.
func (k dotKernel) together() int {
	if k.s == avx2 {
		return min(k.vectors, 4)
	}
	return k.vectors
}

// sweepsOf is the number of sweeps that a vector takes part in.
func (k dotKernel) sweepsOf() int { return k.sweeps * k.together() / k.vectors }

// parts is the number of accumulator registers of a pair in one sweep.
func (k dotKernel) parts() int { return 32 / k.s.lanes / k.sweepsOf() }

// acc is the accumulator register of a row, a vector of the sweep, and a part.
func (k dotKernel) acc(r, v, part int) int { return (r*k.together()+v)*k.parts() + part }

// sum is where in memory that of any vector and part, counted through all sweeps, is.
func (k dotKernel) sum(r, v, part int) int {
	sweep := v/k.together()*k.sweepsOf() + part/k.parts()
	return k.s.bytes() * (sweep*k.rows*k.together()*k.parts() + k.acc(r, v%k.together(), part%k.parts()))
}

func dotVariants(s isa) (all []dotKernel) {
	for _, format := range []string{"F32", "BF16", "F16", "MXFP4"} {
		for _, n := range dotShapes(s, format) {
			all = append(all, dotKernel{s, format, n[0], n[1], n[2]})
		}
	}
	return all
}

// dotShapes lists rows, vectors and sweeps. Formats that are widened gain from many vectors a sweep.
func dotShapes(s isa, format string) (shapes [][3]int) {
	switch {
	case s == avx512:
		shapes = [][3]int{{3, 1, 1}, {1, 1, 1}, {3, 2, 1}, {1, 2, 1}, {3, 3, 1}, {1, 3, 1}, {3, 4, 1}, {1, 4, 1}}
		if format != "F32" {
			shapes = append(shapes, [][3]int{{3, 8, 2}, {1, 8, 2}}...)
		}
	case format == "MXFP4":
		shapes = [][3]int{{2, 1, 1}}
	default:
		shapes = [][3]int{{3, 1, 1}, {1, 1, 1}, {3, 2, 2}, {1, 2, 1}}
		if format != "F32" {
			shapes = append(shapes, [][3]int{{3, 3, 4}, {1, 3, 4}, {3, 4, 4}, {1, 4, 4}, {3, 8, 8}, {1, 8, 8}}...)
		}
	}
	return shapes
}

func dotKernels(f *file, s isa) {
	for _, k := range dotVariants(s) {
		k.emit(f)
	}
}

// Registers of the loops.
const (
	rArgs, rCount, rTmp       = "AX", "CX", "BX"
	rW, rRow, rAhead          = "SI", "R9", "DX"
	rX, rXStride, rX3, rX4    = "R10", "R11", "R12", "DI"
	rDst                      = rX                 // when the vectors have been read
	rScale, rScaleRow, rTable = "R8", "R13", "R14" // MXFP4 only
	rScaleAhead               = "R12"              // and with one or two vectors
)

// weights returns the address of byte off of row r of the group.
func weights(r, off int) string { return rowAddress(rW, r, off) }

// rowAddress returns the address of byte off of row r from that of row 0.
func rowAddress(base string, r, off int) string {
	if r == 0 {
		return fmt.Sprintf("%d(%s)", off, base)
	}
	return fmt.Sprintf("%d(%s)(%s*%d)", off, base, rRow, r)
}

// vector returns the address of byte off of the current block of vector v.
func vector(v, off int) string {
	base := rX
	if v >= 4 {
		base, v = rX4, v-4
	}
	switch v {
	case 0:
		return fmt.Sprintf("%d(%s)", off, base)
	case 3:
		return fmt.Sprintf("%d(%s)(%s*1)", off, base, rX3)
	}
	return fmt.Sprintf("%d(%s)(%s*%d)", off, base, rXStride, v)
}

func (k dotKernel) emit(f *file) {
	f.function(fmt.Sprintf(`%s sets dst[v][r] to the dot product of row r and vector v, for %d rows and %d vectors at a
		time, and goes on to the next rows until a.groups are done. It is generic.Backend.Dot for %s weights.`,
		k.name(), k.rows, k.vectors, k.format),
		k.name(), argument{"a", "*dotArgs", rArgs})
	if k.vectors > 1 {
		f.P("MOVQ dotArgs_xStride(%s), %s", rArgs, rXStride)
		if k.vectors > 3 {
			f.P("LEAQ (%s)(%s*2), %s", rXStride, rXStride, rX3)
		}
	}
	group := f.NewLabel("group")
	f.Label(group)
	for sweep := range k.sweeps {
		f.Note("%s", k.aboutSweep(sweep))
		d := k.registers()
		k.address(f, "w", rW)
		f.P("MOVQ dotArgs_row(%s), %s", rArgs, rRow)
		f.P("MOVQ dotArgs_x(%s), %s", rArgs, rX)
		k.pointers(f)
		if k.ahead() {
			k.nextGroup(f, sweep)
		}
		if k.masks() {
			f.P("VMOVUPS %s, %s", f.highHalf(), d.mask)
		}
		begun := f.NewLabel("begun")
		if k.panels() {
			// Columns are cut into panels: go on from the sums of the panels before, unless this is the first.
			fresh := f.NewLabel("fresh")
			f.P("CMPQ dotArgs_first(%s), $0", rArgs)
			f.P("JNE %s", fresh)
			k.moveSums(f, d, sweep, false)
			f.P("JMP %s", begun)
			f.Label(fresh)
		}
		f.Note("The first columns: sums begin at 0.")
		for _, sum := range d.sums {
			f.zeroShort(sum)
		}
		if k.panels() {
			f.Label(begun)
		}
		f.Note("Count the blocks of 32 columns; there may be none before the tail.")
		f.P("MOVQ dotArgs_blocks(%s), %s", rArgs, rCount)
		tail, loop, done := f.NewLabel("tail"), f.NewLabel("block"), f.NewLabel("done")
		f.P("TESTQ %s, %s", rCount, rCount)
		f.P("JZ %s", tail)
		leaving, near := f.NewLabel("leaving"), aheadBytes/k.blockBytes()
		if k.streams() {
			f.P("MOVQ %s, %s", rW, rAhead)
			f.P("MOVQ $0, %s", rTmp)
			f.P("SUBQ $%d, %s", near, rCount)
			f.P("JHI %s", loop)
			f.P("ADDQ $%d, %s", near, rCount)
			f.Label(leaving)
			k.leave(f)
		}
		f.Label(loop)
		k.block(f, d, sweep)
		k.prefetch(f)
		f.Note("On to the next block.")
		k.advance(f)
		f.P("DECQ %s", rCount)
		f.P("JNZ %s", loop)
		if k.streams() {
			f.P("MOVQ $%d, %s", near, rCount)
			f.P("TESTQ %s, %s", rTmp, rTmp)
			f.P("JZ %s", leaving)
		}
		f.Label(tail)
		if k.format != "MXFP4" {
			f.Note("The tail, where there is one: a last block, of copies filled up with zeros.")
			f.P("MOVQ dotArgs_tail(%s), %s", rArgs, rW)
			f.P("TESTQ %s, %s", rW, rW)
			f.P("JZ %s", done)
			f.P("ADDQ dotArgs_tailAt(%s), %s", rArgs, rW)
			f.P("MOVQ dotArgs_tailX(%s), %s", rArgs, rX)
			f.P("MOVQ $128, %s", rRow)
			k.pointers(f)
			k.block(f, d, sweep)
			f.Label(done)
		}
		if k.sweeps > 1 {
			k.moveSums(f, d, sweep, true)
		}
	}
	next := f.NewLabel("next")
	if k.panels() {
		reduce := f.NewLabel("reduce")
		f.P("CMPQ dotArgs_last(%s), $0", rArgs)
		f.P("JNE %s", reduce)
		if k.sweeps == 1 {
			k.moveSums(f, k.registers(), 0, true)
		}
		f.P("JMP %s", next)
		f.Label(reduce)
	}
	k.reduce(f)
	f.Label(next)
	if k.panels() {
		f.P("MOVQ dotArgs_sumsStep(%s), %s", rArgs, rTmp)
		f.P("ADDQ %s, dotArgs_sumsAt(%s)", rTmp, rArgs)
	}
	f.Note("On to the next %d rows.", k.rows)
	f.P("MOVQ dotArgs_row(%s), %s", rArgs, rTmp)
	f.P("IMUL3Q $%d, %s, %s", k.rows, rTmp, rTmp)
	f.P("ADDQ %s, dotArgs_wAt(%s)", rTmp, rArgs)
	if k.format == "MXFP4" {
		f.P("MOVQ dotArgs_scaleRow(%s), %s", rArgs, rTmp)
		f.P("IMUL3Q $%d, %s, %s", k.rows, rTmp, rTmp)
		f.P("ADDQ %s, dotArgs_scaleAt(%s)", rTmp, rArgs)
	} else {
		f.P("ADDQ $%d, dotArgs_tailAt(%s)", 128*k.rows, rArgs)
	}
	f.P("ADDQ $%d, dotArgs_dstAt(%s)", 4*k.rows, rArgs)
	f.P("DECQ dotArgs_groups(%s)", rArgs)
	f.P("JNZ %s", group)
	f.P("VZEROUPPER")
	f.P("RET")
}

// address loads a pointer of the arguments and adds how far the call has come. The pointers themselves stay: the
// collector may look at them between calls, and must not find one that points beyond its memory.
func (k dotKernel) address(f *file, field, to string) {
	f.P("MOVQ dotArgs_%s(%s), %s", field, rArgs, to)
	f.P("ADDQ dotArgs_%sAt(%s), %s", field, rArgs, to)
}

// nextGroup sets rAhead to the share that a sweep asks for of the next group: that of the same columns, or after the
// last group that which the caller says.
func (k dotKernel) nextGroup(f *file, sweep int) {
	last, known := f.NewLabel("last"), f.NewLabel("known")
	f.Note("What this sweep prefetches: its share of the next group, or after the last group what the caller says.")
	f.P("CMPQ dotArgs_groups(%s), $1", rArgs)
	f.P("JEQ %s", last)
	f.P("IMUL3Q $%d, %s, %s", k.rows, rRow, rAhead)
	f.P("ADDQ %s, %s", rW, rAhead)
	f.P("JMP %s", known)
	f.Label(last)
	f.P("MOVQ dotArgs_w(%s), %s", rArgs, rAhead)
	f.P("ADDQ dotArgs_next(%s), %s", rArgs, rAhead)
	f.Label(known)
	if sweep > 0 {
		f.P("MOVQ dotArgs_blocks(%s), %s", rArgs, rTmp)
		f.P("IMUL3Q $%d, %s, %s", sweep*k.blockBytes()/k.sweeps, rTmp, rTmp)
		f.P("ADDQ %s, %s", rTmp, rAhead)
	}
}

// pointers sets up what the addresses of vectors and scales need besides.
func (k dotKernel) pointers(f *file) {
	if k.vectors > 4 {
		f.P("LEAQ (%s)(%s*4), %s", rX, rXStride, rX4)
	}
	if k.format == "MXFP4" {
		f.Note("Pointers to the scales and to the tables of scaled weights.")
		k.address(f, "scale", rScale)
		f.P("MOVQ dotArgs_scaleRow(%s), %s", rArgs, rScaleRow)
		f.P("MOVQ dotArgs_table(%s), %s", rArgs, rTable)
		if !k.ahead() {
			f.P("IMUL3Q $%d, %s, %s", k.rows, rRow, rAhead)
			f.P("ADDQ %s, %s", rW, rAhead)
			f.P("IMUL3Q $%d, %s, %s", k.rows, rScaleRow, rScaleAhead)
			f.P("ADDQ %s, %s", rScale, rScaleAhead)
		}
	}
}

func (k dotKernel) advance(f *file) {
	f.P("ADDQ $%d, %s", k.blockBytes(), rW)
	if k.format == "MXFP4" {
		f.P("INCQ %s", rScale)
	}
	f.P("ADDQ $128, %s", rX)
	if k.vectors > 4 {
		f.P("ADDQ $128, %s", rX4)
	}
}

// place returns the offsets of the weights (in a row's block) and of the vector elements (in a packed block) that
// belong to an accumulator register.
func (k dotKernel) place(sweep, part int) (w, x int) {
	p := k.counted(sweep, part)
	if !k.split() {
		at := p * k.s.bytes()
		return at * k.blockBytes() / 128, at
	}
	return k.s.bytes() * (p / 2), 64*(p%2) + k.s.bytes()*(p/2)
}

// counted is a part of a sweep, counted through the sweeps of its vectors.
func (k dotKernel) counted(sweep, part int) int { return sweep%k.sweepsOf()*k.parts() + part }

// widen puts the weights of a part, counted through all sweeps, into register t.
func (k dotKernel) widen(f *file, d *dotRegisters, r, w, part int, t reg) {
	even := part%2 == 0 // where even and odd elements are apart
	switch {
	case k.format == "F32":
		f.P("VMOVUPS %s, %s", weights(r, w), t)
	case k.format == "F16":
		f.P("VCVTPH2PS %s, %s", weights(r, w), t)
	case k.s == avx512 && even:
		f.P("VPSLLD $16, %s, %s", weights(r, w), t)
	case k.s == avx512:
		f.P("VPANDD %s, %s, %s", weights(r, w), d.mask, t)
	case even:
		f.P("VMOVUPS %s, %s", weights(r, w), t)
		f.P("VPSLLD $16, %s, %s", t, t)
	default:
		f.P("VMOVUPS %s, %s", weights(r, w), t)
		f.P("VANDPS %s, %s, %s", f.highHalf(), t, t)
	}
}

// lanesOf says in words which elements of a block a part, counted through all sweeps, has.
func (k dotKernel) lanesOf(part int) string {
	if k.split() {
		first := part / 2 * 2 * k.s.lanes
		return fmt.Sprintf("%s elements of %d to %d", []string{"even", "odd"}[part%2], first, first+2*k.s.lanes-1)
	}
	return fmt.Sprintf("elements %d to %d", part*k.s.lanes, (part+1)*k.s.lanes-1)
}

// aboutSweep says in words what a sweep does.
func (k dotKernel) aboutSweep(sweep int) string {
	if k.sweeps == 1 {
		return fmt.Sprintf("%d rows and %d vectors: for each block of 32 columns, acc[i mod 32] = fma(w[r][i], x[v][i], "+
			"acc[i mod 32]).", k.rows, k.vectors)
	}
	first := sweep / k.sweepsOf() * k.together()
	from, to := k.counted(sweep, 0), k.counted(sweep, k.parts()-1)
	lanes := k.lanesOf(from)
	if to > from {
		lanes += " up to " + k.lanesOf(to)
	}
	return fmt.Sprintf("Sweep %d of %d: %d rows, vectors %d to %d, %s of each block: acc = fma(w[r][i], x[v][i], acc).",
		sweep+1, k.sweeps, k.rows, first, first+k.together()-1, lanes)
}

// block adds one block of 32 to the accumulators.
func (k dotKernel) block(f *file, d *dotRegisters, sweep int) {
	switch {
	case k.twoRows():
		k.blockTwoRows(f, d)
		return
	case k.format == "MXFP4" && k.vectors > 1:
		k.blockMXFP4Vectors(f, d, sweep)
		return
	case k.format == "MXFP4":
		k.blockMXFP4(f, d)
		return
	}
	free := d.all.Copy()
	take := func() reg { return reg{k.s, free.Take()} }
	first := sweep / k.sweepsOf() * k.together()
	if k.vectors == 1 {
		x := take()
		var wide [2]reg // in turn
		if k.format != "F32" {
			wide = [2]reg{take(), take()}
		}
		for part := range k.parts() {
			w, at := k.place(sweep, part)
			f.Note("Load the vector's %s and accumulate each row's.", k.lanesOf(k.counted(sweep, part)))
			f.P("VMOVUPS %s, %s", vector(0, at), x)
			for r := range k.rows {
				if k.format == "F32" {
					f.P("VFMADD231PS %s, %s, %s", weights(r, w), x, k.sumOf(d, r, 0, part))
					continue
				}
				k.widen(f, d, r, w, k.counted(sweep, part), wide[r%2])
				f.P("VFMADD231PS %s, %s, %s", wide[r%2], x, k.sumOf(d, r, 0, part))
			}
		}
		return
	}
	var wide []reg // the weights of each row
	for range k.rows {
		wide = append(wide, take())
	}
	var x reg
	if k.rows > 1 {
		x = take()
	}
	for part := range k.parts() {
		w, at := k.place(sweep, part)
		f.Note("Load %s of %d rows as float32.", k.lanesOf(k.counted(sweep, part)), k.rows)
		for r, t := range wide {
			k.widen(f, d, r, w, k.counted(sweep, part), t)
		}
		for v := range k.together() {
			if v%4 == 0 {
				f.Note("Accumulate their products with vectors %d to %d.", first+v, first+min(v+4, k.together())-1)
			}
			k.accumulate(f, d, vector(first+v, at), wide, x, v, part)
		}
	}
}

// accumulate adds the products of the weights of all rows and the elements of a vector to their accumulators.
func (k dotKernel) accumulate(f *file, d *dotRegisters, at string, wide []reg, x reg, v, part int) {
	if k.rows == 1 && k.format != "MXFP4" {
		f.P("VFMADD231PS %s, %s, %s", at, wide[0], k.sumOf(d, 0, v, part))
		return
	}
	f.P("VMOVUPS %s, %s", at, x)
	for r, w := range wide {
		f.P("VFMADD231PS %s, %s, %s", w, x, k.sumOf(d, r, v, part))
	}
}

// MXFP4 weights are looked up in the table of their scale byte, which holds all 16 of them, signs included.
//
// AVX-512: 16 float32 a scale; the bytes of a group, as 32-bit lanes, are the indices of the even elements (a
// permutation uses four bits of an index), and shifted right by four those of the odd ones.
//
// AVX2: 16 upper bytes and 16 lower bytes of the bfloat16 each weight is. Two rows lie side by side in the halves of a
// register, so that the accumulators of a row are eight registers of four.

// Sizes of a scale's table, as shifts of its number.
const (
	floatTable = 6 // 16 float32
	byteTable  = 5 // 16 upper and 16 lower bytes
)

// tableOffset puts the offset of the table of the scale of row r into a register.
func (k dotKernel) tableOffset(f *file, r, size int, to string) {
	at := fmt.Sprintf("(%s)", rScale)
	if r > 0 {
		at = fmt.Sprintf("(%s)(%s*%d)", rScale, rScaleRow, r)
	}
	f.P("MOVBLZX %s, %s", at, to)
	f.P("SHLQ $%d, %s", size, to)
}

// blockMXFP4Vectors does even or odd elements, or one after the other, for several vectors with AVX-512.
func (k dotKernel) blockMXFP4Vectors(f *file, d *dotRegisters, sweep int) {
	free := registers{d.all.Copy(), k.s}
	wide, x := free.takeN(k.rows), free.take()
	for part := range k.parts() {
		lanes := k.lanesOf(k.counted(sweep, part))
		f.Note("Look up the %s of %d rows in the tables of their scales.", lanes, k.rows)
		for r, t := range wide {
			k.tableOffset(f, r, floatTable, rTmp)
			f.P("VPMOVZXBD %s, %s", weights(r, 0), t)
			if k.counted(sweep, part) == 1 {
				f.P("VPSRLD $4, %s, %s", t, t)
			}
			f.P("VPERMPS (%s)(%s*1), %s, %s", rTable, rTmp, t, t)
		}
		_, at := k.place(sweep, part)
		for v := range k.vectors {
			if v%4 == 0 {
				f.Note("Accumulate their products with vectors %d to %d.", v, min(v+4, k.vectors)-1)
			}
			k.accumulate(f, d, vector(v, at), wide, x, v, part)
		}
	}
}

// blockMXFP4 does one vector with AVX-512.
func (k dotKernel) blockMXFP4(f *file, d *dotRegisters) {
	free := registers{d.all.Copy(), k.s}
	evenX, oddX := free.take(), free.take()
	f.Note("Load the block of the vector: even elements, odd elements.")
	f.P("VMOVUPS (%s), %s", rX, evenX)
	f.P("VMOVUPS %d(%s), %s", k.s.bytes(), rX, oddX)
	for r := range k.rows {
		index, table, even, odd := free.take(), free.take(), free.take(), free.take()
		f.Note("Row %d: look up even and odd weights in the table of its scale, and accumulate.", r)
		k.tableOffset(f, r, floatTable, rTmp)
		f.P("VPMOVZXBD %s, %s", weights(r, 0), index)
		f.P("VMOVUPS (%s)(%s*1), %s", rTable, rTmp, table)
		f.P("VPERMPS %s, %s, %s", table, index, even)
		f.P("VPSRLD $4, %s, %s", index, index)
		f.P("VPERMPS %s, %s, %s", table, index, odd)
		f.P("VFMADD231PS %s, %s, %s", even, evenX, k.sumOf(d, r, 0, 0))
		f.P("VFMADD231PS %s, %s, %s", odd, oddX, k.sumOf(d, r, 0, 1))
	}
}

// blockTwoRows does one vector with AVX2.
func (k dotKernel) blockTwoRows(f *file, d *dotRegisters) {
	const tmp1 = "R15" // the offset of the table of row 1
	free := registers{d.all.Copy(), k.s}
	low, high := free.take(), free.take()    // nibbles: even and odd weights
	upper, lower := free.take(), free.take() // tables of bytes
	word, wide := free.take(), free.take()   // upper bytes, whole bfloat16
	x, product := free.take(), free.take()
	f.Note("Load the groups of both rows and the tables of their scales, a row in each half.")
	f.P("MOVBLZX (%s), %s", rScale, rTmp)
	f.P("SHLQ $%d, %s", byteTable, rTmp)
	f.P("MOVBLZX (%s)(%s*1), %s", rScale, rScaleRow, tmp1)
	f.P("SHLQ $%d, %s", byteTable, tmp1)
	f.P("VMOVDQU %s, %s", weights(0, 0), low.x())
	f.P("VINSERTI128 $1, %s, %s, %s", weights(1, 0), low, low)
	f.P("VMOVDQU (%s)(%s*1), %s", rTable, rTmp, upper.x())
	f.P("VINSERTI128 $1, (%s)(%s*1), %s, %s", rTable, tmp1, upper, upper)
	f.P("VMOVDQU 16(%s)(%s*1), %s", rTable, rTmp, lower.x())
	f.P("VINSERTI128 $1, 16(%s)(%s*1), %s, %s", rTable, tmp1, lower, lower)
	f.Note("Put the bytes in the order of the vectors' packing, and take the nibbles apart.")
	f.P("VPSHUFB %s, %s, %s", f.constant("quads", 0x05010400, 0x07030602, 0x0d090c08, 0x0f0b0e0a), low, low)
	f.P("VPSRLW $4, %s, %s", low, high)
	f.P("VPAND %s, %s, %s", f.nibble(), low, low)
	f.P("VPAND %s, %s, %s", f.nibble(), high, high)
	for odd, index := range []reg{low, high} {
		f.Note("Look up the bytes of the %s weights, widen them and accumulate.", []string{"even", "odd"}[odd])
		// The index register is used up by its own lookups.
		f.P("VPSHUFB %s, %s, %s", index, upper, word)
		f.P("VPSHUFB %s, %s, %s", index, lower, index)
		for half, op := range []string{"VPUNPCKLBW", "VPUNPCKHBW"} {
			at, sums := 64*odd+32*half, d.sums[4*odd+2*half:]
			f.P("%s %s, %s, %s", op, word, index, wide)
			f.P("VBROADCASTF128 %d(%s), %s", at, rX, x)
			f.P("VPSLLD $16, %s, %s", wide, product)
			f.P("VFMADD231PS %s, %s, %s", product, x, sums[0])
			f.P("VBROADCASTF128 %d(%s), %s", at+16, rX, x)
			f.P("VPAND %s, %s, %s", f.highHalf(), wide, wide)
			f.P("VFMADD231PS %s, %s, %s", wide, x, sums[1])
		}
	}
}

// reduce adds up the accumulators in the order of the contract and stores the sums.
func (k dotKernel) reduce(f *file) {
	if k.twoRows() {
		k.reduceTwoRows(f)
		return
	}
	if k.sweeps == 1 {
		f.Note("The tree, acc[l] = acc[l] + acc[l+h]: first between registers, as far as h is a whole register or more.")
		sums := k.registers().sums
		for i := range k.rows * k.vectors {
			if i > 0 && i%6 == 0 {
				f.Note("The pairs of rows and vectors from %d on.", i)
			}
			of := sums[i*k.parts():]
			for h := k.parts() / 2; h >= k.apart(); h /= 2 {
				for p := range h {
					f.P("VADDPS %s, %s, %s", of[p+h], of[p], of[p])
				}
			}
		}
		k.finish(f, 0, k.vectors, k.parts())
		return
	}
	// The accumulators are in memory: so many vectors at a time as a register's quarters hold results.
	const inAll = 32
	for from := 0; from < k.vectors; from += k.s.lanes / 4 {
		vectors := min(k.s.lanes/4, k.vectors-from)
		f.Note("The tree for vectors %d to %d, acc[l] = acc[l] + acc[l+h]: first while loading, as far as h is a whole "+
			"register or more.", from, from+vectors-1)
		k.address(f, "sums", rTmp)
		all := newRegisters(k.s, assembly.OldestFirst, 0)
		kept := all.takeN(k.rows * vectors * k.apart())
		h := inAll / k.s.lanes / 2
		beyond := all.takeN(max(h, k.apart())) // where the parts of a pair take more registers than it keeps
		for r := range k.rows {
			for v := range vectors {
				if r > 0 && v == 0 {
					f.Note("Row %d.", r)
				}
				at := func(part int) string {
					return fmt.Sprintf("%d(%s)", k.sum(r, from+v, part), rTmp)
				}
				of := kept[(r*vectors+v)*k.apart():]
				for p := range max(h, k.apart()) {
					t := beyond[p]
					if p < k.apart() {
						t = of[p]
					}
					f.P("VMOVUPS %s, %s", at(p), t)
					if h >= k.apart() {
						f.P("VADDPS %s, %s, %s", at(p+h), t, t)
					}
					if p >= k.apart() {
						f.P("VADDPS %s, %s, %s", t, of[0], of[0])
					}
				}
			}
		}
		k.finish(f, from, vectors, k.apart())
	}
}

// reduceTwoRows is reduce where a row is in each half: registers of even elements 0.., 8.., 16.., 24.., then the odd
// ones.
func (k dotKernel) reduceTwoRows(f *file) {
	d := k.registers()
	sums := d.sums
	f.Note("The tree, a row in each half: between registers, then within their halves.")
	for _, p := range [][2]int{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 1}, {4, 5}} {
		f.P("VADDPS %s, %s, %s", sums[p[1]], sums[p[0]], sums[p[0]])
	}
	n := network{f, k.s, d.all.take()}
	out := n.merge(sums[0], sums[4], 2)
	out = n.merge(out, out, 1)
	f.P("VMOVSHDUP %s, %s", out, n.scratch)
	f.P("VADDPS %s, %s, %s", n.scratch, out, out)
	f.Note("NaN becomes canonical; store the sums of both rows.")
	k.canonical(f, out)
	k.address(f, "dst", rTmp)
	f.P("VMOVSS %s, (%s)", out.x(), rTmp)
	f.P("VEXTRACTF128 $1, %s, %s", out, out.x())
	f.P("VMOVSS %s, 4(%s)", out.x(), rTmp)
}

// apart is the number of registers that a pair's accumulators come down to lane by lane: even and odd elements are
// added last.
func (k dotKernel) apart() int {
	if k.split() {
		return 2
	}
	return 1
}

// finish adds up the lanes of the pairs of vectors from.., whose registers start step apart, and stores the sums.
func (k dotKernel) finish(f *file, from, vectors, step int) {
	// Registers are merged, halving the lanes of each: the sum at index i ends up in 128-bit lane i%quads, slot
	// i/quads. A lane is for a vector, a slot for a row.
	quads := k.s.lanes / 4
	all := newRegisters(k.s, assembly.OldestFirst, 0)
	sums := all.takeN(k.rows * vectors * step)
	n := network{f, k.s, all.take()}
	var finals []reg
	for net := range k.apart() {
		items := make([]*reg, 4*quads)
		used := false
		for r := range k.rows {
			for v := range vectors {
				of := sums[(r*vectors+v)*step:]
				if !k.split() {
					items[quads*r+v] = &of[0]
					used = true
				} else if r/2 == net {
					items[quads*(2*(r%2))+v] = &of[0]
					items[quads*(2*(r%2)+1)+v] = &of[1]
					used = true
				}
			}
		}
		if used {
			finals = append(finals, n.run(items))
		}
	}
	out := finals[0]
	if k.split() {
		f.Note("The last step of the tree: even + odd.")
		out = n.merge(out, finals[len(finals)-1], 1)
	}
	f.Note("NaN becomes canonical; store dst[v][r], the rows of vector v being 128-bit lane v-%d.", from)
	k.canonical(f, out)
	if from == 0 {
		k.address(f, "dst", rDst)
	}
	for v := range vectors {
		k.store(f, out, v, k.rows, fmt.Sprintf("(%s)", rDst), fmt.Sprintf("8(%s)", rDst))
		if from+v < k.vectors-1 {
			f.P("ADDQ dotArgs_stride(%s), %s", rArgs, rDst)
		}
	}
}

// store writes the first n elements of a 128-bit lane of a register to at (and the third to third).
func (k dotKernel) store(f *file, out reg, lane, n int, at, third string) {
	x := out.x()
	if lane > 0 {
		x = out.beside().x()
		op := "VEXTRACTF128"
		if k.s == avx512 {
			op = "VEXTRACTF32X4"
		}
		f.P("%s $%d, %s, %s", op, lane, out, x)
	}
	switch n {
	case 1:
		f.P("VMOVSS %s, %s", x, at)
	case 2:
		f.P("VMOVLPS %s, %s", x, at)
	case 3:
		f.P("VMOVLPS %s, %s", x, at)
		f.P("VEXTRACTPS $2, %s, %s", x, third)
	default:
		f.P("VMOVUPS %s, %s", x, at)
	}
}

// canonical replaces the NaNs of a register.
func (k dotKernel) canonical(f *file, r reg) {
	nan := f.exact(exact.CanonicalNaN)
	if k.s == avx512 {
		f.P("VCMPPS $%d, %s, %s, K1", unordered, r, r)
		f.P("VMOVUPS %s, K1, %s", nan, r)
		return
	}
	t := r.beside()
	f.P("VCMPPS $%d, %s, %s, %s", unordered, r, r, t)
	f.P("VBLENDVPS %s, %s, %s, %s", t, nan, r, r)
}

// network adds up the lanes of several registers at once: a step takes two registers and leaves one whose halves are
// the sums of the halves of each.
type network struct {
	f       *file
	s       isa
	scratch reg
}

// merge adds lane l+h to lane l of registers a and b and returns the register with the remaining lanes of both.
func (n *network) merge(a, b reg, h int) reg {
	var op, low, high string
	switch h {
	case 8:
		op, low, high = "VSHUFF64X2", lowSlots, highSlots
	case 4:
		op, low, high = "VSHUFF64X2", evenSlots, oddSlots
		if n.s == avx2 {
			op, low, high = "VPERM2F128", lowHalves, highHalves
		}
	case 2:
		op, low, high = "VSHUFPS", lowSlots, highSlots
	case 1:
		op, low, high = "VSHUFPS", evenSlots, oddSlots
	}
	t := n.scratch
	n.f.P("%s $%s, %s, %s, %s", op, low, b, a, t)
	n.f.P("%s $%s, %s, %s, %s", op, high, b, a, a)
	n.f.P("VADDPS %s, %s, %s", a, t, a)
	return a
}

// run merges items, some of which may be missing, down to one register.
func (n *network) run(items []*reg) reg {
	for h := n.s.lanes / 2; h > 0; h /= 2 {
		n.f.Note("The tree within registers, h = %d: each step leaves the sums of two registers in one.", h)
		var next []*reg
		for i := 0; i < len(items); i += 2 {
			a, b := items[i], (*reg)(nil)
			if i+1 < len(items) {
				b = items[i+1]
			}
			switch {
			case a == nil && b == nil:
				next = append(next, nil)
			case b == nil:
				one := n.merge(*a, *a, h)
				next = append(next, &one)
			case a == nil:
				panic("a gap in the items")
			default:
				one := n.merge(*a, *b, h)
				next = append(next, &one)
			}
		}
		items = next
	}
	return *items[0]
}
