package fabricate

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/k3infer/k3/core/checkpoint"
)

// distribution is how a tensor's values are drawn.
type distribution struct {
	uniform       bool
	offset, scale float32 // the value is offset + scale * draw; a draw is of variance 1, or uniform in [0, 1)
	first         int     // values after the first so many are 0; 0 is no limit
}

// gains are the standard deviations of the products of matrices with vectors of variance 1, by the last part of the
// name that is not "weight". They give the statistics of a trained model rather than of a fresh one: activations of order
// one, experts that differ, gates that are neither open nor shut, memories from one token to a hundred, logits that decide.
var gains = map[string]float64{
	"lm_head": 3, "output_attn_res_proj": 1.5, "self_attention_res_proj": 1.5, "mlp_res_proj": 1.5,
	"q_proj": 1.5, "k_proj": 1.5, "v_proj": 1.5, "g_proj": 1.5, "b_proj": 1.5, "f_a_proj": 1, "f_b_proj": 1.5, "o_proj": 1.5,
	"q_a_proj": 1.5, "q_b_proj": 1.8, "kv_a_proj_with_mqa": 1.5, "kv_b_proj": 1.8,
	"gate_proj": 1.8, "up_proj": 1.8, "down_proj": 1.2,
	"gate": 1.4, "routed_expert_down_proj": 1, "routed_expert_up_proj": 1.2, "w1": 2, "w2": 2, "w3": 2,
}

// distributionOf decides by the tensor's name.
func distributionOf(name string, shape []int, c *checkpoint.Config) distribution {
	name = strings.TrimSuffix(name, ".weight")
	last := lastPart(name)
	switch {
	case strings.HasSuffix(last, "norm"):
		return normal(1, 0.25)
	case last == "A_log":
		return distribution{uniform: true, offset: -0.8, scale: 1.8, first: c.KDA.Heads}
	case last == "dt_bias":
		return distribution{uniform: true, offset: -5, scale: 5}
	case last == "e_score_correction_bias":
		return normal(0, 0.12)
	case last == "embed_tokens":
		return normal(0, 0.8)
	case strings.HasSuffix(last, "_conv1d"):
		return normal(0, 0.6)
	}
	gain, ok := gains[last]
	if !ok {
		gain = 1 // the vision tower, which nobody computes
	}
	return normal(0, gain/math.Sqrt(float64(shape[len(shape)-1])))
}

