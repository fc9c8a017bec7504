// Package kernel is the engine's arithmetic: the Backend interface that a processor family implements on blocks of rows,
// the registry that names the backends, the exact scalar functions they all must reproduce, and the pool of threads that
// divides work among cores without ever dividing a sum.
//
// docs/numerics.md is the contract. In short: a dot product has 32 float32 accumulators, element i goes to accumulator
// i mod 32 with one fma, and a fixed tree adds the accumulators up; everything else is element-wise in a written order.
package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// Lanes is the number of accumulators of a dot product.
const Lanes = 32

// GroupSize is the number of consecutive MXFP4 weights of a row that share one scale byte.
const GroupSize = 32

// LatentRows is the number of positions whose MLA latents lie together, as one tile of a Dot or Transposed call.
const LatentRows = 64

// MaxVectors is the largest number of activation vectors one Dot or Transposed call takes.
const MaxVectors = 8

// Format is how the elements of a matrix are stored.
type Format uint8

// The formats a matrix can be stored in. All widen exactly to float32.
const (
	F32   Format = iota + 1 // IEEE 754 binary32, little endian
	BF16                    // the upper half of a binary32, little endian
	F16                     // IEEE 754 binary16, little endian
	MXFP4                   // E2M1 nibbles, low nibble first, and one E8M0 scale byte per GroupSize of a row
)

