package stats_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/stats"
)

// memory is a Source of one tensor after another; the offset of a tensor is where its bytes begin.
type memory []byte

func (m memory) Read(p []byte, t checkpoint.Tensor, from int64) error {
	_, err := bytes.NewReader(m).ReadAt(p, t.Offset+from)
	return err
}

func tensor(dtype checkpoint.DType, shape ...int) checkpoint.Tensor {
	n := int64(1)
	for _, d := range shape {
		n *= int64(d)
	}
	return checkpoint.Tensor{Name: "t", DType: dtype, Shape: shape, Bytes: n * int64(dtype.Bits()) / 8}
}

func encode(t *testing.T, values any) memory {
	t.Helper()
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, values); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestSummarizeReadsEveryType(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	f32 := func(x ...float64) (out []float32) {
		for _, v := range x {
			out = append(out, float32(v))
		}
		return out
	}
	want := func(count, zeros, nan, inf int64, min, max, mean, std float64) stats.Summary {
		return stats.Summary{Count: count, Zeros: zeros, NaN: nan, Inf: inf, Min: min, Max: max, Mean: mean, Std: std}
	}
	for _, x := range []struct {
		dtype  checkpoint.DType
		values any
		n      int
		want   stats.Summary
	}{
		{checkpoint.U8, []uint8{0, 255}, 2, want(2, 1, 0, 0, 0, 255, 127.5, 127.5)},
		{checkpoint.BOOL, []uint8{1, 1}, 2, want(2, 0, 0, 0, 1, 1, 1, 0)},
		{checkpoint.I8, []int8{-128, 126}, 2, want(2, 0, 0, 0, -128, 126, -1, 127)},
		{checkpoint.U16, []uint16{65535, 65533}, 2, want(2, 0, 0, 0, 65533, 65535, 65534, 1)},
		{checkpoint.I16, []int16{-32768, -32766}, 2, want(2, 0, 0, 0, -32768, -32766, -32767, 1)},
		{checkpoint.U32, []uint32{1 << 31, 1<<31 + 2}, 2, want(2, 0, 0, 0, 1<<31, 1<<31+2, 1<<31+1, 1)},
		{checkpoint.I32, []int32{-1, 1}, 2, want(2, 0, 0, 0, -1, 1, 0, 1)},
		{checkpoint.U64, []uint64{1 << 63}, 1, want(1, 0, 0, 0, 1<<63, 1<<63, 1<<63, 0)},
		{checkpoint.I64, []int64{-1 << 63}, 1, want(1, 0, 0, 0, -1<<63, -1<<63, -1<<63, 0)},
		{checkpoint.F64, []float64{1e300, nan, -inf, inf, 1e300}, 5, want(5, 0, 1, 2, 1e300, 1e300, 1e300, 0)},
		{checkpoint.F32, f32(-1, 3, math.Copysign(0, -1), 0), 4, want(4, 2, 0, 0, -1, 3, .5, 1.5)},
		{checkpoint.BF16, []uint16{0x3f80, 0xc040, 0x7f80, 0x7fc0}, 4, want(4, 0, 1, 1, -3, 1, -1, 2)},
		{checkpoint.F16, []uint16{0x3c00, 0xc200, 0x7c00, 0x7e00}, 4, want(4, 0, 1, 1, -3, 1, -1, 2)},
		{checkpoint.F32, f32(nan), 1, want(1, 0, 1, 0, 0, 0, 0, 0)},
		{checkpoint.F32, []float32{}, 0, want(0, 0, 0, 0, 0, 0, 0, 0)},
	} {
		got, err := stats.Summarize(t.Context(), encode(t, x.values), tensor(x.dtype, x.n))
		if err != nil || got != x.want {
			t.Errorf("%s %v: %+v, %v, want %+v", x.dtype, x.values, got, err, x.want)
		}
	}
	for _, dtype := range []checkpoint.DType{checkpoint.F4, checkpoint.F8E4M3, checkpoint.C64} {
		if _, err := stats.Summarize(t.Context(), memory(make([]byte, 8)), tensor(dtype, 1)); !errors.Is(err, stats.ErrType) {
			t.Errorf("%s: %v", dtype, err)
		}
	}
}

func TestManyPiecesGiveWhatOneWould(t *testing.T) {
	// Values far from 0 are where a sum of squares would lose everything.
	const n = 3<<20 + 5
	r := rand.New(rand.NewPCG(1, 2)) // always the same: how much is lost depends on them
	values := make([]float64, n)
	sum := 0.0
	for i := range values {
		values[i] = 1e8 + r.NormFloat64()
		sum += values[i] - 1e8
	}
	mean, squares := sum/n, 0.0
	for _, v := range values {
		d := v - 1e8 - mean
		squares += d * d
	}
	src := encode(t, values)
	got, err := stats.Summarize(t.Context(), src, tensor(checkpoint.F64, n))
	if err != nil || got.Count != n || math.Abs(got.Mean-1e8-mean) > 1e-6 || math.Abs(got.Std-math.Sqrt(squares/n)) > 1e-6 {
		t.Errorf("%+v, %v: want mean 1e8%+g, std %g", got, err, mean, math.Sqrt(squares/n))
	}
	again, err := stats.Summarize(t.Context(), src, tensor(checkpoint.F64, n))
	if err != nil || got != again {
		t.Errorf("then %+v, %v", again, err)
	}
}

