//go:build !noasm

package amd64_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/klauspost/cpuid/v2"

	_ "github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/kernel"
)

// without runs f as on a processor without some features.
func without(f func(), features ...cpuid.FeatureID) {
	var had []cpuid.FeatureID
	for _, id := range features {
		if cpuid.CPU.Has(id) {
			had = append(had, id)
		}
	}
	cpuid.CPU.Disable(had...)
	defer cpuid.CPU.Enable(had...)
	f()
}

func TestAutoTakesTheBestBackendTheProcessorRuns(t *testing.T) {
	best := "generic"
	if _, err := kernel.Select("avx2"); err == nil {
		best = "avx2"
	}
	auto := func(want string) {
		t.Helper()
		b, err := kernel.Select("auto")
		if err != nil || b.Name() != want {
			t.Errorf("auto is %v (%v), want %s", b, err, want)
		}
	}
	for _, f := range []cpuid.FeatureID{cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL} {
		without(func() { auto(best) }, f)
	}
	for _, f := range []cpuid.FeatureID{cpuid.AVX2, cpuid.FMA3, cpuid.F16C} {
		without(func() { auto("generic") }, f)
	}
	if _, err := kernel.Select("avx512"); err == nil {
		auto("avx512")
	}
}

func TestARefusedBackendNamesWhatIsMissing(t *testing.T) {
	without(func() {
		_, err := kernel.Select("avx512")
		if !errors.Is(err, kernel.ErrBackend) || !strings.Contains(err.Error(), "AVX512DQ") || strings.Contains(err.Error(), "AVX512F,") && cpuid.CPU.Has(cpuid.AVX512F) {
			t.Errorf("the error is %v", err)
		}
	}, cpuid.AVX512DQ)
}
