package main

import "fmt"

// The dot products. A function handles `rows` rows and `vectors` vectors at a time and repeats that for a.groups groups of
// rows. Every (row, vector) pair has the 32 accumulators of the contract in registers: two of AVX-512, four of AVX2.
// F32 and F16 weights keep their order. BF16 and MXFP4 weights come apart cheaply into the even and the odd elements of a
// block of 32, so their vectors are packed as 16 even, then 16 odd elements a block ("split", below).
//
// Where the registers do not hold all accumulators of enough pairs, a group is swept several times: a sweep does one or two
// registers of each pair's lanes, of all vectors or of four. That changes no order, since accumulators are independent, and
// what a sweep widens serves more vectors.
//
// A row's tail, shorter than a block, is a block of its own, which the caller copies to a.tail and fills up with zeros; the
// packed vectors are filled up with -0. Their product, -0, changes no accumulator: x + -0 is x, whatever x is.

type dotKernel struct {
	s             isa
	format        string
	rows, vectors int
	sweeps        int
}

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
func (k dotKernel) moveSums(f *file, sweep, accs int, store bool) {
	k.address(f, "sums", rTmp)
	for i := range accs {
		at := fmt.Sprintf("%d(%s)", (sweep*accs+i)*k.s.bytes(), rTmp)
		if store {
			f.p("VMOVUPS %s, %s", k.s.r(i), at)
		} else {
			f.p("VMOVUPS %s, %s", at, k.s.r(i))
		}
	}
}

// prefetch asks memory for weights to come.
//
// With few vectors each row is a stream of its own, which keeps more requests under way than plain reads do: it is asked for
// aheadBytes ahead, and at its end, for the beginning of a row of the next group.
//
// Where a block is less than a cache line one stream is asked for, groupAheadBytes beyond the next group, and the next group's
// scales: the lookups wait for a scale, so that one missed costs more than a miss among the weights.
//
// With many vectors each sweep asks for its share of each row of the next group, so that memory is busy all the time.
func (k dotKernel) prefetch(f *file) {
	switch {
	case k.ahead():
		for r := range k.rows {
			f.p("PREFETCHT0 %s", rowAddress(rAhead, r, 0))
		}
		f.p("ADDQ $%d, %s", k.blockBytes()/k.sweeps, rAhead)
	case k.streams():
		for r := range k.rows {
			f.p("PREFETCHT0 %s", rowAddress(rAhead, r, aheadBytes))
		}
		f.p("ADDQ $%d, %s", k.blockBytes(), rAhead)
	default:
		f.p("PREFETCHT0 %d(%s)", groupAheadBytes, rAhead)
		f.p("ADDQ $%d, %s", k.rows*k.blockBytes(), rAhead)
		f.p("PREFETCHT0 (%s)", rScaleAhead)
		f.p("ADDQ $%d, %s", k.rows, rScaleAhead)
	}
}

const (
	aheadBytes      = 2048
	groupAheadBytes = 6144
)

// streams says that the loop asks for each row apart.
func (k dotKernel) streams() bool { return !k.ahead() && k.format != "MXFP4" }

