package amd64_test

import (
	"testing"

	"github.com/k3infer/k3/core/kernel"
)

// A kernel that allocates would wake the collector thousands of times a token.
func TestKernelsDoNotAllocate(t *testing.T) {
	for name := range needs {
		b, err := kernel.Select(name)
		if err != nil {
			continue
		}
		const n = 128
		x, y, z := make([]float32, 8*n), make([]float32, 8*n), make([]float32, n*n)
		tiles := []kernel.Tile{
			kernel.Float32Tile(z, 32, n, n),
			{Format: kernel.BF16, Rows: 32, Cols: n, Stride: n, Data: make([]byte, 2*32*n)},
			{Format: kernel.MXFP4, Rows: 32, Cols: n, Stride: n, Data: make([]byte, 32*n/2), Scale: make([]byte, n)},
		}
		for _, w := range tiles {
			for _, vectors := range []int{1, 2, 8} {
				if got := testing.AllocsPerRun(20, func() {
					b.Pack(w.Format, y[:n], x[:n])
					b.Dot(z[:vectors*32], 32, w, x, vectors)
				}); got > 0 {
					t.Errorf("%s: a %v product of %d vectors allocates %g times", name, w.Format, vectors, got)
				}
			}
		}
		for kernel, f := range map[string]func(){
			"Transposed": func() { b.Transposed(y[:n], n, tiles[1], x, 32, 1) },
			"KDA":        func() { b.KDA(z, n, 1, x, x[n:], x[2*n:], x[3*n:], n, x, 1, y) },
			"ShortConv":  func() { b.ShortConv(y[:n], z[:4*n], 4, x, n) },
			"Decay":      func() { b.Decay(y[:100], x[:100], x[n:][:100], 1, -5) },
			"RMSNorm":    func() { b.RMSNorm(y[:100], x[:100], x[n:][:100], 1e-5) },
			"L2Norm":     func() { b.L2Norm(y[:100], x[:100], 1e-6, 1) },
			"Softmax":    func() { b.Softmax(y[:100]) },
			"SiTU":       func() { b.SiTU(y[:100], x[:100], x[n:][:100], 4, 25) },
			"Sigmoid":    func() { b.Sigmoid(y[:100], x[:100]) },
			"Gate":       func() { b.Gate(y[:100], x[:100]) },
			"Axpy":       func() { b.Axpy(y[:100], 1, x[:100]) },
		} {
			if got := testing.AllocsPerRun(20, f); got > 0 {
				t.Errorf("%s: %s allocates %g times", name, kernel, got)
			}
		}
	}
}
