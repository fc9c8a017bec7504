package fabricate

import (
	"encoding/json"

	"github.com/k3infer/k3/core/checkpoint"
)

// Geometries are the names that Geometry knows, from small to large.
func Geometries() []string { return []string{"tiny", "small", "mid", "full"} }

// Geometry returns the sizes of a named model, which the caller may change, or nil: tiny (5 MB), small (200 MB), mid (6 GB,
// mostly experts) and full, the released one (1.56 TB).
func Geometry(name string) *checkpoint.Config {
	c := &checkpoint.Config{ModelType: "kimi_k3", NormEps: 1e-5, DenseLayers: 1, SituBeta: 4, SituLinearBeta: 25, BOS: -1}
	c.KDA.ConvKernel, c.KDA.GateLowerBound = 4, -5
	c.MLA.OutputGate = true
	c.MoE.Shared, c.MoE.ScalingFactor, c.MoE.Renormalize, c.MoE.LatentNorm = 2, 1, true, true
	switch name {
	case "tiny":
		c.Hidden, c.Layers, c.Vocab, c.MaxPositions = 96, 8, 1536, 4096
		c.KDA.Heads, c.KDA.HeadDim = 4, 32
		c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim = 4, 48, 40, 24, 12, 32
		c.MoE.Experts, c.MoE.TopK, c.MoE.Latent, c.MoE.Intermediate = 24, 4, 64, 96
		c.DenseIntermediate, c.ResidualBlock = 320, 3
	case "small":
		c.Hidden, c.Layers, c.Vocab, c.MaxPositions = 512, 13, 16384, 32768
		c.KDA.Heads, c.KDA.HeadDim = 6, 128
		c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim = 6, 192, 128, 128, 64, 128
		c.MoE.Experts, c.MoE.TopK, c.MoE.Latent, c.MoE.Intermediate = 64, 8, 256, 256
		c.DenseIntermediate, c.ResidualBlock = 2048, 4
	case "mid":
		c.Hidden, c.Layers, c.Vocab, c.MaxPositions = 2048, 13, 32768, 131072
		c.KDA.Heads, c.KDA.HeadDim = 16, 128
		c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim = 16, 512, 256, 128, 64, 128
		c.MoE.Experts, c.MoE.TopK, c.MoE.Latent, c.MoE.Intermediate = 160, 8, 1024, 1536
		c.DenseIntermediate, c.ResidualBlock = 8192, 4
	case "full":
		c.Hidden, c.Layers, c.Vocab, c.MaxPositions = 7168, 93, 163840, 1<<20
		c.KDA.Heads, c.KDA.HeadDim = 96, 128
		c.MLA.Heads, c.MLA.QueryRank, c.MLA.LatentRank, c.MLA.NopeDim, c.MLA.RopeDim, c.MLA.ValueDim = 96, 1536, 512, 128, 64, 128
		c.MoE.Experts, c.MoE.TopK, c.MoE.Latent, c.MoE.Intermediate = 896, 16, 3584, 3072
		c.DenseIntermediate, c.ResidualBlock = 33792, 12
		c.BOS, c.EOS = 163584, []int{163586}
	default:
		return nil
	}
	c.FullAttention = FullAttention(c.Layers)
	return c
}

// FullAttention marks the MLA layers of a model as the released one has them: every fourth layer and the last.
func FullAttention(layers int) []bool {
	full := make([]bool, layers)
	for i := range full {
		full[i] = i%4 == 3 || i == layers-1
	}
	return full
}

type object = map[string]any

// vision is the part of config.json that describes what the text model does not use.
var vision = object{
	"attn_bias": false, "init_pos_emb_height": 64, "init_pos_emb_time": 4, "init_pos_emb_width": 64, "linear_bias": false,
	"merge_kernel_size": []int{2, 2}, "merge_type": "sd2_tpool", "mlp_type": "mlp2", "mm_projector_type": "patchmergerv2",
	"norm_type": "rmsnorm", "patch_embed_proj_bias": false, "patch_size": 14, "pos_emb_type": "divided_fixed",
	"qkv_hidden_size": visionAttention, "vt_hidden_size": visionHidden, "vt_intermediate_size": visionIntermediate,
	"vt_num_attention_heads": 12, "vt_num_hidden_layers": visionLayers,
}

