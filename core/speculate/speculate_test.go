package speculate

import (
	"slices"
	"testing"
)

func TestNGramContinuesTheLatestLongestMatch(t *testing.T) {
	for _, c := range []struct {
		name    string
		history []int
		n       int
		want    []int
	}{
		{"nothing", nil, 4, nil},
		{"no repeat", []int{1, 2, 3, 4, 5}, 4, nil},
		{"one token is too short", []int{1, 2, 3, 1}, 4, nil},
		{"a stretch of two", []int{7, 8, 9, 10, 7, 8}, 2, []int{9, 10}},
		{"the longer of two", []int{1, 7, 8, 4, 2, 7, 8, 5, 1, 7, 8}, 2, []int{4, 2}},
		{"the later of two as long", []int{7, 8, 4, 2, 7, 8, 5, 6, 7, 8}, 2, []int{5, 6}},
		{"a cycle goes on", []int{1, 2, 1, 2, 1, 2}, 5, []int{1, 2, 1, 2, 1}},
		{"one token over and over", []int{3, 3, 3}, 4, []int{3, 3, 3, 3}},
		{"no guesses wanted", []int{7, 8, 9, 10, 7, 8}, 0, nil},
	} {
		if got := (NGram{}).Draft(nil, c.history, c.n); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
	if got := (NGram{Shortest: 3}).Draft([]int{0}, []int{7, 8, 9, 10, 7, 8}, 2); !slices.Equal(got, []int{0}) {
		t.Errorf("a stretch of two counted as three: %v", got)
	}
}

// simulate runs a pacer over n tokens: a pass costs 1 and row more for each guess, and guess i of a pass is right where
// right says so. It returns the time, and the tokens gained.
func simulate(tokens, most int, row float64, right func(token int) bool) (time float64, proposed int) {
	var p Pacer
	for at := 0; at < tokens; {
		g := p.Allow(most)
		accepted := 0
		for accepted < g && right(at+1+accepted) {
			accepted++
		}
		seconds := 1 + row*float64(g)
		p.Fared(right(at + 1))
		p.Observe(g, accepted, seconds)
		time += seconds
		proposed += g
		at += 1 + accepted
	}
	return time, proposed
}

func TestPacerNeverLosesMoreThanATwentieth(t *testing.T) {
	for _, row := range []float64{0.01, 0.1, 0.5, 1} {
		for name, right := range map[string]func(int) bool{
			"always wrong":                    func(int) bool { return false },
			"a coin":                          func(i int) bool { return i*2654435761>>7&1 == 0 },
			"right once, when it is tempting": func(i int) bool { return i < 30 },
			"every tenth":                     func(i int) bool { return i%10 == 0 },
		} {
			for _, tokens := range []int{40, 200, 2000} {
				if time, _ := simulate(tokens, 8, row, right); time > 1.05*float64(tokens) {
					t.Errorf("%s, a guess costs %g: %d tokens take %.1f", name, row, tokens, time)
				}
			}
		}
	}
}

func TestPacerWinsWhereGuessesAreRight(t *testing.T) {
	time, _ := simulate(500, 8, 0.05, func(int) bool { return true })
	if time > 150 {
		t.Errorf("500 tokens, all guessed right, take %.0f passes' time", time)
	}
	// Right, but dearer than a pass: nothing to win.
	if _, proposed := simulate(500, 8, 1.5, func(int) bool { return true }); proposed > 20 {
		t.Errorf("%d guesses that cost more than they save", proposed)
	}
	// Right again after a long time of wrong: it notices without paying.
	time, _ = simulate(1000, 8, 0.05, func(i int) bool { return i > 500 })
	if time > 700 {
		t.Errorf("right from half on takes %.0f of 1000", time)
	}
}