// leave lets what the loop asks for jump from the end of its rows, where they are aheadBytes from their ends, to the next group.
func (k dotKernel) leave(f *file) {
	f.p("MOVQ dotArgs_blocks(%s), %s", rArgs, rTmp)
	f.p("IMUL3Q $%d, %s, %s", k.blockBytes(), rTmp, rTmp)
	f.p("SUBQ %s, %s", rTmp, rAhead)
	f.p("IMUL3Q $%d, %s, %s", k.rows, rRow, rTmp)
	f.p("ADDQ %s, %s", rTmp, rAhead)
	f.p("MOVQ $1, %s", rTmp)
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
	accs := k.rows * k.together() * k.parts()
	if k.format == "MXFP4" && k.s == avx2 {
		accs = 8
	}
	f.function(fmt.Sprintf(`%s sets dst[v][r] to the dot product of row r and vector v, for %d rows and %d vectors at a time, and goes on to
		the next rows until a.groups are done. It is generic.Backend.Dot for %s weights.`, k.name(), k.rows, k.vectors, k.format),
		k.name(), "a *dotArgs")
	f.p("MOVQ a+0(FP), %s", rArgs)
	if k.vectors > 1 {
		f.p("MOVQ dotArgs_xStride(%s), %s", rArgs, rXStride)
		if k.vectors > 3 {
			f.p("LEAQ (%s)(%s*2), %s", rXStride, rXStride, rX3)
		}
	}
	group := f.newLabel("group")
	f.p("%s:", group)
	for sweep := range k.sweeps {
		k.address(f, "w", rW)
		f.p("MOVQ dotArgs_row(%s), %s", rArgs, rRow)
		f.p("MOVQ dotArgs_x(%s), %s", rArgs, rX)
		k.pointers(f)
		if k.ahead() {
			k.nextGroup(f, sweep)
		}
		if k.format == "BF16" && k.s == avx512 {
			f.p("VMOVUPS %s, %s", f.constant("highHalf", 0xffff0000), k.s.r(k.mask()))
		}
		begun := f.newLabel("begun")
		if k.panels() {
			// Columns are cut into panels: go on from the sums of the panels before, unless this is the first.
			fresh := f.newLabel("fresh")
			f.p("CMPQ dotArgs_first(%s), $0", rArgs)
			f.p("JNE %s", fresh)
			k.moveSums(f, sweep, accs, false)
			f.p("JMP %s", begun)
			f.p("%s:", fresh)
		}
		for i := range accs {
			f.p("VXORPS %s, %s, %s", k.s.x(i), k.s.x(i), k.s.x(i))
		}
		if k.panels() {
			f.p("%s:", begun)
		}
		f.p("MOVQ dotArgs_blocks(%s), %s", rArgs, rCount)
		tail, loop, done := f.newLabel("tail"), f.newLabel("block"), f.newLabel("done")
		f.p("TESTQ %s, %s", rCount, rCount)
		f.p("JZ %s", tail)
		leaving, near := f.newLabel("leaving"), aheadBytes/k.blockBytes()
		if k.streams() {
			f.p("MOVQ %s, %s", rW, rAhead)
			f.p("MOVQ $0, %s", rTmp)
			f.p("SUBQ $%d, %s", near, rCount)
			f.p("JHI %s", loop)
			f.p("ADDQ $%d, %s", near, rCount)
			f.p("%s:", leaving)
			k.leave(f)
		}
		f.p("%s:", loop)
		k.block(f, sweep, accs)
		k.prefetch(f)
		k.advance(f)
		f.p("DECQ %s", rCount)
		f.p("JNZ %s", loop)
		if k.streams() {
			f.p("MOVQ $%d, %s", near, rCount)
			f.p("TESTQ %s, %s", rTmp, rTmp)
			f.p("JZ %s", leaving)
		}
		f.p("%s:", tail)
		if k.format != "MXFP4" {
			f.p("MOVQ dotArgs_tail(%s), %s", rArgs, rW)
			f.p("TESTQ %s, %s", rW, rW)
			f.p("JZ %s", done)
			f.p("ADDQ dotArgs_tailAt(%s), %s", rArgs, rW)
			f.p("MOVQ dotArgs_tailX(%s), %s", rArgs, rX)
			f.p("MOVQ $128, %s", rRow)
			k.pointers(f)
			k.block(f, sweep, accs)
			f.p("%s:", done)
		}
		if k.sweeps > 1 {
			k.moveSums(f, sweep, accs, true)
		}
	}
	next := f.newLabel("next")
	if k.panels() {
		reduce := f.newLabel("reduce")
		f.p("CMPQ dotArgs_last(%s), $0", rArgs)
		f.p("JNE %s", reduce)
		if k.sweeps == 1 {
			k.moveSums(f, 0, accs, true)
		}
		f.p("JMP %s", next)
		f.p("%s:", reduce)
	}
	k.reduce(f, accs)
	f.p("%s:", next)
	if k.panels() {
		f.p("MOVQ dotArgs_sumsStep(%s), %s", rArgs, rTmp)
		f.p("ADDQ %s, dotArgs_sumsAt(%s)", rTmp, rArgs)
	}
	// On to the next group.
	f.p("MOVQ dotArgs_row(%s), %s", rArgs, rTmp)
	f.p("IMUL3Q $%d, %s, %s", k.rows, rTmp, rTmp)
	f.p("ADDQ %s, dotArgs_wAt(%s)", rTmp, rArgs)
	if k.format == "MXFP4" {
		f.p("MOVQ dotArgs_scaleRow(%s), %s", rArgs, rTmp)
		f.p("IMUL3Q $%d, %s, %s", k.rows, rTmp, rTmp)
		f.p("ADDQ %s, dotArgs_scaleAt(%s)", rTmp, rArgs)
	} else {
		f.p("ADDQ $%d, dotArgs_tailAt(%s)", 128*k.rows, rArgs)
	}
	f.p("ADDQ $%d, dotArgs_dstAt(%s)", 4*k.rows, rArgs)
	f.p("DECQ dotArgs_groups(%s)", rArgs)
	f.p("JNZ %s", group)
	f.p("VZEROUPPER")
	f.p("RET")
}

