package pack

import (
	"encoding/binary"
	"fmt"

	"github.com/k3infer/k3/core/internal/fault"
	"github.com/k3infer/k3/core/kernel"
)

// The compressed form of BF16 weights.
//
// A weight is a sign, eight bits of exponent and seven of mantissa. Signs and mantissas are as good as random, but of the
// exponents of weights that are trained together, nearly all are among eight that follow each other. So a block of weights
// has a lowest exponent, a byte of sign and mantissa for each weight, three bits that are added to the lowest exponent, and
// a list of the weights whose exponent is another. A block that this does not make smaller is stored as it is.
//
// Chunks of 256 weights are laid out for vector units of any width: 8 groups of 32 bytes of sign and mantissa, in which
// byte 2i is weight i of the group's 32 and byte 2i+1 is weight 16+i, so that even and odd bytes widen to 16 bits without
// crossing each other; and three times 32 bytes of exponent bits: the lower two of groups 0 to 3, at bits 2*group of each
// byte, those of groups 4 to 7, and the third one of all groups, at bit group.
const (
	blockWeights = 4096
	chunkWeights = 256
	groupWeights = 32
	chunkBytes   = chunkWeights + 3*groupWeights
	// headerBytes is what a block begins with: its lowest exponent, a byte that is 1 if the weights follow as they are,
	// and the number of exceptions in two bytes, little-endian. An exception is two bytes: the number of weights between
	// it and the one before, and its exponent. They follow the chunks.
	headerBytes = 4
	window      = 8
	maxGap      = 256 // between exceptions; a longer one has an exception in between that is none
)

var errFrame = fault.Errorf(ErrFormat, "damaged compressed weights")

// compress appends the compressed form of weights, two bytes each, to dst.
func compress(dst, weights []byte) []byte {
	for len(weights) > 0 {
		n := min(len(weights), 2*blockWeights)
		dst = compressBlock(dst, weights[:n])
		weights = weights[n:]
	}
	return dst
}

func compressBlock(dst, weights []byte) []byte {
	n := len(weights) / 2
	var count [256 + window]int
	for i := range n {
		count[exponent(weights, i)]++
	}
	// The window with most of the weights, the lowest such.
	base, most, inside := 0, 0, 0
	for e := range 256 {
		inside += count[e]
		if e >= window {
			inside -= count[e-window]
		}
		if inside > most {
			most, base = inside, max(e-window+1, 0)
		}
	}
	start := len(dst)
	dst = append(dst, byte(base), 0, 0, 0)
	var chunk [chunkBytes]byte
	for from := 0; from < n; from += chunkWeights {
		clear(chunk[:])
		for i := from; i < min(from+chunkWeights, n); i++ {
			group, lane := (i-from)/groupWeights, (i-from)%groupWeights
			at := 2*(lane%16) + lane/16
			code := byte(exponent(weights, i)-base) & (window - 1)
			chunk[group*groupWeights+at] = weights[2*i+1]&0x80 | weights[2*i]&0x7f
			chunk[chunkWeights+group/4*groupWeights+at] |= code & 3 << (group % 4 * 2)
			chunk[chunkWeights+2*groupWeights+at] |= code >> 2 << group
		}
		dst = append(dst, chunk[:]...)
	}
	exceptions, last := 0, -1
	for i := range n {
		if e := exponent(weights, i); e < base || e >= base+window {
			for i-last > maxGap {
				last += maxGap
				dst = append(dst, maxGap-1, byte(exponent(weights, last)))
				exceptions++
			}
			dst = append(dst, byte(i-last-1), byte(e))
			last = i
			exceptions++
		}
	}
	if len(dst)-start >= headerBytes+len(weights) {
		return append(append(dst[:start], 0, 1, 0, 0), weights...)
	}
	binary.LittleEndian.PutUint16(dst[start+2:], uint16(exceptions))
	return dst
}

func exponent(weights []byte, i int) int { return int(weights[2*i+1]&0x7f)<<1 | int(weights[2*i]>>7) }

// Expand fills weights, BF16, with the rows of a frame. The error for bytes that are no such frame says why.
func Expand(weights, frame []byte) error { return expand(weights, frame, expandChunks) }

// ExpandWith is Expand, with the help of a backend that is a kernel.Expander.
func ExpandWith(b kernel.Backend) func(weights, frame []byte) error {
	e, ok := b.(kernel.Expander)
	if !ok {
		return Expand
	}
	return func(weights, frame []byte) error { return expand(weights, frame, e.ExpandBF16) }
}

// expander fills whole chunks of weights from the front of src, without exceptions.
type expander func(weights, src []byte, lowest byte)

