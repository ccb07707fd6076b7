"""Makes cases.json: what llama.cpp's samplers leave of given logits, and with which probabilities.

    python make.py VOCAB.gguf > cases.json        # with llama-cpp-python; SmolLM2's file

DRY asks llama.cpp for a vocabulary even where no text ends a repetition; the last cases use it.
"""

import ctypes
import json
import math
import random
import sys

import llama_cpp as L

ORDER = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
OFF = dict(temperature=1.0, dynatemp_range=0.0, dynatemp_exponent=1.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0,
           top_n_sigma=0.0, xtc_probability=0.0, xtc_threshold=0.1, repeat_penalty=1.0, frequency_penalty=0.0,
           presence_penalty=0.0, repeat_last_n=64, dry_multiplier=0.0, dry_base=1.75, dry_allowed_length=2,
           dry_last_n=64, dry_breakers=[], mirostat=0, mirostat_tau=5.0, mirostat_eta=0.1, order=ORDER)
SEED = 1

params = L.llama_model_default_params()
params.vocab_only = True
model = L.llama_model_load_from_file(sys.argv[1].encode(), params)
vocab = L.llama_model_get_vocab(model)


def sampler(name, p):
    if name == "penalties":
        return L.llama_sampler_init_penalties(p["n_vocab"], p["repeat_last_n"], p["repeat_penalty"],
                                              p["frequency_penalty"], p["presence_penalty"])
    if name == "dry":
        texts = [text.encode() for text in p["dry_breakers"]]
        array = (ctypes.c_char_p * len(texts))(*texts)
        return L.llama_sampler_init_dry(vocab, p["dry_multiplier"], p["dry_base"], p["dry_allowed_length"],
                                        p["dry_last_n"], array, len(texts))
    if name == "top_n_sigma":
        return L.llama_sampler_init_top_n_sigma(p["top_n_sigma"])
    if name == "top_k":
        return L.llama_sampler_init_top_k(p["top_k"])
    if name == "typ_p":
        return L.llama_sampler_init_typical(p["typical_p"], 0)
    if name == "top_p":
        return L.llama_sampler_init_top_p(p["top_p"], 0)
    if name == "min_p":
        return L.llama_sampler_init_min_p(p["min_p"], 0)
    if name == "xtc":
        return L.llama_sampler_init_xtc(p["xtc_probability"], p["xtc_threshold"], 0, SEED)
    if name == "temperature":
        return L.llama_sampler_init_temp_ext(p["temperature"], p["dynatemp_range"], p["dynatemp_exponent"])
    raise ValueError(name)


def chain(p):
    if p["mirostat"] == 0:
        return [sampler(name, p) for name in p["order"]]
    temperature = L.llama_sampler_init_temp(p["temperature"])
    if p["mirostat"] == 1:
        return [temperature, L.llama_sampler_init_mirostat(p["n_vocab"], SEED, p["mirostat_tau"], p["mirostat_eta"], 100)]
    return [temperature, L.llama_sampler_init_mirostat_v2(SEED, p["mirostat_tau"], p["mirostat_eta"])]


def remaining(changed, history, logits):
    """Returns (id, logit) of what the samplers leave."""
    p = {**OFF, **changed, "n_vocab": len(logits)}
    data = (L.llama_token_data * len(logits))(*[L.llama_token_data(i, x, 0.0) for i, x in enumerate(logits)])
    array = L.llama_token_data_array(data, len(logits), -1, False)
    for smpl in chain(p):
        for token in history:
            L.llama_sampler_accept(smpl, token)
        L.llama_sampler_apply(smpl, ctypes.byref(array))
        L.llama_sampler_free(smpl)
    return [(array.data[i].id, array.data[i].logit) for i in range(array.size)]


def run(changed, history, logits):
    """Returns [id, probability] of what is left, the likeliest first."""
    left = remaining(changed, history, logits)
    top = max(logit for _, logit in left)
    weights = [(token, math.exp(logit - top)) for token, logit in left]
    total = sum(weight for _, weight in weights)
    shares = [[token, round(weight / total, 7)] for token, weight in weights]
    return sorted((share for share in shares if share[1] > 0), key=lambda share: (-share[1], share[0]))


rng = random.Random(7)
N = 40
REPEATING = [1, 2, 3, 4, 5, 9, 1, 2, 3, 4, 6, 2, 3, 4, 7, 3, 9, 1, 2, 3, 4]
CHANGES = [
    {}, {"temperature": 0.6}, {"temperature": 1.7}, {"top_k": 5}, {"top_p": 0.7}, {"top_p": 0.95}, {"min_p": 0.1},
    {"typical_p": 0.5}, {"typical_p": 0.9}, {"top_n_sigma": 1.0}, {"top_n_sigma": 2.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.1}, {"xtc_probability": 1.0, "xtc_threshold": 0.02},
    {"dynatemp_range": 0.5, "temperature": 0.8}, {"dynatemp_range": 1.0, "dynatemp_exponent": 1.5, "temperature": 0.9},
    {"repeat_penalty": 1.3}, {"frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"repeat_penalty": 1.1, "frequency_penalty": -0.2, "presence_penalty": 0.5, "repeat_last_n": 6},
    {"dry_multiplier": 0.8}, {"dry_multiplier": 0.5, "dry_base": 1.2, "dry_allowed_length": 3},
    {"dry_multiplier": 1.0, "dry_last_n": 8}, {"dry_multiplier": 0.8, "dry_allowed_length": 0},
    {"mirostat": 1, "mirostat_tau": 2.0}, {"mirostat": 1, "mirostat_tau": 1.0, "temperature": 1.5},
    {"mirostat": 2, "mirostat_tau": 2.0}, {"mirostat": 2, "mirostat_tau": 0.6, "temperature": 0.7},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.95, "top_n_sigma": 2.5,
     "xtc_probability": 1.0, "xtc_threshold": 0.05, "dynatemp_range": 0.3, "repeat_penalty": 1.2,
     "dry_multiplier": 0.7},
    {"temperature": 1.5, "top_k": 10, "top_p": 0.8, "repeat_penalty": 1.5,
     "order": ["temperature", "top_p", "penalties", "top_k"]},
    {"min_p": 0.1, "typical_p": 0.8, "dry_multiplier": 0.9, "order": ["typ_p", "dry", "min_p"]},
]
cases = []
for changed in CHANGES:
    for scale in (1.5, 3.0):
        logits = [round(rng.gauss(0, scale), 3) for _ in range(N)]
        cases.append(dict(params=changed, history=REPEATING, logits=logits, left=run(changed, REPEATING, logits)))

# The default breakers on real tokens: a list whose items repeat, with line feeds and colons between.
text = b"- name: one two three four\n- name: one two three four: one two three"
tokens = (L.llama_token * 64)()
history = list(tokens[:L.llama_tokenize(vocab, text, len(text), tokens, 64, False, False)])
n_vocab = L.llama_vocab_n_tokens(vocab)
for breakers in (["\n", ":", "\"", "*"], ["e two"], [": one"], ["name: one two"], ["x", "four: on"], []):
    changed = {"dry_multiplier": 2.0, "dry_breakers": breakers}
    cost = [[token, round(-logit, 5)] for token, logit in remaining(changed, history, [0.0] * n_vocab) if logit != 0]
    cases.append(dict(params=changed, history=history, cost=cost))

lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
print(f"[\n{lines}\n]")
