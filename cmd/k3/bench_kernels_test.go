package main

import (
	"strings"
	"testing"

	"github.com/k3infer/k3/core/kernel/bench"
)

func TestKernelTableComparesWithWhatTheMachineDid(t *testing.T) {
	var out strings.Builder
	err := writeKernels(&out, bench.Result{
		Measurements: []bench.Measurement{
			{Kernel: "product BF16", Shape: "2x4", Vectors: 1, Backend: "b", Threads: 2, Seconds: 0.001, GBps: 9, GFLOPS: 10, ReadGBps: 10, PeakGFLOPS: 40},
			{Kernel: "KDA step", Shape: "1x2", Vectors: 1, Backend: "b", Threads: 2, Seconds: 0.002, GBps: 4, ReadGBps: 10, CopyGBps: 5},
			{Kernel: "situ", Shape: "16", Vectors: 1, Backend: "b", Threads: 1, Seconds: 1e-6, ReadGBps: 10},
		},
		Tokens: []bench.Token{{Backend: "b", Threads: 2, Seconds: 5, Limit: 4}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"90%", "25%", "80%", "one token, all weights in memory, b, 2 threads: 5.00 s (reading them: 4.00 s)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestBenchKernelsRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"--threads", "0"}, {"--repeat", "0"}, {"--backend", "abacus"}} {
		cmd := newBenchKernelsCommand()
		cmd.SetArgs(args)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.Execute(); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
}
