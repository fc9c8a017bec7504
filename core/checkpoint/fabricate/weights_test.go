package fabricate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/k3infer/k3/core/checkpoint"
)

// widen is the number that 16 bits stand for.
func widen(h uint16) float64 {
	sign, exponent, mantissa := 1.0, int(h>>10&31), float64(h&1023)
	if h&0x8000 != 0 {
		sign = -1
	}
	if exponent == 0 {
		return sign * math.Ldexp(mantissa, -24)
	}
	return sign * math.Ldexp(1024+mantissa, exponent-25)
}

func TestHalfIsNearestAndTiesToEven(t *testing.T) {
	for h := range uint16(0x7BFF) { // the finite ones but the largest
		for _, sign := range []uint16{0, 0x8000} {
			low, high := widen(h|sign), widen(h+1|sign)
			even := h
			if h&1 != 0 {
				even++
			}
			middle := float32((low + high) / 2)
			for x, want := range map[float32]uint16{
				float32(low): h, middle: even, math.Nextafter32(middle, float32(low)): h, math.Nextafter32(middle, float32(high)): h + 1,
			} {
				if got := half(x); got != want|sign {
					t.Fatalf("half(%g) = %#04x, not %#04x", x, got, want|sign)
				}
			}
		}
	}
}

func TestBrainIsNearestAndTiesToEven(t *testing.T) {
	for bits, want := range map[uint32]uint16{
		0x3F800000: 0x3F80, 0x3F808000: 0x3F80, 0x3F808001: 0x3F81, 0x3F818000: 0x3F82,
		0x3F817FFF: 0x3F81, 0xBF818000: 0xBF82, 0x3FFFFFFF: 0x4000,
	} {
		if got := brain(math.Float32frombits(bits)); got != want {
			t.Errorf("brain(%#x) = %#x, not %#x", bits, got, want)
		}
	}
}

// Any part of a tensor can be made alone.
func TestPartsAreThoseOfTheWhole(t *testing.T) {
	c := Geometry("tiny")
	for _, k := range []struct {
		name  string
		dtype checkpoint.DType
		shape []int
	}{
		{"a.q_proj.weight", checkpoint.BF16, []int{37, 51}}, {"a.q_proj.weight", checkpoint.F16, []int{37, 51}},
		{"a.q_proj.weight", checkpoint.F32, []int{37, 51}}, {"a.A_log", checkpoint.F32, []int{1025}},
		{"a.dt_bias", checkpoint.F32, []int{999}},
		{"a.w1.weight_packed", checkpoint.U8, []int{31, 48}}, {"a.w1.weight_scale", checkpoint.U8, []int{31, 3}},
	} {
		t.Run(k.name+" "+k.dtype.String(), func(t *testing.T) {
			x := newTensor(k.name, k.dtype, k.shape, -1)
			f := newFiller(3, k.name, k.dtype, k.shape, c)
			whole := make([]byte, x.bytes)
			f.fill(whole, 0)
			for _, size := range []int{8, 16, 24, 1000, 4096} {
				parts := make([]byte, x.bytes)
				for from := len(parts) / size * size; from >= 0; from -= size {
					f.fill(parts[from:min(from+size, len(parts))], int64(from))
				}
				if !bytes.Equal(parts, whole) {
					t.Errorf("parts of %d bytes differ from the whole", size)
				}
			}
		})
	}
}

