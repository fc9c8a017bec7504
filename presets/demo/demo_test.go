package demo

import (
	"slices"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

func TestTheWholeCheckpointIsBuiltIn(t *testing.T) {
	files := Files()
	names, err := files.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "tiktoken.model", "model.safetensors.index.json", "model-00003-of-000003.safetensors"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is missing from %v", name, names)
		}
	}
	f, err := files.Open("model-00003-of-000003.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := disk.ReadFull(f, make([]byte, 100), f.Size()-100); err != nil {
		t.Error(err)
	}
}
