#!/usr/bin/python3
"""Shows that the committed goldens catch mistakes: python3 mistakes.py [--markdown] [WORD ...]

Each entry of MISTAKES changes a line or two of a fresh copy of the oracle, which then evaluates the ids of every golden
of conformance/testdata. A mistake is caught where the logits differ by more than 1e-4 of the largest logit of the
position, the limit the engine is held to. Exits 1 if a mistake gets past all of them. WORDs choose the mistakes whose
name has one; --markdown prints the table of README.md. All of them take four minutes.
"""
import importlib.util
import inspect
import os
import sys
import textwrap

import numpy as np

import tensorfile

HERE = os.path.dirname(os.path.abspath(__file__))
TESTDATA = os.path.join(os.path.dirname(HERE), "testdata")
DEMO = os.path.join(os.path.dirname(os.path.dirname(HERE)), "presets", "demo", "checkpoint")
GOLDENS = ["tiny-mx", "tiny-plain", "tiny-f16", "demo"]
LIMIT = 1e-4


def rotate(y, position):
    """What rotary embeddings would do to [heads][rope], for the mistake of applying them."""
    half = y.shape[1] // 2
    angle = position * 10000.0 ** (-np.arange(half) / half)
    a, b = y[:, :half], y[:, half : 2 * half]
    turned = [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle), y[:, 2 * half :]]
    return np.concatenate(turned, axis=1)


