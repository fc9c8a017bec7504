package policies_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/k3infer/k3/core/experts/replay"
	_ "github.com/k3infer/k3/policies"
)

const expertBytes = 17_547_264 // an expert of the released model

var gigabytes = []int{8, 16, 32, 64, 128}

func fixture(tb testing.TB, name string) *replay.Trace {
	tb.Helper()
	path := "../../shared/fixtures/traces/" + name
	if _, err := os.Stat(path); err != nil {
		tb.Skip("no recorded trace: ", err)
	}
	trace, err := replay.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	return trace
}

func percent(tb testing.TB, trace *replay.Trace, policy string, gb int) string {
	tb.Helper()
	r, err := replay.Run(trace, policy, gb*1_000_000_000/expertBytes, 1)
	if err != nil {
		tb.Fatal(err)
	}
	return fmt.Sprintf("%.2f", 100*r.HitRate())
}

// The figures published with the traces: a different digit means that the replay, or a policy, is not what it says it is.
func TestPublishedFiguresAreReproducedToTheLastDigit(t *testing.T) {
	for _, c := range []struct {
		trace, policy string
		want          [5]string
	}{
		{"expert_trace.bin", "lru", [5]string{"36.24", "36.24", "36.24", "36.24", "49.19"}},
		{"expert_trace.bin", "belady", [5]string{"39.42", "42.61", "48.99", "61.74", "84.59"}},
		{"expert_trace.bin", "pinned-lru", [5]string{"37.82", "39.42", "42.57", "48.66", "62.86"}},
		{"incremental_trace.bin", "lru", [5]string{"9.50", "9.50", "30.16", "36.19", "42.32"}},
		{"incremental_trace.bin", "belady", [5]string{"26.62", "35.81", "42.36", "43.33", "43.33"}},
	} {
		trace := fixture(t, c.trace)
		for i, gb := range gigabytes {
			if got := percent(t, trace, c.policy, gb); got != c.want[i] {
				t.Errorf("%s: %s at %d GB: %s%%, published %s%%", c.trace, c.policy, gb, got, c.want[i])
			}
		}
	}
	trace := fixture(t, "expert_trace.bin")
	for _, policy := range []string{"lru", "belady", "pinned-lru"} {
		if below, at := percent(t, trace, policy, 128), percent(t, trace, policy, 192); below == "90.00" || at != "90.00" {
			t.Errorf("%s: %s%% at 128 GB, %s%% at 192 GB, published 90.00%% from 192 GB on", policy, below, at)
		}
	}
}
