package checkpoint_test

import (
	"context"
	"testing"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
)

func BenchmarkFingerprint(b *testing.B) {
	ctx := context.Background()
	for b.Loop() {
		model, err := checkpoint.Open(ctx, disk.Dir("../../presets/demo/checkpoint"))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := model.Fingerprint(ctx, ""); err != nil {
			b.Fatal(err)
		}
		if err := model.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
