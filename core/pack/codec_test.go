package pack

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/kernel"
)

// gaussian are BF16 weights of a standard deviation, rounded as training frameworks do.
func gaussian(r *rand.Rand, n int, deviation float64) []byte {
	w := make([]byte, 0, 2*n)
	for range n {
		w = binary.LittleEndian.AppendUint16(w, bf16(float32(r.NormFloat64()*deviation)))
	}
	return w
}

func bf16(x float32) uint16 {
	b := math.Float32bits(x)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// kinds are weights of many sorts, most of which no model has.
func kinds(r *rand.Rand, n int) map[string][]byte {
	noise := make([]byte, 2*n)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	every := make([]byte, 0, 2*n)
	for i := range n {
		every = binary.LittleEndian.AppendUint16(every, uint16(i))
	}
	special := gaussian(r, n, 1)
	for i := range n / 50 {
		copy(special[2*r.IntN(n):], []byte{byte(r.Uint32()), []byte{0, 0x80, 0x7f, 0xff}[i%4]})
	}
	mixed := gaussian(r, n, 1e-3)
	copy(mixed, gaussian(r, n/3, 1e30))
	far := make([]byte, 2*n) // zeros, and weights at every distance from each other
	for i, step := 0, 1; i < n; i, step = i+step, step+1 {
		binary.LittleEndian.PutUint16(far[2*i:], 0x3f80|uint16(i&0x7f))
	}
	return map[string][]byte{"gaussian": gaussian(r, n, 0.02), "noise": noise, "every value": every, "zeros": make([]byte, 2*n),
		"ones":                     bytes.Repeat([]byte{0xff}, 2*n),
		"infinities and denormals": special, "two scales": mixed, "gaps": far}
}

func TestCompressionLosesNothing(t *testing.T) {
	r := random.New(t, 1, 2)
	sizes := []int{0, 1, 2, 31, 32, 33, 255, 256, 257, 511, 4095, 4096, 4097, 4352, 8192, 10000, 1 << 17}
	if testing.Short() {
		sizes = sizes[:len(sizes)-1]
	}
	for _, n := range sizes {
		for name, w := range kinds(r, n) {
			prefix := []byte("before")
			c := compress(prefix, w)
			if !bytes.HasPrefix(c, prefix) {
				t.Fatalf("%s: what was there before is gone", name)
			}
			c = c[len(prefix):]
			if most := len(w) + (n+blockWeights-1)/blockWeights*headerBytes; len(c) > most {
				t.Errorf("%d weights, %s: %d bytes, at most %d", n, name, len(c), most)
			}
			guarded := bytes.Repeat([]byte{0xa5}, len(w)+64)
			got := guarded[32 : 32+len(w) : 32+len(w)]
			if err := Expand(got, c); err != nil || !bytes.Equal(got, w) {
				t.Fatalf("%d weights, %s: other weights (%v)", n, name, err)
			}
			if !bytes.Equal(guarded[:32], bytes.Repeat([]byte{0xa5}, 32)) || !bytes.Equal(guarded[32+len(w):], guarded[:32]) {
				t.Fatalf("%d weights, %s: bytes around them were written", n, name)
			}
			if n > 5000 {
				continue
			}
			for _, bad := range [][]byte{c[:max(len(c)-1, 0)], append(bytes.Clone(c), 0), c[:len(c)/2]} {
				if err := Expand(got, bad); len(bad) != len(c) && !errors.Is(err, errFrame) {
					t.Fatalf("%d weights, %s: %d of %d bytes: %v", n, name, len(bad), len(c), err)
				}
			}
		}
	}
}

// A frame as it was first written must be read for ever.
func TestTheCompressedFormIsTheOneThatWasWritten(t *testing.T) {
	const n = 1000
	var w []byte
	for i := range n {
		w = binary.LittleEndian.AppendUint16(w, uint16(0x3c00+i*37%1024|i%2<<15))
	}
	w[2*7+1], w[2*(n-1)+1] = 0x00, 0x7f // exceptions, the second one far
	c := compress(nil, w)
	sum := hexSum(c)
	const want = "429d9956b85dd8b5368d6f4c5be6b2a6ca0d9bde785e01a07d88bb22997093ea"
	if sum != want {
		t.Errorf("checksum %s of %d bytes: %s...", sum, len(c), hex.EncodeToString(c))
	}
}

func TestDamagedHeadersAreRefused(t *testing.T) {
	r := random.New(t, 1, 2)
	w := gaussian(r, 1000, 1)
	c := compress(nil, w)
	for name, change := range map[string]func(c []byte){
		"kind":                      func(c []byte) { c[1] = 2 },
		"base":                      func(c []byte) { c[0] = 249 },
		"raw, with a base":          func(c []byte) { c[1] = 1 },
		"more exceptions":           func(c []byte) { c[2]++ },
		"fewer exceptions":          func(c []byte) { c[2]-- },
		"an exception out of place": func(c []byte) { copy(c[len(c)-4:], []byte{255, 1, 255, 1}) },
	} {
		bad := bytes.Clone(c)
		change(bad)
		if err := Expand(make([]byte, len(w)), bad); !errors.Is(err, errFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The header of a block that is stored as it is has nothing but its kind.
	w = kinds(r, 1000)["noise"]
	stored := compress(nil, w)
	if err := Expand(make([]byte, len(w)), stored); err != nil || stored[1] != 1 {
		t.Fatalf("noise is stored as kind %d: %v", stored[1], err)
	}
	for _, at := range []int{0, 2, 3} {
		bad := bytes.Clone(stored)
		bad[at] = 1
		if err := Expand(make([]byte, len(w)), bad); !errors.Is(err, errFrame) {
			t.Errorf("a stored block with 1 in byte %d of its header: %v", at, err)
		}
	}
}

func FuzzExpand(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 300, 5000} {
		for _, w := range kinds(r, n) {
			f.Add(compress(nil, w), n)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		if n < 0 || n > 1<<16 {
			return
		}
		// Whatever the bytes: no panic; and they are weights, too.
		w := make([]byte, 2*n)
		if err := Expand(w, data); err != nil && !errors.Is(err, errFrame) {
			t.Fatal(err)
		}
		w = data[:len(data)&^1]
		got := make([]byte, len(w))
		if err := Expand(got, compress(nil, w)); err != nil || !bytes.Equal(got, w) {
			t.Fatalf("other weights (%v)", err)
		}
	})
}

// rows are rows of weights, each with a standard deviation of its own.
func rows(r *rand.Rand, n, cols int, deviation func() float64) []byte {
	var w []byte
	for range n {
		w = append(w, gaussian(r, cols, deviation())...)
	}
	return w
}

func BenchmarkExpand(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	norm := make([]byte, 0, 2*7168)
	for range 7168 {
		norm = binary.LittleEndian.AppendUint16(norm, bf16(float32(1+0.2*r.NormFloat64())))
	}
	for _, k := range []struct {
		name string
		w    []byte
	}{
		{"one scale", rows(r, 18, 7168, func() float64 { return 0.02 })},
		{"rows of scales 1 to 16", rows(r, 18, 7168, func() float64 { return 0.005 * math.Exp2(4*r.Float64()) })},
		{"short rows of scales 1 to 16", rows(r, 252, 512, func() float64 { return 0.005 * math.Exp2(4*r.Float64()) })},
		{"heavy tails", rows(r, 129024, 1, func() float64 { return 0.02 * math.Exp(0.8*r.NormFloat64()) })},
		{"embedding", rows(r, 18, 7168, func() float64 { return 0.01 * math.Exp(0.5*r.NormFloat64()) })},
		{"norm", norm},
	} {
		backend, err := kernel.Select("auto")
		if err != nil {
			b.Fatal(err)
		}
		for name, expand := range map[string]func(w, frame []byte) error{"portable": Expand, backend.Name(): ExpandWith(backend)} {
			b.Run(k.name+"/"+name, func(b *testing.B) {
				c := compress(nil, k.w)
				out := make([]byte, len(k.w))
				b.SetBytes(int64(len(k.w)))
				for b.Loop() {
					if err := expand(out, c); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(8*float64(len(c))/float64(len(k.w)/2), "bits/weight")
			})
		}
	}
}

func BenchmarkCompress(b *testing.B) {
	w := gaussian(rand.New(rand.NewPCG(1, 2)), 128<<10, 0.02)
	var c []byte
	b.SetBytes(int64(len(w)))
	for b.Loop() {
		c = compress(c[:0], w)
	}
}
