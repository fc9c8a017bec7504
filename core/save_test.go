package core_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/sample"
)

var seeded = core.GenerateOptions{MaxTokens: 8, Sample: sample.Params{Temperature: 1, Seed: 3}}

// A saved text goes on elsewhere as if nothing had happened: other threads, chunks and context.
func TestASavedSequenceGoesOnWithTheSameBits(t *testing.T) {
	a := open(t, core.Options{Threads: 1, PrefillChunk: 4})
	s := sequence(t, a)
	if _, err := a.Generate(t.Context(), s, prompt, seeded, nil); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "text.k3s")
	if err := s.Save(path, json.RawMessage(`{"note":1}`)); err != nil {
		t.Fatal(err)
	}
	want, err := a.Generate(t.Context(), s, []int{4, 5}, seeded, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, core.Options{Threads: 3, PrefillChunk: 64, Context: 100})
	restored, extra, err := b.LoadSequence(path)
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	if string(extra) != `{"note":1}` || len(restored.IDs()) != len(prompt)+8 || restored.Computed() != len(prompt)+7 {
		t.Errorf("restored %d computed of %d, extra %s", restored.Computed(), len(restored.IDs()), extra)
	}
	got, err := b.Generate(t.Context(), restored, []int{4, 5}, seeded, nil)
	if err != nil || !slices.Equal(got.IDs, want.IDs) || got.Prefill.Tokens != 3 {
		t.Errorf("went on with %v after computing %d, %v; not %v", got.IDs, got.Prefill.Tokens, err, want.IDs)
	}
	one, two := filepath.Join(t.TempDir(), "1"), filepath.Join(t.TempDir(), "2")
	if err := errors.Join(s.Save(one, nil), restored.Save(two, nil)); err != nil {
		t.Fatal(err)
	}
	x, _ := os.ReadFile(one)
	y, _ := os.ReadFile(two)
	if !bytes.Equal(x, y) {
		t.Error("the two states differ")
	}
}

func TestADamagedOrForeignSessionIsRefused(t *testing.T) {
	e := open(t, core.Options{Sequences: 2})
	s := sequence(t, e)
	if _, err := e.Generate(t.Context(), s, prompt, seeded, nil); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "good")
	if err := s.Save(path, nil); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad")
	refused := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(bad, data, 0o600); err != nil {
			t.Fatal(err)
		}
		before := e.Memory()["state"]
		if s, _, err := e.LoadSequence(bad); !errors.Is(err, core.ErrSession) {
			t.Errorf("%s: got %v", name, err)
			if err == nil {
				s.Close()
			}
		}
		if e.Memory()["state"] != before {
			t.Errorf("%s: memory is lost", name)
		}
	}
	for at := 0; at < len(good); at += 1 + len(good)/97 {
		flipped := bytes.Clone(good)
		flipped[at] ^= 0x10
		refused("a flipped bit", flipped)
		refused("cut short", good[:at])
	}
	refused("the last byte missing", good[:len(good)-1])
	refused("a byte too many", append(bytes.Clone(good), 0))
	newer := bytes.Clone(good)
	newer[8]++
	refused("a newer version", newer)
	refused("as text", bytes.ReplaceAll(good, []byte("\r\n"), []byte("\n")))

	other := open(t, core.Options{Files: disk.Dir("../conformance/testdata/tiny-plain")})
	if _, _, err := other.LoadSequence(path); !errors.Is(err, core.ErrSession) {
		t.Errorf("another model: got %v", err)
	}
	tight := open(t, core.Options{Context: 12})
	if _, _, err := tight.LoadSequence(path); !errors.Is(err, core.ErrContext) {
		t.Errorf("a small context: got %v", err)
	}
	if _, _, err := e.LoadSequence(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: got %v", err)
	}
}

// What waits in a session must fit, too: at most the context and the one token that was chosen last.
func TestASessionWhoseWaitingIDsDoNotFitIsRefused(t *testing.T) {
	const ids = 30
	e := open(t, core.Options{})
	s := sequence(t, e)
	if _, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 1}, nil); err != nil {
		t.Fatal(err)
	}
	s.Append(make([]int, ids-len(s.IDs()))...)
	path := filepath.Join(t.TempDir(), "waiting")
	if err := s.Save(path, nil); err != nil {
		t.Fatal(err)
	}
	for context, fits := range map[int]bool{len(prompt): false, ids - 2: false, ids - 1: true, ids: true} {
		restored, _, err := open(t, core.Options{Context: context}).LoadSequence(path)
		if fits != (err == nil) || !fits && !errors.Is(err, core.ErrContext) {
			t.Errorf("%d ids in a context of %d: %v", ids, context, err)
		}
		if err == nil {
			restored.Close()
		}
	}
}

