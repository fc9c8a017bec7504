#!/usr/bin/python3
"""Makes the small checkpoints of conformance/testdata and their goldens: python3 fabricate.py [NAME ...]

Deterministic: the same numpy gives the same files. Weights are seeded random numbers of the statistics of a trained
model rather than of a fresh one: activations of order one, experts that differ, gates that are neither open nor shut,
memories from one token to a hundred. check() refuses a model whose goldens could hide a mistake (dull logits, idle
experts, weights quantised to zero) or punish an honest one (choices so close that float32 may decide otherwise), and
the next seed is tried.

The three models share the architecture and differ in everything a reader of checkpoints can meet:

  tiny-mx     released form: nested config, index, BF16 trunk with F32 beside it, MXFP4 experts, three shards, one
              layer's experts in two of them. Scale bytes of 0 and other small ones.
  tiny-plain  flat config, one file without an index, everything F32, plain experts; two dense layers; no
              renormalisation; a bias that changes the choice; A_log padded with numbers that must not count; two
              experts that always tie; norms whose epsilon matters.
  tiny-f16    nested config, three shards without an index, tensors in no order, at odd addresses; F16 trunk with
              subnormal weights, BF16 experts; no MLA output gate, no norm of the routed experts; a convolution of one
              tap; A_log of one entry a head.
"""
import json
import os
import shutil
import sys

import numpy as np

import k3oracle
import tensorfile

TESTDATA = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "testdata")

PROMPT, POSITIONS = 12, 24  # positions after the prompt are the greedy continuation
ROUTER_GAP = 1e-4  # between any two of the k+1 best biased scores, unless they tie exactly
TOP1_MARGIN = 1e-3  # between the best and the second logit, of the largest absolute logit

