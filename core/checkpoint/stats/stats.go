// Package stats looks at the values of tensors: what they are like, and what rounding them to integers would cost.
package stats

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
)

// ErrType says that a tensor has elements that are no numbers, or of a type this package cannot read.
var ErrType = errors.New("no statistics for this type")

// Source is where the bytes of tensors come from, such as a checkpoint.Model. Read is called from several goroutines.
type Source interface {
	// Read fills p with the bytes [from, from+len(p)) of t.
	Read(p []byte, t checkpoint.Tensor, from int64) error
}

// File is a Source for the tensors of one .safetensors file.
func File(f disk.File) Source { return file{f} }

type file struct{ disk.File }

func (f file) Read(p []byte, t checkpoint.Tensor, from int64) error {
	if err := disk.ReadFull(f.File, p, t.Offset+from); err != nil {
		return fmt.Errorf("stats: read tensor %s: %w", t, err)
	}
	return nil
}

// Summary describes the values of a tensor. All but the counts are of the finite values; without any they are 0.
type Summary struct {
	Count int64 `json:"count"` // of all values
	Zeros int64 `json:"zeros"`
	NaN   int64 `json:"nan"`
	Inf   int64 `json:"inf"`

	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
	Std  float64 `json:"std"` // standard deviation, of the values as they are and not as a sample
}

// piece is about how many values are looked at together.
const piece = 1 << 20

// Summarize reads a tensor and describes its values. The same bytes give the same figures on every machine. An error for
// elements that cannot be read as numbers matches ErrType.
func Summarize(ctx context.Context, src Source, t checkpoint.Tensor) (Summary, error) {
	if err := numbers(t); err != nil {
		return Summary{}, err
	}
	n := elements(t)
	parts, err := inPieces(ctx, n, piece, func(from, to int64) (moments, error) {
		values, err := read(src, t, from, to)
		return momentsOf(values), err
	})
	if err != nil {
		return Summary{}, err
	}
	return summary(parts), nil
}

// SummarizeMXFP4 is Summarize for weights of 4 bits, two to a byte of t, with a byte of scale in the tensor scale for every 32.
func SummarizeMXFP4(ctx context.Context, src Source, t, scale checkpoint.Tensor) (Summary, error) {
	if t.DType != checkpoint.U8 || scale.DType != checkpoint.U8 || 2*t.Bytes != kernel.GroupSize*scale.Bytes {
		return Summary{}, fmt.Errorf("stats: %s: %d bytes of %s and %d of %s for scales are not MXFP4: %w",
			t, t.Bytes, t.DType, scale.Bytes, scale.DType, ErrType)
	}
	parts, err := inPieces(ctx, scale.Bytes, piece/kernel.GroupSize, func(from, to int64) (moments, error) {
		const bytes = kernel.GroupSize / 2
		data, scales := make([]byte, (to-from)*bytes), make([]byte, to-from)
		if err := errors.Join(src.Read(data, t, from*bytes), src.Read(scales, scale, from)); err != nil {
			return moments{}, err
		}
		return momentsOf(widen(kernel.Widen(nil, kernel.MXFP4, data, scales))), nil
	})
	if err != nil {
		return Summary{}, err
	}
	return summary(parts), nil
}

// moments is what is known about some values; they can be added up.
type moments struct {
	Summary
	finite  int64
	squares float64 // sum of the squared distances from the mean
}

func momentsOf(values []float64) moments {
	m := moments{Summary: Summary{Count: int64(len(values)), Min: math.Inf(1), Max: math.Inf(-1)}}
	for _, x := range values {
		switch {
		case x != x:
			m.NaN++
			continue
		case math.IsInf(x, 0):
			m.Inf++
			continue
		case x == 0:
			m.Zeros++
		}
		m.finite++
		m.Min, m.Max = min(m.Min, x), max(m.Max, x)
		d := x - m.Mean
		m.Mean += d / float64(m.finite)
		m.squares += float64(d * (x - m.Mean))
	}
	return m
}

