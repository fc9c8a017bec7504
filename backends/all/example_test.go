package all_test

import (
	"fmt"
	"log"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core/kernel"
)

// Importing the package registers every backend; Select takes the fastest that this machine can run.
func Example() {
	backend, err := kernel.Select("auto")
	if err != nil {
		log.Fatal(err)
	}
	y := []float32{1, 2}
	backend.Axpy(y, 10, []float32{3, 4}) // the same bits whichever it is
	fmt.Println(y)
	// Output:
	// [31 42]
}
