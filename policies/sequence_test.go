package policies_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/experts/replay"
)

// Sequences short enough to follow by hand: experts a, b, c... of one layer; upper case marks the hits.
func TestPoliciesFollowTheirAlgorithms(t *testing.T) {
	for _, c := range []struct {
		policy   string
		capacity int
		want     string
		why      string
	}{
		{"lru", 2, "abAcAb", "c evicts b, the least recent"},
		{"lfu", 2, "abAABcACb", "c evicts b, asked for twice, not a; b counts three when it returns, so c, with two, leaves"},
		{"sieve", 3, "abcAdAbcA", "d evicts b, the hand spares a, asked for since; it moves on to c and d, and a stays"},
		{"sieve", 2, "abAcdaD", "c's hand takes a's mark, so d evicts a"},
		{"2q", 4, "abcdeabfABd", "newcomers leave in order of arrival; a and b, asked for again soon after, are in main"},
		{"s3fifo", 2, "abAAcAbAB", "a moves to main when c comes; b leaves and returns to main, c leaves from the small queue"},
		{"s3fifo", 2, "abAca", "a, asked for once more only, leaves the small queue for good"},
		{"arc", 2, "abAcAbadeA", "b's return gives the once list room, so a leaves; a's return takes it back: c leaves, and d for e"},
		{"arc", 3, "abBcdacbd", "b's return, to a list that had two others, leaves the once list what it should have: d leaves in the tie"},
		{"tinylfu", 2, "aAAAbcAdA", "b, c and d pass the window and lose against a, asked for more often"},
		{"belady", 2, "abcABcAB", "c is never kept: a and b are needed sooner"},
		{"pinned-lru", 3, "abcdAbA", "a, the most popular, has a slot for good, and the others share two"},
	} {
		var keys []experts.Key
		for _, letter := range c.want {
			keys = append(keys, experts.Key{Expert: (letter | 0x20) - 'a'})
		}
		policy, err := experts.NewPolicy(c.policy, experts.Config{Layers: 1, Experts: 26, Capacity: c.capacity, Future: keys})
		if err != nil {
			t.Fatal(err)
		}
		resident := map[experts.Key]bool{}
		got := ""
		for _, key := range keys {
			letter := 'a' + key.Expert
			if resident[key] {
				policy.Hit(key)
				letter -= 0x20
			} else if victim, decision := policy.Miss(key, nil); decision != experts.Bypass {
				if decision == experts.Swap {
					delete(resident, victim)
				}
				resident[key] = true
			}
			got += string(letter)
		}
		if got != c.want {
			t.Errorf("%s with %d slots: %s, want %s (%s)", c.policy, c.capacity, got, c.want, c.why)
		}
	}
}

func TestOnlyOfflinePoliciesNeedAFuture(t *testing.T) {
	var offline []string
	for _, name := range experts.Policies() {
		if err := experts.CheckPolicy(name); errors.Is(err, experts.ErrOffline) {
			offline = append(offline, name)
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if want := []string{"belady", "pinned-lru"}; !slices.Equal(offline, want) {
		t.Errorf("policies %v need a future, not %v", offline, want)
	}
}

func TestSameSeedMakesTheSameDecisions(t *testing.T) {
	trace := mixtures[0].trace(3)
	hits := func(policy string, seed uint64) int {
		r, err := replay.Run(trace, policy, 60, seed)
		if err != nil {
			t.Fatal(err)
		}
		return r.Hits
	}
	for _, name := range experts.Policies() {
		if a, b := hits(name, 5), hits(name, 5); a != b {
			t.Errorf("%s: %d hits, then %d", name, a, b)
		}
	}
	if hits("random", 5) == hits("random", 6) && hits("random", 5) == hits("random", 7) {
		t.Error("random draws the same lots for every seed")
	}
}

// A pass must not feed the collector: once a policy has seen the trace, requests allocate nothing.
func TestRequestsAllocateNothing(t *testing.T) {
	trace := mixtures[0].trace(1)
	for _, name := range experts.Policies() {
		if experts.CheckPolicy(name) != nil {
			continue
		}
		policy, err := experts.NewPolicy(name, experts.Config{Layers: trace.Layers, Experts: trace.Experts, Capacity: 150})
		if err != nil {
			t.Fatal(err)
		}
		resident := make([]bool, trace.Layers*trace.Experts)
		at := func(key experts.Key) int { return int(key.Layer)*trace.Experts + int(key.Expert) }
		if n := testing.AllocsPerRun(2, func() {
			for _, key := range trace.Keys {
				if resident[at(key)] {
					policy.Hit(key)
				} else if victim, decision := policy.Miss(key, nil); decision != experts.Bypass {
					if decision == experts.Swap {
						resident[at(victim)] = false
					}
					resident[at(key)] = true
				}
			}
		}); n != 0 {
			t.Errorf("%s allocates %v times in %d requests", name, n, len(trace.Keys))
		}
	}
}
