package sample

import (
	"errors"
	"strings"
	"testing"
)

func TestStopperHoldsBackAndStops(t *testing.T) {
	type step struct {
		text, emit string
		stopped    bool
	}
	for _, c := range []struct {
		name  string
		stops []string
		steps []step
		flush string
	}{
		{"no stop strings", nil, []step{{"abc", "abc", false}}, ""},
		{"inside a piece", []string{"b"}, []step{{"abc", "a", true}, {"more", "", true}}, ""},
		{"across pieces", []string{"STOP"}, []step{{"a S", "a ", false}, {"TO", "", false}, {"P b", "", true}}, ""},
		{"a false start is let go", []string{"STOP"}, []step{{"a ST", "a ", false}, {"AR", "STAR", false}}, ""},
		{"a false start that holds another", []string{"aab"}, []step{{"aa", "", false}, {"a", "a", false}, {"b", "", true}}, ""},
		{"what is held at the end is text", []string{"STOP"}, []step{{"a STO", "a ", false}}, "STO"},
		{"the first to end counts", []string{"abcd", "bc"}, []step{{"xabcd", "xa", true}}, ""},
		{"the longest of those that end there", []string{"c", "abc"}, []step{{"xab", "x", false}, {"cd", "", true}}, ""},
		{"whole characters", []string{"好吗"}, []step{{"你好", "你", false}, {"啊", "好啊", false}}, ""},
		{"empty pieces", []string{"ab"}, []step{{"a", "", false}, {"", "", false}, {"b", "", true}}, ""},
	} {
		s, err := NewStopper(c.stops)
		if err != nil {
			t.Fatal(err)
		}
		for i, st := range c.steps {
			if emit, stopped := s.Feed(st.text); emit != st.emit || stopped != st.stopped {
				t.Errorf("%s, step %d: Feed(%q) = %q, %v; want %q, %v", c.name, i, st.text, emit, stopped, st.emit, st.stopped)
			}
		}
		if got := s.Flush(); got != c.flush {
			t.Errorf("%s: Flush() = %q, want %q", c.name, got, c.flush)
		}
	}
	if _, err := NewStopper([]string{"a", ""}); !errors.Is(err, ErrParams) {
		t.Errorf("an empty stop string: %v, want ErrParams", err)
	}
}

// naive is the definition: look at every end in turn.
func naive(text string, stops []string) (string, bool) {
	for end := range len(text) + 1 {
		cut := ""
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) && len(s) > len(cut) {
				cut = s
			}
		}
		if cut != "" {
			return text[:end-len(cut)], true
		}
	}
	return text, false
}

// FuzzStopper cuts a text into pieces and compares with a search in the whole; at every moment, what was let through must
// not end in the beginning of a stop string that could still be completed.
func FuzzStopper(f *testing.F) {
	f.Add("hello STOP world", "STOP", "or", []byte{3, 4, 1})
	f.Add("aaaab", "aab", "ab", []byte{1})
	f.Add("xabcd", "abcd", "bc", []byte{2, 1})
	f.Add("你好吗", "好吗", "", []byte{1, 1})
	f.Add("<|close|>", "<|close|>x", "|>", []byte{5})
	f.Fuzz(func(t *testing.T, text, a, b string, cuts []byte) {
		if len(text) > 1000 || len(a) > 100 || len(b) > 100 {
			return
		}
		var stops []string
		for _, s := range []string{a, b} {
			if s != "" {
				stops = append(stops, s)
			}
		}
		s, err := NewStopper(stops)
		if err != nil {
			t.Fatal(err)
		}
		rest, fed, got, stopped := text, "", "", false
		for i := 0; rest != ""; i++ {
			n := 1
			if len(cuts) > 0 {
				n = min(len(rest), int(cuts[i%len(cuts)])%8+1)
			}
			emit, now := s.Feed(rest[:n])
			fed, rest = fed+rest[:n], rest[n:]
			if stopped && (emit != "" || !now) {
				t.Fatalf("Feed after the stop gave %q, %v", emit, now)
			}
			got, stopped = got+emit, now
			if !stopped {
				// The longest ending of what was fed that begins a stop string must be exactly what is held.
				hold := 0
				for _, stop := range stops {
					for k := 1; k < len(stop) && k <= len(fed); k++ {
						if strings.HasSuffix(fed, stop[:k]) {
							hold = max(hold, k)
						}
					}
				}
				if got != fed[:len(fed)-hold] {
					t.Fatalf("after %q with stops %q: let %q through, want %q", fed, stops, got, fed[:len(fed)-hold])
				}
			}
		}
		got += s.Flush()
		if want, wantStopped := naive(text, stops); got != want || stopped != wantStopped {
			t.Fatalf("%q with stops %q: %q, %v; want %q, %v", text, stops, got, stopped, want, wantStopped)
		}
	})
}