# Sizes are odd on purpose: no two alike where a mix-up would go unseen, few multiples of a vector register.
MODELS = {
    "tiny-mx": dict(
        hidden_size=44, num_hidden_layers=6, vocab_size=173, rms_norm_eps=1e-5,
        kda_num_heads=3, kda_head_dim=32, short_conv_kernel_size=3, gate_lower_bound=-5.0, full_attn_layers=[3, 5, 6],
        num_attention_heads=5, q_lora_rank=21, kv_lora_rank=28, qk_nope_head_dim=12, qk_rope_head_dim=6, v_head_dim=10,
        mla_use_output_gate=True, num_experts=7, num_experts_per_token=3, num_shared_experts=2,
        routed_expert_hidden_size=64, moe_intermediate_size=32, routed_scaling_factor=2.5, moe_renormalize=True,
        latent_moe_use_norm=True, first_k_dense_replace=1, intermediate_size=77, attn_res_block_size=3,
        situ_beta=4.0, situ_linear_beta=25.0,
    ),
    "tiny-plain": dict(
        hidden_size=28, num_hidden_layers=6, vocab_size=131, rms_norm_eps=1e-4,
        kda_num_heads=2, kda_head_dim=18, short_conv_kernel_size=4, gate_lower_bound=-3.5, full_attn_layers=[2, 5, 6],
        num_attention_heads=3, q_lora_rank=14, kv_lora_rank=11, qk_nope_head_dim=10, qk_rope_head_dim=4, v_head_dim=7,
        mla_use_output_gate=True, num_experts=7, num_experts_per_token=2, num_shared_experts=1,
        routed_expert_hidden_size=22, moe_intermediate_size=19, routed_scaling_factor=1.7, moe_renormalize=False,
        latent_moe_use_norm=True, first_k_dense_replace=2, intermediate_size=45, attn_res_block_size=2,
        situ_beta=3.0, situ_linear_beta=7.0,
    ),
    "tiny-f16": dict(
        hidden_size=36, num_hidden_layers=4, vocab_size=101, rms_norm_eps=1e-6,
        kda_num_heads=5, kda_head_dim=12, short_conv_kernel_size=1, gate_lower_bound=-5.0, full_attn_layers=[1, 4],
        num_attention_heads=2, q_lora_rank=33, kv_lora_rank=19, qk_nope_head_dim=9, qk_rope_head_dim=5, v_head_dim=13,
        mla_use_output_gate=False, num_experts=6, num_experts_per_token=4, num_shared_experts=3,
        routed_expert_hidden_size=35, moe_intermediate_size=17, routed_scaling_factor=0.8, moe_renormalize=True,
        latent_moe_use_norm=False, first_k_dense_replace=1, intermediate_size=61, attn_res_block_size=3,
        situ_beta=5.0, situ_linear_beta=15.0,
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# Weights


class Weights:
    """Tensors of one model in the released order: (name, dtype, array)."""

    def __init__(self, name, seed):
        self.name, self.s = name, MODELS[name]
        self.r = np.random.RandomState(seed)  # the generator numpy promises never to change
        self.tensors = []
        self.trunk = {"tiny-mx": "BF16", "tiny-plain": "F32", "tiny-f16": "F16"}[name]
        self.small = {"tiny-mx": "F32", "tiny-plain": "F32", "tiny-f16": "F16"}[name]  # convolutions, A_log, dt_bias...

    def put(self, name, array, dtype=None):
        self.tensors.append(("language_model." + name, dtype or self.trunk, np.asarray(array)))

    def matrix(self, rows, columns, gain=1.0):
        return self.r.randn(rows, columns) * gain / np.sqrt(columns)

    def linear(self, name, rows, columns, gain=1.0):
        self.put(name + ".weight", self.matrix(rows, columns, gain))

    def norm(self, name, width, dtype=None):
        self.put(name + ".weight", 1 + 0.25 * self.r.randn(width), dtype)

    def build(self):
        s = self.s
        for layer in range(s["num_hidden_layers"]):
            self.layer(layer)
        E, V = s["hidden_size"], s["vocab_size"]
        self.put("model.embed_tokens.weight", self.r.randn(V, E) * 0.8)
        self.linear("lm_head", V, E, 3.0)
        self.norm("model.norm", E)
        self.attnres("model.output_attn_res", E)
        return self.tensors

    def attnres(self, name, E):
        norm, proj = 1 + 0.25 * self.r.randn(E), self.r.randn(1, E) * 1.5 / np.sqrt(E)
        if self.name == "tiny-f16":  # the same product, from weights below the smallest normal number
            norm, proj = norm * 2.0**14, proj * 2.0**-14
        self.put(name + "_norm.weight", norm)
        self.put(name + "_proj.weight", proj)

    def layer(self, layer):
        s, name = self.s, f"model.layers.{layer}"
        E = s["hidden_size"]
        self.norm(name + ".input_layernorm", E)
        self.attnres(name + ".mlp_res", E)
        self.norm(name + ".post_attention_layernorm", E)
        full = layer + 1 in s["full_attn_layers"]
        (self.mla if full else self.kda)(layer, name + ".self_attn")
        self.attnres(name + ".self_attention_res", E)
        if layer < s["first_k_dense_replace"]:
            self.mlp(name + ".mlp", s["intermediate_size"])
        else:
            self.moe(layer, name + ".block_sparse_moe")

    def mlp(self, name, width):
        E = self.s["hidden_size"]
        self.linear(name + ".down_proj", E, width, 1.2)
        self.linear(name + ".gate_proj", width, E, 1.8)
        self.linear(name + ".up_proj", width, E, 1.8)

    def kda(self, layer, name):
        s, r = self.s, self.r
        E, H, D, K = s["hidden_size"], s["kda_num_heads"], s["kda_head_dim"], s["short_conv_kernel_size"]
        P = H * D
        a_log = r.uniform(-0.8, 1.0, H)
        padding = {"tiny-mx": np.zeros(D - H), "tiny-plain": r.uniform(-0.8, 1.0, D - H), "tiny-f16": []}[self.name]
        self.put(name + ".A_log", np.concatenate([a_log, padding]), self.small)
        self.linear(name + ".b_proj", H, E, 1.5)
        self.put(name + ".dt_bias", r.uniform(-5, 0, P), self.small)
        self.linear(name + ".f_a_proj", D, E)
        self.linear(name + ".f_b_proj", P, D, 1.5)
        self.linear(name + ".g_proj", P, E, 1.5)
        for part in "kqv":
            self.put(f"{name}.{part}_conv1d.weight", r.randn(P, 1, K) * 0.6, self.small)
            weight = self.matrix(P, E, 1.5)
            if self.name == "tiny-plain" and part in "kq":  # one faint head, so that the epsilon of l2norm counts
                head = (layer + (part == "q")) % H
                weight[head * D : (head + 1) * D] *= 0.002
            self.put(f"{name}.{part}_proj.weight", weight)
        self.norm(name + ".o_norm", D, self.small)
        self.linear(name + ".o_proj", E, P, 1.5)

    def mla(self, layer, name):
        s = self.s
        E, H, ql, kvl = s["hidden_size"], s["num_attention_heads"], s["q_lora_rank"], s["kv_lora_rank"]
        nope, rope, v = s["qk_nope_head_dim"], s["qk_rope_head_dim"], s["v_head_dim"]
        if s["mla_use_output_gate"]:
            self.linear(name + ".g_proj", H * v, E, 1.5)
        # Faint inputs of the two latent norms make their own epsilon visible; the rope rows are not normed and stay.
        kv = self.matrix(kvl + rope, E, 1.5)
        kv[:kvl] *= 0.04
        self.norm(name + ".kv_a_layernorm", kvl)
        self.put(name + ".kv_a_proj_with_mqa.weight", kv)
        self.linear(name + ".kv_b_proj", H * (nope + v), kvl, 1.8)
        self.linear(name + ".o_proj", E, H * v, 2.0)
        self.norm(name + ".q_a_layernorm", ql)
        self.linear(name + ".q_a_proj", ql, E, 0.06)
        self.linear(name + ".q_b_proj", H * (nope + rope), ql, 1.8)

    def moe(self, layer, name):
        s, r = self.s, self.r
        E, N, L, I = s["hidden_size"], s["num_experts"], s["routed_expert_hidden_size"], s["moe_intermediate_size"]
        bias, gate = r.randn(N) * 0.12, self.matrix(N, E, 1.4)
        if self.name == "tiny-plain":  # experts 1 and 4 tie exactly: the lower index goes first
            gate[4], bias[4] = gate[1], bias[1]
        self.put(name + ".gate.e_score_correction_bias", bias, self.small)
        self.put(name + ".gate.weight", gate)
        self.linear(name + ".routed_expert_down_proj", L, E)
        if s["latent_moe_use_norm"]:
            self.norm(name + ".routed_expert_norm", L)
        self.linear(name + ".routed_expert_up_proj", E, L, 1.2)
        self.mlp(name + ".shared_experts", I * s["num_shared_experts"])
        # The norm of the sum takes any common factor out again, and would hide a wrong one if eps were nothing beside it.
        faint = 0.02 if self.name == "tiny-plain" else 1
        for e in sorted(range(N), key=str):
            for part, rows, columns, gain in (("w1", I, L, 2), ("w2", L, I, 2 * faint), ("w3", I, L, 2)):
                self.expert(f"{name}.experts.{e}.{part}.weight", self.matrix(rows, columns, gain))

    def expert(self, name, weight):
        if self.name != "tiny-mx":
            self.put(name, weight, {"tiny-plain": "F32", "tiny-f16": "BF16"}[self.name])
            return
        # Rows of unlike size, so that the scales differ, and here and there a block that has all but vanished.
        weight = weight * np.exp(0.5 * self.r.randn(len(weight), 1))
        packed, scale = quantise(weight)
        faint = self.r.rand(*scale.shape) < 0.02
        scale[faint] = self.r.choice([0, 0, 1, 23, 90, 108], size=np.count_nonzero(faint))
        self.put(name + "_packed", packed, "U8")
        self.put(name + "_scale", scale, "U8")


def quantise(weight):
    """Nearest MXFP4: packed nibbles and scale bytes, the largest of each 32 weights in the top octave."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows, columns // 32, 32)
    exponent = np.floor(np.log2(np.max(np.abs(blocks), axis=-1))).astype(int) - 2
    scaled = np.abs(blocks) / np.exp2(exponent)[..., None]
    code = np.argmin(np.abs(np.minimum(scaled, 6)[..., None] - tensorfile.E2M1[:8]), axis=-1).astype(np.uint8)
    code |= np.signbit(blocks).astype(np.uint8) << 3
    code = code.reshape(rows, columns)
    return code[:, 0::2] | (code[:, 1::2] << 4), (exponent + 127).astype(np.uint8)


# ---------------------------------------------------------------------------------------------------------------------
# Files


def nested(s, quantised):
    """The released spelling of a flat config."""
    linear = dict(
        full_attn_layers=s["full_attn_layers"], gate_lower_bound=s["gate_lower_bound"], head_dim=s["kda_head_dim"],
        kda_layers=[n for n in range(1, s["num_hidden_layers"] + 1) if n not in s["full_attn_layers"]],
        num_heads=s["kda_num_heads"], short_conv_kernel_size=s["short_conv_kernel_size"], use_full_rank_gate=True,
    )
    moved = {"short_conv_kernel_size", "gate_lower_bound", "full_attn_layers", "situ_beta", "situ_linear_beta"}
    text = {k: v for k, v in s.items() if k not in moved and not k.startswith("kda_")}
    text.update(
        activation_situ_beta=s["situ_beta"], activation_situ_linear_beta=s["situ_linear_beta"], hidden_act="situ",
        linear_attn_config=linear, mla_use_nope=True, model_type="kimi_linear", moe_layer_freq=1,
        moe_router_activation_func="sigmoid", num_expert_group=1, num_key_value_heads=s["num_attention_heads"],
        num_nextn_predict_layers=0, tie_word_embeddings=False, topk_group=1, topk_method="noaux_tc", use_grouped_topk=True,
    )
    if quantised:
        weights = dict(
            dynamic=False, group_size=32, num_bits=4, scale_dtype="torch.uint8", strategy="group", symmetric=True, type="float"
        )
        text["quantization_config"] = dict(
            config_groups=dict(group_0=dict(format="mxfp4-pack-quantized", targets=["Linear"], weights=weights)),
            format="mxfp4-pack-quantized", quant_method="compressed-tensors", quantization_status="compressed",
            ignore=["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*", "re:.*lm_head.*"],
        )
    return dict(
        architectures=["KimiK3ForConditionalGeneration"], model_type="kimi_k3",
        eos_token_id=s["vocab_size"] - 1, tie_word_embeddings=False, text_config=text,
    )


def write_json(path, value, **form):
    with open(path, "w") as f:
        json.dump(value, f, **form)
        f.write("\n")


def save(name, tensors, directory):
    """Writes the checkpoint the way its name promises."""
    s = MODELS[name]
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory + "/expect")
    n = len(tensors)
    if name == "tiny-plain":
        write_json(directory + "/config.json", s, indent=1)
        tensorfile.write(directory + "/model.safetensors", tensors, {"format": "pt"})
        return
    write_json(directory + "/config.json", nested(s, name == "tiny-mx"), indent=1)
    if name == "tiny-f16":
        order = np.random.RandomState(1).permutation(n)
        tensors = [tensors[i] for i in order]
        shards = [tensors[: n // 5], tensors[n // 5 : n // 2], tensors[n // 2 :]]
    else:  # cut inside the experts of layers 2 and 4
        cuts = ("2.block_sparse_moe.experts.4.w2.weight_scale", "4.block_sparse_moe.experts.5.w3.weight_scale")
        at = [i for i, t in enumerate(tensors) if t[0].endswith(cuts)]
        shards = [tensors[: at[0]], tensors[at[0] : at[1]], tensors[at[1] :]]
    index = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):06d}.safetensors"
        if name == "tiny-f16":
            tensorfile.write(f"{directory}/{file}", shard, remainder=2 * i + 1, by_name=True)
        else:
            tensorfile.write(f"{directory}/{file}", shard, {"format": "pt"})
        index.update({t[0]: file for t in shard})
    if name == "tiny-mx":
        total = sum(len(tensorfile.encode(dtype, array)) for _, dtype, array in tensors)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
        write_json(directory + "/model.safetensors.index.json", index, separators=(",", ":"))


# ---------------------------------------------------------------------------------------------------------------------
# Goldens


def router_gap(biased, k):
    """The smallest gap that is not zero between neighbours of the k+1 best, and how often an exact tie decided."""
    best = -np.sort(-biased, axis=-1)[..., : k + 1]
    gaps = best[..., :-1] - best[..., 1:]
    return np.min(gaps[gaps > 0]), int(np.sum(gaps[..., -1] == 0))


def top1_margin(logits):
    best = -np.sort(-logits, axis=-1)
    return np.min((best[:, 0] - best[:, 1]) / np.max(np.abs(logits), axis=-1))


def check(model, result):
    """What makes a golden worth having; returns the first thing that is wrong, and the figures."""
    c = model.c
    gap, ties = router_gap(result["biased"], c.top_k)
    margin = top1_margin(result["logits"])
    spread = float(np.mean(np.std(result["logits"], axis=1)))
    distinct = len(set(result["logits"].argmax(1)))
    varied = len(set(result["logits"].argmax(1)[PROMPT - 1 : -1]))
    used = min(len(np.unique(layer)) for layer in result["expert_ids"]) / c.experts
    flips = []  # whether the bias changed which experts are chosen
    for layer, (chosen, biased) in enumerate(zip(result["expert_ids"], result["biased"]), c.dense_layers):
        bias = model.w(f"model.layers.{layer}.block_sparse_moe.gate.e_score_correction_bias")
        flips += [set(picked) != set(k3oracle.topk(b - bias, c.top_k)) for picked, b in zip(chosen, biased)]
    flips = np.mean(flips)
    zero = max(
        np.mean(model.w(f"model.layers.{n}.block_sparse_moe.experts.{e}.{w}.weight") == 0)
        for n in range(c.dense_layers, c.layers) for e in range(c.experts) for w in ("w1", "w2", "w3")
    )
    growth = np.max(np.abs(result["layer_output"]))
    figures = (
        f"router gap {gap:.1e} ({ties} ties), top-1 margin {margin:.1e}, logit spread {spread:.2f}, {distinct} arg-max ids, "
        f"experts used {used:.0%}, bias decides {flips:.0%}, zero weights {zero:.0%}, largest layer output {growth:.1f}"
    )
    wrong = [
        text for bad, text in (
            (not np.all(np.isfinite(result["logits"])), "logits not finite"),
            (gap <= ROUTER_GAP, "router gap"), (margin <= TOP1_MARGIN, "top-1 margin"),
            (not 1 < spread < 10, "logit spread"), (distinct < POSITIONS // 2, "arg-max ids"),
            (varied < 8, "continuation repeats"), (used < 0.6, "experts idle"), (flips < 0.1, "bias does nothing"),
            (zero > 0.2, "weights are zero"), (growth > 100, "layer outputs"),
        ) if bad
    ]
    return wrong, figures


def make(name, seed):
    """Writes model and golden for one seed; returns what is wrong with it."""
    directory = os.path.join(TESTDATA, name)
    save(name, Weights(name, seed).build(), directory)
    model = k3oracle.Model(directory)
    ids = [int(i) for i in np.random.RandomState(seed).permutation(model.c.vocab)[:PROMPT]]
    ids += model.generate(ids, POSITIONS - PROMPT)[0]
    result = model.run(ids)
    wrong, figures = check(model, result)
    single = k3oracle.Model(directory, np.float32).run(ids)
    rounding = np.max(np.max(np.abs(single["logits"] - result["logits"]), 1) / np.max(np.abs(result["logits"]), 1))
    if rounding > 1e-5:
        wrong.append("float32 rounding")
    print(f"{name} seed {seed}: {', '.join(wrong) or 'good'}; {figures}, float32 {rounding:.1e}", flush=True)
    metadata = {"producer": "conformance/oracle/fabricate.py, float64", "seed": str(seed), "prompt": str(PROMPT)}
    tensorfile.write(directory + "/expect/golden.safetensors", k3oracle.golden_tensors(ids, result), metadata)
    return wrong


def main():
    for name in sys.argv[1:] or MODELS:
        if name not in MODELS:
            sys.exit(f"fabricate: no model {name}; there are {', '.join(MODELS)}")
        for seed in range(1, 200):
            if not make(name, seed):
                break
        else:
            sys.exit(f"fabricate: no good seed for {name}")


if __name__ == "__main__":
    main()
