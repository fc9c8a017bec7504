package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/estimate"
)

func seriesOf(values ...float64) (s estimate.Series) {
	for _, v := range values {
		s.Add(v)
	}
	return s
}

func TestSeriesHaveMedianAndSpread(t *testing.T) {
	for _, x := range []struct {
		values              []float64
		median, low, spread float64
	}{
		{[]float64{3, 1, 2}, 2, 1, 1},
		{[]float64{4, 1, 2, 3}, 2.5, 1, 1.2},
		{[]float64{5}, 5, 5, 0},
		{[]float64{0, 0, 0}, 0, 0, 0},
		{[]float64{0, 0, 3}, 0, 0, 0}, // JSON has no infinity
		{[]float64{10, 100, 11}, 11, 10, 90. / 11},
	} {
		s := seriesOf(x.values...)
		if s.Median != x.median || s.Min != x.low || s.Spread() != x.spread {
			t.Errorf("%v: median %g, least %g, spread %g", x.values, s.Median, s.Min, s.Spread())
		}
		if len(s.Values) != len(x.values) || s.Values[0] != x.values[0] {
			t.Errorf("%v became %v", x.values, s.Values)
		}
	}
}

func TestADifferenceInsideTheNoiseIsNone(t *testing.T) {
	for _, x := range []struct {
		name        string
		now, before estimate.Series
		real        bool
		share       float64
	}{
		{"far apart", seriesOf(1, 1.1, 1.05), seriesOf(2, 2.1, 2.05), true, 1.05/2.05 - 1},
		{"slower", seriesOf(2, 2.1, 2.05), seriesOf(1, 1.1, 1.05), true, 2.05/1.05 - 1},
		{"overlapping", seriesOf(1, 1.5, 2.01), seriesOf(2, 2.1, 2.2), false, 1.5/2.1 - 1},
		{"apart, but by less than either spread", seriesOf(1, 1.2, 1.4), seriesOf(1.41, 1.5, 1.6), false, 1.2/1.5 - 1},
		{"too few", seriesOf(1, 1), seriesOf(2, 2, 2), false, -.5},
		{"equal", seriesOf(1, 1, 1), seriesOf(1, 1, 1), false, 0},
		{"nothing to compare with", seriesOf(1, 1, 1), estimate.Series{}, false, 0},
	} {
		c := compare(x.now, x.before)
		if c.Real != x.real || math.Abs(c.Share-x.share) > 1e-12 {
			t.Errorf("%s: %+v", x.name, c)
		}
		if text := c.String(); strings.Contains(text, "noise") == x.real {
			t.Errorf("%s is called %q", x.name, text)
		}
	}
}

func TestComparingTwoMeasurementsTakesTheNoiseOfAllRungs(t *testing.T) {
	measurement := func(scale float64, calm bool) *benchResult {
		b := &benchResult{Kind: "ladder", Geometry: &estimate.Geometry{Parameters: 1}, IDs: []int{1}, Started: time.Unix(int64(scale), 0)}
		other := seriesOf(3*scale, 3*scale, 3*scale)
		if !calm {
			other = seriesOf(2*scale, 3*scale, 5*scale)
		}
		b.Rungs = []rung{
			{setting: setting{Label: "1GiB", Memory: 1 << 30}, Status: rungFits, figures: figures{SecondsPerToken: seriesOf(scale, scale, scale)}},
			{setting: setting{Label: "2GiB", Memory: 2 << 30}, Status: rungFits, figures: figures{SecondsPerToken: other}},
			{setting: setting{Label: "3GiB", Memory: 3 << 30}, Status: rungNoFit},
		}
		return b
	}
	for _, calm := range []bool{true, false} {
		c := measurement(2, true).against(measurement(1.2, calm))
		if len(c.Rungs) != 2 || len(c.Notes) != 0 || c.Rungs[0].Label != "1GiB" {
			t.Fatalf("%+v", c)
		}
		// 67% slower; the other rung of the restless measurement lies 100% apart.
		if got := c.Rungs[0].SecondsPerToken.Real; got != calm {
			t.Errorf("calm %v: a difference is real %v", calm, got)
		}
	}
	x := measurement(1, true)
	x.IDs = []int{2}
	x.Rungs[0].Memory++
	if c := measurement(1, true).against(x); len(c.Rungs) != 1 || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "ids") {
		t.Errorf("other ids and another rung: %+v", c)
	}
}

