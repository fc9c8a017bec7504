package main

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/k3infer/k3/cmd/k3/internal/ui"
	"github.com/k3infer/k3/core/checkpoint/fabricate"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/presets"
)

// promiser makes runs of a model, each in a process of its own under the hardest limit of memory there is.
func promiser(t *testing.T, dir string) *bencher {
	t.Helper()
	program, err := exec.LookPath("k3")
	if err != nil {
		t.Fatal(err) // testscript.Main puts it there
	}
	c, err := presets.Load(pflag.NewFlagSet("", pflag.ContinueOnError), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.Model, c.Context = dir, 8
	b := &bencher{config: c, files: disk.Dir(dir), program: program, scratch: t.TempDir(), line: ui.NewProgress(io.Discard, io.Discard, true)}
	if b.limit, err = chooseLimiter(t.Context(), program, "auto"); err != nil {
		t.Fatal(err)
	}
	t.Logf("hard limit: %s", b.limit.about)
	b.args = []string{"run", "--quiet", "--print-ids", "--ids=1,2,3", "--max-tokens=1", "--ignore-eos", "--context=8", "--model=" + dir}
	return b
}

// keep makes a run and checks that it kept to its memory, which b.run does too.
func (b *bencher) keep(t *testing.T, bytes int64) []int {
	t.Helper()
	run, r := b.run(t.Context(), setting{Memory: bytes})
	if run.Status != rungFits {
		t.Errorf("%s: %s: %s", presets.Size(bytes), run.Status, run.Why)
		return nil
	}
	t.Logf("%s: %s at most, of %s planned, %s; %s of trunk stay, %d experts", presets.Size(bytes), ui.InMemory(r.PeakRSS), ui.InMemory(r.PlannedRSS),
		ui.Seconds(run.Seconds), ui.Size(r.Residency.KeptTrunkBytes), r.Residency.ExpertSlots)
	if r.PeakRSS > bytes || r.PlannedRSS > bytes {
		t.Errorf("%d bytes were promised, %d planned, %d in use", bytes, r.PlannedRSS, r.PeakRSS)
	}
	if r.PeakRSS < r.Residency.KeptTrunkBytes+r.Decode.ExpertRead {
		t.Errorf("%d bytes in use, though %d of the trunk stay: this measures nothing", r.PeakRSS, r.Residency.KeptTrunkBytes)
	}
	return r.IDs
}

// TestMemoryIsAPromise runs a model whose trunk is several times the smallest budget, at budgets from the least that works.
func TestMemoryIsAPromise(t *testing.T) {
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" && runtime.GOOS != "windows" {
		t.Skip("the peak is not known here")
	}
	c := fabricate.Geometry("mid")
	c.Layers, c.MoE.Experts, c.Vocab = 3, 64, 8192
	c.FullAttention = fabricate.FullAttention(3)
	dir := t.TempDir()
	if _, err := fabricate.Write(t.Context(), dir, fabricate.Options{Config: c, Seed: 1, Sparse: true}); err != nil {
		t.Fatal(err)
	}
	b := promiser(t, dir)
	least, most, err := b.extremes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if most < 4*least {
		t.Fatalf("the model needs %s and fits into %s: too small to show anything", ui.InMemory(least), ui.InMemory(most))
	}
	var first []int
	for _, bytes := range []int64{least, least + 16<<20, least + (most-least)/3, most} {
		ids := b.keep(t, bytes)
		if first == nil {
			first = ids
		}
		if !slices.Equal(ids, first) {
			t.Errorf("%s gives %v, the least %v", presets.Size(bytes), ids, first)
		}
	}
	if run, _ := b.run(t.Context(), setting{Memory: least - 2<<20}); run.Status != rungNoFit {
		t.Errorf("less than the least: %s %s", run.Status, run.Why)
	}
}

// TestMemoryIsAPromiseAtReleasedSize is `make promise`: it takes minutes a size. PROMISE_MODEL is the directory of a checkpoint of
// released size, or "fabricate"; PROMISE_SIZES are the sizes, otherwise 1.5 GiB, 2 GiB and those of the presets.
func TestMemoryIsAPromiseAtReleasedSize(t *testing.T) {
	dir := os.Getenv("PROMISE_MODEL")
	if dir == "" || testing.Short() {
		t.Skip("make promise")
	}
	if dir == "fabricate" {
		dir = t.TempDir()
		if _, err := fabricate.Write(t.Context(), dir, fabricate.Options{Config: fabricate.Geometry("full"), Seed: 1, Sparse: true}); err != nil {
			t.Fatal(err)
		}
	}
	var sizes []presets.Size
	if list := os.Getenv("PROMISE_SIZES"); list != "" {
		var err error
		if sizes, err = parseBudgets(strings.Split(list, ",")); err != nil {
			t.Fatal(err)
		}
	} else {
		sizes = append(sizes, 3<<29, 2<<30)
		for _, name := range presets.Names() {
			c, err := presets.Load(pflag.NewFlagSet("", pflag.ContinueOnError), []string{"K3_PRESET=" + name})
			if err != nil {
				t.Fatal(err)
			}
			if c.Model != presets.DemoModel && c.Memory.Total > 0 {
				sizes = append(sizes, c.Memory.Total)
			}
		}
	}
	b := promiser(t, dir)
	var first []int
	for _, s := range sizes {
		if free := memory.Probe().Free().Free; int64(s) > free {
			t.Logf("%s: this machine has %s free", s, ui.InMemory(free))
			continue
		}
		ids := b.keep(t, int64(s))
		if first == nil {
			first = ids
		}
		if !slices.Equal(ids, first) {
			t.Errorf("%s gives %v, not %v", s, ids, first)
		}
	}
}