func TestMXFP4IsDecodedWithItsScales(t *testing.T) {
	// Two groups: all 6 (nibble 7) at 2^1, and -0.5 (nibble 9) and 0 in turns at 2^-1.
	data := append(bytes.Repeat([]byte{0x77}, 16), bytes.Repeat([]byte{0x09}, 16)...)
	src := memory(append(data, 128, 126))
	w, s := tensor(checkpoint.U8, 1, 32), tensor(checkpoint.U8, 1, 2)
	s.Offset = 32
	got, err := stats.SummarizeMXFP4(t.Context(), src, w, s)
	if err != nil || got.Count != 64 || got.Zeros != 16 || got.Min != -.25 || got.Max != 12 || got.Mean != (32*12-16*.25)/64 {
		t.Errorf("%+v, %v", got, err)
	}
	s.Bytes--
	if _, err := stats.SummarizeMXFP4(t.Context(), src, w, s); !errors.Is(err, stats.ErrType) {
		t.Errorf("too few scales: %v", err)
	}
}

// round rounds plainly: group by group, value by value.
func round(values []float32, row, bits int) (r stats.Rounding) {
	for from := 0; from < len(values); from += row {
		for g := from; g < from+row; g += 32 {
			group := values[g:min(g+32, from+row)]
			largest := float32(0)
			for _, x := range group {
				largest = max(largest, float32(math.Abs(float64(x))))
			}
			scale := float64(float32(float64(largest) / (math.Exp2(float64(bits-1)) - 1)))
			for _, x := range group {
				e := float64(x)
				if scale > 0 {
					e -= math.RoundToEven(float64(x)/scale) * scale
				}
				r.Add(stats.Rounding{Error: math.Abs(e), Value: math.Abs(float64(x)), SquaredError: e * e, SquaredValue: float64(x) * float64(x)})
			}
		}
	}
	return r
}

func TestRoundingGoesByGroupsOfARow(t *testing.T) {
	r := random.New(t, 1, 2)
	for _, shape := range [][]int{{64, 32}, {7, 33}, {5, 1}, {3, 2, 70}, {40}, {1<<11 + 1, 1 << 9}, {1<<20/100 + 3, 100}} {
		x := tensor(checkpoint.F32, shape...)
		values := make([]float32, x.Bytes/4)
		for i := range values {
			values[i] = float32(r.NormFloat64() * math.Exp(3*r.NormFloat64()))
		}
		src := encode(t, values)
		got, err := stats.Round(t.Context(), src, x, []int{8, 4})
		if err != nil {
			t.Fatal(err)
		}
		for i, bits := range []int{8, 4} {
			want := round(values, shape[len(shape)-1], bits)
			near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }
			if !near(got[i].Error, want.Error) || !near(got[i].Value, want.Value) || !near(got[i].SquaredError, want.SquaredError) ||
				!near(got[i].SquaredValue, want.SquaredValue) || got[i].Skipped != 0 {
				t.Errorf("%v, int%d: %+v, want %+v", shape, bits, got[i], want)
			}
		}
	}
}

func TestNormalWeightsLoseWhatTheoryExpects(t *testing.T) {
	// Of 32 normal values the largest is about 2.1 standard deviations; the error is a quarter of a step, the mean size 0.8.
	r := random.New(t, 1, 2)
	values := make([]float32, 1<<18)
	for i := range values {
		values[i] = float32(r.NormFloat64())
	}
	got, err := stats.Round(t.Context(), encode(t, values), tensor(checkpoint.F32, 1<<10, 1<<8), []int{8, 4})
	if err != nil || math.Abs(got[0].Mean()-0.00562) > 0.0001 || math.Abs(got[1].Mean()-0.1018) > 0.001 ||
		math.Abs(got[0].RMS()-0.00535) > 0.0001 || math.Abs(got[1].RMS()-0.0971) > 0.001 {
		t.Errorf("int8 %.5f (%.5f), int4 %.4f (%.4f), %v", got[0].Mean(), got[0].RMS(), got[1].Mean(), got[1].RMS(), err)
	}
}

func TestRoundingBearsZerosAndSkipsWhatIsNotFinite(t *testing.T) {
	values := make([]float32, 96)
	values[33], values[95] = float32(math.NaN()), 127
	got, err := stats.Round(t.Context(), encode(t, values), tensor(checkpoint.F32, 96), []int{8})
	if err != nil || got[0] != (stats.Rounding{Value: 127, SquaredValue: 127 * 127, Skipped: 32}) || got[0].Mean() != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if m := (stats.Rounding{}).Mean(); m != 0 {
		t.Errorf("of nothing: %g", m)
	}
	if _, err := stats.Round(t.Context(), memory{}, tensor(checkpoint.U8, 1), []int{8}); !errors.Is(err, stats.ErrType) {
		t.Errorf("bytes: %v", err)
	}
	if _, err := stats.Round(t.Context(), memory{}, tensor(checkpoint.F32, 1), []int{1}); err == nil {
		t.Error("1 bit went well")
	}
}

func TestFailedReadsAndCancelledOnesAreErrors(t *testing.T) {
	short := memory(make([]byte, 7))
	if _, err := stats.Summarize(t.Context(), short, tensor(checkpoint.F32, 2)); !errors.Is(err, io.EOF) {
		t.Errorf("short: %v", err)
	}
	if _, err := stats.Round(t.Context(), short, tensor(checkpoint.F32, 2), []int{4}); !errors.Is(err, io.EOF) {
		t.Errorf("short: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := stats.Summarize(ctx, memory(make([]byte, 8)), tensor(checkpoint.F32, 2)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestRoundingIsToTwoBitsAtLeastAndSixteenAtMost(t *testing.T) {
	src := encode(t, make([]float32, 32))
	for bits := 0; bits <= 20; bits++ {
		if _, err := stats.Round(t.Context(), src, tensor(checkpoint.F32, 32), []int{bits}); (err == nil) != (bits >= 2 && bits <= 16) {
			t.Errorf("%d bits: %v", bits, err)
		}
	}
}
