package core_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
)

// BenchmarkPass is passes over a model of 6.2 GB that is all in memory: decoding has one row, a prompt many. It makes the model
// in a temporary directory, or uses the one in K3_MID; most experts have been read before the clock starts.
func BenchmarkPass(b *testing.B) {
	if testing.Short() {
		b.Skip("reads gigabytes")
	}
	dir := os.Getenv("K3_MID")
	if dir == "" {
		dir = filepath.Join(b.TempDir(), "mid")
		if _, err := fabricate.Write(b.Context(), dir, fabricate.Options{Config: fabricate.Geometry("mid")}); err != nil {
			b.Fatal(err)
		}
	}
	for _, d := range kernel.Drivers() {
		if d.Missing() != "" || d.Name == "generic" {
			continue
		}
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", d.Name, threads), func(b *testing.B) {
				e, err := core.Open(b.Context(), core.Options{Files: disk.Dir(dir), Backend: d.Name, Threads: threads, PrefillChunk: 64})
				if err != nil {
					b.Fatal(err)
				}
				defer e.Close()
				s, err := e.NewSequence()
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				rng := rand.New(rand.NewPCG(1, 2))
				pass := func(n int) {
					rows := make([]core.Row, n)
					for i := range rows {
						rows[i] = core.Row{Sequence: s, Token: rng.IntN(e.Config().Vocab), Logits: i == n-1}
					}
					if _, err := e.Pass(b.Context(), rows); err != nil {
						b.Fatal(err)
					}
				}
				for range 8 {
					pass(e.MaxRows())
				}
				for _, rows := range []int{1, 8, e.MaxRows()} {
					b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
						for range b.N {
							pass(rows)
						}
						b.ReportMetric(float64(b.N*rows)/b.Elapsed().Seconds(), "tokens/s")
					})
				}
			})
		}
	}
}