# name: edits, each (function, old text, new text). A name without a dot is a method of Model.
MISTAKES = {
    # The five that still produce fluent text
    "A_log per channel": [("decay", "[: self.c.kda_heads, None]", "[None, :]")],
    "rope slots dropped, scale nope^-0.5": [
        ("mla_score", '"hd,shd->hs", q, keys', '"hd,shd->hs", q[:, : self.c.nope], keys[:, :, : self.c.nope]'),
        ("mla_score", "(self.c.nope + self.c.rope)", "self.c.nope"),
    ],
    "weights from the biased scores": [("weigh", "score[picked]", "biased[picked]")],
    "nibbles swapped": [("tensorfile.mxfp4", "[packed & 15, packed >> 4]", "[packed >> 4, packed & 15]")],
    "gate before norm in KDA": [
        ("kda_output", "rmsnorm(o,", "rmsnorm(o * sigmoid(gate).reshape(o.shape),"),
        ("kda_output", "return o * sigmoid(gate)", "return o"),
    ],
    # Norms
    "rms_norm_eps in both MLA norms": [
        ("mla_latent", "MLA_NORM_EPS", "self.c.eps"),
        ("mla_query", "MLA_NORM_EPS", "self.c.eps"),
    ],
    "rms_norm_eps in q_a_layernorm": [("mla_query", "MLA_NORM_EPS", "self.c.eps")],
    "rms_norm_eps in kv_a_layernorm": [("mla_latent", "MLA_NORM_EPS", "self.c.eps")],
    "rms_norm_eps always 1e-5": [("Config.__init__", 'text["rms_norm_eps"]', "1e-5")],
    "rms_norm_eps always 1e-6": [("Config.__init__", 'text["rms_norm_eps"]', "1e-6")],
    "o_norm with eps 1e-6": [("kda_output", "self.c.eps", "1e-6")],
    "attention-residual keys with eps 1e-6": [("attnres", "self.c.eps", "1e-6")],
    "routed_expert_norm with eps 1e-6": [("routed", "self.c.eps", "1e-6")],
    "eps outside the root": [("k3oracle.rmsnorm", "np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)",
                              "(np.sqrt(np.mean(x * x, axis=-1, keepdims=True)) + eps)")],
    "l2norm of the mean": [("k3oracle.l2norm", "np.sum", "np.mean")],
    "l2norm without eps": [("k3oracle.l2norm", " + L2_EPS", "")],
    "l2norm with rms_norm_eps of 1e-5": [("k3oracle.l2norm", "L2_EPS", "1e-5")],
    "l2norm over all heads": [("k3oracle.l2norm", "x * x, axis=-1, keepdims=True", "x * x")],
    "o_norm over all heads": [
        ("kda_output", "rmsnorm(o, self.w(name + \".o_norm.weight\"),",
         "rmsnorm(o.reshape(-1), np.tile(self.w(name + \".o_norm.weight\"), self.c.kda_heads),"),
    ],
    "o_norm missing": [("kda_output", "rmsnorm(o, self.w(name + \".o_norm.weight\"), self.c.eps)", "o")],
    "latent norm missing": [("routed", "if self.c.latent_norm:", "if False:")],
    "latent norm on each expert": [
        ("routed", "weight * self.expert(e, z, name)",
         "weight * rmsnorm(self.expert(e, z, name), self.w(name + \".routed_expert_norm.weight\"), self.c.eps)"),
        ("routed", "if self.c.latent_norm:", "if False:"),
    ],
    "latent norm before the weights": [
        ("routed", "weight * self.expert", "self.expert"),
        ("routed", "self.c.eps)\n", "self.c.eps) * np.sum(weights)\n"),
    ],
    "kr normed": [("mla_latent", "c[self.c.kv_lora :]", "rmsnorm(c[self.c.kv_lora :], 1, MLA_NORM_EPS)")],
    "latent and kr normed as one": [
        ("mla_latent", "    lat =", "    c = rmsnorm(c, 1, MLA_NORM_EPS)\n    lat ="),
    ],
    "q_a_layernorm missing": [("mla_query", "rmsnorm(q, self.w(name + \".q_a_layernorm.weight\"), MLA_NORM_EPS)", "q")],
    "final norm missing": [("step", "rmsnorm(h, self.w(\"model.norm.weight\"), self.c.eps)", "h")],
    # KDA
    "output before the write": [
        ("delta_rule", "u = k @ S", "u, before = k @ S, S"),
        ("delta_rule", "q @ S", "q @ before"),
    ],
    "read before the decay": [("delta_rule", "S = alpha[:, None] * S\n    u = k @ S", "u = k @ S\n    S = alpha[:, None] * S")],
    "decay after the write": [
        ("delta_rule", "S = alpha[:, None] * S\n", "pass\n"),
        ("delta_rule", "(v - u))", "(v - u))\n    S = alpha[:, None] * S"),
    ],
    "decay over the value channels": [("delta_rule", "alpha[:, None] * S", "alpha[None, :] * S")],
    "state read along the values": [("delta_rule", "u = k @ S", "u = S @ k")],
    "state written without the read": [("delta_rule", "(v - u)", "v")],
    "beta doubled": [("kda", "beta = sigmoid", "beta = 2 * sigmoid")],
    "q not scaled": [("kda_inputs", " * self.c.kda_dim**-0.5", "")],
    "k scaled like q": [("kda_inputs", "l2norm(k)", "l2norm(k) * self.c.kda_dim**-0.5")],
    "v normed too": [("kda_inputs", "l2norm(k), v", "l2norm(k), l2norm(v)")],
    "v without its SiLU": [("shortconv", "silu(y)", "silu(y) if part != 'v' else y")],
    "convolution taps reversed": [("shortconv", "taps[:, j]", "taps[:, -1 - j]")],
    "convolution without SiLU": [("shortconv", "silu(y)", "y")],
    "convolution history lost": [("shortconv", "= window[1:]", "= state.taps[layer, part]")],
    "convolution one position late": [("shortconv", "state.taps[layer, part] + [x]", "[0 * x] + state.taps[layer, part] + [x]")],
    "q and k exchanged": [("kda_inputs", "q, k, v = (", "k, q, v = (")],
    "decay bound always -5": [("Config.__init__", 'linear["gate_lower_bound"]', "-5.0")],
    "decay of Kimi Linear (softplus)": [
        ("decay", "np.exp(self.c.lower_bound * sigmoid(np.exp(a_log) * (z + dt_bias)))",
         "np.exp(-np.exp(a_log) * np.log1p(np.exp(z + dt_bias)))"),
    ],
    "dt_bias outside exp(A_log)": [("decay", "np.exp(a_log) * (z + dt_bias)", "np.exp(a_log) * z + dt_bias")],
    "dt_bias missing": [("decay", "(z + dt_bias)", "z")],
    "A_log not exponentiated": [("decay", "np.exp(a_log) * (", "a_log * (")],
    "KDA gate with SiLU": [("kda_output", "sigmoid(gate)", "silu(gate)")],
    "KDA gate missing": [("kda_output", "return o * sigmoid(gate)", "return o")],
    # MLA
    "MLA gate missing": [("mla_output", "if self.c.mla_gate:", "if False:")],
    "MLA output normed like KDA's": [("mla_output", "o = o *", "o = rmsnorm(o, 1, self.c.eps) *")],
    "score scale nope^-0.5": [("mla_score", "(self.c.nope + self.c.rope)", "self.c.nope")],
    "rope slots left out of the score": [
        ("mla_score", '"hd,shd->hs", q, keys', '"hd,shd->hs", q[:, : self.c.nope], keys[:, :, : self.c.nope]'),
    ],
    "rope slots rotated": [
        ("mla", "    state.keys[layer].append(key)\n",
         "    for y in (q, key):\n"
         "        y[:, self.c.nope :] = rotate(y[:, self.c.nope :], len(state.keys[layer]))\n"
         "    state.keys[layer].append(key)\n"),
    ],
    "rope before nope in the query": [
        ("mla_query", "return self.linear(name + \".q_b_proj\", q)", "q = self.linear(name + \".q_b_proj\", q)"),
        ("mla_query", "self.c.nope + self.c.rope)", "self.c.nope + self.c.rope)\n    return np.roll(q, -self.c.rope, axis=1)"),
    ],
    "kv_b: all keys, then all values": [
        ("mla_expand", ".reshape(self.c.heads, self.c.nope + self.c.v_dim)",
         "\n    n = self.c.heads * self.c.nope"
         "\n    both = np.concatenate([both[:n].reshape(self.c.heads, -1), both[n:].reshape(self.c.heads, -1)], axis=1)"),
    ],
    "kv_b: values before keys": [
        ("mla_expand", "[both[:, : self.c.nope], shared]", "[both[:, self.c.v_dim :], shared]"),
        ("mla_expand", "both[:, self.c.nope :]", "both[:, : self.c.v_dim]"),
    ],
    "rope slots before the latent": [
        ("mla_latent", "rmsnorm(c[: self.c.kv_lora]", "rmsnorm(c[self.c.rope :]"),
        ("mla_latent", "c[self.c.kv_lora :]", "c[: self.c.rope]"),
    ],
    "kv_a_layernorm missing": [
        ("mla_latent", "rmsnorm(c[: self.c.kv_lora], self.w(name + \".kv_a_layernorm.weight\"), MLA_NORM_EPS)",
         "c[: self.c.kv_lora]"),
    ],
    # Attention residuals
    "boundary residual also a source": [
        ("layer", "run = None", "boundary, run = [run], None"),
        ("layer", "run = h\n", "run, boundary = h, []\n"),
        ("layer", "blocks + [run], name + \".mlp_res\"", "blocks + boundary + [run], name + \".mlp_res\""),
    ],
    "residual not restarted at a boundary": [("layer", "        run = None\n", "")],
    "snapshot before the first attnres": [
        ("layer", "run = h\n", "run = h\n    if layer % self.c.block == 0: blocks.append(run)\n"),
        ("layer", "        blocks.append(run)\n        run = None", "        run = None"),
    ],
    "snapshot of the mixed residual": [("layer", "        blocks.append(run)\n", "        blocks.append(h)\n")],
    "boundary one layer early": [("layer", "layer % self.c.block", "(layer + 1) % self.c.block")],
    "normed sources summed": [("attnres", "p @ sources", "p @ keys")],
    "keys not normed": [("attnres", "rmsnorm(sources, 1, self.c.eps)", "sources")],
    "norm weight left out of the score": [("attnres", 'self.w(name + "_norm.weight") * ', "")],
    "scores scaled by hidden^-0.5": [("attnres", "softmax(keys @ query)", "softmax(keys @ query * self.c.hidden**-0.5)")],
    "first attnres skipped": [("layer", "if blocks:", "if False:")],
    "last attnres skipped": [("step", 'self.attnres(blocks + [h], "model.output_attn_res")', "h")],
    "MLP added to the mixed residual": [("layer", "run + m", "h + m")],
    # Mixture and dense layers
    "ties: higher index first": [
        ("k3oracle.topk", 'np.argsort(-biased, kind="stable")', 'len(biased) - 1 - np.argsort(-biased[::-1], kind="stable")'),
    ],
    "bias left out of the choice": [("route", "topk(biased,", "topk(score,")],
    "bias inside the sigmoid": [("scores", "axis=1)", 'axis=1) + self.w(name + ".gate.e_score_correction_bias")')],
    "router with softmax": [("scores", "sigmoid(", "softmax(")],
    "always renormalised": [("weigh", "if self.c.renormalize:", "if True:")],
    "never renormalised": [("weigh", "if self.c.renormalize:", "if False:")],
    "renormalised over all experts": [("weigh", "np.sum(weights)", "np.sum(score)")],
    "scaling factor ignored": [("weigh", " * self.c.scaling", "")],
    "scaling factor on the shared experts too": [("moe", "y + self.dense", "y + self.c.scaling * self.dense")],
    "one expert too few": [("Config.__init__", 'text["num_experts_per_token"]', 'text["num_experts_per_token"] - 1')],
    "w1 and w3 exchanged": [("expert", "(w1 @ z, w3 @ z)", "(w3 @ z, w1 @ z)")],
    "gate and up of the dense MLP exchanged": [
        ("dense", '".gate_proj", x), self.linear(name + ".up_proj"', '".up_proj", x), self.linear(name + ".gate_proj"'),
    ],
    "shared experts missing": [("moe", 'y + self.dense(x, name + ".shared_experts")', "y")],
    "situ: sigmoid of the capped gate": [("k3oracle.situ", "sigmoid(g)", "sigmoid(b1 * np.tanh(g / b1))")],
    "situ: gate not capped": [("k3oracle.situ", "b1 * np.tanh(g / b1)", "g")],
    "situ: up not capped": [("k3oracle.situ", "b2 * np.tanh(u / b2)", "u")],
    "situ: betas exchanged": [("situ", "self.c.b1, self.c.b2", "self.c.b2, self.c.b1")],
    "situ: betas always 4 and 25": [("situ", "self.c.b1, self.c.b2", "4.0, 25.0")],
    # Files
    "lm_head tied to the embedding": [("step", 'self.linear("lm_head", h)', 'self.w("model.embed_tokens.weight") @ h')],
    "E2M1 halves read as quarters": [
        ("tensorfile.mxfp4", "E2M1[nibbles]", "np.where(np.isin(nibbles, (1, 9)), 0.5, 1) * E2M1[nibbles]"),
    ],
    "E2M1 sign lost": [("tensorfile.mxfp4", "E2M1[nibbles]", "E2M1[nibbles & 7]")],
    "E8M0 bias 126": [("tensorfile.mxfp4", "- 127", "- 126")],
    "E8M0 0 read as factor 1": [("tensorfile.mxfp4", "scale == 255, 0.0", "scale == 0, 1.0")],
    "E8M0 of the next block": [("tensorfile.mxfp4", "np.repeat(factor,", "np.repeat(np.roll(factor, 1, axis=1),")],
    "F16 subnormals read as zero": [
        ("tensorfile.tensor", "    if wide.dtype.kind",
         "    if wide.dtype == np.float16:\n"
         "        wide = np.where(np.abs(wide) < 2.0**-14, 0, wide)\n"
         "    if wide.dtype.kind"),
    ],
    "F16 read as BF16": [("tensorfile.tensor", 'entry["dtype"] == "BF16"', 'entry["dtype"] in ("BF16", "F16")')],
}


