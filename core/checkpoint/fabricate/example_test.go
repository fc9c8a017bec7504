package fabricate_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/k3infer/k3/core/checkpoint/fabricate"
)

// A sparse checkpoint has the size and the names of the real one and takes next to no room.
func ExampleWrite() {
	dir, err := os.MkdirTemp("", "fabricate")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	options := fabricate.Options{Config: fabricate.Geometry("tiny"), Seed: 1, Sparse: true}
	result, err := fabricate.Write(context.Background(), dir, options)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Shards, "shards,", result.Tensors, "tensors")
	// Output:
	// 9 shards, 1220 tensors
}
