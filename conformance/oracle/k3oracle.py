#!/usr/bin/python3
"""The Kimi K3 text model in plain float64: the reference the engine is measured against.

Run by hand; needs Python 3 and numpy, nothing else:

    python3 k3oracle.py CHECKPOINT --ids 1,2,3 [--generate N] [--out golden.safetensors]

It is written from the model's description and reads like it: one token at a time, one formula a line, keys and values
of the full-attention layers expanded for every head (the engine keeps the latent and never expands it), weights widened
to float64, no care for speed. It shares no code, no order of summation and no storage layout with the engine.

How far it is from other implementations (verify.py prints it all, README.md has the table):
  - Moonshot's own code in float32, 93 layers at tiny widths: logits 1.5e-5 of the largest, which is their rounding over
    93 layers; each operator of layer 3 from the captured inputs within 7.6e-7 (the limit is 4e-6), the same experts;
  - two checkpoints in released form with another author's float64 goldens: logits 5.6e-8 of the largest, which is the
    rounding of the stored float32; the same experts and arg-max ids at all positions.
"""
import argparse
import json
import os
import sys

import numpy as np

import tensorfile

MLA_NORM_EPS = 1e-6  # of q_a_layernorm and kv_a_layernorm, whatever rms_norm_eps says
L2_EPS = 1e-6


# ---------------------------------------------------------------------------------------------------------------------
# Building blocks


def rmsnorm(x, w, eps):
    return x * w / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def l2norm(x):
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def situ(g, u, b1, b2):
    return b1 * np.tanh(g / b1) * sigmoid(g) * b2 * np.tanh(u / b2)


def softmax(x):
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def topk(biased, k):
    """Indices of the k largest, largest first; of equals the lower index first."""
    return np.argsort(-biased, kind="stable")[:k]


# ---------------------------------------------------------------------------------------------------------------------
# config.json, in the released nested spelling or the flat one


class Config:
    def __init__(self, path):
        with open(path) as f:
            top = json.load(f)
        text = top.get("text_config", top)
        linear = text.get("linear_attn_config")
        if linear is None:
            linear = dict(text, num_heads=text["kda_num_heads"], head_dim=text["kda_head_dim"])
        beta = "activation_situ_beta" if "activation_situ_beta" in text else "situ_beta"

        self.hidden = text["hidden_size"]
        self.layers = text["num_hidden_layers"]
        self.vocab = text["vocab_size"]
        self.eps = text["rms_norm_eps"]
        self.kda_heads = linear["num_heads"]
        self.kda_dim = linear["head_dim"]
        self.taps = linear["short_conv_kernel_size"]
        self.lower_bound = linear["gate_lower_bound"]
        self.full_attention = {n - 1 for n in linear["full_attn_layers"]}  # the file counts from one
        self.heads = text["num_attention_heads"]
        self.q_lora = text["q_lora_rank"]
        self.kv_lora = text["kv_lora_rank"]
        self.nope = text["qk_nope_head_dim"]
        self.rope = text["qk_rope_head_dim"]
        self.v_dim = text["v_head_dim"]
        self.mla_gate = text.get("mla_use_output_gate", True)
        self.experts = text["num_experts"]
        self.top_k = text["num_experts_per_token"]
        self.renormalize = text.get("moe_renormalize", True)
        self.latent_norm = text.get("latent_moe_use_norm", True)
        self.scaling = text["routed_scaling_factor"]
        self.dense_layers = text["first_k_dense_replace"]
        self.block = text["attn_res_block_size"]
        self.b1 = text[beta]
        self.b2 = text[beta.replace("beta", "linear_beta")]


# ---------------------------------------------------------------------------------------------------------------------
# The model


class State:
    """What one sequence remembers: per KDA layer S and the last inputs of the convolutions, per MLA layer all keys and
    values."""

    def __init__(self, c):
        self.kda, self.taps, self.keys, self.values = {}, {}, {}, {}
        for layer in range(c.layers):
            if layer in c.full_attention:
                self.keys[layer], self.values[layer] = [], []
            else:
                self.kda[layer] = np.zeros((c.kda_heads, c.kda_dim, c.kda_dim))
                for part in "qkv":
                    self.taps[layer, part] = [np.zeros(c.kda_heads * c.kda_dim)] * (c.taps - 1)