def fresh():
    """New copies of both modules, to be spoilt."""
    modules = {}
    for name in ("tensorfile", "k3oracle"):
        spec = importlib.util.spec_from_file_location(name, os.path.join(HERE, name + ".py"))
        modules[name] = importlib.util.module_from_spec(spec)
        sys.modules[name] = modules[name]
        spec.loader.exec_module(modules[name])
    return modules


def spoil(edits):
    """The oracle with these edits made. Old text that is not there exactly once is an error of this file."""
    modules = fresh()
    oracle = modules["k3oracle"]
    oracle.rotate = rotate
    sources = {}
    for name, old, new in edits:
        text = sources.get(name)
        if text is None:
            owner, function = locate(modules, name)
            text = textwrap.dedent(inspect.getsource(getattr(owner, function)))
        if text.count(old) != 1:
            raise ValueError(f"{name}: {old!r} is there {text.count(old)} times, not once")
        sources[name] = text.replace(old, new)
    for name, text in sources.items():
        owner, function = locate(modules, name)
        module = modules["tensorfile"] if name.startswith("tensorfile") else oracle
        space = {}
        exec(text, vars(module), space)
        setattr(owner, function, space[function])
    return oracle


def locate(modules, name):
    owner, _, function = name.rpartition(".")
    return modules.get(owner) or getattr(modules["k3oracle"], owner or "Model"), function


