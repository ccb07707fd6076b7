#!/usr/bin/env python3
"""Makes the golden models that transformers and llama.cpp's converter do not make: `models/{mamba,mamba2,deepseek2}-b` and `deepseek2-c`.

    python make.py            (needs numpy and gguf)

    mamba-b       RMS norms without weights over what steps, writes and reads (FalconMamba)
    mamba2-b      two groups of heads, each with a norm of its own (as `mamba_ssm` has it; transformers norms over all channels)
    deepseek2-b   queries by one matrix (V2 Lite), the older layout of files with `attn_kv_b`, YaRN with a log multiplier, two shared
                  experts, weights of experts that are scaled
    deepseek2-c   V3's experts (sigmoid, a bias of the choice, groups), the newer layout, queries by one matrix

The expected logits come from the forward passes below, which are written in numpy (float64) after the modelling sources of
transformers 4.57.6 (`modeling_mamba`, `modeling_falcon_mamba`, `modeling_mamba2`, `modeling_deepseek_v2`; the magnitude of YaRN in
scores and the experts of V3 after `modeling_deepseek_v3`): torch was not to be had on the machine where they were made. Before
anything is written they have to give the logits that transformers itself gave of `mamba-a`, `mamba2-a` and `deepseek2-a`.

Vocabulary, and so the tokenizer's cases, are those of the neighbour `-a`. Everything is seeded.
"""

import gzip
import io
import json
import math
import tempfile
from pathlib import Path

import gguf
import numpy as np

MODELS = Path(__file__).parent / "models"
N_TOKENS = 48


# The reference.


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def conv(x, taps, bias):
    """A causal convolution of every channel by itself: x [n, channels], taps [channels, n_taps]."""
    n_taps = taps.shape[1]
    padded = np.concatenate([np.zeros((n_taps - 1, x.shape[1])), x])
    return sum(padded[tap : tap + len(x)] * taps[:, tap] for tap in range(n_taps)) + bias


def mamba(x, w, c):
    n_inner, n_state, rank = c["ssm.inner_size"], c["ssm.state_size"], c["ssm.time_step_rank"]
    x, gate = np.split(x @ w["ssm_in.weight"].T, 2, axis=1)
    x = silu(conv(x, w["ssm_conv1d.weight"], w["ssm_conv1d.bias"]))
    step, write, read = np.split(x @ w["ssm_x.weight"].T, [rank, rank + n_state], axis=1)
    if c.get("ssm.dt_b_c_rms"):
        step, write, read = (rms(part, 1.0, c["eps"]) for part in (step, write, read))
    step = np.logaddexp(0, step @ w["ssm_dt.weight"].T + w["ssm_dt.bias"])
    state, out = np.zeros((n_inner, n_state)), []
    for t in range(len(x)):
        decay = np.exp(w["ssm_a"] * step[t][:, None])
        state = decay * state + (step[t] * x[t])[:, None] * write[t][None, :]
        out.append(state @ read[t])
    return ((np.array(out) + x * w["ssm_d"]) * silu(gate)) @ w["ssm_out.weight"].T


