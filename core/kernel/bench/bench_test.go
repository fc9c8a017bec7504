package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core/kernel"
)

// small is enough for the cases that read no weights.
const small = 64 << 20

// A fast machine runs a case in microseconds; the test only wants to see that what is reported fits together.
func TestRunReportsWhatItMeasured(t *testing.T) {
	seen := 0
	r, err := Run(t.Context(), Options{Backends: []string{"auto"}, Threads: []int{1, 2}, Match: "situ", arena: small, Repeat: 3, Seconds: 0.1, Progress: func(Measurement) { seen++ }})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Measurements) != 2 || seen != 2 || len(r.Tokens) != 0 {
		t.Fatalf("%d measurements, %d seen, %d tokens", len(r.Measurements), seen, len(r.Tokens))
	}
	for _, m := range r.Measurements {
		if m.Kernel != "situ" || m.Seconds <= 0 || m.ReadGBps <= 0 {
			t.Errorf("measured %+v", m)
		}
	}
}

func TestRunEndsWithItsContextAndRefusesUnknownBackends(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Options{Backends: []string{"generic"}, Match: "situ", arena: small}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run says %v", err)
	}
	if _, err := Run(t.Context(), Options{Backends: []string{"abacus"}}); !errors.Is(err, kernel.ErrBackend) {
		t.Errorf("an unknown backend gives %v", err)
	}
}

// Every case runs, on buffers that fit, and leaves numbers behind.
func TestEveryCaseRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("computes a token's layers")
	}
	a, err := arena()
	if err != nil {
		t.Fatal(err)
	}
	b, err := kernel.Select("auto")
	if err != nil {
		t.Fatal(err)
	}
	if b.Name() == "generic" {
		t.Skip("takes too long without vectors")
	}
	e := NewEnv(b, 2, a)
	defer e.Close()
	for _, c := range Cases() {
		c.Run(e)
		for i, y := range e.y {
			if y != y {
				t.Fatalf("%s %s: result %d is NaN", c.Name, c.Shape, i)
			}
		}
	}
}

// The layers add up to the released model: 108.8 GB of trunk less the embedding, and 16 experts in 92 layers.
func TestTheLayersAreTheReleasedModel(t *testing.T) {
	var trunk float64
	for _, c := range Layers() {
		trunk += c.Count * float64(c.Bytes)
	}
	experts := 92 * 16 * 17_547_264.0
	trunk -= experts
	if math.Abs(trunk/1e9-108.8) > 2.4 {
		t.Errorf("the trunk is %.1f GB", trunk/1e9)
	}
	if expertBytes != 17_547_264 {
		t.Errorf("an expert is %d bytes", expertBytes)
	}
}

var arena = sync.OnceValues(NewArena)

// BenchmarkKernels are the cases for benchstat: MB/s are the weights consumed. "memory/read" is what they compare with.
func BenchmarkKernels(b *testing.B) {
	a, err := arena()
	if err != nil {
		b.Fatal(err)
	}
	for _, threads := range []int{1, kernel.DefaultThreads()} {
		for _, d := range kernel.Drivers() {
			if d.Missing() != "" || d.Name == "generic" && testing.Short() {
				continue
			}
			e := NewEnv(d.New(), threads, a)
			b.Run(fmt.Sprintf("memory/read/%s/threads=%d", d.Name, threads), func(b *testing.B) {
				b.SetBytes(64 << 20)
				for range b.N {
					e.Read(64 << 20)
				}
			})
			for _, c := range Cases() {
				b.Run(fmt.Sprintf("%s/%s/vectors=%d/%s/threads=%d", c.Name, c.Shape, c.Vectors, d.Name, threads), func(b *testing.B) {
					b.SetBytes(c.Bytes)
					for range b.N {
						c.Run(e)
					}
					if c.Flops > 0 {
						b.ReportMetric(float64(c.Flops)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
					}
				})
			}
			e.Close()
		}
	}
}
