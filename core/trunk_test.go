package core_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/disk/disktest"
	"github.com/k3infer/k3/core/pack"
)

// packed packs the trunk of a checkpoint.
func packed(t testing.TB, files disk.Files, o pack.Options) disk.Files {
	t.Helper()
	m, err := checkpoint.Open(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := t.TempDir()
	if _, err := pack.Write(t.Context(), m, dir, o); err != nil {
		t.Fatal(err)
	}
	return disk.Dir(dir)
}

// generated is every logit of a text, and its ids.
func generated(t testing.TB, e *core.Engine) (logits []float32, ids []int) {
	t.Helper()
	_, err := e.Generate(t.Context(), sequence(t, e), prompt, core.GenerateOptions{
		MaxTokens: 6, OnLogits: func(_ int, x []float32) error {
			logits = append(logits, x...)
			return nil
		},
	}, func(id int) error {
		ids = append(ids, id)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return logits, ids
}

func TestAPackGivesTheSameLogitsAtEveryBudget(t *testing.T) {
	for _, name := range []string{"tiny-mx", "tiny-plain", "tiny-f16"} {
		files := disk.Dir("../conformance/testdata/" + name)
		want, ids := generated(t, open(t, core.Options{Files: files}))
		for kind, o := range map[string]pack.Options{"plain": {}, "compressed": {Compress: true}} {
			trunk := packed(t, files, o)
			for _, budget := range []int64{0, 40 << 10, 90 << 10, 1 << 20} {
				o := core.Options{Files: files, Trunk: trunk, TileBytes: 1 << 12, Threads: 1 + int(budget>>12%3), TrunkMemory: budget}
				e := open(t, o)
				got, gotIDs := generated(t, e)
				if !slices.Equal(got, want) || !slices.Equal(gotIDs, ids) {
					t.Errorf("%s, %s pack, %d bytes for the trunk: other logits", name, kind, o.TrunkMemory)
				}
				plan, memory := e.Plan(), e.Memory()
				for _, purpose := range []string{"trunk ring", "trunk tiles", "trunk scratch"} {
					if memory[purpose] > plan.Bytes(purpose) {
						t.Errorf("%s, %s pack: %s takes %d bytes, planned are %d", name, kind, purpose, memory[purpose], plan.Bytes(purpose))
					}
				}
				if scratch := memory["trunk scratch"] > 0; scratch != (kind == "compressed" && name == "tiny-mx") {
					t.Errorf("%s, %s pack: scratch memory: %v", name, kind, scratch)
				}
			}
		}
	}
}

func TestAPackIsReadInPlaceOfTheShards(t *testing.T) {
	model := disktest.Wrap(disk.Dir("../conformance/testdata/tiny-mx"), nil)
	trunk := disktest.Wrap(packed(t, model, pack.Options{}), nil)
	e := open(t, core.Options{Files: model, Trunk: trunk, TileBytes: 1 << 12})
	broken := errors.New("broken")
	trunk.Set(disktest.FailAt(filepath.Join(trunk.Name(), "trunk.bin"), 90000, broken))
	s := sequence(t, e)
	_, err := e.Generate(t.Context(), s, prompt, core.GenerateOptions{MaxTokens: 2}, nil)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "trunk.bin at 90000") || !strings.Contains(err.Error(), "model.layers.1.") {
		t.Errorf("%v does not name the file, the offset and the tensor", err)
	}
	if !errors.Is(s.Err(), core.ErrBroken) {
		t.Errorf("the sequence goes on: %v", s.Err())
	}
}

func TestATrunkThatNeedNotBeThereMayBeMissing(t *testing.T) {
	files := disk.Dir("../conformance/testdata/tiny-mx")
	want, _ := generated(t, open(t, core.Options{}))
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "trunk.json"), []byte(`{"layers": []}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		trunk   disk.Files
		err     error // without TrunkIfThere
		harm    bool  // with it
		notices int
	}{
		{disk.Dir(filepath.Join(t.TempDir(), "nowhere")), pack.ErrNone, false, 0},
		{packed(t, disk.Dir("../conformance/testdata/tiny-f16"), pack.Options{}), pack.ErrOther, false, 1},
		{disk.Dir(damaged), pack.ErrFormat, true, 0},
		{packed(t, files, pack.Options{}), nil, false, 0},
	} {
		for _, need := range []bool{true, false} {
			var notices []string
			e, err := core.Open(t.Context(), core.Options{Files: files, Trunk: c.trunk, TrunkIfThere: !need, Notice: func(s string) {
				if strings.Contains(s, "trunk") {
					notices = append(notices, s)
				}
			}})
			if fails := c.err != nil && (need || c.harm); fails != (err != nil) || fails && !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", c.trunk.Name(), err, c.err)
			}
			if err != nil {
				continue
			}
			if got, _ := generated(t, e); !slices.Equal(got, want) {
				t.Errorf("%s: other logits", c.trunk.Name())
			}
			if !need && len(notices) != c.notices {
				t.Errorf("%s: %q", c.trunk.Name(), notices)
			}
			e.Close()
		}
	}
}
