#!/usr/bin/python3
"""Compares the oracle with goldens of other authors, and with the committed ones: python3 verify.py [CHECKPOINT ...]

Without arguments it takes the public reference checkpoints beside the repository, where they are present, and
conformance/testdata. Exits 1 if a limit is exceeded. Three kinds of golden files are known:
  - ids, logits, layer_output, expert_ids, expert_weights of every position (ids may be in golden.json instead);
  - one position of Moonshot's own code, one tensor per operator, named after the module;
  - prompt.N.ids, prompt.N.generated, prompt.N.logits (conformance/testdata/demo).
"""
import glob
import json
import os
import sys

import numpy as np

import k3oracle
import tensorfile
from k3oracle import rmsnorm, sigmoid, situ, softmax

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LOGITS = 1e-4  # of the largest absolute logit of the position
OPERATOR = 4e-6  # absolute, one operator of the anchor's layer 3 given the captured inputs

failed = []


def check(text, value, limit):
    ok = value <= limit
    print(f"  {text:<58} {value:9.2e}  {'' if ok else f'EXCEEDS {limit:g}'}")
    if not ok:
        failed.append(text)


def relative(got, want):
    """Largest difference at each position over the largest value there; the worst position."""
    got, want = np.reshape(got, (-1, np.shape(got)[-1])), np.reshape(want, (-1, np.shape(want)[-1]))
    return np.max(np.max(np.abs(got - want), axis=-1) / np.max(np.abs(want), axis=-1))


def every_position(directory, golden):
    ids = golden["ids"] if "ids" in golden else json.load(open(directory + "/golden.json"))["ids"]
    result = k3oracle.Model(directory).run(ids)
    check("logits, of the largest at each position", relative(result["logits"], golden["logits"]), LOGITS)
    check("layer outputs, likewise", relative(result["layer_output"], golden["layer_output"]), LOGITS)
    check("expert ids that differ", np.sum(result["expert_ids"] != golden["expert_ids"]), 0)
    check("expert weights, absolute", np.max(np.abs(result["expert_weights"] - golden["expert_weights"])), 1e-6)
    check("arg-max ids that differ", np.sum(result["logits"].argmax(1) != golden["logits"].argmax(1)), 0)
    single = k3oracle.Model(directory, np.float32).run(ids)
    print(f"  (the oracle in float32: logits {relative(single['logits'], result['logits']):.1e})")


def one_position(directory, golden):
    """End to end against every captured operator, then layer 3 operator by operator from the captured inputs."""
    info = json.load(open(directory + "/golden.json"))
    model = k3oracle.Model(directory)
    result = model.run(info["ids"])
    worst = {}
    for name, want in golden.items():
        got = model.notes.get(name)
        if got is None:
            continue
        if name.endswith("out.state"):
            got = np.swapaxes(got, -1, -2)  # their kernel keeps S as [value][key]
        got, want = np.reshape(got, -1), np.reshape(want, -1)
        if name.endswith("gate.0"):
            check(name + " ids that differ", np.sum(got != want), 0)
            continue
        group = ".".join(name.split(".")[:3]) if name.startswith("model.layers") else name
        worst[group] = max(worst.get(group, (0, 0))[0], relative(got, want)), worst.get(group, (0, 0))[1] + 1
    for group, (value, count) in worst.items():
        check(f"{group} ({count} operators)" if count > 1 else group, value, LOGITS)
    check("logits", relative(result["logits"][-1], golden["logits"].reshape(-1)), LOGITS)
    check("arg-max id differs", int(result["logits"][-1].argmax() != info["argmax_last"]), 0)
    ours = "ours.logits_all_positions_float64_rounded"
    check("logits at all positions, another author's float64", relative(result["logits"], golden[ours]), LOGITS)
    for name, error in layer3(model, golden):
        check("layer 3, from captured inputs: " + name, error, OPERATOR)


