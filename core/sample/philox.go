package sample

import "math/bits"

// philox is Philox 4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011),
// a generator without state: the numbers are a function of a key and a counter. Here the key is the seed and the
// counter is the position, so a draw can be made again at any position, in any order, on any machine, which is what
// a restored session and a rejected guess need. Integer operations only.
func philox(key uint64, counter [4]uint32) [4]uint32 {
	const (
		multiplier0, multiplier1 = 0xD2511F53, 0xCD9E8D57
		weyl0, weyl1             = 0x9E3779B9, 0xBB67AE85
	)
	k0, k1 := uint32(key), uint32(key>>32)
	c := counter
	for range 10 {
		hi0, lo0 := bits.Mul32(multiplier0, c[0])
		hi1, lo1 := bits.Mul32(multiplier1, c[2])
		c = [4]uint32{hi1 ^ c[1] ^ k0, lo1, hi0 ^ c[3] ^ k1, lo0}
		k0, k1 = k0+weyl0, k1+weyl1
	}
	return c
}

// Uniform returns the draw for position n under a seed: a multiple of 2^-53 in [0, 1). It is the upper 53 bits of the
// first two words that Philox 4x32-10 gives for the key seed and the counter n, low words first.
func Uniform(seed, n uint64) float64 {
	c := philox(seed, [4]uint32{uint32(n), uint32(n >> 32)})
	return float64((uint64(c[1])<<32|uint64(c[0]))>>11) * 0x1p-53
}
