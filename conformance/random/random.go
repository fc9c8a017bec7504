// Package random gives tests their random numbers, so that those of a test that failed can be had again. K3_TEST_SEED in
// the environment chooses them: a number, or "random" for new ones in every run.
package random

import (
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
)

// New returns random numbers for a test, which are the same in every run unless K3_TEST_SEED says otherwise; a and b tell
// the streams of a test or package apart. A test that fails says how to have the same numbers again.
func New(t testing.TB, a, b uint64) *rand.Rand {
	t.Helper()
	return draw(t, 0, a, b)
}

// Anew is New with other numbers in every run unless K3_TEST_SEED says otherwise, for a test that looks further each time.
func Anew(t testing.TB, a, b uint64) *rand.Rand {
	t.Helper()
	return draw(t, fresh, a, b)
}

func draw(t testing.TB, seed, a, b uint64) *rand.Rand {
	t.Helper()
	chosen, err := given()
	if err != nil {
		t.Fatalf("K3_TEST_SEED is neither a number nor random: %v", err)
	}
	if chosen != nil {
		seed = *chosen
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the same random numbers again: K3_TEST_SEED=%d", seed)
		}
	})
	return rand.New(rand.NewPCG(a^seed, b))
}

// fresh is a seed that no run before had.
var fresh = rand.Uint64()

// given is the seed that K3_TEST_SEED asks for; nil: it is not set.
var given = sync.OnceValues(func() (*uint64, error) {
	switch text := os.Getenv("K3_TEST_SEED"); text {
	case "":
		return nil, nil
	case "random":
		return &fresh, nil
	default:
		seed, err := strconv.ParseUint(text, 10, 64)
		return &seed, err
	}
})
