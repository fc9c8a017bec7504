package checkpoint_test

import (
	"context"
	"fmt"
	"log"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
)

// Open checks everything that can be known without reading weights; after that tensors are found by name.
func ExampleOpen() {
	model, err := checkpoint.Open(context.Background(), disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	t, ok := model.Index.Lookup(checkpoint.Embedding)
	fmt.Println(model.Config.Layers, "layers,", model.Index.Len(), "tensors")
	fmt.Println(ok, t, t.DType, t.Shape)
	row := make([]byte, t.Bytes/int64(t.Shape[0]))
	fmt.Println(model.Read(row, t, 0))
	// Output:
	// 13 layers, 2644 tensors
	// true language_model.model.embed_tokens.weight BF16 [1536 128]
	// <nil>
}

// ParseName takes the name of a tensor apart.
func ExampleParseName() {
	name, ok := checkpoint.ParseName(checkpoint.TextName("model.layers.3.block_sparse_moe.experts.17.w1.weight_scale"))
	fmt.Println(ok, name.Layer, name.Expert, name.Part)
	// Output:
	// true 3 17 w1.weight_scale
}
