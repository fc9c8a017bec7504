package core_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/k3infer/k3/core"
)

func TestAKeptPrefixIsNotComputedAgain(t *testing.T) {
	e := open(t, core.Options{})
	kept := e.NewPrefixes(1 << 30)
	t.Cleanup(kept.Close)
	s := sequence(t, e)
	first, err := e.Generate(t.Context(), s, prompt, seeded, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := kept.Keep(s); err != nil {
		t.Fatal(err)
	}
	text := slices.Concat(prompt, first.IDs, []int{2, 3})
	for _, c := range []struct {
		name     string
		ids      []int
		computed int // before generating
	}{
		{"goes on", text, len(prompt) + 7},
		{"another ending", slices.Concat(prompt, first.IDs, []int{30}), len(prompt) + 7},
		{"parts earlier", slices.Concat(prompt, []int{1, 1, 1}), 0},
		{"is the kept text", text[:len(prompt)+7], 0},
	} {
		a, err := kept.Sequence(c.ids)
		if err != nil {
			t.Fatal(err)
		}
		if a.Computed() != c.computed || len(a.IDs()) != len(c.ids) {
			t.Errorf("%s: %d computed of %d", c.name, a.Computed(), len(a.IDs()))
		}
		got, err := e.Generate(t.Context(), a, nil, seeded, nil)
		a.Close()
		if err != nil {
			t.Fatal(err)
		}
		want, err := e.Generate(t.Context(), sequence(t, e), c.ids, seeded, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.IDs, want.IDs) || got.Prefill.Tokens != len(c.ids)-c.computed {
			t.Errorf("%s: %v after %d tokens, not %v", c.name, got.IDs, got.Prefill.Tokens, want.IDs)
		}
	}
	small := e.NewPrefixes(10)
	t.Cleanup(small.Close)
	if err := small.Keep(s); err != nil || small.Len() != 0 || small.Bytes() != 0 {
		t.Errorf("%v: %d states of %d bytes in a budget of 10", err, small.Len(), small.Bytes())
	}
}

func TestALongPromptCanBeKeptBetweenItsPasses(t *testing.T) {
	e := open(t, core.Options{PrefillChunk: 4})
	kept := e.NewPrefixes(1 << 30)
	t.Cleanup(kept.Close)
	s := sequence(t, e)
	long := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	o := seeded
	var computed []int
	o.OnPrefill = func() error {
		computed = append(computed, s.Computed())
		return kept.Keep(s)
	}
	want, err := e.Generate(t.Context(), s, long, o, nil)
	if err != nil || !slices.Equal(computed, []int{4, 8}) {
		t.Fatalf("between the passes %v were computed: %v", computed, err)
	}
	again, err := kept.Sequence(long)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	got, err := e.Generate(t.Context(), again, nil, seeded, nil)
	if err != nil || got.Prefill.Tokens != 2 || !slices.Equal(got.IDs, want.IDs) {
		t.Errorf("%v after computing %d, %v; want %v", got.IDs, got.Prefill.Tokens, err, want.IDs)
	}
	o.OnPrefill = func() error { return core.ErrPrompt }
	if _, err := e.Generate(t.Context(), sequence(t, e), long, o, nil); !errors.Is(err, core.ErrPrompt) {
		t.Errorf("%v", err)
	}
}
