package core_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/k3infer/k3/conformance/random"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/pack"
	"github.com/k3infer/k3/core/verify"
)

// verified is a directory with a model that was verified to the last byte, so that every read of it is checked.
func verified(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if _, err := fabricate.Write(t.Context(), dir, fabricate.Options{Config: fabricate.Geometry("tiny"), Seed: 7}); err != nil {
		t.Fatal(err)
	}
	r, err := verify.Check(t.Context(), disk.Dir(dir), dir, verify.Options{Deep: true})
	if err != nil || !r.OK || r.Checked != r.Shards || r.Shards == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	return dir
}

// flip inverts a bit of a file, as a failing disk does: without its time of change.
func flip(t testing.TB, path string, bit int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], bit/8); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1 << (bit % 8)
	if _, err := f.WriteAt(b[:], bit/8); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
}

// answer is the logits of a prompt and a few tokens; small tiles and little memory for experts let it read in many ways.
func answer(t testing.TB, o core.Options) ([]float32, error) {
	t.Helper()
	o.TileBytes, o.TrunkMemory, o.Threads = 1<<12, 400<<10, 2
	e, err := core.Open(t.Context(), o)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	s, err := e.NewSequence()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var logits []float32
	_, err = e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 4, OnLogits: func(_ int, x []float32) error {
		logits = append(logits, x...)
		return nil
	}}, nil)
	return logits, err
}

func TestNoBitOfAVerifiedModelCanBeLostUnnoticed(t *testing.T) {
	dir := verified(t)
	packs := map[string]disk.Files{"": nil}
	m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for name, o := range map[string]pack.Options{"plain": {}, "compressed": {Compress: true}} {
		to := filepath.Join(t.TempDir(), name)
		if _, err := pack.Write(t.Context(), m, to, o); err != nil {
			t.Fatal(err)
		}
		packs[name] = disk.Dir(to)
	}
	want, err := answer(t, core.Options{Files: disk.Dir(dir)})
	if err != nil {
		t.Fatal(err)
	}
	tries := 30
	if testing.Short() {
		tries = 10
	}
	for name, trunk := range packs {
		files := disk.Files(disk.Dir(dir))
		if trunk != nil {
			files = trunk
		}
		names, err := files.List()
		if err != nil {
			t.Fatal(err)
		}
		names = slices.DeleteFunc(names, func(n string) bool {
			return !strings.HasSuffix(n, ".safetensors") && !strings.HasSuffix(n, ".bin")
		})
		r := random.New(t, 8, 9)
		caught, wrong := 0, 0
		for try := range tries {
			path := filepath.Join(files.Name(), names[r.IntN(len(names))])
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			bit := r.Int64N(8 * info.Size())
			flip(t, path, bit)
			got, err := answer(t, core.Options{Files: disk.Dir(dir), Trunk: trunk})
			switch {
			case errors.Is(err, core.ErrChecksum):
				caught++
				if !strings.Contains(err.Error(), filepath.Base(path)) {
					t.Errorf("%s: bit %d: %v does not name the file", path, bit, err)
				}
			case err != nil:
				t.Errorf("%s: bit %d: %v", path, bit, err)
			case !slices.Equal(got, want):
				t.Errorf("%s: bit %d changed the logits", path, bit)
			}
			if try%3 == 0 {
				got, err := answer(t, core.Options{Files: disk.Dir(dir), Trunk: trunk, Unchecked: true})
				if err != nil || !slices.Equal(got, want) {
					wrong++
				}
			}
			flip(t, path, bit)
		}
		if caught == 0 || wrong == 0 {
			t.Errorf("%q: of %d flips %d were caught, and %d of a third would have done harm unchecked: this shows nothing", name, tries, caught, wrong)
		}
	}
}

func TestAPassEndsWhenAFileHasChanged(t *testing.T) {
	for what, change := range map[string]func(dir, shard string) error{
		"written to": func(_, shard string) error { return os.Chtimes(shard, time.Now(), time.Now().Add(time.Minute)) },
		"gone":       func(_, shard string) error { return os.Remove(shard) },
	} {
		dir := verified(t)
		e := open(t, core.Options{Files: disk.Dir(dir)})
		s := sequence(t, e)
		o := core.GenerateOptions{MaxTokens: 1}
		if _, err := e.Generate(t.Context(), s, prompt, o, nil); err != nil {
			t.Fatal(err)
		}
		shards, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
		if err != nil || len(shards) == 0 {
			t.Fatal(shards, err)
		}
		if err := change(dir, shards[0]); err != nil {
			t.Fatal(err)
		}
		out, err := e.Generate(t.Context(), s, nil, o, nil)
		if !errors.Is(err, core.ErrChanged) || !strings.Contains(err.Error(), filepath.Base(shards[0])) || len(out.IDs) > 0 {
			t.Errorf("%s: %v, %v", what, out.IDs, err)
		}
		if err := s.Save(filepath.Join(t.TempDir(), "s"), nil); !errors.Is(err, core.ErrChanged) {
			t.Errorf("%s: a session of nobody knows which weights: %v", what, err)
		}
	}
}

// What was written from the first half of a pass's files and the second half of another model's must not become a token.
func TestAFileThatChangesDuringAPassEndsIt(t *testing.T) {
	dir := verified(t)
	shards, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	layers := 0
	e := open(t, core.Options{Files: disk.Dir(dir), Routed: func(layer int, _ []int) {
		if layers++; layers == 20 {
			later := time.Now().Add(time.Minute)
			if err := os.Chtimes(shards[0], later, later); err != nil {
				t.Error(err)
			}
		}
	}})
	s := sequence(t, e)
	out, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 50}, nil)
	if !errors.Is(err, core.ErrChanged) || s.Err() == nil {
		t.Errorf("%d tokens, %v; the sequence: %v", len(out.IDs), err, s.Err())
	}
}

func TestAModelKnowsItsOwnPackOnly(t *testing.T) {
	dir := verified(t)
	for name, o := range map[string]pack.Options{"plain": {}, "compressed": {Compress: true}} {
		trunk := packed(t, disk.Dir(dir), o)
		m, err := checkpoint.Open(t.Context(), disk.Dir(dir))
		if err != nil {
			t.Fatal(err)
		}
		x, ok := m.Index.Lookup("language_model.model.layers.1.self_attn.q_proj.weight")
		shard := m.Index.Shards()[x.Shard].Name
		m.Close()
		if !ok {
			t.Fatal("there is no such tensor")
		}
		path := filepath.Join(dir, shard)
		for i := range x.Bytes {
			flip(t, path, 8*(x.Offset+i))
		}
		// With the checksums of what the model was and without any.
		for _, unchecked := range []bool{true, false} {
			_, err := core.Open(t.Context(), core.Options{Files: disk.Dir(dir), Trunk: trunk, Unchecked: unchecked})
			if !errors.Is(err, pack.ErrOther) {
				t.Errorf("%s, unchecked %v: %v", name, unchecked, err)
			}
		}
		for i := range x.Bytes {
			flip(t, path, 8*(x.Offset+i))
		}
		open(t, core.Options{Files: disk.Dir(dir), Trunk: trunk})
	}
}
