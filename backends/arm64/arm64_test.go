package arm64_test

import (
	"testing"

	_ "github.com/k3infer/k3/backends/arm64"
	"github.com/k3infer/k3/conformance"
	"github.com/k3infer/k3/core/kernel"
)

func TestBackendGivesTheBitsOfGeneric(t *testing.T) {
	b, err := kernel.Select("neon")
	if err != nil {
		t.Skip(err)
	}
	conformance.TestBackend(t, b)
}