// summary adds up pieces, in their order.
func summary(parts []moments) Summary {
	all := moments{Summary: Summary{Min: math.Inf(1), Max: math.Inf(-1)}}
	for _, p := range parts {
		all.Count, all.Zeros, all.NaN, all.Inf = all.Count+p.Count, all.Zeros+p.Zeros, all.NaN+p.NaN, all.Inf+p.Inf
		if p.finite == 0 {
			continue
		}
		all.Min, all.Max = min(all.Min, p.Min), max(all.Max, p.Max)
		if all.finite == 0 {
			all.finite, all.Mean, all.squares = p.finite, p.Mean, p.squares
			continue
		}
		n, d := all.finite+p.finite, p.Mean-all.Mean
		part := float64(p.finite) / float64(n)
		all.Mean += float64(d * part)
		all.squares += p.squares + float64(d*d*part)*float64(all.finite)
		all.finite = n
	}
	if all.finite == 0 {
		all.Min, all.Max = 0, 0
		return all.Summary
	}
	all.Std = math.Sqrt(all.squares / float64(all.finite))
	return all.Summary
}

// Rounding is what rounding did to values. Roundings can be added up.
type Rounding struct {
	Error, Value               float64 // sums of the sizes of errors, and of the values
	SquaredError, SquaredValue float64 // sums of their squares
	Skipped                    int64   // values in groups with a NaN or infinity
}

// Add adds another.
func (r *Rounding) Add(x Rounding) {
	r.Error += x.Error
	r.Value += x.Value
	r.SquaredError += x.SquaredError
	r.SquaredValue += x.SquaredValue
	r.Skipped += x.Skipped
}

// Mean is the mean error relative to the mean size of the values.
func (r Rounding) Mean() float64 { return ratio(r.Error, r.Value) }

// RMS is the same with root mean squares.
func (r Rounding) RMS() float64 { return math.Sqrt(ratio(r.SquaredError, r.SquaredValue)) }

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// GroupSize is the number of consecutive values of a row that share a scale when they are rounded.
const GroupSize = 32

// Round rounds a tensor to integers of each of the given numbers of bits, from 2 to 16, in groups along its last dimension, each
// with one float32 scale: its largest value over the largest integer. It returns what that did, by number of bits. The
// tensor's values must be floating-point numbers, or the error matches ErrType.
func Round(ctx context.Context, src Source, t checkpoint.Tensor, bits []int) ([]Rounding, error) {
	switch t.DType {
	case checkpoint.BF16, checkpoint.F16, checkpoint.F32:
	default:
		return nil, fmt.Errorf("stats: round %s: %s: %w", t, t.DType, ErrType)
	}
	for _, b := range bits {
		if b < 2 || b > 16 {
			return nil, fmt.Errorf("stats: round %s to %d bits: out of range", t, b)
		}
	}
	row := int64(1)
	if n := len(t.Shape); n > 0 {
		row = int64(t.Shape[n-1])
	}
	if row == 0 {
		return make([]Rounding, len(bits)), nil
	}
	// Pieces end where groups end.
	step := max(piece/row, 1) * row
	if row%GroupSize == 0 {
		step = piece
	}
	parts, err := inPieces(ctx, elements(t), step, func(from, to int64) ([]Rounding, error) {
		values, err := read(src, t, from, to)
		if err != nil {
			return nil, err
		}
		result := make([]Rounding, len(bits))
		for len(values) > 0 {
			line := values[:min(row, int64(len(values)))]
			if row%GroupSize == 0 {
				line = values
			}
			values = values[len(line):]
			for len(line) > 0 {
				group := line[:min(GroupSize, len(line))]
				line = line[len(group):]
				for i, b := range bits {
					result[i].group(group, b)
				}
			}
		}
		return result, nil
	})
	if err != nil {
		return nil, err
	}
	all := make([]Rounding, len(bits))
	for _, p := range parts {
		for i := range all {
			all[i].Add(p[i])
		}
	}
	return all, nil
}

