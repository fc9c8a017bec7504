//go:build amd64 && !noasm

package amd64

// ExpandBF16 is kernel.Expander's.
func (backend) ExpandBF16(dst, src []byte, lowest byte) {
	const chunkIn, chunkOut, most = 352, 512, 256 // chunks of a call, which cannot be interrupted
	for chunks := min(len(dst)/chunkOut, len(src)/chunkIn); chunks > 0; {
		n := min(chunks, most)
		expandAVX2(&dst[0], &src[0], n, &lowest)
		dst, src, chunks = dst[n*chunkOut:], src[n*chunkIn:], chunks-n
	}
}