// lastPart is what follows the last dot.
func lastPart(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// deviation is the standard deviation of a sum of four bytes, and middle its mean.
const (
	deviation = 147.80054
	middle    = 510
)

func normal(mean, std float64) distribution {
	return distribution{offset: float32(mean), scale: float32(std / deviation)}
}

// filler makes the bytes of one tensor. Draw n is a function of the key and n alone, so any part can be made at any time by
// anyone, with integer operations and single roundings only: the bytes are the same on every processor.
type filler struct {
	key          uint64
	dtype        checkpoint.DType
	distribution distribution
	packed       bool // MXFP4 codes: the draws themselves
	low, more    byte // MXFP4 scales: low, and one more where a byte of the draw is below more
}

// grain is what the position in a tensor at which a part of it begins must be a multiple of, in bytes.
const grain = 8

// group is how many MXFP4 weights share a scale.
const group = 32

// newFiller returns the filler of a tensor under a seed; shape is that of the tensor.
func newFiller(seed uint64, name string, dtype checkpoint.DType, shape []int, c *checkpoint.Config) filler {
	f := filler{key: mix(seed ^ hash(name)), dtype: dtype}
	switch {
	case dtype != checkpoint.U8:
		f.distribution = distributionOf(name, shape, c)
	case strings.HasSuffix(name, ".weight_packed"):
		// All sixteen codes alike: 0, .5, 1, 1.5, 2, 3, 4, 6 have a mean square of 8.5625 and the tails of a normal distribution.
		f.packed = true
	default:
		// Two neighbouring powers of two, mixed so that the weights have the mean square they should.
		const meanSquare = 8.5625
		gain := gains[lastPart(strings.TrimSuffix(name, ".weight_scale"))]
		want := gain * gain / (meanSquare * float64(shape[1]*group))
		ratio, exponent := math.Frexp(want)
		if exponent&1 != 0 { // want is ratio * 2^exponent: make it one of 4^n with a ratio from 1 to 4
			ratio, exponent = 2*ratio, exponent-1
		} else {
			ratio, exponent = 4*ratio, exponent-2
		}
		f.low = byte(127 + exponent/2)
		f.more = byte((ratio - 1) * 256 / 3)
	}
	return f
}

// fill writes the bytes of the tensor from position from, a multiple of grain, into dst.
func (f *filler) fill(dst []byte, from int64) {
	if rest := len(dst) % grain; rest > 0 { // the tensor's end
		var last [grain]byte
		f.fill(last[:], from+int64(len(dst)-rest))
		copy(dst[len(dst)-rest:], last[:])
		dst = dst[:len(dst)-rest]
	}
	switch {
	case f.packed:
		for z := f.key + uint64(from)/grain*step; len(dst) > 0; z += step {
			binary.LittleEndian.PutUint64(dst, mix(z))
			dst = dst[grain:]
		}
	case f.dtype == checkpoint.U8:
		for z := f.key + uint64(from)/grain*step; len(dst) > 0; z += step {
			bits, p := mix(z), dst[:grain]
			for i := range p {
				p[i] = f.low
				if byte(bits>>(8*i)) < f.more {
					p[i]++
				}
			}
			dst = dst[grain:]
		}
	default:
		f.floats(dst, from)
	}
}

// floats is fill for numbers.
func (f *filler) floats(dst []byte, from int64) {
	var room [512]float32
	width := int64(f.dtype.Bits() / 8)
	for n := from / width; len(dst) > 0; n += int64(len(room)) {
		values := room[:min(len(room), len(dst)/int(width))]
		f.values(values, uint64(n))
		p := dst[:len(values)*int(width)]
		dst = dst[len(p):]
		switch f.dtype {
		case checkpoint.F32:
			for _, x := range values {
				binary.LittleEndian.PutUint32(p, math.Float32bits(x))
				p = p[4:]
			}
		case checkpoint.F16:
			for _, x := range values {
				binary.LittleEndian.PutUint16(p, half(x))
				p = p[2:]
			}
		default:
			for _, x := range values {
				binary.LittleEndian.PutUint16(p, brain(x))
				p = p[2:]
			}
		}
	}
}

// values are the tensor's numbers from number n; n and their count are even. A draw makes two.
func (f *filler) values(values []float32, n uint64) {
	d := f.distribution
	z := f.key + n/2*step
	for i := 0; i+1 < len(values); i, z = i+2, z+step {
		bits := mix(z)
		var a, b float32
		if d.uniform {
			const unit = 1.0 / (1 << 24)
			a, b = float32(float32(bits&0xFFFFFF)*unit), float32(float32(bits>>32&0xFFFFFF)*unit)
		} else {
			// Four bytes each, all eight added at once: their sum is nearly normal.
			s := bits&0x00FF00FF00FF00FF + bits>>8&0x00FF00FF00FF00FF
			s = s&0x0000FFFF0000FFFF + s>>16&0x0000FFFF0000FFFF
			a, b = float32(int32(uint32(s))-middle), float32(int32(uint32(s>>32))-middle)
		}
		values[i], values[i+1] = d.offset+float32(a*d.scale), d.offset+float32(b*d.scale)
	}
	if d.first > 0 && n+uint64(len(values)) > uint64(d.first) {
		clear(values[max(d.first, int(n))-int(n):])
	}
}

// step and mix are SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
const step = 0x9E3779B97F4A7C15

func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// hash is FNV-1a, mixed.
func hash(name string) uint64 {
	h := uint64(0xCBF29CE484222325)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 0x100000001B3
	}
	return mix(h)
}

// brain is the nearest bfloat16 of a finite number, ties to even.
func brain(x float32) uint16 {
	u := math.Float32bits(x)
	return uint16((u + 0x7FFF + u>>16&1) >> 16)
}

// half is the nearest float16 of a number that has one, ties to even.
func half(x float32) uint16 {
	u := math.Float32bits(x)
	sign, exponent, mantissa := uint16(u>>16&0x8000), int(u>>23&0xFF)-127, u&0x7FFFFF|0x800000
	if exponent < -25 {
		return sign
	}
	drop := 13
	if exponent < -14 {
		drop += -14 - exponent
	}
	rounded := (mantissa + 1<<(drop-1) - 1 + mantissa>>drop&1) >> drop
	if exponent < -14 {
		return sign | uint16(rounded) // subnormal, or the smallest normal number by carry
	}
	return sign | uint16(uint32(exponent+14)<<10+rounded) // rounded has the leading one, which adds 1 to the exponent
}
