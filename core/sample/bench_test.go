package sample_test

import (
	"testing"

	"github.com/k3infer/k3/core/sample"
)

func BenchmarkStopper(b *testing.B) {
	s, err := sample.NewStopper([]string{"\nUser:", "<|end|>", "\n\n\n"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, stopped := s.Feed("a piece\n\nof text <|en"); stopped {
			b.Fatal("there is no stop string in it")
		}
	}
}
