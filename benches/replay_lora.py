"""What LoRA beside the last layers would learn of a text online, each 32 tokens predicted before they are learned: a replay in JAX with
exact gradients, to judge a design before it is built (docs/lab/microlora.md). Not a part of the product.

    pip install jax gguf
    python replay_lora.py --model QWEN2.gguf --text FILE [--text FILE] [--tokens 12000] --try 1:ffn_gate+ffn_up:4:3e-4

`--try LAYERS:LINEARS:RANK:RATE` changes the named linears of the last LAYERS layers with RMSprop; `all` is each of them, `state` the
final state itself, which is what MicroLoRA changes. Only Qwen2.5's architecture is here. Prints the change of the mean loss of the second half against no change.
Earlier tokens' keys and values stay those of the change that they were computed with, as in a KV cache, and no gradient goes into them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from gguf import GGUFReader, dequantize
except ImportError as error:
    sys.exit(f"replay_lora.py: {error}; pip install jax gguf")

CONTEXT, WINDOW, PIECE = 512, 1024, 32
LINEARS = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
DECAY, CLIP = 0.95, 1.0


class Model:
    def __init__(self, path):
        reader = GGUFReader(path)
        if "qwen2.block_count" not in reader.fields:
            sys.exit(f"replay_lora.py: {path} is not of Qwen2.5's architecture, the only one here")
        number = lambda key: reader.fields[f"qwen2.{key}"].contents()
        self.n_layer, self.n_head = number("block_count"), number("attention.head_count")
        self.n_head_kv, self.n_embd = number("attention.head_count_kv"), number("embedding_length")
        self.head_dim, self.theta = self.n_embd // self.n_head, number("rope.freq_base")
        self.eps = number("attention.layer_norm_rms_epsilon")
        tensors = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}
        self.embedding = tensors["token_embd.weight"]
        self.head = tensors.get("output.weight", self.embedding)
        self.output_norm = tensors["output_norm.weight"]
        self.layers = [self.layer_of(tensors, i) for i in range(self.n_layer)]

    @staticmethod
    def layer_of(tensors, i):
        names = [*LINEARS, "attn_norm", "ffn_norm"]
        layer = {name: tensors[f"blk.{i}.{name}.weight"] for name in names}
        return layer | {f"{name}.bias": tensors[f"blk.{i}.{name}.bias"] for name in LINEARS[:3]}

    def norm(self, x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + self.eps) * weight

    def rope(self, x, positions):
        angles = positions[:, None] * self.theta ** (-jnp.arange(0, self.head_dim, 2) / self.head_dim)
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        x1, x2 = jnp.split(x, 2, -1)
        return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], -1)

    def layer(self, weights, lora, x, cache, start):
        """Returns the next layer's input [n, n_embd] and the cache with these tokens at `start`."""

        def linear(name, x):
            y = x @ weights[name].T + weights.get(f"{name}.bias", 0.0)
            return y + (x @ lora[name][0].T) @ lora[name][1].T if name in lora else y

        n, groups = x.shape[0], self.n_head // self.n_head_kv
        positions, h = start + jnp.arange(n), self.norm(x, weights["attn_norm"])
        heads = lambda name, count: linear(name, h).reshape(n, count, self.head_dim)
        q, k = self.rope(heads("attn_q", self.n_head), positions), self.rope(heads("attn_k", self.n_head_kv), positions)
        new = (k, heads("attn_v", self.n_head_kv))
        keys, values = (jax.lax.dynamic_update_slice(old, rows, (start, 0, 0)) for old, rows in zip(cache, new))
        q = q.reshape(n, self.n_head_kv, groups, self.head_dim)
        scores = jnp.einsum("tgqd,sgd->gqts", q, keys) / np.sqrt(self.head_dim)
        seen = jnp.arange(keys.shape[0])[None] <= positions[:, None]
        probabilities = jax.nn.softmax(jnp.where(seen, scores, -1e30), -1)
        x = x + linear("attn_output", jnp.einsum("gqts,sgd->tgqd", probabilities, values).reshape(n, self.n_embd))
        h = self.norm(x, weights["ffn_norm"])
        x = x + linear("ffn_down", jax.nn.silu(linear("ffn_gate", h)) * linear("ffn_up", h))
        return x, (keys, values)

    def empty_cache(self):
        return (jnp.zeros((CONTEXT + WINDOW, self.n_head_kv, self.head_dim)),) * 2


