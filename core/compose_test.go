package core

import (
	"fmt"
	"math"
	"testing"
)

// A pass takes who is being answered first, the longest unserved of those first, then prompts in order of arrival, people before
// background, and never slows those of the first lane by more than they were promised.
func TestAPassIsComposedOfWhoComesFirst(t *testing.T) {
	answer := func(lane Lane, served, guesses int) *text {
		return &text{lane: lane, served: served, want: &want{ids: make([]int, 1), guesses: make([]int, guesses)}}
	}
	prompt := func(lane Lane, n int) *text {
		return &text{lane: lane, want: &want{ids: make([]int, n), prompt: true}}
	}
	busy := func() *text { return &text{} }
	// A pass takes 10 ms and 1 ms for each row.
	var times passTimes
	for _, n := range []int{1, 5, 9, 2, 30} {
		times.observe(n, 0.010+0.001*float64(n))
	}
	for _, c := range []struct {
		name  string
		rows  int
		times passTimes
		texts []*text
		want  string // index: ids+guesses, in order
	}{
		{"one text", 8, times, []*text{answer(People, 0, 2)}, "0:1+2"},
		{"guesses leave room for nobody else's", 4, times, []*text{answer(People, 1, 2), answer(People, 2, 2)}, "0:1+2 1:1+0"},
		{"the longest unserved", 2, times, []*text{answer(People, 7, 0), answer(People, 5, 0), answer(People, 6, 0)}, "1:1+0 2:1+0"},
		{"prompts fill a pass", 64, times, []*text{prompt(People, 40), prompt(People, 40)}, "0:40+0 1:24+0"},
		{"a prompt slows down by half at most", 64, times, []*text{prompt(People, 40), answer(People, 0, 0), answer(People, 0, 0)}, "1:1+0 2:1+0 0:6+0"},
		{"a row of a prompt at least", 64, passTimes{}, []*text{answer(People, 0, 0), prompt(People, 40)}, "0:1+0 1:1+0"},
		{"background slows people by half at most", 64, times, []*text{answer(Background, 0, 0), prompt(Background, 40), answer(People, 0, 0)},
			"2:1+0 0:1+0 1:4+0"},
		{"people's prompts before background's answers", 8, times, []*text{answer(Background, 0, 0), prompt(People, 40)}, "1:8+0"},
		{"background alone", 64, times, []*text{prompt(Background, 40), answer(Background, 0, 0)}, "1:1+0 0:5+0"},
		{"who is busy takes no part", 8, times, []*text{busy(), answer(People, 0, 0)}, "1:1+0"},
		{"an unfinished prompt has no guesses", 8, times, []*text{{want: &want{ids: make([]int, 9), guesses: make([]int, 2)}}}, "0:8+0"},
	} {
		s := &Scheduler{maxRows: c.rows, texts: c.texts, times: c.times, options: SchedulerOptions{Slowdown: 1.5}}
		got := ""
		for _, x := range s.compose() {
			for i, y := range c.texts {
				if x == y {
					got += fmt.Sprintf(" %d:%d+%d", i, x.take, len(x.want.guesses))
				}
			}
		}
		if got != " "+c.want {
			t.Errorf("%s:%s, not %s", c.name, got, c.want)
		}
	}
}

func TestPassTimesFollowAStraightLineAndForget(t *testing.T) {
	var p passTimes
	if n := p.most(4, 1.5); n != 8 {
		t.Errorf("knowing nothing: %d rows", n)
	}
	for i := range 200 {
		n := 1 + i%7
		p.observe(n, 5+float64(n)) // long ago the disk was slow
	}
	for i := range 200 {
		n := 1 + i%7
		p.observe(n, 1+0.1*float64(n))
	}
	// 1.5 times 1+0.1*2 is 1.8: 8 rows.
	if n := p.most(2, 1.5); math.Abs(float64(n)-8) > 1 {
		t.Errorf("%d rows", n)
	}
	for i := range 200 {
		p.observe(1+i%7, 1)
	}
	if n := p.most(2, 1.5); n < 1000 {
		t.Errorf("rows that cost nothing: %d", n)
	}
}