class Model:
    """A checkpoint directory as float64 arrays. step() is the whole model for one token."""

    def __init__(self, directory, dtype=np.float64):
        self.c = Config(os.path.join(directory, "config.json"))
        self.checkpoint = tensorfile.Checkpoint(directory)
        self.dtype = dtype  # float32 only to see how much rounding there is to expect
        self.cache = {}
        self.notes = {}  # values of the last step by tensor name, for goldens and comparisons

    def w(self, name):
        """A tensor of the checkpoint; an expert's matrix in whichever form it is stored."""
        if name not in self.cache:
            if self.checkpoint.has(name):
                value = self.checkpoint.read(name)
            else:
                value = tensorfile.mxfp4(self.checkpoint.read(name + "_packed"), self.checkpoint.read(name + "_scale"))
            self.cache[name] = value.astype(self.dtype)
        return self.cache[name]

    def linear(self, name, x):
        return self.note(name, self.w(name + ".weight") @ x)

    def note(self, name, value):
        self.notes[name] = value
        return value

    def start(self):
        return State(self.c)

    def step(self, state, token):
        """Logits after one more token."""
        h = self.w("model.embed_tokens.weight")[token]
        blocks = []
        for layer in range(self.c.layers):
            h = self.layer(state, layer, h, blocks)
        h = self.note("model.output_attn_res.out", self.attnres(blocks + [h], "model.output_attn_res"))
        h = self.note("model.norm", rmsnorm(h, self.w("model.norm.weight"), self.c.eps))
        return self.linear("lm_head", h)

    def layer(self, state, layer, h, blocks):
        name = f"model.layers.{layer}"
        run = h
        if blocks:
            h = self.attnres(blocks + [run], name + ".self_attention_res")
            self.note(name + ".self_attention_res.out", h)
        if layer % self.c.block == 0:
            blocks.append(run)
            run = None

        x = self.note(name + ".input_layernorm", rmsnorm(h, self.w(name + ".input_layernorm.weight"), self.c.eps))
        attention = self.mla if layer in self.c.full_attention else self.kda
        a = self.note(name + ".self_attn", attention(state, layer, x, name + ".self_attn"))
        run = a if run is None else run + a

        h = self.note(name + ".mlp_res.out", self.attnres(blocks + [run], name + ".mlp_res"))
        x = rmsnorm(h, self.w(name + ".post_attention_layernorm.weight"), self.c.eps)
        self.note(name + ".post_attention_layernorm", x)
        m = self.dense(x, name + ".mlp") if layer < self.c.dense_layers else self.moe(x, name + ".block_sparse_moe")
        return self.note(name + ".0", run + m)

    def attnres(self, sources, name):
        """Softmax attention over earlier residuals. Keys are normed, what is summed is raw."""
        query = self.w(name + "_norm.weight") * self.w(name + "_proj.weight")[0]
        sources = np.stack(sources)
        keys = rmsnorm(sources, 1, self.c.eps)
        p = softmax(keys @ query)
        return p @ sources

    # KDA: linear attention with a constant state ----------------------------------------------------------------------

    def shortconv(self, state, layer, part, x, name):
        """Causal depthwise convolution, then SiLU. Tap 0 is the oldest input."""
        window = state.taps[layer, part] + [x]
        state.taps[layer, part] = window[1:]
        taps = self.w(f"{name}.{part}_conv1d.weight")[:, 0, :]
        y = sum(taps[:, j] * window[j] for j in range(self.c.taps))
        return self.note(f"{name}.{part}_conv1d.0", silu(y))

    def kda_inputs(self, state, layer, x, name):
        """q, k, v [heads][width] of one token, after convolution and normalisation."""
        shape = (self.c.kda_heads, self.c.kda_dim)
        q, k, v = (
            self.shortconv(state, layer, part, self.linear(f"{name}.{part}_proj", x), name).reshape(shape) for part in "qkv"
        )
        return l2norm(q) * self.c.kda_dim**-0.5, l2norm(k), v

    def decay(self, x, name):
        """alpha [heads][width]: how much of each key channel's memory is kept."""
        shape = (self.c.kda_heads, self.c.kda_dim)
        z = self.linear(name + ".f_b_proj", self.linear(name + ".f_a_proj", x)).reshape(shape)
        dt_bias = self.w(name + ".dt_bias").reshape(shape)
        a_log = self.w(name + ".A_log")[: self.c.kda_heads, None]  # one per head; what follows is padding
        return np.exp(self.c.lower_bound * sigmoid(np.exp(a_log) * (z + dt_bias)))

    def delta_rule(self, S, q, k, v, alpha, beta):
        """One token of the recurrence for one head. S is [key channel][value channel]; returns the new S and o."""
        S = alpha[:, None] * S
        u = k @ S
        S = S + np.outer(k, beta * (v - u))
        return S, q @ S

    def kda_output(self, o, gate, name):
        """First the norm over each head, then the gate."""
        o = rmsnorm(o, self.w(name + ".o_norm.weight"), self.c.eps).reshape(-1)
        return o * sigmoid(gate)

    def kda(self, state, layer, x, name):
        q, k, v = self.kda_inputs(state, layer, x, name)
        beta = sigmoid(self.linear(name + ".b_proj", x))
        alpha = self.decay(x, name)
        o = np.zeros((self.c.kda_heads, self.c.kda_dim), self.dtype)
        S = state.kda[layer].astype(self.dtype)
        for h in range(self.c.kda_heads):
            S[h], o[h] = self.delta_rule(S[h], q[h], k[h], v[h], alpha[h], beta[h])
        state.kda[layer] = S
        self.note(name.replace("self_attn", "kda") + ".fused_recurrent_kda.out.o", o)
        self.note(name.replace("self_attn", "kda") + ".fused_recurrent_kda.out.state", S)
        gated = self.kda_output(o, self.linear(name + ".g_proj", x), name)
        return self.linear(name + ".o_proj", self.note(name + ".o_proj.in_gated", gated))

    # Gated MLA: full attention without positions ------------------------------------------------------------------------

    def mla_latent(self, x, name):
        """lat, normed, and kr, which is neither normed nor rotated and is the same for all heads."""
        c = self.linear(name + ".kv_a_proj_with_mqa", x)
        lat = rmsnorm(c[: self.c.kv_lora], self.w(name + ".kv_a_layernorm.weight"), MLA_NORM_EPS)
        return self.note(name + ".kv_a_layernorm", lat), c[self.c.kv_lora :]

    def mla_expand(self, lat, kr, name):
        """Keys [heads][nope+rope] and values [heads][v] of one position."""
        both = self.linear(name + ".kv_b_proj", lat).reshape(self.c.heads, self.c.nope + self.c.v_dim)
        shared = np.broadcast_to(kr, (self.c.heads, self.c.rope))
        return np.concatenate([both[:, : self.c.nope], shared], axis=1), both[:, self.c.nope :]

    def mla_query(self, x, name):
        q = self.linear(name + ".q_a_proj", x)
        q = self.note(name + ".q_a_layernorm", rmsnorm(q, self.w(name + ".q_a_layernorm.weight"), MLA_NORM_EPS))
        return self.linear(name + ".q_b_proj", q).reshape(self.c.heads, self.c.nope + self.c.rope)

    def mla_score(self, q, keys):
        """Scores [heads][positions]."""
        return np.einsum("hd,shd->hs", q, keys) * (self.c.nope + self.c.rope) ** -0.5

    def mla_output(self, o, x, name):
        if self.c.mla_gate:
            o = o * sigmoid(self.linear(name + ".g_proj", x))
        return self.note(name + ".o_proj.in_gated", o)

    def mla(self, state, layer, x, name):
        q = self.mla_query(x, name)
        key, value = self.mla_expand(*self.mla_latent(x, name), name)
        state.keys[layer].append(key)
        state.values[layer].append(value)
        p = self.note(name + ".attend.probs", softmax(self.mla_score(q, np.stack(state.keys[layer]))))
        o = np.einsum("hs,shv->hv", p, np.stack(state.values[layer]))
        self.note(name + ".attend.out", o)
        return self.linear(name + ".o_proj", self.mla_output(o.reshape(-1), x, name))

    # Feed-forward ------------------------------------------------------------------------------------------------------

    def situ(self, g, u):
        return situ(g, u, self.c.b1, self.c.b2)

    def dense(self, x, name):
        """A gated MLP: the dense layers and the shared experts."""
        h = self.situ(self.linear(name + ".gate_proj", x), self.linear(name + ".up_proj", x))
        return self.note(name, self.linear(name + ".down_proj", self.note(name + ".act_fn", h)))

    def scores(self, x, name):
        """Router scores of all experts. Summed row by row, so that equal rows give exactly equal scores."""
        return sigmoid(np.sum(self.w(name + ".gate.weight") * x, axis=1))

    def route(self, x, name):
        """The chosen experts in descending biased score, and their weights. The bias chooses and does not weigh."""
        score = self.scores(x, name)
        biased = score + self.w(name + ".gate.e_score_correction_bias")
        picked = topk(biased, self.c.top_k)
        self.note(name + ".gate.biased", biased)
        return picked, self.weigh(score, biased, picked)

    def weigh(self, score, biased, picked):
        weights = score[picked]
        if self.c.renormalize:
            weights = weights / (np.sum(weights) + 1e-20)
        return weights * self.c.scaling

    def expert(self, e, z, name):
        w1, w2, w3 = (self.w(f"{name}.experts.{e}.{part}.weight") for part in ("w1", "w2", "w3"))
        return w2 @ self.situ(w1 @ z, w3 @ z)

    def routed(self, picked, weights, z, name):
        """The weighted sum of the experts, normed as a whole."""
        y = sum(weight * self.expert(e, z, name) for e, weight in zip(picked, weights))
        if self.c.latent_norm:
            y = rmsnorm(y, self.w(name + ".routed_expert_norm.weight"), self.c.eps)
        return self.note(name + ".routed_expert_norm", y)

    def moe(self, x, name):
        picked, weights = self.route(x, name)
        self.note(name + ".gate.0", picked)
        self.note(name + ".gate.1", weights)
        y = self.routed(picked, weights, self.linear(name + ".routed_expert_down_proj", x), name)
        y = self.linear(name + ".routed_expert_up_proj", y)
        return self.note(name, y + self.dense(x, name + ".shared_experts"))

    # Whole sequences ----------------------------------------------------------------------------------------------------

    def run(self, ids, record=True):
        """Evaluates a sequence; returns logits [T][vocab] and, of every position, layer outputs, experts and weights."""
        c, state = self.c, self.start()
        moe_layers = range(c.dense_layers, c.layers)
        logits, outputs, experts, weights, biased = [], [], [], [], []
        for token in ids:
            logits.append(self.step(state, token))
            if record:
                outputs.append([self.notes[f"model.layers.{n}.0"] for n in range(c.layers)])
                gates = [f"model.layers.{n}.block_sparse_moe.gate" for n in moe_layers]
                experts.append([self.notes[g + ".0"] for g in gates])
                weights.append([self.notes[g + ".1"] for g in gates])
                biased.append([self.notes[g + ".biased"] for g in gates])
        result = {"logits": np.stack(logits)}
        if record:
            by_layer = lambda rows: np.stack(rows).swapaxes(0, 1)
            result.update(layer_output=by_layer(outputs), expert_ids=by_layer(experts))
            result.update(expert_weights=by_layer(weights), biased=by_layer(biased))
        return result

    def generate(self, ids, count, stop=()):
        """Greedy continuation: count tokens, or fewer when a stop id comes (it is included). Lowest id among equals.

        Returns the new ids and the logits each was chosen from."""
        state, new, rows = self.start(), [], []
        for token in ids:
            logits = self.step(state, token)
        while True:
            new.append(int(np.argmax(logits)))
            rows.append(logits)
            if len(new) == count or new[-1] in stop:
                return new, rows
            logits = self.step(state, new[-1])