// config is config.json in the released, nested shape.
func config(c *checkpoint.Config, quantized, withVision bool) ([]byte, error) {
	full, kda := []int{}, []int{}
	for i, mla := range c.FullAttention {
		if mla {
			full = append(full, i+1)
		} else {
			kda = append(kda, i+1)
		}
	}
	text := object{
		"model_type": "kimi_linear", "hidden_act": "situ", "dtype": "bfloat16", "tie_word_embeddings": false,
		"hidden_size": c.Hidden, "num_hidden_layers": c.Layers, "vocab_size": c.Vocab, "rms_norm_eps": c.NormEps,
		"linear_attn_config": object{
			"full_attn_layers": full, "kda_layers": kda, "num_heads": c.KDA.Heads, "head_dim": c.KDA.HeadDim,
			"short_conv_kernel_size": c.KDA.ConvKernel, "gate_lower_bound": c.KDA.GateLowerBound, "use_full_rank_gate": true,
		},
		"num_attention_heads": c.MLA.Heads, "num_key_value_heads": c.MLA.Heads, "q_lora_rank": c.MLA.QueryRank,
		"kv_lora_rank": c.MLA.LatentRank, "qk_nope_head_dim": c.MLA.NopeDim, "qk_rope_head_dim": c.MLA.RopeDim,
		"v_head_dim": c.MLA.ValueDim, "mla_use_nope": true, "mla_use_output_gate": c.MLA.OutputGate,
		"num_experts": c.MoE.Experts, "num_experts_per_token": c.MoE.TopK, "num_shared_experts": c.MoE.Shared,
		"routed_expert_hidden_size": c.MoE.Latent, "moe_intermediate_size": c.MoE.Intermediate,
		"routed_scaling_factor": c.MoE.ScalingFactor, "moe_renormalize": c.MoE.Renormalize, "latent_moe_use_norm": c.MoE.LatentNorm,
		"moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "num_expert_group": 1, "topk_group": 1,
		"topk_method": "noaux_tc", "use_grouped_topk": true, "first_k_dense_replace": c.DenseLayers,
		"intermediate_size": c.DenseIntermediate, "attn_res_block_size": c.ResidualBlock, "activation_situ_beta": c.SituBeta,
		"activation_situ_linear_beta": c.SituLinearBeta, "num_nextn_predict_layers": 0,
	}
	if c.MaxPositions > 0 {
		text["max_position_embeddings"] = c.MaxPositions
	}
	if quantized {
		const format = "mxfp4-pack-quantized"
		text["quantization_config"] = object{
			"config_groups": object{"group_0": object{
				"format": format, "targets": []string{"Linear"},
				"weights": object{
					"dynamic": false, "group_size": group, "num_bits": 4, "scale_dtype": "torch.uint8", "strategy": "group",
					"symmetric": true, "type": "float",
				},
			}},
			"format": format, "quant_method": "compressed-tensors", "quantization_status": "compressed",
			"ignore": []string{
				"re:.*self_attn.*", "re:.*shared_experts.*", `re:.*mlp\.(gate|up|gate_up|down)_proj.*`, "re:.*lm_head.*",
				"re:.*vision_tower.*", "re:.*mm_projector.*",
			},
		}
	}
	root := object{
		"architectures": []string{"KimiK3ForConditionalGeneration"}, "model_type": c.ModelType, "dtype": "bfloat16",
		"tie_word_embeddings": false, "text_config": text,
	}
	if withVision {
		v := object{"text_hidden_size": c.Hidden, "mm_hidden_size": visionHidden}
		for name, value := range vision {
			v[name] = value
		}
		root["vision_config"] = v
	}
	if c.BOS >= 0 {
		root["bos_token_id"] = c.BOS
	}
	if len(c.EOS) > 0 {
		root["eos_token_id"] = c.EOS[0]
	}
	return pretty(root)
}

// generationConfig is generation_config.json.
func generationConfig(c *checkpoint.Config) ([]byte, error) {
	g := object{}
	if c.MaxPositions > 0 {
		g["max_length"] = c.MaxPositions
	}
	if len(c.EOS) > 0 {
		g["eos_token_id"] = c.EOS
	}
	return pretty(g)
}

// pretty writes JSON with sorted keys, as the released files have them.
func pretty(v object) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, err // a float that is no number
	}
	return append(data, '\n'), nil
}
