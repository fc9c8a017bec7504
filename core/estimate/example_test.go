package estimate_test

import (
	"fmt"
	"log"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/estimate"
)

// What a token of the released model takes in 64 GiB with a disk that reads 2 to 3 GB a second.
func ExampleRates_Predict() {
	model := fabricate.Geometry("full")
	plan, err := core.PlanGeometry(model, true, core.Options{Memory: 64 << 30, Context: core.DefaultContext, Threads: 8, Backend: "generic"})
	if err != nil {
		log.Fatal(err)
	}
	var disk, compute estimate.Series
	disk.Add(2e9)
	disk.Add(3e9)
	compute.Add(20e9)
	x := estimate.Rates{Disk: &disk, Trunk: &compute, Experts: &compute}.Predict(plan, estimate.WeightsOf(model, true))
	fmt.Printf("%.0f to %.0f seconds\n", x.Low, x.High)
	// Output: 23 to 34 seconds
}
