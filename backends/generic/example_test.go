package generic_test

import (
	"fmt"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/kernel"
)

// A row of weights times a vector, as every backend must compute it.
func ExampleBackend_Dot() {
	var b generic.Backend
	w := kernel.Float32Tile([]float32{1, 2, 3}, 1, 3, 3)
	x := make([]float32, b.PackedLen(w.Format, 3))
	b.Pack(w.Format, x, []float32{4, 5, 6})
	y := make([]float32, 1)
	b.Dot(y, 1, w, x, 1)
	fmt.Println(y)
	// Output:
	// [32]
}
