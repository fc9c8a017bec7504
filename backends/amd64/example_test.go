package amd64_test

import (
	"fmt"
	"slices"

	_ "github.com/k3infer/k3/backends/amd64"
	"github.com/k3infer/k3/core/kernel"
)

// The package registers its backends on every machine; a driver says what this one lacks to run it.
func Example() {
	var names []string
	for _, d := range kernel.Drivers() {
		if d.Missing() == "" {
			d.New().Axpy([]float32{1}, 2, []float32{3})
		}
		names = append(names, d.Name)
	}
	for _, name := range []string{"avx2", "avx512"} {
		fmt.Println(name, slices.Contains(names, name))
	}
	// Output:
	// avx2 true
	// avx512 true
}
