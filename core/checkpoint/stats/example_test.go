package stats_test

import (
	"context"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/stats"
	"github.com/k3infer/k3/core/disk"
)

// Summarize says what the values of a tensor are like.
func ExampleSummarize() {
	model, err := checkpoint.Open(context.Background(), disk.Dir("../../../presets/demo/checkpoint"))
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	t, _ := model.Index.Lookup(checkpoint.TextName("model.norm.weight"))
	s, err := stats.Summarize(context.Background(), model, t)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d values from %.3f to %.3f\n", s.Count, s.Min, s.Max)
	// Output:
	// 128 values from 1.062 to 1.477
}