// The fingerprint is the model's, not the directory's.
func TestFingerprintFollowsTheWeights(t *testing.T) {
	of := func(files disk.Files) checkpoint.Fingerprint {
		e := open(t, core.Options{Files: files})
		f, err := e.Fingerprint()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	const dir = "../conformance/testdata/tiny-mx"
	copied := t.TempDir()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range entries {
		if data, err := os.ReadFile(filepath.Join(dir, x.Name())); err == nil {
			if err := os.WriteFile(filepath.Join(copied, x.Name()), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if of(disk.Dir(dir)) != of(disk.Dir(copied)) {
		t.Error("a copy is another model")
	}
	if of(disk.Dir(dir)) == of(disk.Dir("../conformance/testdata/tiny-f16")) {
		t.Error("two models are one")
	}
}

// A failed save leaves the file that was there.
func TestSaveKeepsTheOldFileUntilTheNewOneIsWhole(t *testing.T) {
	e := open(t, core.Options{})
	s := sequence(t, e)
	if err := s.Save(filepath.Join(t.TempDir(), "no", "such", "place"), nil); err == nil {
		t.Error("saved into nowhere")
	}
	dir := t.TempDir()
	if err := s.Save(filepath.Join(dir, "empty"), nil); err != nil {
		t.Error("an empty sequence:", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
}

// A sequence that a cancelled pass has broken is saved with all its ids, and goes on with the same bits, from no state or from an
// earlier one.
func TestTheIDsOfABrokenSequenceGoOnWithTheSameBits(t *testing.T) {
	e := open(t, core.Options{Sequences: 5})
	path := func(name string) string { return filepath.Join(t.TempDir(), name) }
	want := sequence(t, e)
	if _, err := e.Generate(t.Context(), want, prompt, seeded, nil); err != nil {
		t.Fatal(err)
	}
	whole := path("whole")
	if err := want.Save(whole, nil); err != nil {
		t.Fatal(err)
	}
	earlier, foreign := path("earlier"), path("foreign")
	broken := sequence(t, e)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	few := seeded
	few.MaxTokens = 3
	if _, err := e.Generate(t.Context(), broken, prompt, few, nil); err != nil {
		t.Fatal(err)
	}
	if err := broken.Save(earlier, nil); err != nil {
		t.Fatal(err)
	}
	left := seeded
	left.MaxTokens -= 3
	if _, err := e.Generate(ctx, broken, nil, left, func(int) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := broken.Save(path("broken"), nil); !errors.Is(err, core.ErrBroken) {
		t.Errorf("a broken state is saved: %v", err)
	}
	ids := broken.IDs()
	for _, from := range []string{"", earlier} {
		to := path("ids")
		if from != "" {
			to = from // the file may be the same
		}
		computed, err := broken.SaveIDs(to, from, json.RawMessage(`{"note":1}`))
		if err != nil || (computed == 0) != (from == "") {
			t.Fatalf("%d computed, %v", computed, err)
		}
		s, extra, err := e.LoadSequence(to)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if !slices.Equal(s.IDs(), ids) || s.Computed() != computed || string(extra) != `{"note":1}` {
			t.Errorf("restored %d computed of %v, extra %s", s.Computed(), s.IDs(), extra)
		}
		left := seeded
		left.MaxTokens = len(want.IDs()) - len(ids)
		if _, err := e.Generate(t.Context(), s, nil, left, nil); err != nil {
			t.Fatal(err)
		}
		again := path("again")
		if err := s.Save(again, nil); err != nil {
			t.Fatal(err)
		}
		x, _ := os.ReadFile(whole)
		y, _ := os.ReadFile(again)
		if !bytes.Equal(x, y) {
			t.Errorf("from %q it becomes another", from)
		}
	}
	other := sequence(t, e)
	if _, err := e.Generate(t.Context(), other, []int{9, 8, 7}, few, nil); err != nil {
		t.Fatal(err)
	}
	if err := other.Save(foreign, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := broken.SaveIDs(path("ids"), foreign, nil); !errors.Is(err, core.ErrSession) {
		t.Errorf("the state of another text: %v", err)
	}
}