def layer3(model, golden):
    """(operator, largest absolute error) of the operators of the first MLA layer, each from its captured inputs."""
    c, name = model.c, "model.layers.3"
    g = lambda n: golden[f"{name}.{n}"].reshape(-1)
    w = lambda n: model.w(f"{name}.{n}.weight")
    x, y, moe = g("input_layernorm"), g("post_attention_layernorm"), "block_sparse_moe"
    q, k, v = (golden[f"{name}.self_attn.attend.in.{n}"][0] for n in "qkv")
    p = softmax(np.einsum("hd,hsd->hs", q[:, 0], k) * (c.nope + c.rope) ** -0.5)
    kv = g("self_attn.kv_a_proj_with_mqa")
    blocks, run = (golden[f"{name}.self_attention_res.in.{n}"] for n in ("block_residual", "prefix_sum"))
    sources = np.concatenate([blocks[0], run])
    picked = golden[f"{name}.{moe}.gate.0"].reshape(-1).astype(int)
    score = model.scores(y, f"{name}.{moe}")[picked]
    shared = moe + ".shared_experts"
    values = {
        "self_attention_res.out": model.attnres(sources, name + ".self_attention_res"),
        "input_layernorm": rmsnorm(g("self_attention_res.out"), w("input_layernorm"), c.eps),
        "self_attn.q_a_proj": w("self_attn.q_a_proj") @ x,
        "self_attn.q_a_layernorm": rmsnorm(g("self_attn.q_a_proj"), w("self_attn.q_a_layernorm"), k3oracle.MLA_NORM_EPS),
        "self_attn.q_b_proj": w("self_attn.q_b_proj") @ g("self_attn.q_a_layernorm"),
        "self_attn.kv_a_proj_with_mqa": w("self_attn.kv_a_proj_with_mqa") @ x,
        "self_attn.kv_a_layernorm": rmsnorm(kv[: c.kv_lora], w("self_attn.kv_a_layernorm"), k3oracle.MLA_NORM_EPS),
        "self_attn.kv_b_proj": w("self_attn.kv_b_proj") @ g("self_attn.kv_a_layernorm"),
        "self_attn.attend.probs": p,
        "self_attn.attend.out": np.einsum("hs,hsv->hv", p, v),
        "self_attn.g_proj": w("self_attn.g_proj") @ x,
        "self_attn.o_proj.in_gated": g("self_attn.attend.out") * sigmoid(g("self_attn.g_proj")),
        "self_attn.o_proj": w("self_attn.o_proj") @ g("self_attn.o_proj.in_gated"),
        "post_attention_layernorm": rmsnorm(g("mlp_res.out"), w("post_attention_layernorm"), c.eps),
        moe + ".gate.1": score / (np.sum(score) + 1e-20) * c.scaling,
        moe + ".routed_expert_down_proj": w(moe + ".routed_expert_down_proj") @ y,
        moe + ".routed_expert_norm": rmsnorm(g(moe + ".routed_expert_norm.in"), w(moe + ".routed_expert_norm"), c.eps),
        moe + ".routed_expert_up_proj": w(moe + ".routed_expert_up_proj") @ g(moe + ".routed_expert_norm"),
        shared + ".act_fn": situ(g(shared + ".gate_proj"), g(shared + ".up_proj"), c.b1, c.b2),
        shared + ".down_proj": w(shared + ".down_proj") @ g(shared + ".act_fn"),
    }
    return [(n, np.max(np.abs(np.reshape(value, -1) - g(n)))) for n, value in values.items()]


def prompts(directory, golden):
    model = k3oracle.Model(directory)
    logits, differ, count = 0, 0, 0
    for n in range(sum(name.endswith(".ids") for name in golden)):
        ids, want = golden[f"prompt.{n}.ids"], golden[f"prompt.{n}.generated"]
        new, rows = model.generate(ids, len(want))
        differ += int(np.sum(new != want))
        count += len(want)
        logits = max(logits, relative(np.stack([rows[0], rows[-1]]), golden[f"prompt.{n}.logits"]))
    check("logits, of the largest at each position", logits, LOGITS)
    check(f"generated ids of {count} that differ", differ, 0)


def compare(directory, path):
    print(os.path.relpath(path, ROOT))
    golden = tensorfile.read(path)
    if "layer_output" in golden:
        every_position(directory, golden)
    elif "prompt.0.ids" in golden:
        prompts(directory, golden)
    else:
        one_position(directory, golden)


def main():
    directories = sys.argv[1:]
    if not directories:
        directories = sorted(glob.glob(os.path.join(ROOT, "..", "shared", "fixtures", "checkpoints", "*")))
        directories += sorted(glob.glob(os.path.join(ROOT, "conformance", "testdata", "*", "")))
    for directory in directories:
        if os.path.exists(os.path.join(directory, "config.json")):
            compare(directory, os.path.join(directory, "expect", "golden.safetensors"))
        else:
            compare(os.path.join(ROOT, "presets", "demo", "checkpoint"), os.path.join(directory, "golden.safetensors"))
    if failed:
        sys.exit(f"verify: {len(failed)} limits exceeded")


if __name__ == "__main__":
    main()
