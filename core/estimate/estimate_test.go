package estimate

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	_ "github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/memory"
)

func TestASeriesKeepsItsMedianAndEnds(t *testing.T) {
	var s Series
	if s.Spread() != 0 {
		t.Error(s.Spread())
	}
	for _, x := range []float64{4, 1, 2, 3} {
		s.Add(x)
	}
	if s.Median != 2.5 || s.Min != 1 || s.Max != 4 || s.Spread() != 1.2 || s.Values[0] != 4 {
		t.Errorf("%+v, spread %g", s, s.Spread())
	}
}

// What is read and what is computed go on at the same time; what was not measured takes no time that is known.
func TestATokenTakesTheLongerOfReadingAndComputing(t *testing.T) {
	rate := func(values ...float64) *Series {
		var s Series
		for _, v := range values {
			s.Add(v)
		}
		return &s
	}
	w := Weights{Trunk: 1000, Expert: 10, ExpertLayers: 5, Experts: 8, TopK: 2}
	p := memory.Plan{Trunk: 1000, Pinned: 400, Slots: 0}
	for _, x := range []struct {
		rates              Rates
		low, seconds, high float64
		complete           bool
	}{
		{Rates{Disk: rate(70, 100), Trunk: rate(1000), Experts: rate(100)}, 7, 700 / 85., 10, true},
		{Rates{Disk: rate(7000), Trunk: rate(1000), Experts: rate(100)}, 2, 2, 2, true},
		{Rates{Trunk: rate(1000), Experts: rate(100)}, 2, 2, 2, false},
		{Rates{Disk: rate(700)}, 1, 1, 1, false},
		{Rates{}, 0, 0, 0, false},
	} {
		got := x.rates.Predict(p, w)
		if got.Low != x.low || got.Seconds != x.seconds || got.High != x.high || x.rates.Complete() != x.complete ||
			got.TrunkRead != 600 || got.ExpertRead != 100 || got.HitRate != 0 {
			t.Errorf("%+v, want %g, %g, %g", got, x.low, x.seconds, x.high)
		}
	}
}

func TestTheGeometryOfTheReleasedModel(t *testing.T) {
	c := fabricate.Geometry("full")
	g, w := GeometryOf(c, true), WeightsOf(c, true)
	fixed, position := graph.StateBytes(c)
	if g.StateBytes != int64(fixed) || g.PositionBytes != int64(position) || len(g.LayerMap) != c.Layers ||
		g.KDA.Layers+g.MLA.Layers != c.Layers || w.Trunk == 0 || w.Expert == 0 || g.Parameters < 2.7e12 || g.Parameters > 2.8e12 {
		t.Errorf("%+v\n%+v", g, w)
	}
}

func TestADiskIsMeasuredWithAScratchFileThatIsRemoved(t *testing.T) {
	if testing.Short() {
		t.Skip("writes a large file")
	}
	dir := t.TempDir()
	var told []string
	loads := []disk.Load{{Block: disk.Block, Readers: 1, Time: time.Millisecond}, {Block: disk.Block, Readers: 2, Random: true, Time: time.Millisecond}}
	d, err := MeasureScratch(t.Context(), dir, loads, 2, func(text string) { told = append(told, text) })
	if err != nil || len(d.Loads) != 2 || len(d.Loads[1].Rate.Values) != 2 || !(d.Loads[1].Rate.Min > 0) || len(told) != 5 {
		t.Errorf("%+v, %v, told %q", d, err, told)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := MeasureScratch(ctx, dir, loads, 2, func(string) {}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v left, %v", left, err)
	}
}
