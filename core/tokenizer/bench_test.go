package tokenizer_test

import (
	"strings"
	"testing"

	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/tokenizer"
)

// The text of a reply is decoded id by id.
func BenchmarkDecode(b *testing.B) {
	t, err := tokenizer.Load(disk.Dir("../../presets/demo/checkpoint"))
	if err != nil {
		b.Fatal(err)
	}
	ids, err := t.Encode(strings.Repeat("The capital of France is Paris. ", 1000))
	if err != nil {
		b.Fatal(err)
	}
	d := t.NewDecoder()
	b.ReportAllocs()
	for b.Loop() {
		for _, id := range ids {
			d.Push(id)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/id")
}
