package policies

import (
	"testing"

	"github.com/k3infer/k3/core/experts"
)

// Experts that are equal in all else leave by when their layer is computed next: the one computed last leaves first, on the
// other side of the pass's end, too.
func TestTheExpertOfTheLayerThatComesLastLeaves(t *testing.T) {
	for _, frequency := range []bool{false, true} {
		for _, c := range []struct{ at, victim int32 }{{0, 3}, {1, 0}, {2, 1}, {3, 2}} {
			const layers = 4
			p := newCycle(experts.Config{Layers: layers, Experts: 8, Capacity: layers}, frequency)
			for layer := range int32(layers) {
				if _, decision := p.Miss(experts.Key{Layer: layer}, nil); decision != experts.Fill {
					t.Fatalf("with room left: decision %d", decision)
				}
			}
			// So many passes that the one more of the layers before hardly counts.
			for pass := range 30 {
				for layer := range int32(layers) {
					if pass == 29 && layer == c.at {
						break
					}
					p.Hit(experts.Key{Layer: layer})
				}
			}
			p.repeats = 1 // newcomers are kept
			victim, decision := p.Miss(experts.Key{Layer: c.at, Expert: 1}, nil)
			if decision != experts.Swap || victim.Layer != c.victim {
				t.Errorf("by frequency %v, in layer %d: the expert of layer %d leaves, not of %d (decision %d)", frequency, c.at,
					victim.Layer, c.victim, decision)
			}
		}
	}
}
