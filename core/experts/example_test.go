package experts_test

import (
	"context"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/memory"
	_ "github.com/k3infer/k3/policies"
)

// A cache loads the experts of a layer that a pass asks for and keeps those that its policy thinks worth it.
func ExampleCache() {
	ctx := context.Background()
	model, err := checkpoint.Open(ctx, disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	pool := disk.NewPool(disk.Config{Readers: 2})
	defer pool.Close()
	cache, err := experts.Open(model, experts.Options{Pool: pool, Account: new(memory.Account), Slots: 12, Policy: "lru"})
	if err != nil {
		log.Fatal(err)
	}
	defer cache.Close()

	const layer = 1
	for _, ids := range [][]int{{2, 5}, {5, 3}} {
		batch, err := cache.Request(ctx, layer, ids)
		if err != nil {
			log.Fatal(err)
		}
		for range ids {
			expert, err := batch.Next() // whichever is there first
			if err != nil {
				log.Fatal(err)
			}
			expert.Release()
		}
		batch.Close()
	}
	s := cache.Stats()[layer]
	fmt.Println(s.Requests, "requests,", s.Hits, "hit")
	// Output:
	// 4 requests, 1 hit
}
