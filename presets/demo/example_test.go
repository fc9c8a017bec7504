package demo_test

import (
	"fmt"
	"log"

	"github.com/k3infer/k3/presets/demo"
)

// The files are those of any checkpoint.
func ExampleFiles() {
	names, err := demo.Files().List()
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range names {
		fmt.Println(name)
	}
	// Output:
	// config.json
	// generation_config.json
	// model-00001-of-000003.safetensors
	// model-00002-of-000003.safetensors
	// model-00003-of-000003.safetensors
	// model.safetensors.index.json
	// tiktoken.model
	// tokenizer_config.json
}
