package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	_ "github.com/k3infer/k3/backends/all"
	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/kernel"
)

// Every backend this machine can run reproduces what the oracle computed.
func TestGoldenModels(t *testing.T) {
	for _, d := range kernel.Drivers() {
		if d.Missing() != "" {
			continue
		}
		for _, g := range Goldens() {
			t.Run(d.Name+"/"+g.Name, func(t *testing.T) {
				t.Parallel()
				r, err := g.Check(t.Context(), core.Options{Backend: d.Name})
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%d positions, worst %.1e", r.Positions, r.Worst)
			})
		}
	}
}

// The same for reference data that is not part of the project, where it is at hand.
func TestReferenceModels(t *testing.T) {
	dirs, _ := filepath.Glob("../../shared/fixtures/checkpoints/mx-*")
	if len(dirs) == 0 {
		t.Skip("no reference data here")
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			g := Golden{filepath.Base(dir), disk.Dir(dir), disk.Dir(filepath.Join(dir, "expect"))}
			r, err := g.Check(t.Context(), core.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d positions, worst %.1e", r.Positions, r.Worst)

			// The flat spelling of the same geometry is the same model.
			flat := t.TempDir()
			files, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				from := filepath.Join(dir, f.Name())
				if f.Name() == "config.json" {
					from = filepath.Join(dir, "expect", "config.flat.json")
				}
				abs, err := filepath.Abs(from)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(abs, filepath.Join(flat, f.Name())); err != nil {
					t.Skip("no symbolic links:", err)
				}
			}
			g.Files = disk.Dir(flat)
			if _, err := g.Check(t.Context(), core.Options{}); err != nil {
				t.Error("flat config:", err)
			}
		})
	}
}

// A golden that is not this model's is noticed: the check has teeth.
func TestCheckNoticesAnotherModel(t *testing.T) {
	g := Goldens()[1]
	g.Files = &changed{g.Files}
	if _, err := g.Check(t.Context(), core.Options{}); !errors.Is(err, ErrMismatch) {
		t.Fatalf("got %v, want ErrMismatch", err)
	}
}

// changed is a checkpoint whose first shard has a stretch of slightly wrong weights.
type changed struct{ disk.Files }

func (c *changed) Open(name string) (disk.File, error) {
	f, err := c.Files.Open(name)
	if err == nil && name == "model-00001-of-000003.safetensors" {
		f = &flipped{f}
	}
	return f, err
}

type flipped struct{ disk.File }

func (f *flipped) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	for at := f.Size() / 2; at < f.Size()/2+4096; at++ {
		if i := at - off; i >= 0 && i < int64(n) {
			p[i] ^= 1
		}
	}
	return n, err
}

// The bits of whole models, the same on every processor, backend and compiler setting. They were checked against the
// oracle by the tests above; here they are written down so that another machine can be held to them.
func TestBitsAreThoseOfEveryOtherMachine(t *testing.T) {
	for _, d := range kernel.Drivers() {
		if d.Missing() != "" {
			continue
		}
		for _, g := range Goldens() {
			got, err := g.Bits(t.Context(), core.Options{Backend: d.Name})
			if err != nil {
				t.Fatal(err)
			}
			if got != bits[g.Name] {
				t.Errorf("%s, %s: the logits hash to %s, not %s", d.Name, g.Name, got, bits[g.Name])
			}
		}
	}
}

var bits = map[string]string{
	"demo":       "10a505cfceda593d0a6ac50e5e9b8ca596aa0ca3d2978db22f3f87788d01d1f4",
	"tiny-mx":    "9fe1fdc8413102931b4b9640c80c306c7cc833a41ea5eca03f65a4defb3a5e2b",
	"tiny-plain": "b50a491f5d0881e54bbf6b111766c577e3463f336f1e6de98f78b812bbf396e3",
	"tiny-f16":   "09834f381d5b611e4d9a2834aed0579cabeb1a542c2d01191856caeeccde56bb",
}
