// Command amd64 writes the assembly of backends/amd64 and its Go declarations. It knows the register names and
// repeats the patterns; the algorithms are in dot.go, transposed.go, recurrence.go, elementwise.go and the smaller
// files beside it.
package main

import (
	"fmt"
	"strings"

	"github.com/k3infer/k3/backends/_gen/assembly"
)

func main() {
	p := assembly.Package{Arch: "amd64", Go: "import \"github.com/k3infer/k3/core/kernel\"\n", After: dispatch()}
	for _, s := range []isa{avx2, avx512} {
		for _, part := range []struct {
			name string
			fill func(*file, isa)
		}{
			{"dot", dotKernels},
			{"decode", decodeKernels},
			{"pack", packKernel},
			{"expand", expandKernel},
			{"transposed", transposedKernels},
			{"recurrence", recurrenceKernels},
			{"elementwise", elementwiseKernels},
			{"measure", measureKernels},
		} {
			f := &file{}
			f.Name = part.name + "_" + s.file
			part.fill(f, s)
			f.define()
			p.Files = append(p.Files, &f.File)
		}
	}
	p.Main()
}

// dispatch returns the switches from a kernel's shape to its function. Calls through function values would make their
// argument escape to the heap.
func dispatch() string {
	var out strings.Builder
	begin := func(comment, name, parameters, shape string) {
		fmt.Fprintf(&out, "\n// %s %s\nfunc %s(f kernel.Format, %s) {\n\tswitch dotShape(%s) {\n",
			name, comment, name, parameters, shape)
	}
	choice := func(format string, first, second int, function string) {
		fmt.Fprintf(&out, "\tcase int(kernel.%s)<<8 | %d<<4 | %d:\n\t\t%s(a)\n", format, first, second, function)
	}
	end := func() { out.WriteString("\tdefault:\n\t\tpanic(\"amd64: no such kernel\")\n\t}\n}\n") }
	for _, s := range []isa{avx2, avx512} {
		begin("calls the function for rows of a format, some rows and vectors at a time.",
			"dot"+s.name, "rows, vectors int, a *dotArgs", "f, rows, vectors")
		for _, k := range dotVariants(s) {
			choice(k.format, k.rows, k.vectors, k.name())
		}
		end()
	}
	for _, s := range []isa{avx2, avx512} {
		begin("calls the function for rows of a format, some registers of columns and vectors at a time.",
			"transposed"+s.name, "parts, vectors int, a *transposedArgs", "f, parts, vectors")
		for _, k := range transposedVariants(s) {
			choice(k.format, k.parts, k.vectors, k.name())
		}
		end()
	}
	out.WriteString("\nfunc dotShape(f kernel.Format, rows, vectors int) int { return int(f)<<8 | rows<<4 | vectors }\n")
	return out.String()
}
