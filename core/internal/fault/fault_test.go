package fault_test

import (
	"errors"
	"io"
	"testing"

	"github.com/k3infer/k3/core/internal/fault"
)

func TestAFaultIsItsKindAndSaysOnlyItsText(t *testing.T) {
	kind := errors.New("kind")
	err := fault.Errorf(kind, "row %d", 3)
	if err.Error() != "row 3" || !errors.Is(err, kind) || errors.Is(err, io.EOF) {
		t.Errorf("%q is of its kind: %t, of another: %t", err, errors.Is(err, kind), errors.Is(err, io.EOF))
	}
}
