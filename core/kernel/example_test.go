package kernel_test

import (
	"fmt"
	"log"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core/kernel"
)

// A pool multiplies a matrix with vectors on several threads; how many changes no bit of the result.
func ExamplePool() {
	backend, err := kernel.Select("auto")
	if err != nil {
		log.Fatal(err)
	}
	pool := kernel.NewPool(backend, 2)
	defer pool.Close()
	matrix := kernel.Float32Tile([]float32{
		1, 2, 3,
		4, 5, 6,
	}, 2, 3, 3)
	x := []float32{1, 10, 100}
	packed := pool.Pack(make([]float32, pool.PackedLen(matrix.Format, 3, 1)), matrix.Format, x, 3, 3, 1)
	y := make([]float32, 2)
	pool.Product(y, 2, matrix, packed)
	fmt.Println(y)
	// Output:
	// [321 654]
}

// The stored formats widen to float32 exactly.
func ExampleWiden() {
	row := make([]byte, kernel.GroupSize/2) // weights of 4 bits, the lower half of a byte first
	row[0], row[1] = 0x21, 0xf7
	fmt.Println(kernel.Widen(nil, kernel.MXFP4, row, []byte{127 + 1})[:4]) // a scale of 2^1
	// Output:
	// [1 2 12 -12]
}