func expand(weights, src []byte, whole expander) error {
	for len(weights) > 0 {
		n := min(len(weights), 2*blockWeights)
		used, err := expandBlock(weights[:n], src, whole)
		if err != nil {
			return err
		}
		weights, src = weights[n:], src[used:]
	}
	if len(src) != 0 {
		return fmt.Errorf("%w: %d bytes too many", errFrame, len(src))
	}
	return nil
}

func expandBlock(weights, src []byte, expandWhole expander) (used int, err error) {
	n := len(weights) / 2
	if len(src) < headerBytes {
		return 0, fmt.Errorf("%w: they end in a header", errFrame)
	}
	base, kind, exceptions := src[0], src[1], int(binary.LittleEndian.Uint16(src[2:]))
	chunks := (n + chunkWeights - 1) / chunkWeights
	used = headerBytes + chunks*chunkBytes + 2*exceptions
	if kind == 1 {
		used = headerBytes + len(weights)
	}
	switch {
	case kind > 1 || kind == 1 && (base != 0 || exceptions != 0) || base > 256-window:
		return 0, fmt.Errorf("%w: header % x", errFrame, src[:headerBytes])
	case used > len(src):
		return 0, fmt.Errorf("%w: %d of %d bytes of a block", errFrame, len(src), used)
	}
	src = src[headerBytes:used]
	if kind == 1 {
		copy(weights, src)
		return used, nil
	}
	whole := n / chunkWeights
	expandWhole(weights[:2*whole*chunkWeights], src, base)
	if whole < chunks {
		var last [2 * chunkWeights]byte
		expandWhole(last[:], src[whole*chunkBytes:], base)
		copy(weights[2*whole*chunkWeights:], last[:])
	}
	at := -1
	for list := src[chunks*chunkBytes:]; len(list) >= 2; list = list[2:] {
		at += int(list[0]) + 1
		if at >= n {
			return 0, fmt.Errorf("%w: an exception is behind the block", errFrame)
		}
		w := weights[2*at : 2*at+2]
		e := uint16(list[1]) << 7
		binary.LittleEndian.PutUint16(w, binary.LittleEndian.Uint16(w)&0x807f|e)
	}
	return used, nil
}

// Eight weights at a time in 64 bits: ones has 1 in each byte, the others have parts of each 16 bits.
const (
	ones     = 0x0101010101010101
	lower    = 0x00ff00ff00ff00ff
	mantissa = 0x007f007f007f007f
	lowSign  = 0x0080008000800080
	sign     = lowSign << 8
)

// expandChunks fills dst, whole chunks, from the front of src.
func expandChunks(dst, src []byte, base byte) {
	le := binary.LittleEndian
	lowest := uint64(base) * ones
	for ; len(dst) >= 2*chunkWeights && len(src) >= chunkBytes; dst, src = dst[2*chunkWeights:], src[chunkBytes:] {
		d, s := (*[2 * chunkWeights]byte)(dst), (*[chunkBytes]byte)(src)
		for p := 0; p < groupWeights; p += 8 {
			low, upper := le.Uint64(s[chunkWeights+p:]), le.Uint64(s[chunkWeights+groupWeights+p:])
			third := le.Uint64(s[chunkWeights+2*groupWeights+p:])
			expandEight(d, s, 0*groupWeights+p, lowest+low&(3*ones)+third&ones<<2)
			expandEight(d, s, 1*groupWeights+p, lowest+low>>2&(3*ones)+third>>1&ones<<2)
			expandEight(d, s, 2*groupWeights+p, lowest+low>>4&(3*ones)+third>>2&ones<<2)
			expandEight(d, s, 3*groupWeights+p, lowest+low>>6&(3*ones)+third>>3&ones<<2)
			expandEight(d, s, 4*groupWeights+p, lowest+upper&(3*ones)+third>>4&ones<<2)
			expandEight(d, s, 5*groupWeights+p, lowest+upper>>2&(3*ones)+third>>5&ones<<2)
			expandEight(d, s, 6*groupWeights+p, lowest+upper>>4&(3*ones)+third>>6&ones<<2)
			expandEight(d, s, 7*groupWeights+p, lowest+upper>>6&(3*ones)+third>>7&ones<<2)
		}
	}
}

// expandEight widens the eight weights at byte at of a chunk, whose exponents are the bytes of e.
func expandEight(d *[2 * chunkWeights]byte, s *[chunkBytes]byte, at int, e uint64) {
	x := binary.LittleEndian.Uint64(s[at : at+8])
	to := at + at&^(groupWeights-1) // twice the group, and the place in it
	binary.LittleEndian.PutUint64(d[to:to+8], x&mantissa|x&lowSign<<8|e&lower<<7)
	binary.LittleEndian.PutUint64(d[to+groupWeights:to+groupWeights+8], x>>8&mantissa|x&sign|e>>1&^sign&^mantissa)
}
