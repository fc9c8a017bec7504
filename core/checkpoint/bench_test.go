package checkpoint

import (
	"context"
	"runtime"
	"testing"

	"github.com/k3infer/k3/core/disk"
)

// heap is the size of what the heap holds after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// BenchmarkOpenReleasedSize indexes 497,220 tensors in 96 shards with their index file: 60 MB of headers, 50 MB of index.
func BenchmarkOpenReleasedSize(b *testing.B) {
	for _, c := range []struct {
		name  string
		files disk.Files
	}{{"index", releasedFiles(b, releasedConfig(b), true)}, {"noindex", releasedFiles(b, releasedConfig(b), false)}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			before := heap()
			var m *Model
			for b.Loop() {
				var err error
				if m, err = Open(context.Background(), c.files); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(heap()-before)/float64(m.Index.Len()), "B/tensor")
			if m.Index.Len() != 497_220 {
				b.Fatal(m.Index.Len())
			}
		})
	}
}

func BenchmarkExpert(b *testing.B) {
	m := open(b, releasedFiles(b, releasedConfig(b), false))
	var parts []Tensor
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		parts = m.Index.Expert(1+i%92, i*37%896, parts[:0])
		if len(parts) != 6 {
			b.Fatal(len(parts))
		}
		i++
	}
}
