package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func examined(t *testing.T, files memFiles) (list []string, x *Examination) {
	t.Helper()
	x, err := Examine(context.Background(), files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	for _, p := range x.Problems {
		list = append(list, p.File+": "+p.Err.Error())
	}
	return list, x
}

func TestASoundCheckpointHasNoProblems(t *testing.T) {
	for _, quantized := range []bool{true, false} {
		for _, index := range []bool{true, false} {
			files := small(t, quantized, nil)
			if !index {
				delete(files, indexFile)
			}
			list, x := examined(t, files)
			if list != nil || x.Config == nil || x.Quantized() != quantized || x.Index.Len() == 0 || slices.Contains(x.Sound, false) || x.Shard(2) == nil {
				t.Errorf("quantized %v, index %v: %q", quantized, index, list)
			}
		}
	}
}

// One fault must not hide another.
func TestExamineListsAllThatIsWrongAtOnce(t *testing.T) {
	const l = "language_model.model.layers."
	files := small(t, true, func(s shards) {
		s.reshape(t, l+"0.input_layernorm.weight", BF16, 23)
		s.remove(t, "language_model.lm_head.weight")
	})
	files.put("generation_config.json", []byte("{"))
	// Two tensors are not where the index says.
	index := string(files[indexFile].data)
	for name, shard := range map[string]int{l + "4.self_attention_res_norm.weight": 1, l + "4.mlp_res_norm.weight": 0} {
		at := strings.Index(index, name)
		rest := strings.Replace(index[at:], shardName(2, 3), shardName(shard, 3), 1)
		if index = index[:at] + rest; !strings.Contains(rest, shardName(shard, 3)) {
			t.Fatal("nothing to replace")
		}
	}
	files.put(indexFile, []byte(index))
	truncated := files[shardName(1, 3)]
	truncated.size -= 100
	list, x := examined(t, files)
	want := []string{
		"generation_config.json: ",
		shardName(0, 3) + ": tensor " + l + "0.input_layernorm.weight is BF16 [23], where config.json asks for BF16 [24]",
		shardName(1, 3) + ": tensor ",
		"100 bytes too short",
		shardName(2, 3) + ": tensor " + l + "4.self_attention_res_norm.weight: " + indexFile + " puts it in " + shardName(1, 3),
		shardName(2, 3) + ": tensor " + l + "4.mlp_res_norm.weight: " + indexFile + " puts it in " + shardName(0, 3),
		indexFile + ": tensor language_model.lm_head.weight, which config.json asks for, is in no shard",
	}
	for _, w := range want {
		if !slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, w) }) {
			t.Errorf("%q is not in the list", w)
		}
	}
	if len(list) > len(want)+2 {
		t.Errorf("more than that: %s", strings.Join(list, "\n"))
	}
	if !slices.Equal(x.Sound, []bool{true, false, false}) {
		t.Errorf("sound: %v", x.Sound)
	}
	if t.Failed() {
		t.Log(strings.Join(list, "\n"))
	}

	files = small(t, true, nil)
	files.put("config.json", []byte(`{"hidden_size": 0}`))
	delete(files, shardName(1, 3))
	files[shardName(2, 3)].size++
	list, x = examined(t, files)
	if x.Config != nil || len(list) < 10 || !slices.Contains(list, shardName(1, 3)+": it is missing") ||
		!slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, shardName(2, 3)+": the file is 1 bytes longer") }) {
		t.Errorf("%s", strings.Join(list, "\n"))
	}
	if !x.Sound[0] || x.Sound[1] || x.Sound[2] || x.Shard(1) != nil {
		t.Errorf("sound: %v", x.Sound)
	}
}

func TestEveryFaultOfAShardsLayoutIsListed(t *testing.T) {
	files := small(t, true, nil)
	delete(files, indexFile)
	header := `{"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]},"b":{"dtype":"U8","shape":[4],"data_offsets":[3,7]},` +
		`"c":{"dtype":"U8","shape":[2],"data_offsets":[9,11]},"d":{"dtype":"U8","shape":[2],"data_offsets":[11,13]}}`
	data := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
	files.put("model.safetensors", append(data, make([]byte, 12)...))
	list, x := examined(t, files)
	for i, want := range []string{"a: it is first but starts at byte 1", "b: it overlaps a", "c: 2 unused bytes between b", "d: it ends at byte 13"} {
		if !strings.HasPrefix(list[i], "model.safetensors: tensor "+want) {
			t.Errorf("problem %d is %q, want %q", i, list[i], want)
		}
	}
	if _, ok := x.Index.Lookup("b"); !ok || x.Sound[0] {
		t.Error("its tensors are not in the index, or it is called sound")
	}
}

