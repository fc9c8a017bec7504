// Command arm64 writes the assembly of backends/arm64 and its Go declarations. The algorithms are in dot.go, state.go,
// elementwise.go and measure.go; emit.go and lanes.go know registers and encodings.
package main

import "github.com/k3infer/k3/backends/_gen/assembly"

func main() {
	p := assembly.Package{Arch: "arm64"}
	for _, part := range []struct {
		name string
		fill func(*file)
	}{
		{"dot", dotKernels},
		{"state", stateKernels},
		{"elementwise", elementwiseKernels},
		{"measure", measureKernels},
	} {
		f := &file{}
		f.Name = part.name
		part.fill(f)
		f.define()
		p.Files = append(p.Files, &f.File)
	}
	p.Main()
}
