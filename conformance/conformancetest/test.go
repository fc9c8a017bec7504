// Package conformancetest is the suite of package conformance for the test of a backend. It is a package of its own
// so that a program that checks its backends does not carry package testing.
package conformancetest

import (
	"testing"

	"github.com/k3infer/k3/conformance"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/kernel"
)

// Test is all a backend's own test needs to call: its kernels against the generic backend bit for bit, whole models
// against the oracle, and the logits of whole models against the generic backend's, bit for bit. A backend that cannot run
// on this machine fails: a test that is meant to skip must ask the driver first.
func Test(t *testing.T, backend string) {
	b, err := kernel.Select(backend)
	if err != nil {
		t.Fatal(err)
	}
	TestBackend(t, b)
	for _, g := range conformance.Goldens() {
		t.Run(g.Name, func(t *testing.T) {
			if _, err := g.Check(t.Context(), core.Options{Backend: backend}); err != nil {
				t.Error(err)
			}
			got, err := g.Bits(t.Context(), core.Options{Backend: backend})
			if err != nil {
				t.Fatal(err)
			}
			want, err := g.Bits(t.Context(), core.Options{Backend: "generic"})
			if err != nil {
				t.Fatal(err)
			}
			if got != want {
				t.Errorf("the logits are not those of the generic backend, bit for bit")
			}
		})
	}
}

// TestBackend checks every kernel of b against the generic backend, bit for bit. A backend's own test needs no more than
// to call it.
func TestBackend(t *testing.T, b kernel.Backend) {
	if err := conformance.CheckKernels(b, 1); err != nil {
		t.Error(err)
	}
}