// address loads a pointer of the arguments and adds how far the call has come. The pointers themselves stay: the collector
// may look at them between calls, and must not find one that points beyond its memory.
func (k dotKernel) address(f *file, field, to string) {
	f.p("MOVQ dotArgs_%s(%s), %s", field, rArgs, to)
	f.p("ADDQ dotArgs_%sAt(%s), %s", field, rArgs, to)
}

// nextGroup sets rAhead to the share that a sweep asks for of the next group: that of the same columns, or after the last
// group that which the caller says.
func (k dotKernel) nextGroup(f *file, sweep int) {
	last, known := f.newLabel("last"), f.newLabel("known")
	f.p("CMPQ dotArgs_groups(%s), $1", rArgs)
	f.p("JEQ %s", last)
	f.p("IMUL3Q $%d, %s, %s", k.rows, rRow, rAhead)
	f.p("ADDQ %s, %s", rW, rAhead)
	f.p("JMP %s", known)
	f.p("%s:", last)
	f.p("MOVQ dotArgs_w(%s), %s", rArgs, rAhead)
	f.p("ADDQ dotArgs_next(%s), %s", rArgs, rAhead)
	f.p("%s:", known)
	if sweep > 0 {
		f.p("MOVQ dotArgs_blocks(%s), %s", rArgs, rTmp)
		f.p("IMUL3Q $%d, %s, %s", sweep*k.blockBytes()/k.sweeps, rTmp, rTmp)
		f.p("ADDQ %s, %s", rTmp, rAhead)
	}
}

// pointers sets up what the addresses of vectors and scales need besides.
func (k dotKernel) pointers(f *file) {
	if k.vectors > 4 {
		f.p("LEAQ (%s)(%s*4), %s", rX, rXStride, rX4)
	}
	if k.format == "MXFP4" {
		k.address(f, "scale", rScale)
		f.p("MOVQ dotArgs_scaleRow(%s), %s", rArgs, rScaleRow)
		f.p("MOVQ dotArgs_table(%s), %s", rArgs, rTable)
		if !k.ahead() {
			f.p("IMUL3Q $%d, %s, %s", k.rows, rRow, rAhead)
			f.p("ADDQ %s, %s", rW, rAhead)
			f.p("IMUL3Q $%d, %s, %s", k.rows, rScaleRow, rScaleAhead)
			f.p("ADDQ %s, %s", rScale, rScaleAhead)
		}
	}
}

func (k dotKernel) advance(f *file) {
	f.p("ADDQ $%d, %s", k.blockBytes(), rW)
	if k.format == "MXFP4" {
		f.p("INCQ %s", rScale)
	}
	f.p("ADDQ $128, %s", rX)
	if k.vectors > 4 {
		f.p("ADDQ $128, %s", rX4)
	}
}

