package checksum_test

import (
	"testing"

	"github.com/k3infer/k3/core/checksum"
)

// A download and a deep check add up every byte of a model.
func BenchmarkAdder(b *testing.B) {
	p := make([]byte, 16<<20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		a := checksum.NewAdder(func() int64 { return 1 << 20 })
		if _, err := a.Write(p); err != nil {
			b.Fatal(err)
		}
		if a.Sums() == nil {
			b.Fatal("not complete")
		}
	}
}
