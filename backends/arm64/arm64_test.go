package arm64_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	_ "github.com/k3infer/k3/backends/arm64"
	"github.com/k3infer/k3/conformance/conformancetest"
	"github.com/k3infer/k3/core/kernel"
)

func TestBackendGivesTheBitsOfGeneric(t *testing.T) {
	if runtime.GOARCH != "arm64" || noasm {
		t.Skip("this program has no NEON")
	}
	conformancetest.Test(t, "neon")
}

// Every arm64 processor has NEON: the backend must be there, and be the one that is taken.
func TestBackendIsAvailableOnArm64Only(t *testing.T) {
	b, err := kernel.Select("neon")
	if runtime.GOARCH == "arm64" && !noasm {
		if err != nil || b.Name() != "neon" {
			t.Fatalf("no neon: %v", err)
		}
		if b, err = kernel.Select("auto"); err != nil || b.Name() != "neon" {
			t.Errorf("auto is not neon: %v", err)
		}
		return
	}
	if !errors.Is(err, kernel.ErrBackend) || !strings.Contains(err.Error(), "neon needs") {
		t.Errorf("the refusal %v does not say what is missing", err)
	}
}