// place returns the offsets of the weights (in a row's block) and of the vector elements (in a packed block) that belong to
// an accumulator register.
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
func (k dotKernel) widen(f *file, r, w, part, t int) {
	even := part%2 == 0 // where even and odd elements are apart
	switch {
	case k.format == "F32":
		f.p("VMOVUPS %s, %s", weights(r, w), k.s.r(t))
	case k.format == "F16":
		f.p("VCVTPH2PS %s, %s", weights(r, w), k.s.r(t))
	case k.s == avx512 && even:
		f.p("VPSLLD $16, %s, %s", weights(r, w), k.s.r(t))
	case k.s == avx512:
		f.p("VPANDD %s, %s, %s", weights(r, w), k.s.r(k.mask()), k.s.r(t))
	case even:
		f.p("VMOVUPS %s, %s", weights(r, w), k.s.r(t))
		f.p("VPSLLD $16, %s, %s", k.s.r(t), k.s.r(t))
	default:
		f.p("VMOVUPS %s, %s", weights(r, w), k.s.r(t))
		f.p("VANDPS %s, %s, %s", f.constant("highHalf", 0xffff0000), k.s.r(t), k.s.r(t))
	}
}

// mask is the register that holds highHalf in AVX-512 code.
func (k dotKernel) mask() int { return k.s.regs - 1 }

// block adds one block of 32 to the accumulators.
func (k dotKernel) block(f *file, sweep, accs int) {
	if k.format == "MXFP4" {
		k.blockMXFP4(f, sweep, accs)
		return
	}
	free := accs
	for part := range k.parts() {
		w, x := k.place(sweep, part)
		if k.vectors == 1 {
			xr := free
			f.p("VMOVUPS %s, %s", vector(0, x), k.s.r(xr))
			for r := range k.rows {
				if k.format == "F32" {
					f.p("VFMADD231PS %s, %s, %s", weights(r, w), k.s.r(xr), k.s.r(k.acc(r, 0, part)))
					continue
				}
				t := free + 1 + r%2
				k.widen(f, r, w, k.counted(sweep, part), t)
				f.p("VFMADD231PS %s, %s, %s", k.s.r(t), k.s.r(xr), k.s.r(k.acc(r, 0, part)))
			}
			continue
		}
		for r := range k.rows {
			k.widen(f, r, w, k.counted(sweep, part), free+r)
		}
		first := sweep / k.sweepsOf() * k.together()
		for v := range k.together() {
			if k.rows == 1 {
				f.p("VFMADD231PS %s, %s, %s", vector(first+v, x), k.s.r(free), k.s.r(k.acc(0, v, part)))
				continue
			}
			xr := free + k.rows
			f.p("VMOVUPS %s, %s", vector(first+v, x), k.s.r(xr))
			for r := range k.rows {
				f.p("VFMADD231PS %s, %s, %s", k.s.r(free+r), k.s.r(xr), k.s.r(k.acc(r, v, part)))
			}
		}
	}
}

