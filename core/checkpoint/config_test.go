package checkpoint

import (
	"errors"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// replace changes one field of a config's text: the first match of the pattern, which must be there.
func replace(t testing.TB, data []byte, pattern, with string) []byte {
	t.Helper()
	at := regexp.MustCompile(pattern).FindIndex(data)
	if at == nil {
		t.Fatalf("no %s", pattern)
	}
	return append(append(append([]byte(nil), data[:at[0]]...), with...), data[at[1]:]...)
}

// bases are configs of the released geometry: our own, and the released file where the fixtures are.
func bases(t *testing.T) map[string][]byte {
	m := map[string][]byte{"own": releasedConfig(t)}
	if data, err := os.ReadFile(fixtures + "config-released.json"); err == nil {
		m["released"] = data
	}
	return m
}

func TestReleasedConfigGivesTheReleasedGeometry(t *testing.T) {
	for name, data := range bases(t) {
		c, err := ParseConfig(data)
		if err != nil {
			t.Fatal(name, err)
		}
		want := released()
		if name == "own" {
			want.MaxPositions = 4096
			want.BOS, want.EOS = 163584, []int{163586}
		}
		if !reflect.DeepEqual(c, want) {
			t.Errorf("%s: %+v", name, c)
		}
		mla := 0
		for _, full := range c.FullAttention {
			if full {
				mla++
			}
		}
		if mla != 24 || !c.FullAttention[3] || c.FullAttention[4] || !c.FullAttention[92] || c.KDAWidth() != 12288 {
			t.Error(mla, c.KDAWidth())
		}
	}
}

func TestRefusesConfigsOfOtherOrBrokenModels(t *testing.T) {
	const lists = `(?s)"full_attn_layers": \[[^]]*\]`
	for _, c := range []struct{ pattern, with, want string }{
		{`"num_experts_per_token": 16`, `"num_experts_per_token": 0`, "text_config.num_experts_per_token is 0, not an integer from 1 to 896"},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": -1`, "num_experts_per_token is -1"},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": 16.5`, "num_experts_per_token is 16.5"},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": 16.0`, "num_experts_per_token is 16.0"},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": 1.6e1`, "num_experts_per_token is 1.6e1"},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": "16"`, `num_experts_per_token is "16"`},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": true`, "num_experts_per_token is true"},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": null`, "num_experts_per_token is null"},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": [16]`, "num_experts_per_token is a list"},
		{`"num_experts_per_token": 16`, `"num_experts_per_token": 897`, "num_experts_per_token is 897, not an integer from 1 to 896"},
		{`"num_experts_per_token": 16,`, ``, "text_config.num_experts_per_token is missing"},
		{`"num_experts_per_token"`, `"Num_Experts_Per_Token"`, "text_config.num_experts_per_token is missing"},
		{`"hidden_size": 7168`, `"hidden_size": 1e10`, "text_config.hidden_size is 1e10, not an integer"},
		{`"hidden_size": 7168`, `"hidden_size": 10000000000`, "hidden_size is 10000000000, not an integer from 1 to 1048576"},
		{`"hidden_size": 7168`, `"hidden_size": 18446744073709551617`, "hidden_size is 18446744073709551617"},
		{`"hidden_size": 7168`, `"hidden_size": 0`, "hidden_size is 0"},
		{`"num_hidden_layers": 93`, `"num_hidden_layers": 10000000000`, "num_hidden_layers is 10000000000"},
		{lists, `"full_attn_layers": []`, "full_attn_layers marks 0 of 93"},
		{lists, `"full_attn_layers": [0,4]`, "text_config.linear_attn_config.full_attn_layers has 0, not an integer from 1 to 93"},
		{lists, `"full_attn_layers": [4,94]`, "full_attn_layers has 94"},
		{lists, `"full_attn_layers": [4.5]`, "full_attn_layers has 4.5"},
		{lists, `"full_attn_layers": ["4"]`, `full_attn_layers has "4"`},
		{lists, `"full_attn_layers": [4,4,8]`, "full_attn_layers has layer 4 twice"},
		{lists, `"full_attn_layers": [-1]`, "full_attn_layers has -1"},
		{lists, `"full_attn_layers": [9223372036854775808]`, "full_attn_layers has 9223372036854775808"},
		{lists, `"full_attn_layers": 4`, "full_attn_layers is 4, not a list"},
		{lists, `"full_attn_layers": null`, "full_attn_layers is null, not a list"},
		{lists + `,`, ``, "linear_attn_config.full_attn_layers is missing"},
		{lists, `"full_attn_layers": [4,8]`, "kda_layers contradicts full_attn_layers about layer 12"},
		{`"kda_layers": \[\s*1,`, `"kda_layers": [1,4,`, "kda_layers contradicts full_attn_layers about layer 4"},
		{`"kda_layers": \[\s*1,`, `"kda_layers": [`, "kda_layers contradicts full_attn_layers about layer 1"},
		{`"kda_layers": \[\s*1,`, `"kda_layers": [1,1,`, "kda_layers has layer 1 twice"},
		{`"kda_layers": \[\s*1,`, `"kda_layers": [0,`, "kda_layers has 0"},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": 0`, "rms_norm_eps is 0, not a finite number above 0"},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": -1e-05`, "rms_norm_eps is -1e-05"},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": NaN`, "where a value is needed"},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": 1e999`, "rms_norm_eps is 1e999"},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": 1e39`, "rms_norm_eps is 1e39"},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": 1e-60`, "rms_norm_eps is 1e-60"},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": "1e-05"`, `rms_norm_eps is "1e-05"`},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": true`, "rms_norm_eps is true"},
		{`"hidden_act": "situ"`, `"hidden_act": "silu"`, `hidden_act is "silu", only "situ"`},
		{`"hidden_act": "situ"`, `"hidden_act": 1`, `hidden_act is 1, only "situ"`},
		{`"moe_router_activation_func": "sigmoid"`, `"moe_router_activation_func": "softmax"`, `"softmax", only "sigmoid"`},
		{`"mla_use_nope": true`, `"mla_use_nope": false`, "mla_use_nope is false, only true"},
		{`"mla_use_nope": true`, `"mla_use_nope": "true"`, `mla_use_nope is "true", only true`},
		{`"use_full_rank_gate": true`, `"use_full_rank_gate": false`, "use_full_rank_gate is false"},
		{`"num_expert_group": 1`, `"num_expert_group": 2`, "num_expert_group is 2, only 1"},
		{`"moe_layer_freq": 1`, `"moe_layer_freq": 2`, "moe_layer_freq is 2, only 1"},
		{`"group_size": 32`, `"group_size": 64`, "text_config.quantization_config.config_groups.group_0.weights.group_size is 64, only 32"},
		{`"num_bits": 4`, `"num_bits": 8`, "num_bits is 8, only 4"},
		{`"type": "float"`, `"type": "int"`, `weights.type is "int"`},
		{`"format": "mxfp4-pack-quantized",\s*"(targets|input)`, `"format": "pack-quantized", "$1`, `group_0.format is "pack-quantized"`},
		{`"format": "mxfp4-pack-quantized",\s*"(config_groups|global|quantization)`, `"format": "nvfp4", "x`, `format is "nvfp4", only "mxfp4-pack-quantized"`},
		{`"format": "mxfp4-pack-quantized",\s*"(config_groups|global|quantization)`, `"x`, "text_config.quantization_config.format is missing"},
		{`"moe_intermediate_size": 3072`, `"moe_intermediate_size": 3070`, "must be multiples of 32"},
		{`"routed_expert_hidden_size": 3584`, `"routed_expert_hidden_size": 3600`, "must be multiples of 32"},
		{`"attn_res_block_size": 12`, `"attn_res_block_size": 0`, "attn_res_block_size is 0"},
		{`"short_conv_kernel_size": 4`, `"short_conv_kernel_size": 0`, "short_conv_kernel_size is 0"},
		{`"first_k_dense_replace": 1`, `"first_k_dense_replace": -1`, "first_k_dense_replace is -1, not an integer from 0 to 93"},
		{`"first_k_dense_replace": 1`, `"first_k_dense_replace": 94`, "first_k_dense_replace is 94"},
		{`"gate_lower_bound": -5.0`, `"gate_lower_bound": 0`, "gate_lower_bound is 0, not a finite number below 0"},
		{`"activation_situ_beta": 4.0`, `"activation_situ_beta": 0`, "activation_situ_beta is 0"},
		{`"routed_scaling_factor": 1.0`, `"routed_scaling_factor": -1`, "routed_scaling_factor is -1"},
		{`"moe_renormalize": true`, `"moe_renormalize": 1`, "moe_renormalize is 1, not true or false"},
		{`"latent_moe_use_norm": true`, `"latent_moe_use_norm": "true"`, `latent_moe_use_norm is "true", not true or false`},
		{`"mla_use_output_gate": true`, `"mla_use_output_gate": null`, "mla_use_output_gate is null, not true or false"},
		{`"max_position_embeddings": \d+`, `"max_position_embeddings": 0`, "max_position_embeddings is 0"},
		{`"model_type": "kimi_linear"`, `"model_type": "deepseek_v3"`, `text_config.model_type is "deepseek_v3"`},
		{`"model_type": "kimi_k3"`, `"model_type": "llama"`, `this is a model with model_type "llama", not Kimi K3`},
		{`"model_type": "kimi_k3"`, `"model_type": 3`, "model_type is 3"},
		{`"model_type": "kimi_k3",`, ``, "model_type is missing"},
		{`"eos_token_id": 163586`, `"eos_token_id": 163840`, "eos_token_id has 163840, not a token id from 0 to 163839"},
		{`"eos_token_id": 163586`, `"eos_token_id": [163586, -1]`, "eos_token_id has -1"},
		{`"eos_token_id": 163586`, `"eos_token_id": "x"`, `eos_token_id has "x"`},
		{`"bos_token_id": 163584`, `"bos_token_id": 1.5`, "bos_token_id has 1.5"},
		{`(?s)"linear_attn_config": \{.*?\}`, `"linear_attn_config": 5`, "linear_attn_config is 5, not an object"},
		{`(?s)"linear_attn_config": \{.*?\},`, ``, "text_config.kda_num_heads is missing"},
		{`"text_config": \{`, `"text_config": 1, "x": {`, "text_config is 1, not an object"},
		{`"text_config": \{`, `"text_config": null, "x": {`, "text_config is null, not an object"},
		{`"hidden_size": 7168`, `"hidden_size": 7168, "hidden_size": 7168`, `the key "hidden_size" a second time`},
		{`"hidden_size": 7168`, `"hidden_size": 7168, "hidden_siz\u0065": 7168`, `the key "hidden_size" a second time`},
		{`"hidden_size": 7168`, `"hidden_size": 7168, // a comment`, "where a string is needed"},
		{`(?s)"hidden_size".*`, ``, "the text ends"},
		{`(?s).*`, ``, "the text ends"},
		{`(?s).*`, `null`, "null where an object is needed"},
		{`(?s).*`, `[]`, "a list where an object is needed"},
	} {
		for name, data := range bases(t) {
			_, err := ParseConfig(replace(t, data, c.pattern, c.with))
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %s: %v, want %s", name, c.with, err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		}
	}
	for name, data := range bases(t) {
		for _, where := range []string{`"text_config": \{`, `"model_type": "kimi_k3",`} {
			with := strings.ReplaceAll(where, `\`, "") + `"tie_word_embeddings": true,`
			bad := replace(t, []byte(strings.ReplaceAll(string(data), `"tie_word_embeddings": false`, `"x": 0`)), where, with)
			bad = []byte(strings.Replace(strings.Replace(string(bad), `"x": 0`, `"x1": 0`, 1), `"x": 0`, `"x2": 0`, 1))
			if _, err := ParseConfig(bad); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "tie_word_embeddings is true, only false") {
				t.Errorf("%s, %s: %v", name, where, err)
			}
		}
	}
}

func TestSizesWhoseProductsOverflowAreRefused(t *testing.T) {
	data := string(releasedConfig(t))
	for old, new := range map[string]string{`"num_experts": 896`: `"num_experts": 65536`, `"num_hidden_layers": 93`: `"num_hidden_layers": 4096`,
		`"moe_intermediate_size": 3072`: `"moe_intermediate_size": 16777216`, `"routed_expert_hidden_size": 3584`: `"routed_expert_hidden_size": 1048576`} {
		data = strings.Replace(data, old, new, 1)
	}
	data = string(replace(t, []byte(data), `(?s)"kda_layers": \[[^]]*\]`, `"x": 0`))
	if _, err := ParseConfig([]byte(data)); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "more than 2^63 bytes") {
		t.Error(err)
	}
}

func TestEveryLayerMarkedFullIsRefused(t *testing.T) {
	data := strings.Replace(string(testdata(t, "flat.json")), "4,\n  5", "1, 2, 3, 4, 5", 1)
	if _, err := ParseConfig([]byte(data)); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "full_attn_layers marks 5 of 5 layers") {
		t.Error(err)
	}
}

func TestAcceptsConfigsThatDifferInWhatDoesNotMatter(t *testing.T) {
	base := string(testdata(t, "small.json"))
	want, err := ParseConfig([]byte(base))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, new string }{
		{`"hidden_size": 24`, `"hidden_size": 24, "Hidden_Size": 7, "unknown": [{"hidden_size": "x"}], "head_dim2": null`},
		{`"head_dim": 7`, `"head_dim": "no number", "kda_num_heads": 77, "kda_head_dim": 78, "gate_lower_bound": 9`},
		{`"hidden_act": "situ"`, `"hidden_act": null`},
		{`"hidden_act": "situ",`, ``},
		{`"moe_router_activation_func": "sigmoid",`, ``},
		{`"mla_use_nope": true,`, ``},
		{`"num_expert_group": 1,`, ``},
		{`"mla_use_output_gate": true,`, ``},
		{`"moe_renormalize": true,`, ``},
		{`"latent_moe_use_norm": true,`, ``},
		{`"model_type": "kimi_k3"`, `"model_type": "kimi\u005fk3"`},
		{`"routed_scaling_factor": 1.0`, `"routed_scaling_factor": 1`},
		{`"rms_norm_eps": 1e-05`, `"rms_norm_eps": 0.00001`},
		{`"model_type": "kimi_linear",`, ``},
		{`"use_full_rank_gate": true,`, ``},
		{`"tie_word_embeddings": false,`, ``},
		{`"group_size": 32,`, ``},
		{`"bos_token_id": 44`, `"bos_token_id": [44]`},
		{`"eos_token_id": 46`, `"eos_token_id": [46]`},
		{`"full_attn_layers": [4, 5]`, `"full_attn_layers": [5, 4]`},
		{`"kda_layers": [1, 2, 3]`, `"kda_layers": [3, 1, 2]`},
		{`"kda_layers": [1, 2, 3]`, `"kda_layers": null`},
	} {
		if !strings.Contains(base, c.old) {
			t.Fatalf("no %s", c.old)
		}
		got, err := ParseConfig([]byte(strings.Replace(base, c.old, c.new, 1)))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %+v", c.new, err, got)
		}
	}
	if want.KDA.Heads != 3 || want.KDA.HeadDim != 8 {
		t.Error("linear_attn_config's heads are taken from elsewhere:", want.KDA)
	}
}

func TestBooleansAreReadWhenTheyAreThere(t *testing.T) {
	base := string(testdata(t, "small.json"))
	for field, get := range map[string]func(*Config) *bool{
		"mla_use_output_gate": func(c *Config) *bool { return &c.MLA.OutputGate },
		"moe_renormalize":     func(c *Config) *bool { return &c.MoE.Renormalize },
		"latent_moe_use_norm": func(c *Config) *bool { return &c.MoE.LatentNorm },
	} {
		want, _ := ParseConfig([]byte(base))
		*get(want) = false
		got, err := ParseConfig([]byte(strings.Replace(base, `"`+field+`": true`, `"`+field+`": false`, 1)))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v %+v", field, err, got)
		}
	}
}

func TestFlatAndNestedShapesGiveTheSameGeometry(t *testing.T) {
	same := func(t *testing.T, nested, flat []byte) {
		t.Helper()
		want, err := ParseConfig(nested)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseConfig(flat)
		if err != nil {
			t.Fatal(err)
		}
		want.ModelType, want.EOS, want.BOS, want.MaxPositions, want.Quantized = "", nil, -1, 0, false
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	t.Run("own", func(t *testing.T) { same(t, testdata(t, "small.json"), testdata(t, "flat.json")) })
	for _, name := range []string{"mx-small", "mx-odd"} {
		t.Run(name, func(t *testing.T) {
			dir := needs(t, fixtures+"checkpoints/"+name)
			nested, err := os.ReadFile(dir + "/config.json")
			if err != nil {
				t.Fatal(err)
			}
			flat, err := os.ReadFile(dir + "/expect/config.flat.json")
			if err != nil {
				t.Fatal(err)
			}
			same(t, nested, flat)
		})
	}
}

func TestFlatShapeMayHaveAModelTypeButNoOtherModels(t *testing.T) {
	flat := string(testdata(t, "flat.json"))
	for modelType, ok := range map[string]bool{`"kimi_linear"`: true, `"kimi_k3"`: true, `"deepseek_v3"`: false, "null": false} {
		c, err := ParseConfig([]byte(strings.Replace(flat, "{", `{"model_type": `+modelType+`,`, 1)))
		if (err == nil) != ok || ok && `"`+c.ModelType+`"` != modelType {
			t.Errorf("%s: %v", modelType, err)
		}
	}
}

func TestEveryMissingFieldIsListedAtOnce(t *testing.T) {
	_, err := ParseConfig([]byte(`{"model_type":"kimi_k3","text_config":{"linear_attn_config":{}}}`))
	if !errors.Is(err, ErrConfig) {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(`hidden_size num_hidden_layers vocab_size rms_norm_eps linear_attn_config.num_heads linear_attn_config.head_dim
		linear_attn_config.short_conv_kernel_size linear_attn_config.gate_lower_bound linear_attn_config.full_attn_layers num_attention_heads
		q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim num_experts num_experts_per_token num_shared_experts
		routed_expert_hidden_size moe_intermediate_size routed_scaling_factor first_k_dense_replace intermediate_size attn_res_block_size`) {
		if !strings.Contains(err.Error(), "text_config."+field+" is missing") {
			t.Errorf("no %s in %v", field, err)
		}
	}
	if n := strings.Count(err.Error(), "is missing"); n != 26 {
		t.Errorf("%d fields in %v", n, err)
	}
	flat, err := ParseConfig([]byte(`{}`))
	if flat != nil || strings.Count(err.Error(), "is missing") != 26 || !strings.Contains(err.Error(), " kda_num_heads is missing") {
		t.Error(err)
	}
}

func TestEosMayBeAListAndIsGatheredWithoutRepeats(t *testing.T) {
	data := string(testdata(t, "small.json"))
	data = strings.Replace(data, `"eos_token_id": 46`, `"eos_token_id": [46, 45, 46]`, 1)
	c, err := ParseConfig([]byte(data))
	if err != nil || !reflect.DeepEqual(c.EOS, []int{46, 45}) {
		t.Error(err, c)
	}
}

// FuzzConfig holds that a config is either refused in one line, or gives a geometry that is safe to use.
func FuzzConfig(f *testing.F) {
	f.Add(testdata(f, "small.json"))
	f.Add(testdata(f, "flat.json"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			if !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		if len(c.FullAttention) != c.Layers || c.MoE.TopK > c.MoE.Experts || c.DenseLayers > c.Layers || !(c.NormEps > 0) {
			t.Fatalf("%+v", c)
		}
		n := 0
		for s := range Required(c, c.Quantized) {
			if _, ok := byteSize(s.DType, s.Shape); !ok || s.Name() == "" {
				t.Fatalf("%s %v", s.Name(), s.Shape)
			}
			if n++; n == 1000 {
				break
			}
		}
	})
}
