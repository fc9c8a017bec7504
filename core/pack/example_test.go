package pack_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/pack"
)

// A pack is a copy of the trunk, here compressed without loss, that may lie on a faster disk.
func ExampleWrite() {
	ctx := context.Background()
	model, err := checkpoint.Open(ctx, disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	dir, err := os.MkdirTemp("", "pack")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	result, err := pack.Write(ctx, model, dir, pack.Options{Compress: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Layers, "layers, smaller:", result.Bytes < result.Raw)

	p, err := pack.Open(ctx, disk.Dir(dir), model, "")
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	t, _ := model.Index.Lookup(checkpoint.Head)
	_, _, frames, ok := p.Locate(t)
	fmt.Println(ok, "compressed:", frames != nil)
	// Output:
	// 13 layers, smaller: true
	// true compressed: true
}