// blockMXFP4 looks the weights up in the table of their scale byte, which holds all 16 of them, signs included.
//
// AVX-512: 16 float32 a scale; the bytes of a group, as 32-bit lanes, are the indices of the even elements (a permutation
// uses four bits of an index), and shifted right by four those of the odd ones.
//
// AVX2: 16 upper bytes and 16 lower bytes of the bfloat16 each weight is. Two rows lie side by side in the halves of a
// register, so that the accumulators of a row are eight registers of four.
func (k dotKernel) blockMXFP4(f *file, sweep, accs int) {
	scale := func(r int) string {
		if r == 0 {
			return fmt.Sprintf("(%s)", rScale)
		}
		return fmt.Sprintf("(%s)(%s*%d)", rScale, rScaleRow, r)
	}
	if k.s == avx512 && k.vectors > 1 {
		for part := range k.parts() {
			odd := k.counted(sweep, part) == 1
			x := accs + k.rows
			for r := range k.rows {
				f.p("MOVBLZX %s, %s", scale(r), rTmp)
				f.p("SHLQ $6, %s", rTmp)
				f.p("VPMOVZXBD %s, Z%d", weights(r, 0), accs+r)
				if odd {
					f.p("VPSRLD $4, Z%d, Z%d", accs+r, accs+r)
				}
				f.p("VPERMPS (%s)(%s*1), Z%d, Z%d", rTable, rTmp, accs+r, accs+r)
			}
			_, at := k.place(sweep, part)
			for v := range k.vectors {
				f.p("VMOVUPS %s, Z%d", vector(v, at), x)
				for r := range k.rows {
					f.p("VFMADD231PS Z%d, Z%d, Z%d", accs+r, x, k.acc(r, v, part))
				}
			}
		}
		return
	}
	if k.s == avx512 {
		f.p("VMOVUPS (%s), Z%d", rX, accs)
		f.p("VMOVUPS 64(%s), Z%d", rX, accs+1)
		for r := range k.rows {
			t := accs + 2 + 4*r
			f.p("MOVBLZX %s, %s", scale(r), rTmp)
			f.p("SHLQ $6, %s", rTmp)
			f.p("VPMOVZXBD %s, Z%d", weights(r, 0), t)
			f.p("VMOVUPS (%s)(%s*1), Z%d", rTable, rTmp, t+1)
			f.p("VPERMPS Z%d, Z%d, Z%d", t+1, t, t+2)
			f.p("VPSRLD $4, Z%d, Z%d", t, t)
			f.p("VPERMPS Z%d, Z%d, Z%d", t+1, t, t+3)
			f.p("VFMADD231PS Z%d, Z%d, Z%d", t+2, accs, k.acc(r, 0, 0))
			f.p("VFMADD231PS Z%d, Z%d, Z%d", t+3, accs+1, k.acc(r, 0, 1))
		}
		return
	}
	const low, high, upper, lower, word, wide, x = 8, 9, 10, 11, 12, 13, 14
	f.p("MOVBLZX %s, %s", scale(0), rTmp)
	f.p("SHLQ $5, %s", rTmp)
	f.p("MOVBLZX %s, R15", scale(1))
	f.p("SHLQ $5, R15")
	f.p("VMOVDQU %s, X%d", weights(0, 0), low)
	f.p("VINSERTI128 $1, %s, Y%d, Y%d", weights(1, 0), low, low)
	f.p("VMOVDQU (%s)(%s*1), X%d", rTable, rTmp, upper)
	f.p("VINSERTI128 $1, (%s)(R15*1), Y%d, Y%d", rTable, upper, upper)
	f.p("VMOVDQU 16(%s)(%s*1), X%d", rTable, rTmp, lower)
	f.p("VINSERTI128 $1, 16(%s)(R15*1), Y%d, Y%d", rTable, lower, lower)
	f.p("VPSHUFB %s, Y%d, Y%d", f.constant("quads", 0x05010400, 0x07030602, 0x0d090c08, 0x0f0b0e0a), low, low)
	f.p("VPSRLW $4, Y%d, Y%d", low, high)
	f.p("VPAND %s, Y%d, Y%d", f.constant("nibble", 0x0f0f0f0f), low, low)
	f.p("VPAND %s, Y%d, Y%d", f.constant("nibble", 0x0f0f0f0f), high, high)
	for odd, index := range []int{low, high} {
		// The index register is used up by its own lookups.
		f.p("VPSHUFB Y%d, Y%d, Y%d", index, upper, word)
		f.p("VPSHUFB Y%d, Y%d, Y%d", index, lower, index)
		for half, op := range []string{"VPUNPCKLBW", "VPUNPCKHBW"} {
			at := 64*odd + 32*half
			f.p("%s Y%d, Y%d, Y%d", op, word, index, wide)
			f.p("VBROADCASTF128 %d(%s), Y%d", at, rX, x)
			f.p("VPSLLD $16, Y%d, Y15", wide)
			f.p("VFMADD231PS Y15, Y%d, Y%d", x, 4*odd+2*half)
			f.p("VBROADCASTF128 %d(%s), Y%d", at+16, rX, x)
			f.p("VPAND %s, Y%d, Y%d", f.constant("highHalf", 0xffff0000), wide, wide)
			f.p("VFMADD231PS Y%d, Y%d, Y%d", wide, x, 4*odd+2*half+1)
		}
	}
}

