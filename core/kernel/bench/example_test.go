package bench_test

import (
	"fmt"

	"github.com/k3infer/k3/core/kernel/bench"
)

// Matches tells which cases a run would measure.
func ExampleOptions_Matches() {
	o := bench.Options{Match: "KDA step"}
	for _, c := range bench.Cases() {
		if o.Matches(c) {
			fmt.Println(c.Name, c.Shape, c.Vectors)
		}
	}
	// Output:
	// KDA step 96x 128x128 1
	// KDA step 96x 128x128 8
}
