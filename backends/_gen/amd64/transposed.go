package main

import (
	"fmt"

	"github.com/k3infer/k3/backends/_gen/assembly"
)

// transposedKernels write the transposed product: `parts` registers of columns for `vectors` vectors stay in
// registers while the rows go by. Every (column, vector) pair is independent and takes the rows in order.
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
	const (
		args, dst, w, x, rows              = "AX", "DI", "SI", "R10", "CX"
		row                                = "R9"                      // bytes from row to row
		xStride, xStride3, stride, stride3 = "R11", "R12", "R8", "R13" // bytes from vector to vector, and three times
	)
	f.function(fmt.Sprintf(`%s adds w[r][c]*x[v][r] to dst[v][c] over the rows r ascending, for %d columns and %d vectors.
		It is generic.Backend.Transposed for %s weights.`, k.name(), k.parts*k.s.lanes, k.vectors, k.format), k.name(),
		argument{"a", "*transposedArgs", args})
	f.P("MOVQ transposedArgs_dst(%s), %s", args, dst)
	f.P("MOVQ transposedArgs_w(%s), %s", args, w)
	f.P("MOVQ transposedArgs_row(%s), %s", args, row)
	f.P("MOVQ transposedArgs_x(%s), %s", args, x)
	f.P("MOVQ transposedArgs_rows(%s), %s", args, rows)
	if k.vectors > 1 {
		f.P("MOVQ transposedArgs_xStride(%s), %s", args, xStride)
		f.P("LEAQ (%s)(%s*2), %s", xStride, xStride, xStride3)
		f.P("MOVQ transposedArgs_stride(%s), %s", args, stride)
		f.P("LEAQ (%s)(%s*2), %s", stride, stride, stride3)
	}
	// of returns the address of vector v, of up to four.
	of := func(v int, base, stride, stride3 string) string {
		switch v {
		case 0:
			return fmt.Sprintf("(%s)", base)
		case 3:
			return fmt.Sprintf("(%s)(%s*1)", base, stride3)
		}
		return fmt.Sprintf("(%s)(%s*%d)", base, stride, v)
	}
	all := newRegisters(k.s, assembly.OldestFirst, 0)
	sums := make([][]reg, k.vectors)
	for v := range sums {
		sums[v] = all.takeN(k.parts)
	}
	f.Note("Load dst[v][c]: %d registers of columns for each of %d vectors.", k.parts, k.vectors)
	for v := range sums {
		for p, sum := range sums[v] {
			f.P("VMOVUPS %d%s, %s", p*k.s.bytes(), of(v, dst, stride, stride3), sum)
		}
	}
	f.Label("loop")
	if k.vectors == 1 {
		f.Note("dst[c] = fma(w[r][c], x[r], dst[c]) for the columns of row r.")
		a := all.take()
		f.P("VBROADCASTSS %s, %s", of(0, x, xStride, xStride3), a)
		var wide []reg
		if k.format != "F32" {
			wide = all.takeN(4) // in turn
		}
		for p, sum := range sums[0] {
			if k.format == "F32" {
				f.P("VFMADD231PS %d(%s), %s, %s", p*k.s.bytes(), w, a, sum)
				continue
			}
			if p == 4 {
				f.Note("The other half of the columns.")
			}
			t := wide[p%len(wide)]
			k.widen(f, p, w, t)
			f.P("VFMADD231PS %s, %s, %s", t, a, sum)
		}
	} else {
		f.Note("Load the columns of row r as float32.")
		wide, values := all.takeN(k.parts), all.takeN(2)
		for p, t := range wide {
			k.widen(f, p, w, t)
		}
		f.Note("dst[v][c] = fma(w[r][c], x[v][r], dst[v][c]) for each vector v.")
		for v := range sums {
			a := values[v%2]
			f.P("VBROADCASTSS %s, %s", of(v, x, xStride, xStride3), a)
			for p, sum := range sums[v] {
				f.P("VFMADD231PS %s, %s, %s", wide[p], a, sum)
			}
		}
	}
	f.Note("Prefetch the row eight further on, and go on to the next.")
	for i := 0; i < k.parts*k.columnBytes(); i += 64 {
		f.P("PREFETCHT0 %d(%s)(%s*8)", i, w, row)
	}
	f.P("ADDQ %s, %s", row, w)
	f.P("ADDQ $4, %s", x)
	f.P("DECQ %s", rows)
	f.P("JNZ loop")
	f.Note("Store dst[v][c].")
	for v := range sums {
		for p, sum := range sums[v] {
			f.P("VMOVUPS %s, %d%s", sum, p*k.s.bytes(), of(v, dst, stride, stride3))
		}
	}
	f.end()
}

// widen loads a register of columns of the row at w, in their order.
func (k transposedKernel) widen(f *file, part int, w string, to reg) {
	at := part * k.columnBytes()
	switch k.format {
	case "F32":
		f.P("VMOVUPS %d(%s), %s", at, w, to)
	case "F16":
		f.P("VCVTPH2PS %d(%s), %s", at, w, to)
	case "BF16":
		f.P("VPMOVZXWD %d(%s), %s", at, w, to)
		f.P("VPSLLD $16, %s, %s", to, to)
	}
}

// columnBytes is the size of a register of columns.
func (k transposedKernel) columnBytes() int {
	if k.format == "F32" {
		return k.s.bytes()
	}
	return k.s.bytes() / 2
}
