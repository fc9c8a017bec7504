package main

import (
	"fmt"
	"slices"

	"github.com/k3infer/k3/backends/_gen/assembly"
	"github.com/k3infer/k3/backends/_gen/exact"
)

// file is one assembly file being written.
type file struct {
	assembly.File
	constants []exact.Constant // each is a vector of four in the file's table
}

// param is a parameter of an assembly function.
type param struct{ name, typ string }

func shared(params []param) (all []assembly.Param) {
	for _, p := range params {
		all = append(all, assembly.Param{Name: p.name, Type: p.typ})
	}
	return all
}

// function begins a function: its comment (the loop in words and the generic twin), its name and its parameters.
func (f *file) function(about, name string, params ...param) {
	f.Function(about, name, shared(params)...)
}

// load puts the parameters from first on into the registers R0 up, and a float32 into all lanes of vector.
func (f *file) load(first, vector int, params ...param) {
	offsets, _ := assembly.Offsets(shared(params))
	for i, p := range params {
		if p.typ == "float32" {
			f.P("MOVD $%s+%d(FP), R15", p.name, offsets[i])
			f.P("VLD1R (R15), [V%d.S4]", vector)
			vector--
		} else {
			f.P("MOVD %s+%d(FP), R%d", p.name, offsets[i], first)
			first++
		}
	}
}

// constant returns the offset of a vector with the constant in every lane in the file's table.
func (f *file) constant(c exact.Constant) int {
	at := slices.Index(f.constants, c)
	if at < 0 {
		at = len(f.constants)
		f.constants = append(f.constants, c)
	}
	return 16 * at
}

// define writes the table of constants down.
func (f *file) define() {
	if len(f.constants) == 0 {
		return
	}
	f.Data.WriteString("\n// Every word fills the four lanes of a vector.\n")
	for i, c := range f.constants {
		for half := range 2 {
			fmt.Fprintf(&f.Data, "DATA constants<>+%d(SB)/8, $0x%08x%08x // %s\n", 16*i+8*half, c.Bits, c.Bits, c.Name)
		}
	}
	fmt.Fprintf(&f.Data, "GLOBL constants<>(SB), RODATA|NOPTR, $%d\n", 16*len(f.constants))
}

// encodings are the vector instructions that Go's assembler lacks, for four float32 lanes (fcvtl widens four
// float16), with all registers 0. encodings_test.go holds the same table, written from another source, against every
// WORD in the output.
var encodings = map[string]uint32{
	"fadd":   0x4e20d400,
	"fsub":   0x4ea0d400,
	"fmul":   0x6e20dc00,
	"fdiv":   0x6e20fc00,
	"fmax":   0x4e20f400,
	"fmin":   0x4ea0f400,
	"faddp":  0x6e20d400,
	"fcmeq":  0x4e20e400,
	"fcmgt":  0x6ea0e400,
	"fabs":   0x4ea0f800,
	"frintn": 0x4e218800,
	"fcvtzs": 0x4ea1b800,
	"sshr":   0x4f000400,
	"fcvtl":  0x0e217800,
	"fcvtl2": 0x4e217800,
}

// word3 writes an instruction of three vector registers: d = n op m.
func (f *file) word3(op string, d, n, m int) {
	f.P("WORD $0x%08x // %s v%d.4s, v%d.4s, v%d.4s", encodings[op]|uint32(m)<<16|uint32(n)<<5|uint32(d), op, d, n, m)
}

// word2 writes an instruction of two vector registers: d = op n.
func (f *file) word2(op string, d, n int) {
	from := map[string]string{"fcvtl": "4h", "fcvtl2": "8h"}[op]
	if from == "" {
		from = "4s"
	}
	f.P("WORD $0x%08x // %s v%d.4s, v%d.%s", encodings[op]|uint32(n)<<5|uint32(d), op, d, n, from)
}

// sshr writes an arithmetic shift right of every lane.
func (f *file) sshr(d, n, shift int) {
	f.P("WORD $0x%08x // sshr v%d.4s, v%d.4s, #%d",
		encodings["sshr"]|uint32(64-shift)<<16|uint32(n)<<5|uint32(d), d, n, shift)
}

// pair loads two neighbouring registers' worth of memory.
func (f *file) pair(offset int, pointer string, a, b int) {
	f.P("FLDPQ %d(%s), (F%d, F%d)", offset, pointer, a, b)
}

func (f *file) zero(v int) { f.P("VEOR V%d.B16, V%d.B16, V%d.B16", v, v, v) }

func (f *file) fma(acc, a, b int) { f.P("VFMLA V%d.S4, V%d.S4, V%d.S4", b, a, acc) }

// canonical replaces NaN in v by that in register nan; scratch is overwritten.
func (f *file) canonical(v, nan, scratch int) {
	f.word3("fcmeq", scratch, v, v)
	f.P("VBIF V%d.B16, V%d.B16, V%d.B16", scratch, nan, v)
}

// setNaN fills v with the canonical NaN.
func (f *file) setNaN(v int) {
	f.P("MOVD $0x%08x, R15", exact.CanonicalNaN.Bits)
	f.P("VDUP R15, V%d.S4", v)
}

// vectorRegisters is the number of vector registers.
const vectorRegisters = 32

// newRegisters returns the vector registers from first on, free.
func newRegisters(first int) *assembly.Registers {
	return assembly.NewRegisters(assembly.OldestFirst, first, vectorRegisters-1)
}

// loadAll loads an even number of registers from offset on.
func (f *file) loadAll(offset int, pointer string, all []int) {
	for i := 0; i < len(all); i += 2 {
		f.pair(offset+16*i, pointer, all[i], all[i+1])
	}
}

// storeAll stores an even number of registers from offset on.
func (f *file) storeAll(offset int, pointer string, all []int) {
	for i := 0; i < len(all); i += 2 {
		f.P("FSTPQ (F%d, F%d), %d(%s)", all[i], all[i+1], offset+16*i, pointer)
	}
}
