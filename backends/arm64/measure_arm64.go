//go:build !noasm

package arm64

// Read returns something made of all of p, a multiple of 256 bytes, by plain reads: how fast memory is for the bench.
func (backend) Read(p []byte) uint64 {
	var sum uint64
	if len(p) > 0 {
		readNEON(&p[0], len(p)/64, &sum)
	}
	return sum
}

// peakFlops is what one round of peakNEON does: 24 fused operations on four lanes.
const peakFlops = 24 * 4 * 2

// Peak does about flops multiplications and additions, as fast as they go: how fast the processor is for the bench.
func (backend) Peak(flops int) {
	const rounds = 1 << 13 // a call
	for n := flops / peakFlops; n > 0; n -= rounds {
		peakNEON(min(n, rounds))
	}
}
