package graph_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/k3infer/k3/backends/generic"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
	"github.com/k3infer/k3/core/experts"
	"github.com/k3infer/k3/core/graph"
	"github.com/k3infer/k3/core/kernel"
	"github.com/k3infer/k3/core/memory"
	"github.com/k3infer/k3/core/tape"
)

const fixtures = "../../../shared/fixtures/checkpoints/"

// open makes a model of a checkpoint directory, everything in memory.
func open(t testing.TB, dir string, b kernel.Backend, threads, rows, positions int) *graph.Model {
	t.Helper()
	source, err := checkpoint.Open(t.Context(), disk.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	account := new(memory.Account)
	layout, err := graph.Layout(source)
	if err != nil {
		t.Fatal(err)
	}
	trunk, err := tape.Load(t.Context(), source, layout, account)
	if err != nil {
		t.Fatal(err)
	}
	store, err := experts.Load(t.Context(), source, account)
	if err != nil {
		t.Fatal(err)
	}
	pool := kernel.NewPool(b, threads)
	m, err := graph.New(graph.Options{Source: source, Pool: pool, Account: account, Tape: trunk, Experts: store, MaxRows: rows, Context: positions})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		pool.Close()
		trunk.Close()
		store.Close()
		source.Close()
		if left := account.Bytes(); len(left) != 0 {
			t.Errorf("memory left: %v", left)
		}
	})
	return m
}

// golden reads a safetensors file of expected values.
type golden struct {
	file  disk.File
	index *checkpoint.Index
}

func openGolden(t testing.TB, dir string) golden {
	files := disk.Dir(filepath.Join(dir, "expect"))
	x, err := checkpoint.ReadFile(files, "golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	f, err := files.Open("golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return golden{f, x}
}

func (g golden) raw(t testing.TB, name string) ([]byte, checkpoint.Tensor) {
	x, ok := g.index.Lookup(name)
	if !ok {
		t.Fatalf("no golden %s", name)
	}
	p := make([]byte, x.Bytes)
	if err := disk.ReadFull(g.file, p, x.Offset); err != nil {
		t.Fatal(err)
	}
	return p, x
}

func (g golden) floats(t testing.TB, name string) []float32 {
	p, _ := g.raw(t, name)
	return kernel.Widen(nil, kernel.F32, p, nil)
}

func worst(got, want []float32) (diff, scale float64) {
	for i := range want {
		diff = max(diff, math.Abs(float64(got[i])-float64(want[i])))
		scale = max(scale, math.Abs(float64(want[i])))
		if got[i] != got[i] {
			return math.Inf(1), scale
		}
	}
	return diff, scale
}

func argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

func TestAnchorLogitsAndOperators(t *testing.T) {
	dir := fixtures + "anchor-1"
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no fixtures")
	}
	g := openGolden(t, dir)
	m := open(t, dir, generic.Backend{}, 2, 16, 64)
	s, err := m.NewState()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Free()
	ids := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	logits := make([]float32, len(ids)*256)
	var rows []graph.Row
	for _, id := range ids[:8] {
		rows = append(rows, graph.Row{State: s, Token: id, Logits: true})
	}
	if err := m.Pass(context.Background(), rows, logits, graph.Hooks{}); err != nil {
		t.Fatal(err)
	}
	seen := map[string][]float32{}
	hooks := graph.Hooks{Probe: func(layer int, what string, v []float32, _ int) {
		seen[fmt.Sprintf("%d.%s", layer, what)] = append([]float32(nil), v...)
	}}
	if err := m.Pass(context.Background(), []graph.Row{{State: s, Token: 9, Logits: true}}, logits[8*256:], hooks); err != nil {
		t.Fatal(err)
	}
	check := func(what string, got, want []float32, limit float64) {
		t.Helper()
		d, scale := worst(got, want)
		t.Logf("%-40s %.2e of %.3g", what, d, scale)
		if !(d <= limit*max(scale, 1)) {
			t.Errorf("%s is off by %g", what, d)
		}
	}
	check("first-party logits", logits[8*256:], g.floats(t, "logits"), 1e-4)
	check("all logits", logits, g.floats(t, "ours.logits_all_positions_float64_rounded"), 1e-4)
	if argmax(logits[8*256:]) != 62 {
		t.Error("arg-max is", argmax(logits[8*256:]))
	}
	for ours, theirs := range map[string]string{
		"self_attention_res": "self_attention_res.out", "input_layernorm": "input_layernorm", "q_a_proj": "self_attn.q_a_proj",
		"q_a_layernorm": "self_attn.q_a_layernorm", "q_b_proj": "self_attn.q_b_proj", "kv_a_proj_with_mqa": "self_attn.kv_a_proj_with_mqa",
		"attend": "self_attn.attend.out", "self_attn": "self_attn", "mlp_res": "mlp_res.out", "post_attention_layernorm": "post_attention_layernorm",
		"routed_expert_norm": "block_sparse_moe.routed_expert_norm", "mlp": "block_sparse_moe", "output": "0",
	} {
		check(ours, seen["3."+ours], g.floats(t, "model.layers.3."+theirs), 4e-6)
	}
}
