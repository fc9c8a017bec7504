package tape_test

import (
	"context"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tape"
)

// A tape hands out the trunk in tiles, in the order of a pass, whatever memory it has.
func ExampleStream() {
	ctx := context.Background()
	model, err := checkpoint.Open(ctx, disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	matrices, err := graph.Layout(model)
	if err != nil {
		log.Fatal(err)
	}
	tiles, err := tape.Cut(matrices, tape.Shards(model), 0)
	if err != nil {
		log.Fatal(err)
	}
	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	stream, err := tape.Open(tiles, tape.Options{Pool: pool, Account: new(memory.Account), Ring: 2})
	if err != nil {
		log.Fatal(err)
	}
	defer stream.Close()

	pass, err := stream.Start(ctx, len(matrices))
	if err != nil {
		log.Fatal(err)
	}
	defer pass.Close()
	rows := make([]int, len(matrices))
	for range tiles.Len() {
		tile, err := pass.Next()
		if err != nil {
			log.Fatal(err)
		}
		rows[tile.Matrix] += tile.Rows
		tile.Release()
	}
	for i, m := range matrices {
		if rows[i] != m.Rows {
			fmt.Println(m.Tensor, "is not complete")
		}
	}
	last := matrices[len(matrices)-1]
	fmt.Println("last comes", last.Tensor, last.Rows, "x", last.Cols)
	// Output:
	// last comes language_model.lm_head.weight 1536 x 128
}
