package kernel_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/kernel"
)

// A product is the same however many threads share it, and whether it is small enough for one alone or not.
func TestProductIsEachRowTimesEachVector(t *testing.T) {
	const stride = 900
	rng := random.New(t, 1, 2)
	float := func() float32 { return float32(rng.NormFloat64()) }
	for _, shape := range [][2]int{{1, 1}, {0, 32}, {100, 160}, {103, 170}, {700, 290}, {25, 4000}} {
		rows, cols := shape[0], shape[1]
		weights := make([]float32, rows*cols)
		for i := range weights {
			weights[i] = float()
		}
		for _, vectors := range []int{1, 3, 8, 11} {
			x := make([]float32, vectors*cols)
			for i := range x {
				x[i] = float()
			}
			tile := kernel.Float32Tile(weights, rows, cols, cols)
			b := generic.Backend{}
			want := make([]float32, vectors*stride)
			packed := make([]float32, b.PackedLen(kernel.F32, cols))
			for v := range vectors {
				b.Pack(kernel.F32, packed, x[v*cols:][:cols])
				for r := range rows {
					b.Dot(want[v*stride+r:], stride, tile.Slice(r, r+1), packed, 1)
				}
			}
			for _, threads := range []int{1, 2, 3, 8} {
				t.Run(fmt.Sprintf("%dx%d times %d, %d threads", rows, cols, vectors, threads), func(t *testing.T) {
					p := kernel.NewPool(b, threads)
					defer p.Close()
					got := make([]float32, vectors*stride)
					p.Product(got, stride, tile, p.Pack(make([]float32, p.PackedLen(kernel.F32, cols, vectors)), kernel.F32, x, cols, cols, vectors))
					if !slices.Equal(got, want) {
						t.Fatal("differs from the products one by one")
					}
				})
			}
		}
	}
}

// Vectors packed for another format or length would be multiplied as something they are not.
func TestAProductTakesOnlyVectorsPackedForItsMatrix(t *testing.T) {
	const cols = 32
	p := kernel.NewPool(generic.Backend{}, 1)
	defer p.Close()
	tile := kernel.Float32Tile(make([]float32, 2*cols), 2, cols, cols)
	x := make([]float32, cols)
	pack := func(f kernel.Format, n int) kernel.Vectors {
		return p.Pack(make([]float32, p.PackedLen(f, n, 1)), f, x[:n], n, n, 1)
	}
	panics := func(x kernel.Vectors) (did bool) {
		defer func() { did = recover() != nil }()
		p.Product(make([]float32, 2), 2, tile, x)
		return false
	}
	if panics(pack(kernel.F32, cols)) {
		t.Error("vectors packed for the matrix are refused")
	}
	for _, f := range []kernel.Format{kernel.BF16, kernel.F16, kernel.MXFP4} {
		if !panics(pack(f, cols)) {
			t.Errorf("vectors packed for %v are multiplied with F32", f)
		}
	}
	if !panics(pack(kernel.F32, cols/2)) {
		t.Error("vectors of half the length are multiplied")
	}
}