func TestRungsAreComparedWithTheOneBeforeAndTheLastWithTheFirst(t *testing.T) {
	b := &benchResult{Kind: "split"}
	add := func(label, status string, values ...float64) {
		b.Rungs = append(b.Rungs, rung{setting: setting{Label: label}, Status: status, figures: figures{SecondsPerToken: seriesOf(values...)}})
	}
	add("no", rungNoFit)
	add("0%", rungFits, 10, 10, 11)
	add("50%", rungFits, 7, 10, 12)
	add("100%", rungFits, 5, 5, 6)
	add(asPlanned, rungFits, 2, 2, 2)
	b.compareRungs()
	var got []string
	for _, r := range b.Rungs {
		got = append(got, r.Change.String())
	}
	if s := strings.Join(got, "; "); s != "-; -; noise (+0.0%); noise (-50.0%); -60.0%" {
		t.Errorf("%s", s)
	}
	if b.ends != "0% to 100%" || b.Overall.Share != -.5 || !b.Overall.Real {
		t.Errorf("%s: %+v", b.ends, b.Overall)
	}
}

func TestTrueAndNaiveHitRatesAreToldApart(t *testing.T) {
	// 10 rows of prompt in one pass through 4 layers, 2 experts each: 80 choices, of which 50 were distinct in their pass and
	// 20 of those in memory. Then 5 passes of one row: 40 choices, 10 of them in memory. The trunk is 1000 bytes.
	x := &report{Geometry: estimate.Geometry{Experts: estimate.ExpertsGeometry{Layers: 4, TopK: 2}}, Residency: residency{TrunkBytes: 1000}}
	x.Prefill = phase{Tokens: 10, Passes: 1, cost: cost{Seconds: 3, TrunkRead: 1000, ExpertRead: 30, ExpertRequests: 50, ExpertHits: 20}}
	x.Decode = phase{Tokens: 5, Passes: 5, SecondsPerToken: 2,
		cost:         cost{Seconds: 10, TrunkRead: 2000, ExpertRead: 30, ExpertRequests: 40, ExpertHits: 10},
		ReadPerToken: 406, WaitShare: .5}
	x.PeakRSS, x.IDs = 77, []int{1, 2}
	var r benchRun
	r.fill(x)
	for _, y := range []struct {
		what      string
		got, want float64
	}{
		{"true", *r.HitRate, 30. / 90}, {"naive", *r.NaiveHitRate, 60. / 120}, {"trunk", *r.TrunkHitRate, 3. / 5}, {"read", float64(r.Read), 3060},
		{"a token", r.SecondsPerToken, 2}, {"prompt", r.PromptSeconds, 3}, {"read a token", r.ReadPerToken, 406},
		{"wait", r.WaitShare, .5}, {"peak", float64(r.PeakRSS), 77},
	} {
		if math.Abs(y.got-y.want) > 1e-12 {
			t.Errorf("%s: %g, want %g", y.what, y.got, y.want)
		}
	}
	r = benchRun{}
	r.fill(&report{})
	if r.HitRate != nil || r.NaiveHitRate != nil || r.TrunkHitRate != nil {
		t.Errorf("rates of nothing: %+v", r)
	}
}

func TestTheVerdictNamesWhatIsWrong(t *testing.T) {
	ok := rung{Status: rungFits}
	no := rung{setting: setting{Label: "1GiB"}, Status: rungNoFit, Why: "too small"}
	bad := rung{setting: setting{Label: "2GiB"}, Status: rungFailed, Why: "killed"}
	for _, x := range []struct {
		result benchResult
		code   int
		text   string
	}{
		{benchResult{Kind: "ladder", Rungs: []rung{ok, no}}, 0, ""},
		{benchResult{Kind: "ladder", Rungs: []rung{no}}, ui.ExitNoFit, "nothing fits: too small"},
		{benchResult{Kind: "ladder", Rungs: []rung{ok, bad}}, ui.ExitFailed, "2GiB failed: killed"},
		{benchResult{Kind: "ladder", Rungs: []rung{ok, ok}, Different: "1GiB, run 2: 5,6"}, ui.ExitFailed,
			"not all runs gave the same ids, which is a defect of k3: 1GiB, run 2: 5,6"},
		{benchResult{Kind: "split", Rungs: []rung{ok, no}}, ui.ExitFailed, "a fault of this measurement"},
	} {
		err := x.result.verdict()
		if exitCode(err) != x.code || err != nil && !strings.Contains(err.Error(), x.text) {
			t.Errorf("%s: %v (exit code %d)", x.text, err, exitCode(err))
		}
	}
}