// Nobody can say that a tensor is missing while a shard cannot be read.
func TestTensorsOfUnreadableShardsAreNotCalledMissing(t *testing.T) {
	for _, index := range []bool{true, false} {
		files := small(t, true, nil)
		if !index {
			delete(files, indexFile)
		}
		delete(files, shardName(0, 3))
		files.put(shardName(1, 3), []byte("<html>not what you wanted</html>"))
		list, x := examined(t, files)
		if len(list) != 2 || !x.Problems[slices.IndexFunc(x.Problems, func(p Problem) bool { return p.File == shardName(0, 3) })].Missing {
			t.Errorf("index %v: %s", index, strings.Join(list, "\n"))
		}
	}
}

func TestManyProblemsAreCounted(t *testing.T) {
	files := small(t, true, nil)
	files.put("config.json", bytes.Replace(files["config.json"].data, []byte(`"num_experts": 4`), []byte(`"num_experts": 4000`), 1))
	files[shardName(0, 3)].size++ // so that it is not config.json alone that is wrong
	list, _ := examined(t, files)
	if n := len(list); n != maxProblems+1 || !strings.Contains(list[n-1], fmt.Sprintf("and %d more problems", 2+3996*6*4-maxProblems)) {
		t.Errorf("%d problems, at last %q", n, list[n-1])
	}
}

func TestExamineStopsWhenItsContextDoes(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Examine(ctx, small(t, true, nil)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// One wrong number in config.json is one problem of config.json, and a shard of another model is that shard's.
func TestConfigThatDisagreesWithAllShardsIsToBlameAlone(t *testing.T) {
	c := string(small(t, true, nil)["config.json"].data)
	for _, change := range [][2]string{
		{`"moe_intermediate_size": 64`, `"moe_intermediate_size": 96`}, {`"hidden_size": 24`, `"hidden_size": 48`}, {`"num_experts": 4`, `"num_experts": 3`},
		{`"num_experts": 4`, `"num_experts": 5`}, {"\"full_attn_layers\": [4, 5],\n   \"kda_layers\": [1, 2, 3]", "\"full_attn_layers\": [3, 4, 5],\n   \"kda_layers\": [1, 2]"}, {`"vocab_size": `, `"vocab_size": 1`},
		{`"intermediate_size": `, `"intermediate_size": 1`}, {`"kv_lora_rank": `, `"kv_lora_rank": 1`},
	} {
		if !strings.Contains(c, change[0]) {
			t.Errorf("config.json has no %s", change[0])
			continue
		}
		for _, index := range []bool{true, false} {
			files := small(t, true, nil)
			files.put("config.json", []byte(strings.Replace(c, change[0], change[1], 1)))
			if !index {
				delete(files, indexFile)
			}
			list, x := examined(t, files)
			if x.Config == nil {
				t.Errorf("%s: %s", change[1], strings.Join(list, "\n"))
				continue
			}
			if len(list) != 1 || !strings.HasPrefix(list[0], "config.json: it disagrees with all shards: ") {
				t.Errorf("%s, index %v: %.2000s", change[1], index, strings.Join(list, "\n"))
			}
		}
	}
	// Another model's shard among ours, and an expert that was lost.
	files := small(t, true, func(s shards) { s.reshape(t, "language_model.model.layers.0.input_layernorm.weight", BF16, 48) })
	if list, _ := examined(t, files); len(list) != 1 || !strings.HasPrefix(list[0], shardName(0, 3)) {
		t.Errorf("%q", list)
	}
	files = small(t, true, func(s shards) {
		for _, w := range []string{"w1.weight_packed", "w1.weight_scale", "w2.weight_packed", "w2.weight_scale", "w3.weight_packed", "w3.weight_scale"} {
			s.remove(t, "language_model.model.layers.2.block_sparse_moe.experts.1."+w)
		}
	})
	if list, _ := examined(t, files); len(list) != 6 {
		t.Errorf("%q", list)
	}
}

func TestAPartOfACheckpointSaysHowManyLayersAreThere(t *testing.T) {
	files := small(t, true, nil)
	delete(files, shardName(1, 3))
	delete(files, shardName(2, 3))
	_, err := Open(context.Background(), files)
	var p *Partial
	if !errors.As(err, &p) || !errors.Is(err, ErrFormat) || p.Layers != 2 || p.Of != 5 || len(p.Missing) != 2 || p.Files != files.Name() {
		t.Errorf("%v, %+v", err, p)
	}
	if list, x := examined(t, files); x.Layers != 2 || len(list) != 2 {
		t.Errorf("%d layers, %q", x.Layers, list)
	}
}