def golden_tensors(ids, result):
    """The tensors of a golden file, in float32 and int32."""
    return [
        ("ids", "I32", np.array(ids)),
        ("logits", "F32", result["logits"]),
        ("layer_output", "F32", result["layer_output"]),
        ("expert_ids", "I32", result["expert_ids"]),
        ("expert_weights", "F32", result["expert_weights"]),
    ]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("checkpoint")
    p.add_argument("--ids", required=True, help="token ids, comma separated")
    p.add_argument("--generate", type=int, default=0, metavar="N", help="continue greedily by N tokens and print their ids")
    p.add_argument("--out", help="write ids, logits, layer outputs, experts and weights of every position to this file")
    args = p.parse_args()
    model = Model(args.checkpoint)
    ids = [int(i) for i in args.ids.split(",")]
    bad = [i for i in ids if not 0 <= i < model.c.vocab]
    if bad:
        sys.exit(f"k3oracle: ids {bad} are outside the vocabulary of {model.c.vocab}")
    if args.generate:
        new, _ = model.generate(ids, args.generate)
        print(",".join(map(str, new)))
        ids += new[:-1]
    if args.out or not args.generate:
        result = model.run(ids)
        if args.out:
            tensorfile.write(args.out, golden_tensors(ids, result), {"producer": "k3oracle float64"})
        else:
            for t, row in enumerate(result["logits"]):
                best = np.argsort(-row, kind="stable")[:5]
                print(t, ids[t], " ".join(f"{i}:{row[i]:.6f}" for i in best))


if __name__ == "__main__":
    main()
