package experts_test

import (
	"context"
	"testing"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/memory"
	_ "github.com/k3infer/k3/policies"
)

// A request costs a read where there is no room, and next to nothing where the experts are kept.
func BenchmarkCache(b *testing.B) {
	ctx := context.Background()
	model, err := checkpoint.Open(ctx, disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		b.Fatal(err)
	}
	defer model.Close()
	c := model.Config
	for _, run := range []struct {
		name  string
		slots int
	}{{"kept", c.Layers * c.MoE.Experts}, {"read", 2 * c.MoE.TopK}} {
		b.Run(run.name, func(b *testing.B) {
			pool := disk.NewPool(disk.Config{Readers: 2})
			defer pool.Close()
			cache, err := experts.Open(model, experts.Options{
				Pool: pool, Account: new(memory.Account), Slots: run.slots, Policy: "lru",
			})
			if err != nil {
				b.Fatal(err)
			}
			defer cache.Close()
			ids := make([]int, c.MoE.TopK)
			next := 0
			b.ReportAllocs()
			for b.Loop() {
				for i := range ids {
					ids[i] = (next + i) % c.MoE.Experts
				}
				next += len(ids)
				batch, err := cache.Request(ctx, c.Layers-1, ids)
				if err != nil {
					b.Fatal(err)
				}
				for range ids {
					expert, err := batch.Next()
					if err != nil {
						b.Fatal(err)
					}
					expert.Release()
				}
				batch.Close()
			}
		})
	}
}
