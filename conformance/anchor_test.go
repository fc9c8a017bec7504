package conformance

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/k3infer/k3/core"
	"github.com/k3infer/k3/core/checkpoint"
	"github.com/k3infer/k3/core/disk"
)

// anchor is 93 layers at tiny widths, computed by the model's own authors' code: eight ids at once, then one more.
const anchor = "../../shared/fixtures/checkpoints/anchor-1"

func TestAnchorMatchesTheAuthorsOwnCode(t *testing.T) {
	if _, err := os.Stat(anchor); err != nil {
		t.Skip("no reference data here")
	}
	expect := disk.Dir(anchor + "/expect")
	index, err := checkpoint.ReadFile(expect, "golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	file, err := expect.Open("golden.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c := comparison{expect: index, file: file}
	golden := func(name string) []float32 {
		t.Helper()
		v, err := c.floats(name)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}

	seen := map[string][]float32{}
	chosen := map[int][]int{}
	e, err := core.Open(t.Context(), core.Options{
		Files:  disk.Dir(anchor),
		Probe:  func(layer int, what string, v []float32, _ int) { seen[fmt.Sprint(layer, ".", what)] = slices.Clone(v) },
		Routed: func(layer int, experts []int) { chosen[layer] = slices.Clone(experts) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := e.NewSequence()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ours, vocab := golden("ours.logits_all_positions_float64_rounded"), e.Config().Vocab
	position := 0
	pass := func(ids ...int) []float32 {
		var rows []core.Row
		for _, id := range ids {
			rows = append(rows, core.Row{Sequence: s, Token: id, Logits: true})
		}
		logits, err := e.Pass(t.Context(), rows)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range logits {
			if err := c.logits(fmt.Sprint("position ", position), l, ours[position*vocab:][:vocab]); err != nil {
				t.Error(err)
			}
			position++
		}
		return logits[len(logits)-1]
	}
	pass(1, 2, 3, 4, 5, 6, 7, 8)
	last := pass(9)
	if err := c.logits("the authors' logits", last, golden("logits")); err != nil {
		t.Error(err)
	}
	t.Logf("logits: worst %.1e", c.report.Worst)

	mla := map[string]string{
		"q_a_proj": "self_attn.q_a_proj", "q_a_layernorm": "self_attn.q_a_layernorm", "q_b_proj": "self_attn.q_b_proj",
		"kv_a_proj_with_mqa": "self_attn.kv_a_proj_with_mqa", "attend": "self_attn.attend.out",
	}
	moe := map[string]string{"routed_expert_norm": "block_sparse_moe.routed_expert_norm", "mlp": "block_sparse_moe"}
	every := map[string]string{
		"input_layernorm": "input_layernorm", "self_attn": "self_attn", "mlp_res": "mlp_res.out", "post_attention_layernorm": "post_attention_layernorm", "output": "0",
	}
	for _, layer := range []int{0, 1, 3, 12, 91, 92} {
		// Errors of earlier layers add up in later ones; layer 3 is where a wrong epsilon shows.
		limit := 4e-6
		if layer > 3 {
			limit = 1e-4
		}
		names := []map[string]string{every}
		if layer == 3 || layer > 90 {
			names = append(names, mla)
		}
		if layer > 0 {
			names = append(names, moe, map[string]string{"self_attention_res": "self_attention_res.out"})
			ids := golden(fmt.Sprintf("model.layers.%d.block_sparse_moe.gate.0", layer))
			weights := golden(fmt.Sprintf("model.layers.%d.block_sparse_moe.gate.1", layer))
			for i, id := range ids { // theirs come in no order
				at := slices.Index(chosen[layer], int(id))
				if at < 0 {
					t.Errorf("layer %d: experts %v, not %v", layer, chosen[layer], ids)
				} else if got := seen[fmt.Sprint(layer, ".expert_weights")][at]; math.Abs(float64(got-weights[i])) > 1e-5 {
					t.Errorf("layer %d: expert %g weighs %g, not %g", layer, id, got, weights[i])
				}
			}
		}
		for _, group := range names {
			for probe, name := range group {
				got, want := seen[fmt.Sprint(layer, ".", probe)], golden(fmt.Sprintf("model.layers.%d.%s", layer, name))
				if len(got) != len(want) {
					t.Errorf("layer %d: %s has %d values, not %d", layer, probe, len(got), len(want))
					continue
				}
				largest, worst := 1.0, 0.0
				for i := range want {
					largest = max(largest, math.Abs(float64(want[i])))
					worst = max(worst, math.Abs(float64(got[i])-float64(want[i])))
				}
				if !(worst <= limit*largest) {
					t.Errorf("layer %d: %s is off by %.2g", layer, probe, worst)
				}
			}
		}
	}
}
