package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core/kernel"
)

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)

func next(t *testing.T, p Params, logits []float32, history []int) int {
	t.Helper()
	s, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	id, err := s.Next(logits, history)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// support returns the ids that n draws at different positions choose.
func support(t *testing.T, p Params, logits []float32, n int) []int {
	t.Helper()
	s, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for i := range n {
		id, err := s.Next(logits, make([]int, i))
		if err != nil {
			t.Fatal(err)
		}
		seen[id] = true
	}
	var ids []int
	for id := range seen {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func TestGreedyTakesTheLargestAndTheLowestIDAmongEquals(t *testing.T) {
	for _, c := range []struct {
		logits []float32
		want   int
	}{
		{[]float32{1, 3, 2}, 1},
		{[]float32{3, 3, 3}, 0},
		{[]float32{-inf, 0, float32(math.Copysign(0, -1)), 0}, 1},
		{[]float32{-inf, -inf, -5}, 2},
		{[]float32{-math.MaxFloat32, -inf}, 0},
		{[]float32{1, math.MaxFloat32, math.MaxFloat32}, 1},
	} {
		for _, temperature := range []float64{0, 1e-300, 5e-324, 1e-10} {
			if got := next(t, Params{Temperature: temperature, Seed: 3}, c.logits, []int{0}); got != c.want {
				t.Errorf("temperature %v, logits %v: id %d, want %d", temperature, c.logits, got, c.want)
			}
		}
	}
}

func TestLogitsNoTokenCanComeFromAreAnError(t *testing.T) {
	for _, logits := range [][]float32{
		nil, {nan}, {1, 2, nan}, {inf, 1}, {1, inf}, {-inf}, {-inf, -inf, -inf}, {nan, -inf},
	} {
		for _, p := range []Params{{}, {Temperature: 1}, {Temperature: 1, TopK: 2, TopP: 0.5, MinP: 0.1, RepetitionPenalty: 2}} {
			s, err := New(p)
			if err != nil {
				t.Fatal(err)
			}
			if id, err := s.Next(logits, nil); !errors.Is(err, ErrLogits) {
				t.Errorf("logits %v with %+v: id %d, error %v; want ErrLogits", logits, p, id, err)
			}
		}
	}
	s, err := New(Params{RepetitionPenalty: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int{-1, 3} {
		if _, err := s.Next([]float32{1, 2, 3}, []int{id}); err == nil {
			t.Errorf("id %d in the history of a vocabulary of 3 was accepted", id)
		}
	}
}

func TestAMaskedIDIsNeverDrawn(t *testing.T) {
	logits := []float32{-inf, 1, -inf, 1, -inf}
	for _, p := range []Params{{Temperature: 1}, {Temperature: 1e308}, {Temperature: 1, TopK: 4}, {Temperature: 1, TopP: 0.999}} {
		if got := support(t, p, logits, 300); !slices.Equal(got, []int{1, 3}) {
			t.Errorf("%+v drew %v from %v, want [1 3]", p, got, logits)
		}
	}
}

func TestTruncationKeepsExactlyWhatItPromises(t *testing.T) {
	log := func(p float64) float32 { return float32(math.Log(p)) }
	// Probabilities 0.1 0.4 0.2 0.2 0.1: two ties.
	logits := []float32{log(.1), log(.4), log(.2), log(.2), log(.1)}
	equal := []float32{2, 2, 2, 2}
	for _, c := range []struct {
		name   string
		p      Params
		logits []float32
		want   []int
	}{
		{"nothing", Params{}, logits, []int{0, 1, 2, 3, 4}},
		{"top-k 1", Params{TopK: 1}, logits, []int{1}},
		{"top-k 2 takes the lower id of a tie", Params{TopK: 2}, logits, []int{1, 2}},
		{"top-k 4 takes the lower id of a tie", Params{TopK: 4}, logits, []int{0, 1, 2, 3}},
		{"top-k above the vocabulary", Params{TopK: 99}, logits, []int{0, 1, 2, 3, 4}},
		{"top-p tiny keeps one", Params{TopP: 1e-12}, logits, []int{1}},
		{"top-p 0.5 takes the lower id of a tie", Params{TopP: 0.5}, logits, []int{1, 2}},
		{"top-p 0.7", Params{TopP: 0.7}, logits, []int{1, 2, 3}},
		{"top-p 0.85 takes the lower id of a tie", Params{TopP: 0.85}, logits, []int{0, 1, 2, 3}},
		{"top-p 1", Params{TopP: 1}, logits, []int{0, 1, 2, 3, 4}},
		{"top-p of equals", Params{TopP: 0.5}, equal, []int{0, 1}},
		{"top-p counts in what top-k kept", Params{TopK: 3, TopP: 0.45}, logits, []int{1}},    // 0.4 of 0.8 is a half
		{"top-p counts in what top-k kept", Params{TopK: 3, TopP: 0.55}, logits, []int{1, 2}}, // of all it would be these, too
		{"min-p 0.3", Params{MinP: 0.3}, logits, []int{1, 2, 3}},
		{"min-p 1", Params{MinP: 1}, logits, []int{1}},
		{"min-p 1 of equals", Params{MinP: 1}, equal, []int{0, 1, 2, 3}},
		{"min-p with top-k", Params{TopK: 2, MinP: 0.3}, logits, []int{1, 2}},
	} {
		c.p.Temperature = 1
		if got := support(t, c.p, c.logits, 600); !slices.Equal(got, c.want) {
			t.Errorf("%s: drew %v, want %v", c.name, got, c.want)
		}
	}
}

func TestRepetitionPenaltyCountsEachIDOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		logits  []float32
		history []int
		penalty float64
		want    int
	}{
		{"divides the positive", []float32{3, 2}, []int{0}, 2, 1},
		{"once only", []float32{3, 1}, []int{0, 0, 0}, 2, 0},
		{"multiplies the negative", []float32{-1, -1.5}, []int{0}, 2, 1},
		{"below 1 rewards", []float32{3, 2}, []int{1}, 0.5, 1},
		{"an id beyond 64", append(make([]float32, 100), 3, 2), []int{100}, 2, 101},
		{"1 is off", []float32{3, 2.9}, []int{0}, 1, 0},
		{"0 is off", []float32{3, 2.9}, []int{0}, 0, 0},
		{"a masked id stays masked", []float32{-inf, 2}, []int{0, 1}, 0.01, 1},
		{"large logits stay finite", []float32{math.MaxFloat32, math.MaxFloat32 / 2}, []int{1}, 0.01, 1},
	} {
		if got := next(t, Params{RepetitionPenalty: c.penalty}, c.logits, c.history); got != c.want {
			t.Errorf("%s: id %d, want %d", c.name, got, c.want)
		}
	}
	s, err := New(Params{RepetitionPenalty: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]int{{0}, {1}, {0}} { // scratch from one call must not reach the next
		if got, err := s.Next([]float32{3, 3}, c); err != nil || got != 1-c[0] {
			t.Errorf("history %v: id %d, %v", c, got, err)
		}
	}
}

func TestValidateSaysTheRange(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		p    Params
		want string
	}{
		{Params{Temperature: -0.1}, "temperature -0.1: must be a number from 0"},
		{Params{Temperature: nan}, "temperature NaN: must"},
		{Params{Temperature: inf}, "temperature +Inf: must"},
		{Params{TopK: -1}, "top-k -1: must be 0 (all) or more"},
		{Params{TopP: -0.1}, "top-p -0.1: must be above 0 and at most 1"},
		{Params{TopP: 1.1}, "top-p 1.1: must"},
		{Params{TopP: nan}, "top-p NaN: must"},
		{Params{MinP: -1}, "min-p -1: must be from 0 (off) to 1"},
		{Params{MinP: 1.5}, "min-p 1.5: must"},
		{Params{MinP: nan}, "min-p NaN: must"},
		{Params{RepetitionPenalty: -1}, "repetition penalty -1: must be from 0.01 to 100"},
		{Params{RepetitionPenalty: 101}, "repetition penalty 101: must"},
		{Params{RepetitionPenalty: nan}, "repetition penalty NaN: must"},
		{Params{RepetitionPenalty: inf}, "repetition penalty +Inf: must"},
	} {
		_, err := New(c.p)
		if !errors.Is(err, ErrParams) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want one with %q", c.p, err, c.want)
		}
	}
	for _, p := range []Params{{}, {Temperature: 1e300, TopK: 1 << 40, TopP: 1, MinP: 1, RepetitionPenalty: 100, Seed: 1<<64 - 1}} {
		if _, err := New(p); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// reference is the definition, with a full sort.
func reference(p Params, logits []float32, history []int) int {
	values := make([]float64, len(logits))
	for i, l := range logits {
		values[i] = float64(l)
		if r := p.RepetitionPenalty; r != 0 && slices.Contains(history, i) {
			if l > 0 {
				values[i] /= r
			} else {
				values[i] *= r
			}
		}
	}
	ids := make([]int, len(logits))
	for i := range ids {
		ids[i] = i
	}
	sort.SliceStable(ids, func(a, b int) bool { return values[ids[a]] > values[ids[b]] })
	if p.Temperature == 0 {
		return ids[0]
	}
	best := values[ids[0]]
	prob := func(id int) float64 { return float64(kernel.Exp(float32((values[id] - best) / p.Temperature))) }
	sum := func(ids []int) (s float64) {
		for _, id := range ids {
			s += prob(id)
		}
		return s
	}
	truncated := false
	if p.TopK > 0 && p.TopK < len(ids) {
		ids, truncated = ids[:p.TopK], true
	}
	if p.TopP > 0 && p.TopP < 1 {
		total := sum(ids)
		if !truncated {
			inOrder := slices.Clone(ids)
			slices.Sort(inOrder)
			total = sum(inOrder)
		}
		n := 1
		for n < len(ids) && sum(ids[:n]) < p.TopP*total {
			n++
		}
		ids, truncated = ids[:n], true
	}
	if !truncated {
		slices.Sort(ids)
	}
	ids = slices.DeleteFunc(ids, func(id int) bool { return prob(id) < p.MinP })
	point := Uniform(p.Seed, uint64(len(history))) * sum(ids)
	for i := range ids {
		if sum(ids[:i+1]) > point {
			return ids[i]
		}
	}
	panic("the point lies beyond the line")
}

func TestEqualsTheDefinitionUnderRandomParameters(t *testing.T) {
	r := random.New(t, 1, 2)
	pick := func(values ...float64) float64 { return values[r.IntN(len(values))] }
	var s *Sampler
	for trial := range 3000 {
		logits := make([]float32, 1+r.IntN(200))
		for i := range logits {
			logits[i] = float32(math.Round(r.NormFloat64()*8) / 2) // ties
			if r.IntN(20) == 0 {
				logits[i] = -inf
			}
		}
		logits[r.IntN(len(logits))] = 1
		history := make([]int, r.IntN(30))
		for i := range history {
			history[i] = r.IntN(len(logits))
		}
		p := Params{
			Temperature: pick(0, 0.3, 1, 2, 50), TopK: int(pick(0, 1, 3, 40, 500)), TopP: pick(0, 0.01, 0.5, 0.9, 0.999, 1),
			MinP: pick(0, 0, 0.05, 0.5), RepetitionPenalty: pick(0, 1, 1.3, 0.5), Seed: r.Uint64(),
		}
		if s == nil {
			s = new(Sampler)
		}
		s.params = p // the scratch memory stays
		got, err := s.Next(logits, history)
		if err != nil {
			t.Fatal(err)
		}
		if want := reference(p, logits, history); got != want {
			t.Fatalf("trial %d: %+v, %d logits, history %v: id %d, want %d", trial, p, len(logits), history, got, want)
		}
	}
}

func TestDrawsFollowTheDistribution(t *testing.T) {
	logits := []float32{0, 1, 2, -1, 3, 0.5, -inf, 2}
	const temperature, n = 1.5, 40000
	total, want := 0.0, make([]float64, len(logits))
	for i, l := range logits {
		want[i] = math.Exp(float64(l) / temperature)
		total += want[i]
	}
	s, err := New(Params{Temperature: temperature, Seed: 11})
	if err != nil {
		t.Fatal(err)
	}
	count, history := make([]float64, len(logits)), make([]int, n)
	for i := range n {
		id, err := s.Next(logits, history[:i])
		if err != nil {
			t.Fatal(err)
		}
		count[id]++
	}
	chi := 0.0
	for i := range logits {
		if e := want[i] / total * n; e > 0 {
			chi += (count[i] - e) * (count[i] - e) / e
		}
	}
	if chi > 22.5 { // six degrees of freedom: one seed in a thousand
		t.Errorf("chi-squared %.1f over counts %v", chi, count)
	}
}

// The ids a seed gave once are the ids it gives for ever, on every platform.
func TestGoldenDraws(t *testing.T) {
	logits := make([]float32, 1000)
	for i := range logits {
		logits[i] = float32((i*7919)%1000)/100 - 5
	}
	for _, c := range []struct {
		p    Params
		want []int
	}{
		{Params{Temperature: 1, Seed: 0}, []int{420, 692, 26, 815, 50, 630, 174, 816, 39, 252, 593, 38}},
		{Params{Temperature: 1, Seed: 1}, []int{38, 656, 297, 127, 471, 914, 655, 568, 669, 988, 1, 830}},
		{Params{Temperature: 0.7, TopK: 40, TopP: 0.9, MinP: 0.05, RepetitionPenalty: 1.1, Seed: 42},
			[]int{62, 309, 889, 346, 494, 284, 815, 667, 457, 926, 420, 235}},
	} {
		s, err := New(c.p)
		if err != nil {
			t.Fatal(err)
		}
		history := []int{5, 6, 7}
		for range 12 {
			id, err := s.Next(logits, history)
			if err != nil {
				t.Fatal(err)
			}
			history = append(history, id)
		}
		if !slices.Equal(history[3:], c.want) {
			t.Errorf("%+v: %v, want %v", c.p, history[3:], c.want)
		}
	}
}

func BenchmarkNext(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, 163840)
	for i := range logits {
		logits[i] = float32(r.NormFloat64() * 3)
	}
	history := make([]int, 4096)
	for name, p := range map[string]Params{
		"greedy": {}, "all": {Temperature: 1}, "topk": {Temperature: 1, TopK: 40}, "topp": {Temperature: 1, TopP: 0.9},
		"penalty": {RepetitionPenalty: 1.1},
	} {
		b.Run(name, func(b *testing.B) {
			s, err := New(p)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := s.Next(logits, history); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