def mamba2(x, w, c):
    n_inner, n_state, n_heads = c["ssm.inner_size"], c["ssm.state_size"], c["ssm.time_step_rank"]
    n_groups, n = c["ssm.group_count"], len(x)
    n_channels = n_inner + 2 * n_groups * n_state
    gate, xbc, step = np.split(x @ w["ssm_in.weight"].T, [n_inner, n_inner + n_channels], axis=1)
    xbc = silu(conv(xbc, w["ssm_conv1d.weight"], w["ssm_conv1d.bias"]))
    x, write, read = np.split(xbc, [n_inner, n_inner + n_groups * n_state], axis=1)
    x = x.reshape(n, n_heads, -1)
    write, read = (np.repeat(part.reshape(n, n_groups, n_state), n_heads // n_groups, axis=1) for part in (write, read))
    step = np.logaddexp(0, step + w["ssm_dt.bias"])
    state, out = np.zeros((n_heads, n_inner // n_heads, n_state)), []
    for t in range(n):
        decay = np.exp(step[t] * w["ssm_a"].reshape(-1))
        written = (x[t] * step[t][:, None])[:, :, None] * write[t][:, None, :]
        state = decay[:, None, None] * state + written
        out.append((state * read[t][:, None, :]).sum(-1))
    y = (np.array(out) + x * w["ssm_d"].reshape(-1)[:, None]).reshape(n, n_inner) * silu(gate)
    y = rms(y.reshape(n, n_groups, -1), w["ssm_norm.weight"].reshape(n_groups, -1), c["eps"]).reshape(n, n_inner)
    return y @ w["ssm_out.weight"].T


def mscale(factor, by):
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1


def frequencies(c):
    """The angles of one position, [n_rot / 2]; `yarn` holds the settings of YaRN."""
    n_rot, base = c["rope.dimension_count"], c["rope.freq_base"]
    plain = base ** (-np.arange(0, n_rot, 2) / n_rot)
    yarn = c.get("yarn")
    if yarn is None:
        return plain
    turns = lambda n: n_rot * math.log(yarn["n_ctx"] / (n * 2 * math.pi)) / (2 * math.log(base))
    low, high = max(math.floor(turns(32)), 0), min(math.ceil(turns(1)), n_rot - 1)
    ramp = np.clip((np.arange(n_rot // 2) - low) / max(high - low, 0.001), 0, 1)
    return plain / yarn["factor"] * ramp + plain * (1 - ramp)


def rotate(x, angles):
    """Rotates neighbours of the last dimension: x [n, heads, n_rot], angles [n, n_rot / 2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def latent_attention(x, w, c):
    n, n_heads, n_rot, n_latent = len(x), c["attention.head_count"], c["rope.dimension_count"], c["attention.kv_lora_rank"]
    k_dim = c.get("attention.key_length_mla") or c["attention.key_length"]
    n_nope = k_dim - n_rot
    if "attn_q_a.weight" in w:
        q = rms(x @ w["attn_q_a.weight"].T, w["attn_q_a_norm.weight"], c["eps"]) @ w["attn_q_b.weight"].T
    else:
        q = x @ w["attn_q.weight"].T
    q = q.reshape(n, n_heads, k_dim)
    latent, k_rot = np.split(x @ w["attn_kv_a_mqa.weight"].T, [n_latent], axis=1)
    latent = rms(latent, w["attn_kv_a_norm.weight"], c["eps"])
    if "attn_kv_b.weight" in w:
        both = (latent @ w["attn_kv_b.weight"].T).reshape(n, n_heads, -1)
        k, v = both[..., :n_nope], both[..., n_nope:]
    else:
        # [n_heads, n_latent, n_nope] and [n_heads, v_dim, n_latent]
        k = np.einsum("nl,hld->nhd", latent, w["attn_k_b.weight"])
        v = np.einsum("nl,hdl->nhd", latent, w["attn_v_b.weight"])
    angles = np.arange(n)[:, None] * frequencies(c)[None]
    k_rot = np.repeat(rotate(k_rot.reshape(n, 1, n_rot), angles), n_heads, axis=1)
    q = np.concatenate([q[..., :n_nope], rotate(q[..., n_nope:], angles)], -1)
    k = np.concatenate([k, k_rot], -1)
    scale = k_dim**-0.5
    if "yarn" in c:
        scale *= mscale(c["yarn"]["factor"], c["yarn"]["mscale"]) ** 2
    scores = np.einsum("qhd,khd->hqk", q, k) * scale + np.triu(np.full((n, n), -np.inf), 1)
    mixed = np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(n, -1)
    return mixed @ w["attn_output.weight"].T


def mlp(x, gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def experts(x, w, c):
    """Returns the block's output and how near the router was to another choice."""
    n_used, logits = c["expert_used_count"], x @ w["ffn_gate_inp.weight"].T
    is_sigmoid = c.get("expert_gating_func") == 2
    scores = 1 / (1 + np.exp(-logits)) if is_sigmoid else softmax(logits)
    ranks, nearest = scores + w.get("exp_probs_b.bias", 0.0), np.inf
    if "expert_group_count" in c:
        n_groups, n_open = c["expert_group_count"], c["expert_group_used_count"]
        sums = np.sort(ranks.reshape(len(x), n_groups, -1), axis=2)[:, :, -2:].sum(-1)
        groups = np.sort(sums, axis=1)[:, ::-1]
        nearest = (groups[:, n_open - 1] - groups[:, n_open]).min()
        is_open = np.repeat(sums >= groups[:, n_open - 1 : n_open], ranks.shape[1] // n_groups, axis=1)
        ranks = np.where(is_open, ranks, -np.inf)
    order = np.argsort(-ranks, axis=1)
    ranked = np.take_along_axis(ranks, order, 1)
    y = mlp(x, *(w[f"ffn_{kind}_shexp.weight"] for kind in ("gate", "up", "down")))
    for row in range(len(x)):
        total = scores[row, order[row, :n_used]].sum() if c.get("expert_weights_norm") else 1.0
        for expert in order[row, :n_used]:
            weight = scores[row, expert] / total * c["expert_weights_scale"]
            parts = (w[f"ffn_{kind}_exps.weight"][expert] for kind in ("gate", "up", "down"))
            y[row] += weight * mlp(x[row], *parts)
    return y, min(nearest, (ranked[:, n_used - 1] - ranked[:, n_used]).min())


def forward(arch, tokens, weights, c):
    """Returns logits, [n, n_vocab], and the smallest margin of a router."""
    x, nearest = weights["token_embd.weight"][tokens], np.inf
    for layer in range(c["block_count"]):
        prefix = f"blk.{layer}."
        w = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        mixer = {"mamba": mamba, "mamba2": mamba2, "deepseek2": latent_attention}[arch]
        x = x + mixer(rms(x, w["attn_norm.weight"], c["eps"]), w, c)
        if arch != "deepseek2":
            continue
        normed = rms(x, w["ffn_norm.weight"], c["eps"])
        if layer < c["leading_dense_block_count"]:
            x = x + mlp(normed, *(w[f"ffn_{kind}.weight"] for kind in ("gate", "up", "down")))
        else:
            y, margin = experts(normed, w, c)
            x, nearest = x + y, min(nearest, margin)
    head = weights.get("output.weight", weights["token_embd.weight"])
    return rms(x, weights["output_norm.weight"], c["eps"]) @ head.T, nearest


# The goldens of transformers, which the reference has to agree with.


def read(name):
    """Returns a golden's file and its weights by name, in float64."""
    raw = gzip.decompress((MODELS / name / "model.gguf.gz").read_bytes())
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(raw)
        file.flush()
        reader = gguf.GGUFReader(file.name)
        shape = lambda tensor: [int(n) for n in reversed(tensor.shape)]
        weights = {t.name: np.array(t.data, dtype=np.float64).reshape(shape(t)) for t in reader.tensors}
        fields = {key: (field.types, field.contents()) for key, field in reader.fields.items()}
    return fields, weights


def settings(arch, fields):
    prefix = f"{arch}."
    c = {key.removeprefix(prefix): value for key, (_, value) in fields.items() if key.startswith(prefix)}
    return c | {"eps": c["attention.layer_norm_rms_epsilon"]}


def check(arch):
    case = json.loads((MODELS / f"{arch}-a" / "case.json").read_text())
    fields, weights = read(f"{arch}-a")
    expected = np.fromfile(MODELS / f"{arch}-a" / "logits.f32", "<f4").reshape(len(case["tokens"]), -1)
    off = abs(forward(arch, case["tokens"], weights, settings(arch, fields))[0] - expected).max()
    print(f"{arch}-a: the reference is {off:.1e} off transformers")
    assert off < 1e-4, arch
    return case, fields


# New models.


class Weights:
    """Random weights that are exact in bf16 and in f16."""

    def __init__(self, seed):
        self.random, self.all = np.random.default_rng(seed), {}

    def add(self, name, *shape, std=None, mean=0.0):
        std = 1.4 / math.sqrt(shape[-1]) if std is None else std
        values = (mean + std * self.random.standard_normal(shape)).astype(np.float32)
        # Eight bits of mantissa; nothing is so small that an f16 would lose some.
        values = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
        values[abs(values) < 2.0**-10] = 0
        self.all[name] = values

    def norm(self, name, *shape):
        self.add(name, *shape, std=0.2, mean=1.0)


def common(w, n_embd, n_layers, has_head):
    w.add("token_embd.weight", 512, n_embd, std=0.7)
    w.norm("output_norm.weight", n_embd)
    if has_head:
        w.add("output.weight", 512, n_embd, std=0.25)
    for layer in range(n_layers):
        w.norm(f"blk.{layer}.attn_norm.weight", n_embd)


def rates(w, name, *shape):
    """Rates of decay as converters write them: -exp(A_log)."""
    w.add(name, *shape, std=0.5)
    w.all[name] = -np.exp2(np.round(w.all[name] * 4) / 4).astype(np.float32)
    w.all[name] = (w.all[name].view(np.uint32) & 0xFFFF0000).view(np.float32)


def make_mamba():
    c = {"block_count": 2, "context_length": 1048576, "embedding_length": 48, "feed_forward_length": 0}
    c |= {"attention.head_count": 0, "ssm.conv_kernel": 4, "ssm.inner_size": 96, "ssm.state_size": 12}
    c |= {"ssm.time_step_rank": 6, "ssm.dt_b_c_rms": True, "eps": 1e-5}
    w = Weights(71)
    common(w, 48, 2, True)
    for layer in range(2):
        name = f"blk.{layer}."
        w.add(name + "ssm_in.weight", 192, 48)
        w.add(name + "ssm_conv1d.weight", 96, 4, std=0.5)
        w.add(name + "ssm_conv1d.bias", 96, std=0.2)
        w.add(name + "ssm_x.weight", 6 + 24, 96)
        w.add(name + "ssm_dt.weight", 96, 6)
        w.add(name + "ssm_dt.bias", 96, std=1.0, mean=-1.0)
        rates(w, name + "ssm_a", 96, 12)
        w.add(name + "ssm_d", 96, std=0.5, mean=0.5)
        w.add(name + "ssm_out.weight", 48, 96)
    return w.all, c, {}, "RMS norms without weights over what steps, writes and reads (FalconMamba)"


def make_mamba2():
    c = {"block_count": 2, "context_length": 1048576, "embedding_length": 48, "feed_forward_length": 0}
    c |= {"attention.head_count": 0, "ssm.conv_kernel": 3, "ssm.inner_size": 96, "ssm.state_size": 20}
    c |= {"ssm.time_step_rank": 6, "ssm.group_count": 2, "eps": 1e-5}
    n_channels = 96 + 2 * 2 * 20
    w = Weights(72)
    common(w, 48, 2, False)
    for layer in range(2):
        name = f"blk.{layer}."
        w.add(name + "ssm_in.weight", 96 + n_channels + 6, 48)
        w.add(name + "ssm_conv1d.weight", n_channels, 3, std=0.5)
        w.add(name + "ssm_conv1d.bias", n_channels, std=0.2)
        w.add(name + "ssm_dt.bias", 6, std=1.0, mean=-1.0)
        rates(w, name + "ssm_a", 6, 1)
        w.add(name + "ssm_d", 6, 1, std=0.5, mean=0.5)
        w.norm(name + "ssm_norm.weight", 2, 48)
        w.add(name + "ssm_out.weight", 48, 96)
    return w.all, c, {}, "two groups of heads, each with a norm of its own"


def attention(w, layer, has_old_layout):
    name = f"blk.{layer}."
    w.add(name + "attn_q.weight", 3 * 24, 48)
    w.add(name + "attn_kv_a_mqa.weight", 32 + 8, 48)
    w.norm(name + "attn_kv_a_norm.weight", 32)
    if has_old_layout:
        w.add(name + "attn_kv_b.weight", 3 * (16 + 16), 32)
    else:
        w.add(name + "attn_k_b.weight", 3, 32, 16, std=0.25)
        w.add(name + "attn_v_b.weight", 3, 16, 32)
    w.add(name + "attn_output.weight", 48, 3 * 16)
    w.norm(name + "ffn_norm.weight", 48)


def feed_forward(w, layer, n_experts, n_shared):
    name = f"blk.{layer}.ffn_"
    if layer == 0:
        for kind, shape in (("gate", (80, 48)), ("up", (80, 48)), ("down", (48, 80))):
            w.add(f"{name}{kind}.weight", *shape)
        return
    w.add(name + "gate_inp.weight", n_experts, 48)
    for kind, shape in (("gate", (32, 48)), ("up", (32, 48)), ("down", (48, 32))):
        w.add(f"{name}{kind}_exps.weight", n_experts, *shape)
    n_ff = 32 * n_shared
    for kind, shape in (("gate", (n_ff, 48)), ("up", (n_ff, 48)), ("down", (48, n_ff))):
        w.add(f"{name}{kind}_shexp.weight", *shape)


def deepseek2(n_layers):
    c = {"block_count": n_layers, "context_length": 256, "embedding_length": 48, "feed_forward_length": 80}
    c |= {"attention.head_count": 3, "attention.kv_lora_rank": 32, "rope.dimension_count": 8}
    c |= {"rope.freq_base": 10000.0, "leading_dense_block_count": 1, "expert_used_count": 2}
    return c | {"expert_feed_forward_length": 32, "eps": 1e-6}


def make_deepseek2():
    c = deepseek2(3) | {"attention.head_count_kv": 3, "attention.key_length": 24, "attention.value_length": 16}
    c |= {"expert_count": 4, "expert_shared_count": 2, "expert_weights_scale": 1.5}
    yarn = {"factor": 4.0, "n_ctx": 64, "mscale": 0.707}
    w = Weights(73)
    common(w, 48, 3, True)
    for layer in range(3):
        attention(w, layer, True)
        feed_forward(w, layer, 4, 2)
    note = "V2 Lite's queries, the layout with attn_kv_b, YaRN (factor 4, mscale and mscale_all_dim 0.707), two shared experts"
    return w.all, c, {"yarn": yarn}, note


def make_deepseek3():
    c = deepseek2(2) | {"attention.head_count_kv": 1, "attention.key_length": 40, "attention.value_length": 32}
    c |= {"attention.key_length_mla": 24, "attention.value_length_mla": 16, "expert_count": 6, "expert_shared_count": 1}
    c |= {"expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2}
    c |= {"expert_group_count": 3, "expert_group_used_count": 2}
    w = Weights(74)
    common(w, 48, 2, False)
    for layer in range(2):
        attention(w, layer, False)
        feed_forward(w, layer, 6, 1)
    w.add("blk.1.exp_probs_b.bias", 6, std=0.3)
    return w.all, c, {}, "V3's experts: sigmoid, a bias of the choice, two of three groups, weights that sum to one; no YaRN"


def write(path, name, weights, c, yarn, fields):
    """Writes a GGUF file with the vocabulary of a neighbour."""
    arch = name.split("-")[0]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(f"tiny {name}")
    for key, value in c.items():
        key = f"{arch}." + ("attention.layer_norm_rms_epsilon" if key == "eps" else key)
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(key, value)
    writer.add_vocab_size(512)
    if yarn:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(yarn["factor"])
        writer.add_rope_scaling_orig_ctx_len(yarn["n_ctx"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * yarn["mscale"])
    for key, (types, value) in fields.items():
        if key.startswith("tokenizer."):
            if types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(key, value)
            else:
                writer.add_key_value(key, value, types[0])
    for name, value in weights.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def choose(arch, weights, c):
    """Returns those of 40 token sequences whose best logits are farthest from the second best, and their logits."""
    best = None
    exact = {name: value.astype(np.float64) for name, value in weights.items()}
    for seed in range(40):
        tokens = np.random.default_rng(seed).integers(3, 512, N_TOKENS)
        logits, nearest = forward(arch, tokens, exact, c)
        top = np.sort(logits, axis=1)
        margin = min((top[:, -1] - top[:, -2]).min(), 10 * nearest)
        if best is None or margin > best[0]:
            best = (margin, tokens, logits)
    return best


MAKERS = {"mamba-b": make_mamba, "mamba2-b": make_mamba2, "deepseek2-b": make_deepseek2, "deepseek2-c": make_deepseek3}


def main():
    for name, make in MAKERS.items():
        arch = name.split("-")[0]
        neighbour, fields = check(arch)
        weights, c, extra, note = make()
        margin, tokens, logits = choose(arch, weights, c | extra)
        folder = MODELS / name
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / "model.gguf"
            write(path, name, weights, c, extra.get("yarn"), fields)
            raw = path.read_bytes()
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
            file.write(raw)
        (folder / "model.gguf.gz").write_bytes(packed.getvalue())
        logits.astype("<f4").tofile(folder / "logits.f32")
        case = {"name": name, "arch": arch, "gguf_bytes": {"model.gguf": len(raw)}, "n_vocab": 512}
        case |= {"n_tokens": N_TOKENS, "n_ctx": 256, "file": "model.gguf", "tokens": [int(token) for token in tokens]}
        case |= {"config": c | extra, "note": note, "made_by": "make.py (numpy in float64, checked against transformers)"}
        case |= {"kind": "logits", "expected": {"logits.f32": [N_TOKENS, 512]}, "files": {"f32": "model.gguf"}}
        case |= {"tokenizer_check": neighbour["tokenizer_check"]}
        (folder / "case.json").write_text(json.dumps(case) + "\n")
        size = f"{len(raw)} bytes, {len(packed.getvalue())} packed"
        print(f"{name}: {size}, margin {margin:.3f}, spread {logits.std():.2f}")


if __name__ == "__main__":
    main()
