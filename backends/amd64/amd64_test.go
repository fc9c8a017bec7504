package amd64_test

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	_ "github.com/k3infer/k3/backends/amd64"
	"github.com/k3infer/k3/conformance/conformancetest"
	"github.com/k3infer/k3/core/kernel"
)

var needs = map[string][]string{
	"avx2":   {"avx2", "fma", "f16c"},
	"avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
}

func TestBackendsGiveTheBitsOfGeneric(t *testing.T) {
	for name := range needs {
		t.Run(name, func(t *testing.T) {
			_, err := kernel.Select(name)
			if err != nil {
				if !errors.Is(err, kernel.ErrBackend) || !strings.Contains(err.Error(), "needs") {
					t.Fatalf("the refusal %q does not say what is missing", err)
				}
				t.Skip(err)
			}
			conformancetest.Test(t, name)
		})
	}
}

// What the kernel of the operating system says about the processor decides whether the backends must have run above, so that
// a mistake in their own detection cannot turn the tests off.
func TestBackendsAreAvailableWhereTheProcessorHasTheInstructions(t *testing.T) {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" || noasm {
		t.Skip("there is nothing to compare with")
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Skip(err)
	}
	_, flags, _ := strings.Cut(string(info), "\nflags")
	flags, _, _ = strings.Cut(flags, "\n")
	for name, features := range needs {
		has := true
		for _, f := range features {
			has = has && strings.Contains(flags+" ", " "+f+" ")
		}
		b, err := kernel.Select(name)
		if has && (err != nil || b.Name() != name) {
			t.Errorf("the processor has %v, but: %v", features, err)
		}
		if !has && err == nil {
			t.Errorf("%s is on offer, but the processor lacks some of %v", name, features)
		}
	}
}