def windows(n_tokens):
    """Yields where a window begins, how many tokens of it are only read, and how many are predicted."""
    at = 0
    while (n := min(WINDOW, (n_tokens - at - 1) // PIECE * PIECE)) > 0:
        n_read = min(CONTEXT, at)
        yield at - n_read, n_read, n
        at += n


def inputs_of_layers(model, tokens, wanted):
    """Returns for each layer of `wanted` its inputs, one array a window."""
    step = jax.jit(lambda weights, x: model.layer(weights, {}, x, model.empty_cache(), 0)[0])
    inputs = {layer: [] for layer in wanted}
    for begin, n_read, n in windows(len(tokens)):
        ids = np.zeros(CONTEXT + WINDOW, int)
        ids[: n_read + n] = tokens[begin : begin + n_read + n]
        for layer in range(max(wanted) + 1):
            x = model.embedding[ids] if layer == 0 else step(model.layers[layer - 1], x)
            if layer in wanted:
                inputs[layer].append(np.asarray(x))
    return inputs


def replay(model, tokens, inputs, n_last, linears, rank, rate):
    """Returns each predicted token's loss; without linears nothing is learned."""
    layers, rng = model.layers[model.n_layer - n_last :], np.random.default_rng(0)

    def begin(n_out, n_in):
        a = rng.normal(size=(rank, n_in)).astype(np.float32) / np.sqrt(n_in)
        return jnp.asarray(a), jnp.zeros((n_out, rank))

    of_layers = [{name: begin(*weights[name].shape) for name in linears if name in LINEARS} for weights in layers]
    lora = (of_layers, begin(model.n_embd, model.n_embd) if "state" in linears else None)

    def forward(lora, x, caches, start):
        (of_layers, state), after = lora, []
        for weights, change, cache in zip(layers, of_layers, caches):
            x, cache = model.layer(weights, change, x, cache, start)
            after.append(cache)
        h = model.norm(x, model.output_norm)
        return h if state is None else h + h @ state[0].T @ state[1].T, after

    def loss(lora, x, caches, start, targets):
        h, caches = forward(lora, x, caches, start)
        log_p = jax.nn.log_softmax(h @ model.head.T, -1)
        losses = -jnp.take_along_axis(log_p, targets[:, None], 1)[:, 0]
        return losses.mean(), (losses, caches)

    @jax.jit
    def update(lora, squares, gradient, t):
        length = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradient)))
        gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / length), gradient)
        squares = jax.tree.map(lambda s, g: DECAY * s + (1 - DECAY) * g * g, squares, gradient)
        step = lambda p, g, s: p - rate * g / (jnp.sqrt(s / (1 - DECAY**t)) + 1e-8)
        return jax.tree.map(step, lora, gradient, squares), squares

    read, learn = jax.jit(forward), jax.jit(jax.value_and_grad(loss, has_aux=True))
    squares, losses = jax.tree.map(jnp.zeros_like, lora), []
    for (begin_at, n_read, n), x in zip(windows(len(tokens)), inputs):
        caches = [model.empty_cache() for _ in layers]
        if n_read:
            _, caches = read(lora, x[:n_read], caches, 0)
        for at in range(n_read, n_read + n, PIECE):
            targets = jnp.asarray(tokens[begin_at + at + 1 : begin_at + at + 1 + PIECE])
            (_, (of_piece, caches)), gradient = learn(lora, x[at : at + PIECE], caches, at, targets)
            losses.append(np.asarray(of_piece))
            lora, squares = update(lora, squares, gradient, float(len(losses)))
    return np.concatenate(losses)


def tokenized(args, path):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(json.dumps({"text": Path(path).read_text()}) + "\n")
        file.flush()
        command = [args.ruvllm, "tokenize", "--model", args.model, "--file", file.name, "--json"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return np.array(json.loads(out.splitlines()[0])["tokens"])[: args.tokens + 1]


def design(text):
    """Reads `LAYERS:LINEARS:RANK:RATE`."""
    n_last, linears, rank, rate = text.split(":")
    linears = LINEARS if linears == "all" else linears.split("+")
    if unknown := set(linears) - {*LINEARS, "state"}:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose of {', '.join(LINEARS)}, state")
    return text, int(n_last), linears, int(rank), float(rate)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ruvllm", default="target/release/ruvllm")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", action="append", required=True)
    parser.add_argument("--tokens", type=int, default=12_000)
    shape = "LAYERS:LINEARS:RANK:RATE"
    parser.add_argument("--try", action="append", required=True, type=design, dest="designs", metavar=shape)
    args = parser.parse_args()
    model = Model(args.model)
    firsts = {model.n_layer - n_last for _, n_last, *_ in args.designs}
    if not all(0 <= first < model.n_layer for first in firsts):
        sys.exit(f"replay_lora.py: LAYERS is 1 to {model.n_layer}")
    for text in args.text:
        tokens = tokenized(args, text)
        inputs = inputs_of_layers(model, tokens, firsts)

        def second_half(n_last, linears, rank, rate):
            losses = replay(model, tokens, inputs[model.n_layer - n_last], n_last, linears, rank, rate)
            return losses[len(losses) // 2 :].mean()

        frozen = second_half(args.designs[0][1], [], 0, 0.0)
        for name, *how in args.designs:
            change = second_half(*how) / frozen - 1
            print(f"{Path(text).name} {name}: {frozen:.4f} nats, {100 * change:+.2f} %", flush=True)


if __name__ == "__main__":
    main()