func (f Format) String() string {
	switch f {
	case F32:
		return "F32"
	case BF16:
		return "BF16"
	case F16:
		return "F16"
	case MXFP4:
		return "MXFP4"
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}

// RowBytes is the size of n elements of a row in Tile.Data; for MXFP4 n must be even.
func (f Format) RowBytes(n int) int {
	switch f {
	case F32:
		return 4 * n
	case BF16, F16:
		return 2 * n
	case MXFP4:
		return n / 2
	}
	panic(fmt.Sprintf("kernel: row size of %v", f))
}

// Tile is a block of consecutive rows of one matrix, as stored, at any address: nothing may depend on alignment.
type Tile struct {
	Format     Format
	Rows, Cols int    // for MXFP4, Cols is a multiple of GroupSize
	Stride     int    // elements from one row to the next, at least Cols; always Cols for MXFP4
	Data       []byte // rows of Format.RowBytes(Stride) bytes; the last may end after Cols elements
	Scale      []byte // MXFP4 only: Rows * Cols/GroupSize bytes, row-major
}

// Slice returns rows [from, to) of t, sharing its bytes.
func (t Tile) Slice(from, to int) Tile {
	row := t.Format.RowBytes(t.Stride)
	end := min(to*row, len(t.Data))
	t.Data = t.Data[from*row : end]
	if t.Format == MXFP4 {
		g := t.Cols / GroupSize
		t.Scale = t.Scale[from*g : to*g]
	}
	t.Rows = to - from
	return t
}

// Check panics if t's fields contradict each other. The tape and the experts check what they hand out, once, so that
// kernels need not.
func (t Tile) Check() {
	ok := t.Rows >= 0 && t.Cols > 0 && t.Stride >= t.Cols
	if ok && t.Rows > 0 {
		ok = len(t.Data) >= t.Format.RowBytes((t.Rows-1)*t.Stride+t.Cols)
	}
	if ok && t.Format == MXFP4 {
		ok = t.Cols%GroupSize == 0 && t.Stride == t.Cols && len(t.Scale) == t.Rows*t.Cols/GroupSize
	}
	if !ok {
		panic(fmt.Sprintf("kernel: bad tile: %v %dx%d stride %d, %d bytes, %d scales", t.Format, t.Rows, t.Cols, t.Stride, len(t.Data), len(t.Scale)))
	}
}

// Float32Tile is a tile over x seen as rows of cols elements, stride apart (KV latents, mostly). It shares x's memory.
func Float32Tile(x []float32, rows, cols, stride int) Tile {
	return Tile{Format: F32, Rows: rows, Cols: cols, Stride: stride, Data: float32Bytes(x)}
}

// Widen appends the elements of one stored row to dst as float32, exactly.
func Widen(dst []float32, f Format, data, scale []byte) []float32 {
	le := binary.LittleEndian
	switch f {
	case F32:
		for ; len(data) >= 4; data = data[4:] {
			dst = append(dst, math.Float32frombits(le.Uint32(data)))
		}
	case BF16:
		for ; len(data) >= 2; data = data[2:] {
			dst = append(dst, math.Float32frombits(uint32(le.Uint16(data))<<16))
		}
	case F16:
		for ; len(data) >= 2; data = data[2:] {
			dst = append(dst, HalfToFloat32(le.Uint16(data)))
		}
	case MXFP4:
		for i, b := range data {
			s := Scale(scale[i*2/GroupSize])
			dst = append(dst, float32(e2m1[b&15]*s), float32(e2m1[b>>4]*s))
		}
	default:
		panic(fmt.Sprintf("kernel: widen %v", f))
	}
	return dst
}

// e2m1 is the value of each 4-bit weight: sign, two exponent bits, one mantissa bit.
var e2m1 = [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -.5, -1, -1.5, -2, -3, -4, -6}

// E2M1 returns the value of a 4-bit weight (its low four bits).
func E2M1(nibble byte) float32 { return e2m1[nibble&15] }

// Scale returns the factor 2^(s-127) of an E8M0 scale byte: subnormal for 0, and 0 for 255, which stands for NaN and which
// `k3 verify` reports as damage.
func Scale(s byte) float32 {
	switch s {
	case 0:
		return math.Float32frombits(1 << 22)
	case 255:
		return 0
	}
	return math.Float32frombits(uint32(s) << 23)
}

// HalfToFloat32 widens an IEEE 754 binary16, exactly.
func HalfToFloat32(h uint16) float32 {
	sign, e, m := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&0x3ff)
	switch e {
	case 0: // zero and subnormals: m * 2^-24 is exact
		return math.Float32frombits(math.Float32bits(float32(m)*(1.0/(1<<24))) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	}
	return math.Float32frombits(sign | (e+127-15)<<23 | m<<13)
}

// Backend computes on blocks of rows. Its methods are pure: they depend on nothing but their arguments, may be called from
// any number of goroutines, keep no reference, and give, bit for bit, what backends/generic gives (NaN results are the
// canonical one, except in the accumulators of Transposed, Axpy and KDA, where any NaN stands for any other).
// Slices that must not overlap say so; otherwise none may. Lengths are the caller's promise and may be trusted.
type Backend interface {
	// Name is the name of --backend.
	Name() string

	// PackedLen is the length of Pack's result for a vector of n elements.
	PackedLen(f Format, n int) int
	// Pack lays the vector x out in dst (PackedLen long) as Dot wants it beside weights of the format.
	Pack(f Format, dst, x []float32)
	// Dot sets dst[v*stride+r] to the dot product of row r of w and vector v, for all rows of w and the first `vectors`
	// (1 to MaxVectors) vectors of x, which are packed one after the other.
	Dot(dst []float32, stride int, w Tile, x []float32, vectors int)
	// Transposed adds to dst[v*stride+c] the products w[r][c] * x[v*xStride+r] over the rows r of w ascending, one fma each,
	// for every column c and 1 to MaxVectors vectors v. x is not packed.
	Transposed(dst []float32, stride int, w Tile, x []float32, xStride, vectors int)

	// KDA advances the state of one head, s[dim keys][dim values], by `tokens` tokens (docs/model.md, "KDA"). Token t reads
	// q, k, v and alpha at [t*stride:][:dim] and beta[t*betaStride], and writes o at [t*stride:][:dim]. Per token:
	// s[i][j] = s[i][j]*alpha[i]; u[j] = sum over i ascending of fma(k[i], s[i][j], .) from 0; w[j] = beta*(v[j]-u[j]);
	// s[i][j] = fma(k[i], w[j], s[i][j]); o[j] = sum over i ascending of fma(q[i], s[i][j], .) from 0.
	KDA(s []float32, dim, tokens int, q, k, v, alpha []float32, stride int, beta []float32, betaStride int, o []float32)
	// ShortConv sets y[c] to SiLU of the sum over j ascending of fma(w[c*taps+j], x[j*stride+c], .) from 0, for each channel
	// c of y: x holds the taps last inputs, oldest first, in rows stride apart.
	ShortConv(y, w []float32, taps int, x []float32, stride int)
	// Decay sets alpha[i] = Exp(lower * Sigmoid(scale * (z[i]+bias[i]))); alpha may be z.
	Decay(alpha, z, bias []float32, scale, lower float32)

	// InverseRMS returns 1/sqrt(dot(x,x)/n + eps), the factor of RMSNorm.
	InverseRMS(x []float32, eps float32) float32
	// RMSNorm sets y[i] = (x[i]*inv) * w[i] with inv = InverseRMS(x, eps), or x[i]*inv when w is nil. y may be x.
	RMSNorm(y, x, w []float32, eps float32)
	// L2Norm sets y[i] = (x[i]*inv) * scale with inv = 1/sqrt(dot(x,x) + eps); y may be x.
	L2Norm(y, x []float32, eps, scale float32)
	// Softmax replaces x by its softmax: the maximum m, Exp(x-m), their dot product with ones, one division each.
	Softmax(x []float32)
	// SiTU sets y[i] = SiTU(g[i], u[i], b1, b2); y may be g or u.
	SiTU(y, g, u []float32, b1, b2 float32)
	// Sigmoid sets y[i] = Sigmoid(x[i]); y may be x.
	Sigmoid(y, x []float32)
	// Gate sets y[i] = y[i] * Sigmoid(g[i]).
	Gate(y, g []float32)
	// Axpy sets y[i] = fma(a, x[i], y[i]).
	Axpy(y []float32, a float32, x []float32)
}

// Expander is an optional interface of a Backend: one that implements it expands (decompresses) BF16 weights of a
// compressed pack faster than core/pack does in plain Go. See pack.ExpandWith.
type Expander interface {
	// ExpandBF16 fills dst with as many whole chunks of 256 weights as it and src have room for, from chunks of 352 bytes (docs/packs.md,
	// "Compressed packs") whose lowest exponent is lowest. Exceptions are not its business.
	ExpandBF16(dst, src []byte, lowest byte)
}

// ErrBackend is matched by the errors of Select: no such backend, or one this processor cannot run.
var ErrBackend = errors.New("backend not available")

// Driver is a backend as registered: what it is called, how good it is, and whether this processor can run it.
type Driver struct {
	Name string
	// Speed orders the backends for "auto": the available one with the highest is taken.
	Speed int
	// Missing says what the running machine lacks, or is empty. It is called once a selection.
	Missing func() string
	// New returns the backend; it is only called where Missing is empty.
	New func() Backend
}

var (
	driversMu sync.Mutex
	drivers   = map[string]Driver{}
)

// Register adds a backend, from its package's init. It panics on a driver without a name or functions and on a name
// registered before.
func Register(d Driver) {
	driversMu.Lock()
	defer driversMu.Unlock()
	if d.Name == "" || d.Name == "auto" || d.Missing == nil || d.New == nil {
		panic("kernel: register: incomplete driver " + d.Name)
	}
	if _, dup := drivers[d.Name]; dup {
		panic("kernel: register: " + d.Name + " twice")
	}
	drivers[d.Name] = d
}

// Drivers lists the registered backends, fastest first.
func Drivers() []Driver {
	driversMu.Lock()
	defer driversMu.Unlock()
	var all []Driver
	for _, d := range drivers {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Driver) int {
		if a.Speed != b.Speed {
			return b.Speed - a.Speed
		}
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// Select returns the backend called name, or the fastest this machine can run for "" and "auto". The error matches
// ErrBackend and says what is missing.
func Select(name string) (Backend, error) {
	var names []string
	for _, d := range Drivers() {
		missing := d.Missing()
		if d.Name == name && missing != "" {
			return nil, fmt.Errorf("kernel: %w: %s needs %s", ErrBackend, name, missing)
		}
		if d.Name == name || missing == "" && (name == "" || name == "auto") {
			return d.New(), nil
		}
		names = append(names, d.Name)
	}
	return nil, fmt.Errorf("kernel: %w: no backend %q among %s", ErrBackend, name, strings.Join(names, ", "))
}
