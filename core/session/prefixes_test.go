package session

import (
	"slices"
	"testing"
)

func TestPrefixesFindTheLongestExactBeginning(t *testing.T) {
	var left []string
	p := NewPrefixes(100, func(s string) { left = append(left, s) })
	p.Put([]int{1, 2}, "12", 10)
	p.Put([]int{1, 2, 3, 4}, "1234", 10)
	p.Put([]int{9}, "9", 10)
	for _, c := range []struct {
		ids    []int
		state  string
		length int
	}{
		{[]int{1, 2, 3, 4, 5}, "1234", 4},
		{[]int{1, 2, 3, 4}, "12", 2}, // the whole text leaves nothing to compute logits from
		{[]int{1, 2, 3, 5}, "12", 2},
		{[]int{1, 2}, "", 0},
		{[]int{1, 3, 3, 4, 5}, "", 0},
		{[]int{9, 9}, "9", 1},
		{nil, "", 0},
	} {
		if s, n, ok := p.Longest(c.ids); s != c.state || n != c.length || ok != (c.state != "") {
			t.Errorf("%v: %q of %d, not %q of %d", c.ids, s, n, c.state, c.length)
		}
	}
	if len(left) != 0 {
		t.Errorf("%v left early", left)
	}
}

func TestPrefixesKeepToTheirBudget(t *testing.T) {
	var left []string
	p := NewPrefixes(100, func(s string) { left = append(left, s) })
	p.Put([]int{1}, "a", 40)
	p.Put([]int{2}, "b", 40)
	p.Longest([]int{1, 1}) // a is used again
	p.Put([]int{3}, "c", 40)
	p.Put([]int{1}, "a2", 50)
	p.Put([]int{4}, "too large", 101)
	if want := []string{"b", "a", "c", "a2", "too large"}; !slices.Equal(left, want) {
		t.Errorf("%v left, not %v", left, want)
	}
	p.Put([]int{5}, "e", 1)
	if p.Len() != 1 || p.Bytes() != 1 {
		t.Errorf("%d kept of %d bytes", p.Len(), p.Bytes())
	}
	p.Put([]int{6}, "f", 50)
	if p.Reserve(101) || p.Len() != 2 {
		t.Errorf("%d kept after what never fits was refused", p.Len())
	}
	if !p.Reserve(50) || p.Len() != 1 || p.Bytes() != 50 {
		t.Errorf("%d kept of %d bytes, where 50 of 100 must be free", p.Len(), p.Bytes())
	}
	p.Put([]int{5}, "e", 1)
	p.Reserve(99)
	p.Clear()
	if p.Len() != 0 || p.Bytes() != 0 || left[len(left)-1] != "e" {
		t.Errorf("%d kept of %d bytes, %v left", p.Len(), p.Bytes(), left)
	}
}
