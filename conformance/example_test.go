package conformance_test

import (
	"context"
	"fmt"
	"log"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/conformance"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/kernel"
	_ "github.com/k3infer/k3/policies"
)

// What the author of a backend checks, without a test: its kernels bit for bit, and a model against the oracle.
func Example() {
	backend, err := kernel.Select("auto")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(conformance.CheckKernels(backend, 1))
	golden := conformance.Goldens()[0]
	report, err := golden.Check(context.Background(), core.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Positions > 0, report.Worst < conformance.Tolerance)
	// Output:
	// <nil>
	// true true
}
