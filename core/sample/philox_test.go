package sample

import "testing"

// The vectors published with the generator (Random123, kat_vectors, philox 4x32 10).
func TestPhiloxGivesThePublishedNumbers(t *testing.T) {
	for _, c := range []struct {
		key           uint64
		counter, want [4]uint32
	}{
		{0, [4]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{0xffffffffffffffff, [4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{0x299f31d0a4093822, [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(c.key, c.counter); got != c.want {
			t.Errorf("philox(%#x, %#x) = %#x, want %#x", c.key, c.counter, got, c.want)
		}
	}
}

// Texts people have generated with a seed must come out again: these numbers never change.
func TestUniformNeverChanges(t *testing.T) {
	for _, c := range []struct {
		seed, n uint64
		want    float64
	}{
		{0, 0, 0x1.c2d38b1acc4fdp-01},
		{0, 1, 0x1.72c8036fe3932p-02},
		{1, 0, 0x1.ca141d79c7dp-01},
		{42, 5, 0x1.2c82d74942676p-02},
		{42, 6, 0x1.7c7c845473726p-01},
		{1 << 40, 1 << 33, 0x1.5a9a6072adda8p-03},
		{1<<64 - 1, 1<<64 - 1, 0x1.0c2b196934634p-02},
	} {
		if got := Uniform(c.seed, c.n); got != c.want {
			t.Errorf("Uniform(%d, %d) = %x, want %x", c.seed, c.n, got, c.want)
		}
	}
}

func TestUniformDiffersFromStepToStepAndFromSeedToSeed(t *testing.T) {
	seen := map[float64]bool{}
	for seed := range uint64(50) {
		for n := range uint64(200) {
			u := Uniform(seed, n)
			if u < 0 || u >= 1 || seen[u] {
				t.Fatalf("Uniform(%d, %d) = %v is out of range or was drawn before", seed, n, u)
			}
			seen[u] = true
		}
	}
}
