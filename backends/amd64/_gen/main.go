// Command _gen writes the assembly of backends/amd64 and its Go declarations. It knows the register names and repeats the
// patterns; the algorithms are in dot.go, transposed.go, recurrence.go and elementwise.go beside it.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"os"
)

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := generate(dir); err != nil {
		fmt.Fprintln(os.Stderr, "_gen:", err)
		os.Exit(1)
	}
}

func generate(dir string) error {
	var stubs bytes.Buffer
	stubs.WriteString(header + "package amd64\n\nimport \"github.com/k3infer/k3/core/kernel\"\n")
	for _, s := range []isa{avx2, avx512} {
		lower := map[string]string{"AVX2": "avx2", "AVX512": "avx512"}[s.name]
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
			{"measure", func(f *file, s isa) { readKernel(f, s); peakKernel(f, s) }},
		} {
			f := &file{name: part.name + "_" + lower}
			part.fill(f, s)
			if f.text.Len() == 0 {
				continue
			}
			if err := f.write(dir); err != nil {
				return err
			}
			for _, d := range f.stubs {
				stubs.WriteString("\n" + d)
			}
		}
	}
	dispatch(&stubs)
	src, err := format.Source(stubs.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(dir+"/stubs_amd64.go", src, 0o644)
}

// dispatch writes the switches from a kernel's shape to its function. Calls through function values would make their
// argument escape to the heap.
func dispatch(out *bytes.Buffer) {
	for _, s := range []isa{avx2, avx512} {
		fmt.Fprintf(out, "\n// dot%s calls the function for rows of a format, some rows and vectors at a time.\nfunc dot%s(f kernel.Format, rows, vectors int, a *dotArgs) {\n\tswitch dotShape(f, rows, vectors) {\n", s.name, s.name)
		for _, k := range dotVariants(s) {
			fmt.Fprintf(out, "\tcase int(kernel.%s)<<8 | %d<<4 | %d:\n\t\t%s(a)\n", k.format, k.rows, k.vectors, k.name())
		}
		fmt.Fprintf(out, "\tdefault:\n\t\tpanic(\"amd64: no such kernel\")\n\t}\n}\n")
	}
	for _, s := range []isa{avx2, avx512} {
		fmt.Fprintf(out, "\n// transposed%s calls the function for rows of a format, some registers of columns and vectors at a time.\nfunc transposed%s(f kernel.Format, parts, vectors int, a *transposedArgs) {\n\tswitch dotShape(f, parts, vectors) {\n", s.name, s.name)
		for _, k := range transposedVariants(s) {
			fmt.Fprintf(out, "\tcase int(kernel.%s)<<8 | %d<<4 | %d:\n\t\t%s(a)\n", k.format, k.parts, k.vectors, k.name())
		}
		fmt.Fprintf(out, "\tdefault:\n\t\tpanic(\"amd64: no such kernel\")\n\t}\n}\n")
	}
	out.WriteString("\nfunc dotShape(f kernel.Format, rows, vectors int) int { return int(f)<<8 | rows<<4 | vectors }\n")
}
