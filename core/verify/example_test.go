package verify_test

import (
	"context"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/verify"
)

// Check proves that a checkpoint is whole; Deep reads every byte of it.
func ExampleCheck() {
	files := disk.Dir("../../presets/demo/checkpoint")
	report, err := verify.Check(context.Background(), files, "", verify.Options{Deep: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.OK, report.Shards, len(report.Problems))
	// Output:
	// true 3 0
}
