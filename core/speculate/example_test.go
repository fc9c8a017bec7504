package speculate_test

import (
	"fmt"

	"github.com/k3infer/k3/core/speculate"
)

// NGram finds the end of the text earlier in the text and guesses that it goes on as it did then.
func ExampleNGram() {
	history := []int{10, 11, 12, 13, 20, 10, 11}
	fmt.Println(speculate.NGram{}.Draft(nil, history, 3))
	// Output:
	// [12 13 20]
}
