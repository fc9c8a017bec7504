package speculate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/k3infer/k3/core/speculate"
)

// The drafter looks through the whole text before every pass.
func BenchmarkDraft(b *testing.B) {
	for _, n := range []int{1 << 10, 1 << 16} {
		b.Run(fmt.Sprintf("%d ids", n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			history := make([]int, n)
			for i := range history {
				history[i] = r.IntN(500)
			}
			var guesses []int
			b.ReportAllocs()
			for b.Loop() {
				guesses = speculate.NGram{}.Draft(guesses[:0], history, 8)
			}
		})
	}
}