// group adds the rounding of one group of float32 values.
func (r *Rounding) group(values []float64, bits int) {
	largest := 0.0
	for _, x := range values {
		if x-x != 0 { // NaN or infinite
			r.Skipped += int64(len(values))
			return
		}
		largest = max(largest, math.Abs(x))
	}
	scale := float64(float32(largest / float64(int(1)<<(bits-1)-1)))
	for _, x := range values {
		e := x
		if scale > 0 {
			e = x - float64(math.RoundToEven(x/scale)*scale)
		}
		r.Error += math.Abs(e)
		r.Value += math.Abs(x)
		r.SquaredError += float64(e * e)
		r.SquaredValue += float64(x * x)
	}
}

// inPieces does work on [0, n) in pieces of step, several at a time, and returns the results in order.
func inPieces[T any](ctx context.Context, n, step int64, work func(from, to int64) (T, error)) ([]T, error) {
	count := (n + step - 1) / step
	results := make([]T, count)
	var next atomic.Int64
	var all sync.WaitGroup
	var once sync.Once
	var failed error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range min(int64(runtime.GOMAXPROCS(0)), count) {
		all.Go(func() {
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= count {
					return
				}
				x, err := work(i*step, min((i+1)*step, n))
				if err != nil {
					once.Do(func() { failed = err })
					cancel()
					return
				}
				results[i] = x
			}
		})
	}
	all.Wait()
	if failed == nil && next.Load() < count {
		failed = context.Cause(ctx)
	}
	return results, failed
}

func elements(t checkpoint.Tensor) int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// numbers checks that the elements of a tensor can be read.
func numbers(t checkpoint.Tensor) error {
	switch t.DType {
	case checkpoint.BOOL, checkpoint.U8, checkpoint.I8, checkpoint.U16, checkpoint.I16, checkpoint.U32, checkpoint.I32, checkpoint.U64, checkpoint.I64,
		checkpoint.F16, checkpoint.BF16, checkpoint.F32, checkpoint.F64:
		return nil
	}
	return fmt.Errorf("stats: %s: %s: %w", t, t.DType, ErrType)
}

// read reads the values [from, to) of a tensor whose type numbers has checked.
func read(src Source, t checkpoint.Tensor, from, to int64) ([]float64, error) {
	size := int64(t.DType.Bits() / 8)
	data := make([]byte, (to-from)*size)
	if err := src.Read(data, t, from*size); err != nil {
		return nil, err
	}
	switch t.DType {
	case checkpoint.BF16:
		return widen(kernel.Widen(make([]float32, 0, to-from), kernel.BF16, data, nil)), nil
	case checkpoint.F16:
		return widen(kernel.Widen(make([]float32, 0, to-from), kernel.F16, data, nil)), nil
	case checkpoint.F32:
		return widen(kernel.Widen(make([]float32, 0, to-from), kernel.F32, data, nil)), nil
	}
	values := make([]float64, to-from)
	le := binary.LittleEndian
	for i := range values {
		switch x := data[int64(i)*size:]; t.DType {
		case checkpoint.BOOL, checkpoint.U8:
			values[i] = float64(x[0])
		case checkpoint.I8:
			values[i] = float64(int8(x[0]))
		case checkpoint.U16:
			values[i] = float64(le.Uint16(x))
		case checkpoint.I16:
			values[i] = float64(int16(le.Uint16(x)))
		case checkpoint.U32:
			values[i] = float64(le.Uint32(x))
		case checkpoint.I32:
			values[i] = float64(int32(le.Uint32(x)))
		case checkpoint.U64:
			values[i] = float64(le.Uint64(x))
		case checkpoint.I64:
			values[i] = float64(int64(le.Uint64(x)))
		case checkpoint.F64:
			values[i] = math.Float64frombits(le.Uint64(x))
		}
	}
	return values, nil
}

func widen(values []float32) []float64 {
	wide := make([]float64, len(values))
	for i, x := range values {
		wide[i] = float64(x)
	}
	return wide
}