// Weights have the mean and the deviation that they are meant to have, in every type.
func TestWeightsHaveTheirStatistics(t *testing.T) {
	c := Geometry("small")
	codes := [16]float64{0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6}
	for _, k := range []struct {
		name           string
		mean, std, tol float64
	}{
		{"w1", 0, 2, 0.02}, {"w2", 0, 2, 0.02}, {"q_proj", 0, 1.5, 0.01}, {"lm_head", 0, 3, 0.01}, {"input_layernorm", 1, 0.25, 0.01},
		{"embed_tokens", 0, 0.8, 0.01}, {"e_score_correction_bias", 0, 0.12, 0.01}, {"q_conv1d", 0, 0.6, 0.01},
	} {
		for _, dtype := range []checkpoint.DType{checkpoint.U8, checkpoint.BF16, checkpoint.F16, checkpoint.F32} {
			for _, columns := range []int{256, 352} {
				name, shape := "a."+k.name+".weight", []int{512, columns}
				read := func(name string, dtype checkpoint.DType, shape []int) []byte {
					data := make([]byte, newTensor(name, dtype, shape, -1).bytes)
					f := newFiller(1, name, dtype, shape, c)
					f.fill(data, 0)
					return data
				}
				var values []float64
				switch dtype {
				case checkpoint.U8:
					if k.name[0] != 'w' {
						continue
					}
					packed, scale := read(name+"_packed", dtype, []int{512, columns / 2}), read(name+"_scale", dtype, []int{512, columns / 32})
					for i := range 512 * columns {
						factor := math.Ldexp(1, int(scale[i/group])-127)
						values = append(values, codes[packed[i/2]>>(4*(i&1))&15]*factor)
					}
				case checkpoint.BF16:
					for data := read(name, dtype, shape); len(data) > 0; data = data[2:] {
						values = append(values, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(data))<<16)))
					}
				case checkpoint.F16:
					for data := read(name, dtype, shape); len(data) > 0; data = data[2:] {
						values = append(values, widen(binary.LittleEndian.Uint16(data)))
					}
				case checkpoint.F32:
					for data := read(name, dtype, shape); len(data) > 0; data = data[4:] {
						values = append(values, float64(math.Float32frombits(binary.LittleEndian.Uint32(data))))
					}
				}
				want := k.std
				if _, matrix := gains[k.name]; matrix {
					want /= math.Sqrt(float64(columns))
				}
				var sum, square, zero float64
				for _, x := range values {
					sum += x
					square += x * x
					if x == 0 {
						zero++
					}
				}
				n := float64(len(values))
				mean := sum / n
				std := math.Sqrt(square/n - mean*mean)
				if math.Abs(mean-k.mean) > 6*want/math.Sqrt(n) || math.Abs(std/want-1) > k.tol || zero/n > 0.14 {
					t.Errorf("%s %s of %d columns: mean %.5f, deviation %.5f and %.0f%% zeros, not %g and %.5f",
						k.name, dtype, columns, mean, std, 100*zero/n, k.mean, want)
				}
			}
		}
	}
}

func TestDecayHasItsRange(t *testing.T) {
	c := Geometry("tiny")
	for name, bounds := range map[string][2]float32{"a.A_log": {-0.8, 1}, "a.dt_bias": {-5, 0}} {
		f := newFiller(1, name, checkpoint.F32, []int{32}, c)
		values := make([]float32, 32)
		f.values(values, 0)
		for i, x := range values {
			if padding := name == "a.A_log" && i >= c.KDA.Heads; padding != (x == 0) || !padding && (x < bounds[0] || x > bounds[1]) {
				t.Errorf("%s[%d] is %g", name, i, x)
			}
		}
	}
}

func TestDivideCoversEveryCount(t *testing.T) {
	c := Geometry("tiny")
	all := units(c, Options{Experts: checkpoint.U8, Trunk: checkpoint.BF16, Vision: true})
	most := len(runs(all, c.Layers))
	if want := 8 + 7*24 + 5 + 3 + 165; most != want {
		t.Fatalf("%d runs, not %d", most, want)
	}
	names := func(shards []unit) (all []string) {
		for _, s := range shards {
			for _, t := range s {
				all = append(all, t.name)
			}
		}
		return all
	}
	want := fmt.Sprint(names(all))
	for n := range most + 1 {
		shards, err := divide(all, c.Layers, n)
		if err != nil || n > 0 && len(shards) != n || fmt.Sprint(names(shards)) != want {
			t.Fatalf("%d shards: %d, %v", n, len(shards), err)
		}
		for i, s := range shards {
			if len(s) == 0 {
				t.Fatalf("%d shards: number %d is empty", n, i)
			}
		}
	}
	for _, n := range []int{-1, most + 1, 1 << 30} {
		if _, err := divide(all, c.Layers, n); err == nil {
			t.Errorf("%d shards were accepted", n)
		}
	}
}

func BenchmarkFill(b *testing.B) {
	c := Geometry("mid")
	for _, k := range []struct {
		name  string
		dtype checkpoint.DType
		shape []int
	}{{"w1.weight_packed", checkpoint.U8, []int{1024, 1024}}, {"w1.weight_scale", checkpoint.U8, []int{1024, 1024}},
		{"q_proj.weight", checkpoint.BF16, []int{1024, 512}}, {"q_proj.weight", checkpoint.F32, []int{512, 512}}} {
		b.Run(k.name+"/"+k.dtype.String(), func(b *testing.B) {
			f := newFiller(1, k.name, k.dtype, k.shape, c)
			data := make([]byte, 1<<20)
			b.SetBytes(1 << 20)
			for b.Loop() {
				f.fill(data, 0)
			}
		})
	}
}
