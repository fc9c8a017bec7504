package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestOtherModelsAreNamedInOneLine(t *testing.T) {
	released := string(releasedConfig(t))
	quantized := func(with string) string {
		return string(replace(t, []byte(released), `"quantization_config": \{`, `"quantization_config": {`+with+`}, "x": {`))
	}
	for _, c := range []struct{ config, want string }{
		{`{"model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}`, "Kimi K2 (model_type kimi_k2), not Kimi K3"},
		{`{"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2"}}`, "Kimi K2.5 (model_type kimi_k25), not Kimi K3"},
		{`{"model_type": "kimi_k2_5"}`, "Kimi K2.5 (model_type kimi_k2_5), not Kimi K3"},
		{`{"model_type": "kimi_k31"}`, "Kimi K3.1 (model_type kimi_k31), not Kimi K3"},
		{`{"model_type": "kimi_k3_1", "text_config": {}}`, "Kimi K3.1 (model_type kimi_k3_1), not Kimi K3"},
		{`{"model_type": "kimi_k4"}`, "Kimi K4 (model_type kimi_k4), not Kimi K3"},
		{`{"model_type": "deepseek_v3", "vocab_size": 163840, "hidden_size": 2048}`, "Moonlight (model_type deepseek_v3), not Kimi K3"},
		{`{"model_type": "deepseek_v3", "vocab_size": 163840, "n_routed_experts": 384}`, "Kimi K2 (model_type deepseek_v3), not Kimi K3"},
		{`{"model_type": "deepseek_v3", "vocab_size": 129280}`, "DeepSeek V3, or a model made like it (model_type deepseek_v3), not Kimi K3"},
		{`{"model_type": "llama"}`, `a model with model_type "llama", not Kimi K3`},
		{`{"model_type": "a\nb"}`, `a model with model_type "a\nb", not Kimi K3`},
		{`{"architectures": ["LlamaForCausalLM"]}`, "a model of the architecture LlamaForCausalLM, not Kimi K3"},
		{`{"model_type": "kimi_linear", "hidden_act": "silu", "linear_attn_config": {"num_heads": 32}}`,
			"Kimi Linear (model_type kimi_linear), which this version of k3 does not run yet"},
		{`{"peft_type": "LORA", "base_model_name_or_path": "moonshotai/Kimi-K3"}`, "a LoRA adapter of moonshotai/Kimi-K3 (peft_type LORA), not a model"},
		{`{"peft_type": "LOHA"}`, "a LoRA adapter (peft_type LOHA), not a model"},
		{`{"speculators_model_type": "dspark", "model_type": "kimi_k3"}`, "a drafter (dspark)"},
		{`{"architectures": ["Eagle3KimiForCausalLM"], "model_type": "kimi_k3"}`, "a drafter (Eagle3KimiForCausalLM)"},
		{quantized(`"quant_method": "fp8"`), "Kimi K3 in FP8 (quantization_config), which k3 does not read"},
		{quantized(`"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"`), "Kimi K3 in NVFP4"},
		{quantized(`"quant_method": "modelopt", "quant_algo": "NVFP4"`), "Kimi K3 in NVFP4"},
		{quantized(`"quant_method": "compressed-tensors", "format": "pack-quantized"`), "Kimi K3 in integers (format pack-quantized)"},
		{quantized(`"quant_method": "gptq", "bits": 4`), "Kimi K3 in GPTQ"},
		{quantized(`"quant_method": "awq", "bits": 4`), "Kimi K3 in AWQ"},
		{strings.Replace(released, "{", `{"quantization": {"group_size": 64, "bits": 4},`, 1), "Kimi K3 in MLX (quantization)"},
	} {
		_, err := ParseConfig([]byte(c.config))
		if !errors.Is(err, ErrOther) || !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "parse config.json: this is "+c.want) ||
			strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("%.100s: %v, want %s", c.config, err, c.want)
		}
	}
	// What means to be Kimi K3 is told what is wrong with it, not that it is something else.
	for _, config := range []string{`{}`, `{"model_type": "kimi_k3"}`, `{"model_type": "kimi_linear", "hidden_act": "situ", "attn_res_block_size": 12}`,
		`{"architectures": ["KimiK3ForConditionalGeneration"]}`, `{"model_type": null}`, `{"text_config": {"model_type": "kimi_k2"}}`} {
		if _, err := ParseConfig([]byte(config)); !errors.Is(err, ErrConfig) || errors.Is(err, ErrOther) {
			t.Errorf("%s: %v", config, err)
		}
	}
	for _, name := range []string{"10-kimi-linear-48b", "11-kimi-k2", "12-kimi-k25", "44-adapter"} {
		if err := Recognise(needs(t, fixtures+"reports/11-other-model/"+name), configFile); !errors.Is(err, ErrOther) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACheckpointIsRecognisedAsOne(t *testing.T) {
	if err := Recognise(demo, configFile); err != nil {
		t.Error(err)
	}
	if err := Recognise(demo, "tokenizer.json", "tiktoken.model"); err != nil {
		t.Error(err)
	}
	// A few shards that are missing, and damage of any sort, are for Open to list.
	dir := t.TempDir()
	for name, f := range small(t, true, nil) {
		if name == shardName(1, 3) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), f.data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Recognise(dir, configFile); err != nil {
		t.Error(err)
	}
}

// What another program downloads into the folder is nothing to a checkpoint that is whole.
func TestAWholeCheckpointIsOneWhateverElseIsUnderWay(t *testing.T) {
	dir := t.TempDir()
	for name, f := range small(t, true, nil) {
		if err := os.WriteFile(filepath.Join(dir, name), f.data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "film.part"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Recognise(dir, configFile); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, shardName(1, 3))); err != nil {
		t.Fatal(err)
	}
	if err := Recognise(dir, configFile); !errors.Is(err, ErrUnfinished) {
		t.Errorf("with a shard missing: %v", err)
	}
}

// Of several revisions in a Hugging Face cache the one that its repository calls main is meant, if it is there.
func TestTheRevisionCalledMainIsProposed(t *testing.T) {
	for _, main := range []string{"aaa", "bbb", "ccc", ""} {
		dir := t.TempDir()
		repo := filepath.Join(dir, "models--moonshotai--Kimi-K3")
		write := func(name, text string) {
			t.Helper()
			path := filepath.Join(repo, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, revision := range []string{"aaa", "bbb", "ccc"} {
			write("snapshots/"+revision+"/"+configFile, "{}")
		}
		want := "aaa"
		if main != "" {
			write("refs/main", main+"\n")
			want = main
		}
		if err := Recognise(dir, configFile); err == nil || !strings.Contains(err.Error(), filepath.Join("snapshots", want)+", one of 3") {
			t.Errorf("main is %q: %v", main, err)
		}
	}
}

func TestWhatMayNotBeReadIsCalledThat(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("everything may be read here")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, configFile), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := Recognise(dir, configFile); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "config.json: this user may not read it") {
		t.Error(err)
	}
	if err := os.Chmod(dir, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(dir, 0o700)
	if err := Recognise(dir, configFile); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
}
