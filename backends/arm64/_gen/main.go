// Command _gen writes the assembly of backends/arm64 and its Go declarations. The algorithms are in dot.go, state.go,
// elementwise.go and measure.go; emit.go and lanes.go know registers and encodings.
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
	stubs.WriteString(header + "package arm64\n")
	for _, part := range []struct {
		name string
		fill func(*file)
	}{
		{"dot", dotKernels},
		{"state", stateKernels},
		{"elementwise", elementwiseKernels},
		{"measure", measureKernels},
	} {
		f := &file{name: part.name}
		part.fill(f)
		if err := f.write(dir); err != nil {
			return err
		}
		for _, d := range f.stubs {
			stubs.WriteString("\n" + d)
		}
	}
	src, err := format.Source(stubs.Bytes())
	if err != nil {
		return err
	}
	return os.WriteFile(dir+"/stubs_arm64.go", src, 0o644)
}
