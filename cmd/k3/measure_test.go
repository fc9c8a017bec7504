package main

import (
	"testing"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/estimate"
	"github.com/k3infer/k3/presets"
)

func measuredSpeed(disk, trunk, experts []float64) estimate.Rates {
	var s estimate.Rates
	for _, x := range []struct {
		to    **estimate.Series
		rates []float64
	}{{&s.Disk, disk}, {&s.Trunk, trunk}, {&s.Experts, experts}} {
		for _, r := range x.rates {
			if *x.to == nil {
				*x.to = &estimate.Series{}
			}
			(*x.to).Add(r)
		}
	}
	return s
}

// All budgets are computed from the same figures, so noise in them cannot make a larger one slower than a smaller.
func TestNoPresetIsPredictedSlowerThanASmallerOne(t *testing.T) {
	c := fabricate.Geometry("full")
	w := estimate.WeightsOf(c, true)
	plan, err := core.PlanGeometry(c, true, core.Options{Memory: 1 << 50, Context: core.DefaultContext, Threads: 2, Backend: "generic"})
	if err != nil {
		t.Fatal(err)
	}
	s := measuredSpeed([]float64{3e9, 1e9, 2e9}, []float64{15e9, 17e9, 9e9}, []float64{9e9, 8e9, 4e9})
	var before estimate.Prediction
	for i, name := range []string{"ultra", "laptop", "desktop", "workstation", "server", "max"} {
		budget, err := presets.Budget(name)
		if err != nil || budget == 0 {
			t.Fatalf("%s: %d, %v", name, budget, err)
		}
		p, err := plan.Within(int64(budget))
		if err != nil {
			t.Fatal(err)
		}
		x := s.Predict(p, w)
		if !(x.Low <= x.Seconds && x.Seconds <= x.High) || x.Low == x.High {
			t.Errorf("%s: %g, from %g to %g seconds", name, x.Seconds, x.Low, x.High)
		}
		if i > 0 && (x.Low > before.Low || x.Seconds > before.Seconds || x.High > before.High) {
			t.Errorf("%s is slower than the preset before: %+v, %+v", name, x, before)
		}
		before = x
	}
}

func TestATimeIsARangeOnlyWhereItIsUncertain(t *testing.T) {
	for _, x := range []struct {
		low, high float64
		want      string
	}{
		{24.2, 30.8, "24 to 31 s"}, {8.41, 8.44, "8.4 s"}, {61.9, 62.2, "62 s"}, {0.00055, 0.00066, "550 to 660 µs"}, {0, 0, "0 s"},
		{0.9, 1.2, "0.9 to 1.2 s"}, {0.0099, 0.012, "9.9 to 12 ms"}, {318, 412, "318 to 412 s"},
	} {
		if got := between(x.low, x.high); got != x.want {
			t.Errorf("%g to %g: %q, want %q", x.low, x.high, got, x.want)
		}
	}
}

func TestWhatWasNotMeasuredMakesAPredictionALowerBound(t *testing.T) {
	c := fabricate.Geometry("full")
	p, err := core.PlanGeometry(c, true, core.Options{Memory: 8 << 30, Context: 4096, Threads: 2, Backend: "generic"})
	if err != nil {
		t.Fatal(err)
	}
	w := estimate.WeightsOf(c, true)
	for want, s := range map[string]estimate.Rates{
		"13 s or more": measuredSpeed(nil, []float64{1e10}, []float64{12e9}),
		"129 s":        measuredSpeed([]float64{1e9}, []float64{1e10}, []float64{12e9}),
		"-":            {},
	} {
		if got := tokenTime(s, s.Predict(p, w)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The model goes where there is room, from disks to what is no disk.
func TestTheDiskOfTheModelHasRoomForIt(t *testing.T) {
	disk := func(path string, free int64, rate float64, notes ...string) diskState {
		x := diskState{Path: path, Free: free, diskRows: diskRows{Notes: notes, Rows: []diskRow{{Order: "random", Readers: 8}}}}
		x.Rows[0].Rate.Add(rate)
		return x
	}
	unmeasured := diskState{Path: "/ro", Free: 9e12, Error: "permission denied"}
	d := diagnosis{Model: "/nowhere", Disks: []diskState{unmeasured, disk("/home", 1e11, 3e9), disk("/dev/shm", 1e11, 9e9, "memory")}}
	if got := d.place(); got.Path != "/home" {
		t.Error(got.Path)
	}
	d.Disks = append(d.Disks, disk("/slow", 2e12, 1e8), disk("/big", 2e12, 2e8))
	if got := d.place(); got.Path != "/big" {
		t.Error(got.Path)
	}
	d.Disks = d.Disks[:1]
	if got := d.place(); got != nil {
		t.Error(got.Path)
	}
}