def difference(oracle, name):
    """Largest difference of the logits from a golden, over the largest logit of the position."""
    pairs = []
    if name == "demo":
        golden = tensorfile.read(TESTDATA + "/demo/golden.safetensors")
        model = oracle.Model(DEMO)
        for n in range(sum(key.endswith(".ids") for key in golden)):
            ids, new = golden[f"prompt.{n}.ids"], golden[f"prompt.{n}.generated"]
            logits = model.run([*ids, *new[:-1]], record=False)["logits"]
            pairs.append((logits[[len(ids) - 1, -1]], golden[f"prompt.{n}.logits"]))
    else:
        golden = tensorfile.read(f"{TESTDATA}/{name}/expect/golden.safetensors")
        pairs.append((oracle.Model(f"{TESTDATA}/{name}").run(golden["ids"], record=False)["logits"], golden["logits"]))
    return max(np.max(np.max(np.abs(got - want), axis=1) / np.max(np.abs(want), axis=1)) for got, want in pairs)


def row(edits):
    """The differences on every golden; None where the spoilt oracle cannot even run."""
    oracle, values = spoil(edits), []
    for name in GOLDENS:
        try:
            values.append(difference(oracle, name))
        except (ValueError, KeyError, IndexError):
            values.append(None)
    return values


def cell(value, markdown):
    if value is None:
        return "fails"
    if value <= LIMIT:
        return "-" if value < 1e-6 else f"({value:.0e})"
    text = f"{value:.0e}" if np.isfinite(value) else "nan"
    return f"**{text}**" if markdown else text


def main():
    np.seterr(all="ignore")
    markdown = "--markdown" in sys.argv
    words = [w for w in sys.argv[1:] if not w.startswith("--")]
    layout = "| {:<42} | {:>9} | {:>10} | {:>9} | {:>9} |"
    print(layout.format("mistake", *GOLDENS))
    if markdown:
        print("|---|---|---|---|---|")
    missed = []
    for name, edits in {"none": [], **MISTAKES}.items():
        if words and not any(w in name for w in words):
            continue
        values = row(edits)
        print(layout.format(name, *(cell(v, markdown) for v in values)), flush=True)
        caught = any(v is not None and not v <= LIMIT for v in values)
        if caught == (name == "none"):
            missed.append(name)
    if missed:
        sys.exit(f"mistakes: wrong answer about {', '.join(missed)}")


if __name__ == "__main__":
    main()
