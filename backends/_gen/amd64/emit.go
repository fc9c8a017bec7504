package main

import (
	"fmt"
	"sort"

	"github.com/k3infer/k3/backends/_gen/assembly"
	"github.com/k3infer/k3/backends/_gen/exact"
)

// file is one assembly file being written.
type file struct {
	assembly.File
	data map[string][]uint32 // constants, by symbol
}

// argument is a parameter of a function and the register it is loaded into at the beginning, if any.
type argument struct{ name, typ, register string }

// function begins a function and loads its arguments.
func (f *file) function(about, name string, arguments ...argument) {
	var params []assembly.Param
	for _, a := range arguments {
		params = append(params, assembly.Param{Name: a.name, Type: a.typ})
	}
	f.Function(about, name, params...)
	offsets, _ := assembly.Offsets(params)
	for i, a := range arguments {
		if a.register != "" {
			f.P("MOVQ %s+%d(FP), %s", a.name, offsets[i], a.register)
		}
	}
}

// end ends a function.
func (f *file) end() {
	f.P("VZEROUPPER")
	f.P("RET")
}

// constantBytes is the size of every constant: one fills a register of either instruction set.
const constantBytes = 64

// constant returns the operand of a read-only constant: the words repeated as often as they fit.
func (f *file) constant(name string, words ...uint32) string {
	if f.data == nil {
		f.data = map[string][]uint32{}
	}
	var all []uint32
	for len(all) < constantBytes/4 {
		all = append(all, words...)
	}
	f.data[name] = all
	return name + "<>(SB)"
}

// exact returns the operand of a constant of the exact functions.
func (f *file) exact(c exact.Constant) string { return f.constant(c.Name, c.Bits) }

// nibble masks the lower four bits of every byte.
func (f *file) nibble() string { return f.constant("nibble", 0x0f0f0f0f) }

// highHalf masks the upper half of a float32, which is a bfloat16.
func (f *file) highHalf() string { return f.constant("highHalf", 0xffff0000) }

// define writes the constants down.
func (f *file) define() {
	var names []string
	for n := range f.data {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		f.Data.WriteByte('\n')
		for i := 0; i < constantBytes/4; i += 2 {
			fmt.Fprintf(&f.Data, "DATA %s<>+%d(SB)/8, $0x%08x%08x\n", n, 4*i, f.data[n][i+1], f.data[n][i])
		}
		fmt.Fprintf(&f.Data, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", n, constantBytes)
	}
}

// isa is a vector instruction set: its register names and what differs between the two.
type isa struct {
	name  string // suffix of function names
	file  string // and of files
	reg   string // "Y" or "Z"
	lanes int    // float32 a register
	regs  int    // number of registers
}

var (
	avx2   = isa{"AVX2", "avx2", "Y", 8, 16}
	avx512 = isa{"AVX512", "avx512", "Z", 16, 32}
)

// bytes is the size of a register.
func (s isa) bytes() int { return 4 * s.lanes }

// reg is a vector register. It prints as the whole register.
type reg struct {
	s isa
	n int
}

func (r reg) String() string { return fmt.Sprintf("%s%d", r.s.reg, r.n) }

// x is the lower 128 bits of a register.
func (r reg) x() string { return fmt.Sprintf("X%d", r.n) }

// lastShort is the last register that instructions without an EVEX prefix can name.
const lastShort = 15

// beside is a register other than r, for when r is the only one in use.
func (r reg) beside() reg {
	if r.n == lastShort {
		return reg{r.s, lastShort - 1}
	}
	return reg{r.s, lastShort}
}

// zero clears a register.
func (f *file) zero(r reg) { f.P("VXORPS %s, %s, %s", r, r, r) }

// zeroShort clears a register by its lower 128 bits, which clears all of it and is a shorter instruction where it has
// them.
func (f *file) zeroShort(r reg) {
	if r.n > lastShort {
		f.zero(r)
		return
	}
	f.P("VXORPS %s, %s, %s", r.x(), r.x(), r.x())
}

// registers hands out vector registers.
type registers struct {
	*assembly.Registers
	s isa
}

// newRegisters returns all registers from first on, free.
func newRegisters(s isa, order assembly.Order, first int) registers {
	return registers{assembly.NewRegisters(order, first, s.regs-1), s}
}

func (r registers) take() reg { return reg{r.s, r.Take()} }

func (r registers) takeLast() reg { return reg{r.s, r.TakeLast()} }

func (r registers) takeN(n int) (all []reg) {
	for _, number := range r.TakeN(n) {
		all = append(all, reg{r.s, number})
	}
	return all
}

func (r registers) give(all ...reg) {
	for _, one := range all {
		r.Free(one.n)
	}
}
