"""Rates of llama.cpp on one model, as one JSON object {"test": tokens per second} on standard output.

    python peer.py --model FILE.gguf --threads N [--pp 128,512] [--tg 64] [--depth 0,2048] [--batch 1,8,16]

The tests are those of `ruvllm bench`, by the same names: ppN reads N tokens; tgN writes N after one token; tgN@dD writes
N after D tokens of context; tgN@bB writes N in each of B sequences at once, tokens per second over all. Needs
llama-cpp-python; `cargo xtask bench --peer PYTHON` runs it.
"""

import argparse
import ctypes
import json
import sys
import time

try:
    import llama_cpp as llama
except ImportError as error:
    sys.exit(f"peer.py: {sys.executable} cannot import llama_cpp ({error}); install llama-cpp-python there")

CHUNK = 512  # tokens llama.cpp reads at once, its default


def numbers(text):
    return [int(word) for word in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--pp", type=numbers, default=[128, 512])
    parser.add_argument("--tg", type=numbers, default=[64])
    parser.add_argument("--depth", type=numbers, default=[0])
    parser.add_argument("--batch", type=numbers, default=[1])
    return parser.parse_args()


class Peer:
    """A loaded model with room for the longest test."""

    def __init__(self, args):
        self.log = llama.llama_log_callback(lambda *_: None)  # kept, for the library calls it later
        llama.llama_log_set(self.log, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(args.model.encode(), llama.llama_model_default_params())
        if not self.model:
            sys.exit(f"peer.py: llama.cpp cannot load {args.model}")
        params = llama.llama_context_default_params()
        n_tg, n_batch = max(args.tg), max(args.batch)
        params.n_ctx = 64 + max(max(args.pp), max(args.depth) + n_tg + 8, n_batch * (n_tg + 8))
        params.n_batch = params.n_ubatch = CHUNK
        params.n_seq_max, params.kv_unified = n_batch, True
        params.n_threads = params.n_threads_batch = args.threads
        self.context = llama.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"peer.py: llama.cpp makes no context of {params.n_ctx} tokens for {args.model}")
        self.memory = llama.llama_get_memory(self.context)
        self.n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))

    def token(self, i):
        return (i * 7919 + 13) % self.n_vocab

    def step(self, rows):
        """Runs rows of (sequence, position, token, whether logits are wanted)."""
        batch = llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (sequence, position, token, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, int(logits)
            batch.seq_id[i][0] = sequence
        status = llama.llama_decode(self.context, batch)
        llama.llama_synchronize(self.context)
        llama.llama_batch_free(batch)
        if status != 0:
            sys.exit(f"peer.py: llama_decode of {len(rows)} rows returned {status}")

    def read(self, n, sequence=0):
        for start in range(0, n, CHUNK):
            end = min(n, start + CHUNK)
            self.step([(sequence, i, self.token(i), i + 1 == end) for i in range(start, end)])

    def prefill(self, n):
        llama.llama_memory_clear(self.memory, True)
        start = time.perf_counter()
        self.read(n)
        return n / (time.perf_counter() - start)

    def decode(self, n, n_sequences, depth):
        llama.llama_memory_clear(self.memory, True)
        before = max(depth, 1)
        for sequence in range(n_sequences):
            self.read(before, sequence)
        start = time.perf_counter()
        for i in range(n):
            self.step([(s, before + i, self.token(i + s), True) for s in range(n_sequences)])
        return n * n_sequences / (time.perf_counter() - start)


def main():
    args = arguments()
    peer = Peer(args)
    peer.prefill(32)
    peer.decode(4, 1, 0)
    rates = {f"pp{n}": peer.prefill(n) for n in args.pp}
    for n in args.tg:
        for n_sequences in args.batch if 0 in args.depth else []:
            rates[f"tg{n}" if n_sequences == 1 else f"tg{n}@b{n_sequences}"] = peer.decode(n, n_sequences, 0)
        for depth in (depth for depth in args.depth if depth > 0):
            rates[f"tg{n}@d{depth}"] = peer.decode(n, 1, depth)
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
