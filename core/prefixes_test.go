package core_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/k3infer/k3/core"
)

func TestAKeptPrefixIsNotComputedAgain(t *testing.T) {
	e := open(t, core.Options{Sequences: 6})
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
	e := open(t, core.Options{PrefillChunk: 4, Sequences: 3})
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

func TestAPrefixOnDiskIsFoundLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "prefixes")
	first := open(t, core.Options{Sequences: 2})
	kept := first.NewPrefixes(0) // nothing in memory
	t.Cleanup(kept.Close)
	if err := kept.OnDisk(dir, 1<<30); err != nil {
		t.Fatal(err)
	}
	s := sequence(t, first)
	out, err := first.Generate(t.Context(), s, prompt, seeded, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := slices.Concat(prompt, out.IDs)
	for range 2 { // the second finds the file
		if err := kept.Keep(s); err != nil {
			t.Fatal(err)
		}
	}
	short := sequence(t, first)
	if _, err := first.Generate(t.Context(), short, prompt[:2], core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
		t.Fatal(err)
	}
	if err := kept.Keep(short); err != nil {
		t.Fatal(err)
	}
	files := func() []string {
		found, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if n := len(files()); n != 2 {
		t.Fatalf("%d files", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "note"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "foreign.k3s"), []byte("no session"), 0o600); err != nil {
		t.Fatal(err)
	}

	second := open(t, core.Options{Threads: 1, Sequences: 10})
	later := second.NewPrefixes(1 << 30)
	t.Cleanup(later.Close)
	if err := later.OnDisk(dir, 1<<30); err != nil {
		t.Fatal(err)
	}
	computed := func(ids []int) int {
		t.Helper()
		a, err := later.Sequence(ids)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		n := a.Computed()
		got, err := second.Generate(t.Context(), a, nil, seeded, nil)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := second.Generate(t.Context(), sequence(t, second), ids, seeded, nil); err != nil || !slices.Equal(got.IDs, want.IDs) {
			t.Errorf("%v: %v, want %v, %v", ids, got.IDs, want.IDs, err)
		}
		return n
	}
	if n := computed(append(text, 3)); n != len(text)-1 {
		t.Errorf("%d of %d were computed", n, len(text))
	}
	if n := computed(append(slices.Clone(prompt[:2]), 30, 31)); n != 2 {
		t.Errorf("%d of 2 were computed", n)
	}
	// The whole of a text would leave nothing to compute logits from.
	if n := computed(slices.Clone(text[:len(text)-1])); n != 2 {
		t.Errorf("%d of a whole kept text were computed", n)
	}
	if n := computed([]int{30, 31}); n != 0 {
		t.Errorf("%d of another text were computed", n)
	}
	// A damaged file is passed over.
	for _, f := range files() {
		if data, err := os.ReadFile(f); err == nil && len(data) > 100 {
			data[len(data)-40]++
			if err := os.WriteFile(f, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := computed(append(text, 3)); n != 0 || len(files()) != 2 {
		t.Errorf("%d were computed from a damaged file, which is still there: %v", n, files())
	}
	// What never fits costs nothing; above the budget the oldest leave.
	keep := func(budget int64, ids ...int) {
		t.Helper()
		s := sequence(t, second)
		if _, err := second.Generate(t.Context(), s, ids, core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(later.OnDisk(dir, budget), later.Keep(s)); err != nil {
			t.Fatal(err)
		}
	}
	if keep(1, 40, 41, 42); len(files()) != 2 {
		t.Errorf("what never fits: %v", files())
	}
	// What a process that was killed has left of another text goes.
	left := filepath.Join(dir, "."+strings.Repeat("0", 32)+".k3s.1.partial")
	if err := os.WriteFile(left, make([]byte, 1<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	keep(1<<30, 40, 41, 42)
	if _, err := os.Stat(left); err == nil && runtime.GOOS != "windows" { // there only after a while
		t.Error("what was left is still there")
	}
	names := files()
	info, err := os.Stat(names[0])
	if err != nil || len(names) != 3 {
		t.Fatalf("%v, %v", names, err)
	}
	keep(info.Size()*3/2, 50, 51, 52)
	names = files()
	if i := slices.IndexFunc(names, func(f string) bool { return strings.HasSuffix(f, "note") }); i < 0 || len(names) != 2 {
		t.Errorf("%v: there should be one state and the note", names)
	}
	if n := computed([]int{50, 51, 52, 1}); n != 3 {
		t.Errorf("%d of the newest text were computed", n)
	}
	if _, err := os.Stat(filepath.Join(dir, "note")); err != nil {
		t.Error("a file that is none of its own was removed")
	}
}

// A directory may have thousands of files. Each is opened once, and again when it has changed, not for every sequence.
func TestAFileOfPrefixesIsOpenedAgainOnlyWhenItHasChanged(t *testing.T) {
	dir := t.TempDir()
	e := open(t, core.Options{Sequences: 3})
	kept := e.NewPrefixes(0)
	t.Cleanup(kept.Close)
	if err := kept.OnDisk(dir, 1<<30); err != nil {
		t.Fatal(err)
	}
	keep := func(ids ...int) string {
		t.Helper()
		before, _ := filepath.Glob(filepath.Join(dir, "*"))
		s := sequence(t, e)
		if _, err := e.Generate(t.Context(), s, ids, core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
			t.Fatal(err)
		}
		if err := kept.Keep(s); err != nil {
			t.Fatal(err)
		}
		after, _ := filepath.Glob(filepath.Join(dir, "*"))
		i := slices.IndexFunc(after, func(f string) bool { return !slices.Contains(before, f) })
		return after[i]
	}
	computed := func(ids ...int) int {
		t.Helper()
		s, err := kept.Sequence(ids)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.Computed()
	}
	one, two := keep(10, 11, 12), keep(20, 21, 22)
	if a, b := computed(10, 11, 12, 13), computed(20, 21, 22, 23); a != 3 || b != 3 {
		t.Fatalf("%d and %d of 3 are computed", a, b)
	}
	// The content of one in the place of the other, with the same size and time: who opens it sees the difference.
	info, err := os.Stat(two)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(one)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(two, data, 0o600), os.Chtimes(two, info.ModTime(), info.ModTime()), os.Remove(one))
	if err != nil || int64(len(data)) != info.Size() {
		t.Fatalf("%v, files of %d and %d bytes", err, len(data), info.Size())
	}
	if n := computed(10, 11, 12, 13); n != 0 {
		t.Errorf("a file that has not changed was opened again: %d computed", n)
	}
	later := info.ModTime().Add(time.Hour)
	if err := os.Chtimes(two, later, later); err != nil {
		t.Fatal(err)
	}
	if n := computed(10, 11, 12, 13); n != 3 {
		t.Errorf("a file that has changed was not opened again: %d computed", n)
	}
}
