package replay

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/k3infer/k3/core/experts"
)

func TestReadGivesBackWhatAppendWrote(t *testing.T) {
	keys := []experts.Key{{Layer: 1, Expert: 895}, {Layer: 92, Expert: 0}, {Layer: 92, Expert: 7}, {Layer: 1, Expert: 3}}
	trace, err := Read(bytes.NewReader(Append(nil, keys...)), "t")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(trace.Keys, keys) || trace.Layers != 93 || trace.Experts != 896 {
		t.Errorf("%+v", trace)
	}
	if trace.Passes() != 2 {
		t.Errorf("%d passes, not 2", trace.Passes())
	}
}

func TestBadTracesAreRefusedWithNameAndOffset(t *testing.T) {
	one := func(layer, expert int32) []byte { return Append(nil, experts.Key{Layer: layer, Expert: expert}) }
	good := one(3, 4)
	for _, c := range []struct {
		what string
		data []byte
		want string
	}{
		{"empty", nil, "offset 0: is empty"},
		{"cut in a request", append(slices.Clone(good), 1, 2, 3), "offset 8: ends after 3 of the 8 bytes"},
		{"cut in the first", good[:4], "offset 0: ends after 4"},
		{"negative layer", append(slices.Clone(good), one(-1, 0)...), "offset 8: layer -1 is outside"},
		{"negative expert", append(slices.Clone(good), one(0, -2)...), "offset 12: expert -2 is outside"},
		{"no layer of any model", one(1<<20, 0), "offset 0: layer 1048576 is outside"},
		{"no expert of any model", one(0, 1<<30), "offset 4: expert 1073741824 is outside"},
		{"too large a table", append(one(4000, 0), one(0, 60000)...), "offset 8: 4001 layers of 60001 experts"},
		{"text", []byte("this is a text, no trace"), "offset 0: layer"},
	} {
		_, err := Read(bytes.NewReader(c.data), "some.trace")
		if !errors.Is(err, ErrTrace) {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if s := err.Error(); !strings.Contains(s, c.want) || !strings.Contains(s, "some.trace") || strings.Contains(s, "\n") {
			t.Errorf("%s: %q, want %q in it", c.what, s, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(Append(nil, experts.Key{Layer: 1, Expert: 2}, experts.Key{Layer: 0, Expert: 9}))
	f.Add([]byte("text"))
	f.Fuzz(func(t *testing.T, data []byte) {
		trace, err := Read(bytes.NewReader(data), "fuzz")
		if err != nil {
			if !errors.Is(err, ErrTrace) {
				t.Fatal(err)
			}
			return
		}
		if !bytes.Equal(Append(nil, trace.Keys...), data) {
			t.Error("a trace is written otherwise than it was read")
		}
		for _, key := range trace.Keys {
			if int(key.Layer) >= trace.Layers || int(key.Expert) >= trace.Experts {
				t.Errorf("%v is outside %d layers of %d experts", key, trace.Layers, trace.Experts)
			}
		}
	})
}

// liar fills a cache of two slots without end, or evicts what is not there.
type liar struct{ evicts bool }

func (liar) Hit(experts.Key)    {}
func (liar) Remove(experts.Key) {}
func (l liar) Miss(experts.Key, func(experts.Key) bool) (experts.Key, experts.Decision) {
	if l.evicts {
		return experts.Key{Expert: 5}, experts.Swap
	}
	return experts.Key{}, experts.Fill
}

func init() {
	experts.RegisterPolicy("test-fills", func(experts.Config) (experts.Policy, error) { return liar{}, nil })
	experts.RegisterPolicy("test-evicts", func(experts.Config) (experts.Policy, error) { return liar{true}, nil })
}

func TestRunCatchesAPolicyThatBreaksTheRules(t *testing.T) {
	trace := New([]experts.Key{{Expert: 1}, {Expert: 2}, {Expert: 3}, {Expert: 5}})
	for policy, want := range map[string]string{"test-fills": "request 2: fills", "test-evicts": "request 0: evicts"} {
		if _, err := Run(trace, policy, 2, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", policy, err, want)
		}
	}
}

func TestSweepReportsErrorsAndStopsWhenToldTo(t *testing.T) {
	trace := New([]experts.Key{{Expert: 1}, {Expert: 1}, {Expert: 2}})
	got, err := Sweep(t.Context(), trace, []string{"test-fills"}, []int{2, 3}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Result{"test-fills", 3, 3, 1, 2}); got[0][1] != want || got[0][1].Misses() != 2 {
		t.Errorf("%+v, not %+v", got[0][1], want)
	}
	if _, err := Sweep(t.Context(), trace, []string{"test-fills", "nobody"}, []int{2}, 0); !errors.Is(err, experts.ErrUnknownPolicy) {
		t.Errorf("an unknown policy: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Sweep(ctx, trace, []string{"test-fills"}, []int{2}, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
