package graph

import (
	"math"
	"testing"
)

func TestLnIsTheNaturalLogarithm(t *testing.T) {
	for x := 1e-300; x < 1e300; x *= 1.37 {
		if got, want := ln(x), math.Log(x); math.Abs(got-want) > 3e-16*max(1, math.Abs(want)) {
			t.Fatalf("ln(%g) is %v, not %v", x, got, want)
		}
	}
	if ln(1) != 0 {
		t.Errorf("ln(1) is %v", ln(1))
	}
}
