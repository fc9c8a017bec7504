#!/usr/bin/python3
"""Goldens of the demonstration model, and a check of what it says: python3 golden_demo.py [--said]

Writes conformance/testdata/demo/golden.safetensors and manifest.json: a few prompts, what follows greedily, and the
logits of the last position of the prompt and of the last position evaluated. With --said it writes nothing, answers
every line of presets/demo/said.txt and asks for every capital instead.

A trained router sometimes comes close to a draw: the first token of "The capital of" has two experts 6.6e-6 apart. A
prompt is taken only if every choice has a gap of 1e-4, as in the other goldens, or of at least 20 times what float32
does to the scores of that very layer and position.
"""
import json
import os
import re
import sys

import numpy as np

import k3oracle
import tensorfile
from fabricate import ROUTER_GAP, TESTDATA, TOP1_MARGIN, top1_margin, write_json

DEMO = os.path.join(os.path.dirname(os.path.dirname(TESTDATA)), "presets", "demo")
sys.dont_write_bytecode = True
sys.path.insert(0, DEMO)
import bpe  # noqa: E402
import corpus  # noqa: E402

TOKENS = 12
PLAIN = ["The capital of France is", "func Max(a, b int) int {\n", "Count: 4, 5, 6,", "Once upon a time"]
CHAT = [("What is the capital of Italy?", True), ("What is the capital of Italy?", False)]
ROUNDINGS = 20


def message(tok, attributes, content):
    """One message of the chat markup. Every fragment is encoded by itself."""
    ids = [tok.special["<|open|>"]] + tok.encode("message")
    for key, value in attributes:
        for text in (" " + key, '="', value, '"'):
            ids += tok.encode(text)
    ids += [tok.special["<|sep|>"]] + tok.encode(content)
    return ids + [tok.special["<|close|>"]] + tok.encode("message") + [tok.special["<|sep|>"], tok.special["<|end_of_msg|>"]]


def chat(tok, question, think):
    """A question in the chat markup up to where the model goes on, thinking at full effort or not at all."""
    ids = []
    if think:
        ids += message(tok, [("role", "system"), ("type", "thinking-effort")], corpus.THINK_TEXT % "max")
    ids += message(tok, [("role", "user")], question)
    ids += message(tok, [("role", "assistant")], "")[: -4]  # without its close
    assert ids[-1] == tok.special["<|sep|>"]
    return ids + [tok.special["<|open|>"]] + tok.encode("think" if think else "response") + [tok.special["<|sep|>"]]


def closest_choice(model, single, ids):
    """The smallest gap between a chosen and a passed-over expert, and the smallest in units of the float32 error there."""
    exact, rounded = (m.run(ids)["biased"] for m in (model, single))
    best = -np.sort(-exact, axis=-1)
    gap = best[..., model.c.top_k - 1] - best[..., model.c.top_k]
    error = np.max(np.abs(rounded - exact), axis=-1)
    close = gap <= ROUTER_GAP
    return np.min(gap), np.min(gap[close] / error[close], initial=np.inf)


def goldens(tok, model):
    single = k3oracle.Model(DEMO + "/checkpoint", np.float32)
    prompts = [dict(text=text, ids=tok.encode(text)) for text in PLAIN]
    prompts += [dict(question=q, thinking=think, ids=chat(tok, q, think)) for q, think in CHAT]
    tensors = []
    for n, prompt in enumerate(prompts):
        ids = prompt["ids"]
        new, rows = model.generate(ids, TOKENS)
        gap, roundings = closest_choice(model, single, ids + new[:-1])
        margin = top1_margin(np.stack(rows))
        prompt.update(generated=new, generated_text=tok.decode(new))
        print(
            f"{n}: {tok.decode(ids)[-40:]!r} -> {tok.decode(new)!r}; router gap {gap:.1e} ({roundings:.0f} roundings), "
            f"top-1 margin {margin:.1e}"
        )
        if roundings < ROUNDINGS or margin <= TOP1_MARGIN:
            sys.exit("golden_demo: too close for float32")
        tensors += [
            (f"prompt.{n}.ids", "I32", np.array(ids)),
            (f"prompt.{n}.generated", "I32", np.array(new)),
            (f"prompt.{n}.logits", "F32", np.stack([rows[0], rows[-1]])),
        ]
    return prompts, tensors


def said(tok, model):
    """Answers the prompts of said.txt and compares. Answers end with [EOS] there, whatever came before."""
    good = lines = 0
    for line in open(DEMO + "/said.txt"):
        left, right = line.rstrip("\n").split(" -> ", 1)
        want = eval(right)
        if left.startswith("chat: "):
            ids = chat(tok, left[6:], True)
        elif left == "no think":
            ids = chat(tok, "What is the capital of Peru?", False)
        else:
            ids = tok.encode(eval(left))
        count = len(want)  # more than enough tokens
        got = tok.decode(model.generate(ids, count, stop=[tok.special["[EOS]"]])[0])
        lines += 1
        good += got == want
        if got != want:
            print(f"{left}\n  said {want!r}\n  now  {got!r}")
    print(f"{good} of {lines} answers are those of said.txt")
    right = [capital(tok, model, *pair) for pair in corpus.PAIRS]
    print(f"{sum(right)} of {len(right)} capitals are right")


def capital(tok, model, country, city):
    article = "the " if re.match("Netherlands|Philippines|United|Gambia", country) else ""
    new = model.generate(tok.encode(f"The capital of {article}{country} is"), len(city) + 2, stop=[tok.encode(".\n")[0]])[0]
    return tok.decode(new).strip() == city + "."


def main():
    tok = bpe.load(DEMO + "/checkpoint/tiktoken.model")
    model = k3oracle.Model(DEMO + "/checkpoint")
    if sys.argv[1:] == ["--said"]:
        said(tok, model)
        return
    prompts, tensors = goldens(tok, model)
    directory = TESTDATA + "/demo"
    os.makedirs(directory, exist_ok=True)
    tensorfile.write(directory + "/golden.safetensors", tensors, {"producer": "conformance/oracle/golden_demo.py, float64"})
    for prompt in prompts:
        del prompt["ids"], prompt["generated"]  # they are in the file of tensors
    manifest = dict(checkpoint="presets/demo/checkpoint", logits="after the prompt; after all generated ids but the last")
    write_json(directory + "/manifest.json", dict(manifest, prompts=prompts), indent=1)


if __name__ == "__main__":
    main()