// reduce adds up the accumulators in the order of the contract and stores the sums.
func (k dotKernel) reduce(f *file, accs int) {
	var out int
	if k.format == "MXFP4" && k.s == avx2 {
		// Registers: even elements 0.. 8.. 16.. 24.., then the odd ones; a row in each half.
		for _, p := range [][2]int{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 1}, {4, 5}} {
			f.p("VADDPS Y%d, Y%d, Y%d", p[1], p[0], p[0])
		}
		n := network{f: f, s: k.s, free: []int{8, 9}}
		out = n.merge(0, 4, 2)
		out = n.merge(out, out, 1)
		f.p("VMOVSHDUP Y%d, Y8", out)
		f.p("VADDPS Y8, Y%d, Y%d", out, out)
		k.canonical(f, out)
		k.address(f, "dst", rTmp)
		f.p("VMOVSS X%d, (%s)", out, rTmp)
		f.p("VEXTRACTF128 $1, Y%d, X%d", out, out)
		f.p("VMOVSS X%d, 4(%s)", out, rTmp)
		return
	}
	if k.sweeps == 1 {
		for i := range k.rows * k.vectors {
			for h := k.parts() / 2; h >= k.apart(); h /= 2 {
				for p := range h {
					at := i*k.parts() + p
					f.p("VADDPS %s, %s, %s", k.s.r(at+h), k.s.r(at), k.s.r(at))
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
		k.address(f, "sums", rTmp)
		for r := range k.rows {
			for v := range vectors {
				at := func(part int) string {
					return fmt.Sprintf("%d(%s)", k.sum(r, from+v, part), rTmp)
				}
				to := (r*vectors + v) * k.apart()
				h := inAll / k.s.lanes / 2
				for p := range max(h, k.apart()) {
					// Where the parts of a pair take more registers than it may keep, those beyond the kept ones are free.
					t := to + p
					if p >= k.apart() {
						t = k.rows*vectors*k.apart() + p
					}
					f.p("VMOVUPS %s, %s", at(p), k.s.r(t))
					if h >= k.apart() {
						f.p("VADDPS %s, %s, %s", at(p+h), k.s.r(t), k.s.r(t))
					}
					if p >= k.apart() {
						f.p("VADDPS %s, %s, %s", k.s.r(t), k.s.r(to), k.s.r(to))
					}
				}
			}
		}
		k.finish(f, from, vectors, k.apart())
	}
}

// apart is the number of registers that a pair's accumulators come down to lane by lane: even and odd elements are added last.
func (k dotKernel) apart() int {
	if k.split() {
		return 2
	}
	return 1
}

// finish adds up the lanes of the pairs of vectors from.., whose registers start step apart, and stores the sums.
func (k dotKernel) finish(f *file, from, vectors, step int) {
	// Registers are merged, halving the lanes of each: the sum at index i ends up in 128-bit lane i%quads, slot i/quads. A lane is
	// for a vector, a slot for a row.
	quads := k.s.lanes / 4
	n := network{f: f, s: k.s}
	for i := k.rows * vectors * step; i < k.s.regs; i++ {
		n.free = append(n.free, i)
	}
	var finals []int
	for net := range k.apart() {
		items := make([]int, 4*quads)
		for i := range items {
			items[i] = -1
		}
		used := false
		for r := range k.rows {
			for v := range vectors {
				base := (r*vectors + v) * step
				if !k.split() {
					items[quads*r+v] = base
					used = true
				} else if r/2 == net {
					items[quads*(2*(r%2))+v] = base
					items[quads*(2*(r%2)+1)+v] = base + 1
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
		out = n.merge(out, finals[len(finals)-1], 1) // even + odd
	}
	k.canonical(f, out)
	// Lane v holds the rows of vector from+v.
	if from == 0 {
		k.address(f, "dst", rDst)
	}
	for v := range vectors {
		k.store(f, out, v, k.rows, fmt.Sprintf("(%s)", rDst), fmt.Sprintf("8(%s)", rDst))
		if from+v < k.vectors-1 {
			f.p("ADDQ dotArgs_stride(%s), %s", rArgs, rDst)
		}
	}
}

// store writes the first n elements of a 128-bit lane of a register to at (and the third to third).
func (k dotKernel) store(f *file, out, lane, n int, at, third string) {
	x := out
	if lane > 0 {
		x = 15
		if x == out {
			x = 14
		}
		op := "VEXTRACTF128"
		if k.s == avx512 {
			op = "VEXTRACTF32X4"
		}
		f.p("%s $%d, %s, X%d", op, lane, k.s.r(out), x)
	}
	switch n {
	case 1:
		f.p("VMOVSS X%d, %s", x, at)
	case 2:
		f.p("VMOVLPS X%d, %s", x, at)
	case 3:
		f.p("VMOVLPS X%d, %s", x, at)
		f.p("VEXTRACTPS $2, X%d, %s", x, third)
	default:
		f.p("VMOVUPS X%d, %s", x, at)
	}
}

// canonical replaces the NaNs of a register.
func (k dotKernel) canonical(f *file, r int) {
	nan := f.constant("canonicalNaN", 0x7fc00000)
	if k.s == avx512 {
		f.p("VCMPPS $3, Z%d, Z%d, K1", r, r)
		f.p("VMOVUPS %s, K1, Z%d", nan, r)
		return
	}
	t := 15
	if t == r {
		t = 14
	}
	f.p("VCMPPS $3, Y%d, Y%d, Y%d", r, r, t)
	f.p("VBLENDVPS Y%d, %s, Y%d, Y%d", t, nan, r, r)
}

// network adds up the lanes of several registers at once: a step takes two registers and leaves one whose halves are the
// sums of the halves of each.
type network struct {
	f    *file
	s    isa
	free []int
}

// merge adds lane l+h to lane l of registers a and b and returns the register with the remaining lanes of both.
func (n *network) merge(a, b, h int) int {
	var op string
	var low, high int
	switch h {
	case 8:
		op, low, high = "VSHUFF64X2", 0x44, 0xee
	case 4:
		op, low, high = "VSHUFF64X2", 0x88, 0xdd
		if n.s == avx2 {
			op, low, high = "VPERM2F128", 0x20, 0x31
		}
	case 2:
		op, low, high = "VSHUFPS", 0x44, 0xee
	case 1:
		op, low, high = "VSHUFPS", 0x88, 0xdd
	}
	t := n.free[0]
	n.f.p("%s $0x%02x, %s, %s, %s", op, low, n.s.r(b), n.s.r(a), n.s.r(t))
	n.f.p("%s $0x%02x, %s, %s, %s", op, high, n.s.r(b), n.s.r(a), n.s.r(a))
	n.f.p("VADDPS %s, %s, %s", n.s.r(a), n.s.r(t), n.s.r(a))
	if b != a {
		n.free = append(n.free, b)
	}
	return a
}

// run merges items (register numbers, -1 for none) down to one register.
func (n *network) run(items []int) int {
	for h := n.s.lanes / 2; h > 0; h /= 2 {
		var next []int
		for i := 0; i < len(items); i += 2 {
			a, b := items[i], -1
			if i+1 < len(items) {
				b = items[i+1]
			}
			switch {
			case a < 0 && b < 0:
				next = append(next, -1)
			case b < 0:
				next = append(next, n.merge(a, a, h))
			case a < 0:
				panic("a gap in the items")
			default:
				next = append(next, n.merge(a, b, h))
			}
		}
		items = next
	}
	return items[0]
}
