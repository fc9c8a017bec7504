package replay

import (
	"slices"
	"testing"

	"github.com/k3infer/k3/core/experts"
)

func TestProfileCountsExpertsAndTheirReturns(t *testing.T) {
	k := func(l, e int32) experts.Key { return experts.Key{Layer: l, Expert: e} }
	// Two passes over layers 1 and 3; (1, 2) returns after one other request, after three and at once.
	p := NewProfile(New([]experts.Key{k(1, 2), k(1, 0), k(1, 2), k(3, 2), k(3, 1), k(3, 3), k(1, 2), k(1, 2), k(3, 1)}), 2)
	if p.Requests != 9 || p.Passes != 2 || p.Touched != 5 || p.Layers != 2 {
		t.Errorf("%+v", p)
	}
	if want := []Heat{{k(1, 2), 4}, {k(3, 1), 2}}; !slices.Equal(p.Hottest, want) {
		t.Errorf("hottest %v, not %v", p.Hottest, want)
	}
	if want := []int{2, 2}; !slices.Equal(p.Reuse, want) { // 0 and 1 between; 3 and 3 between
		t.Errorf("reuse %v, not %v", p.Reuse, want)
	}
}
