"""What a prompt costs whose beginning was seen before: RuvLLM beside llama.cpp with its own prompt caches, in one run.

    cargo build --release -p ruvllm-engine --example prefix_times
    python benches/peer_prefix.py --model FILE.gguf [--times target/release/examples/prefix_times] [--threads N]
                                  [--lengths 200,1000] [--rounds 5] [--lock FILE] [--json]

A text of the given length (this repository's README and docs) is followed by a fresh question of 20 tokens. A round is,
for either side: the text and question 1 with nothing known (cold); question 2 right after it (warm); a prompt about
something else, then question 3 (after another). llama.cpp does it through llama-cpp-python's `Llama.create_completion`:
the prefix in its one slot (warm), then `LlamaRAMCache` and `LlamaDiskCache` (after another). Times are to the first
token, medians over the rounds; beside them the share of answers (8 tokens, greedy) that are those of the side when cold.

Then 100 prompts that share 50 tokens go to RuvLLM at once: how many of those tokens were not computed again?

Measure on a quiet machine. `--lock FILE` holds an exclusive lock on FILE, let go for others every 15 s, for machines
whose users agree on one; several are taken in order. Needs llama-cpp-python and diskcache.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import llama_cpp
except ImportError as error:
    sys.exit(f"peer_prefix.py: {sys.executable} cannot import llama_cpp ({error}); install llama-cpp-python there")

ROOT = pathlib.Path(__file__).resolve().parent.parent
N_CTX, N_QUESTION, N_ANSWER = 2048, 20, 8
HELD_S = 15
QUESTIONS = [
    "Which of the parts described above would you change first, and what would have to be measured before that?",
    "How does what was said about memory bear on the speed of a machine with two cores and a slow disk in it?",
    "Who is the reader that this was written for, and which of its words would such a person have to look up?",
    "What happens, going by the text above, when a file is damaged in the middle or cut off near its very end?",
    "Please summarise the last section in one short sentence, then name the single claim that is least supported.",
]
OTHER = "Rivers rise in hills. " * 12
BATCH, BATCH_SHARED, BATCH_OWN = 100, 50, 20


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--times", default=str(ROOT / "target/release/examples/prefix_times"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lengths", type=lambda text: [int(word) for word in text.split(",")], default=[200, 1000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lock", action="append", default=[])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class Ruvllm:
    """The example `prefix_times` in a process of its own."""

    def __init__(self, args):
        command = [args.times, args.model, str(args.threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("peer_prefix.py: prefix_times ended; its message is above")
        return json.loads(line)

    def answer(self, prompt):
        """Returns the milliseconds to the first token, and the answer."""
        reply = self.ask(prompt=prompt, max_tokens=N_ANSWER)
        return reply["ttft_ms"], reply["tokens"]

    def round(self, text, other, questions):
        self.ask(clear=True)
        cold, warm = self.answer(text + questions[0]), self.answer(text + questions[1])
        self.answer(other)
        return {"cold": cold, "warm": warm, "after another": self.answer(text + questions[2])}


class Peer:
    """llama.cpp as its Python users have it."""

    def __init__(self, args):
        threads = {"n_threads": args.threads, "n_threads_batch": args.threads}
        self.llama = llama_cpp.Llama(args.model, n_ctx=N_CTX, verbose=False, **threads)

    def tokens(self, text):
        return self.llama.tokenize(text.encode(), add_bos=False)

    def answer(self, prompt):
        start, first, text = time.perf_counter(), None, ""
        options = {"max_tokens": N_ANSWER, "temperature": 0.0, "repeat_penalty": 1.0, "stream": True}
        for chunk in self.llama.create_completion(prompt, **options):
            first = first or time.perf_counter()
            text += chunk["choices"][0]["text"]
        return (first - start) * 1e3, text

    def round(self, text, other, questions):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(open(os.devnull, "w")):
            ram, disk = llama_cpp.LlamaRAMCache(), llama_cpp.LlamaDiskCache(folder)
            self.llama.set_cache(ram)
            self.llama.reset()
            cold = self.answer(text + questions[0])
            key, state = next(iter(ram.cache_state.items()))
            times = {"cold": cold, "warm": self.answer(text + questions[1])}
            self.answer(other)
            times["after another, RAM"] = self.answer(text + questions[2])
            # The disk holds what the RAM cache held after the cold prompt.
            disk[key] = state
            self.llama.set_cache(disk)
            self.answer(other)
            times["after another, disk"] = self.answer(text + questions[2])
            self.llama.set_cache(None)
            return times


class Turn:
    """Exclusive locks on files, taken in order, and let go between rounds once they were held for long enough."""

    def __init__(self, paths):
        self.paths, self.stack, self.since = paths, contextlib.ExitStack(), None

    def take(self):
        if self.since is not None and time.monotonic() - self.since > HELD_S:
            self.end()
        if self.since is None:
            for path in self.paths:
                fcntl.flock(self.stack.enter_context(open(path, "a")), fcntl.LOCK_EX)
            self.since = time.monotonic()

    def end(self):
        self.stack.close()
        self.since = None


def measure(args, turn, sides, text, other, questions):
    """Returns per side and kind the median time to the first token, and the share of answers that are as when cold."""
    times, answers = {}, {}
    for i in range(args.rounds):
        # Sides take turns in going first.
        for name, side in list(sides.items())[:: 1 if i % 2 == 0 else -1]:
            order = [questions[(i + j) % len(questions)] for j in range(3)]
            turn.take()
            kinds = side.round(text, other, order)
            for (kind, (ms, answer)), j in zip(kinds.items(), [0, 1, 2, 2]):
                times.setdefault((name, kind), []).append(ms)
                answers.setdefault((name, kind), []).append(((i + j) % len(questions), answer))
    rows = {}
    for (name, kind), samples in times.items():
        cold, ms = dict(answers[name, "cold"]), statistics.median(samples)
        known = [answer == cold[question] for question, answer in answers[name, kind] if question in cold]
        same = sum(known) / len(known) if known else None
        less = round(statistics.median(times[name, "cold"]) / ms, 1)
        rows.setdefault(name, {})[kind] = {"ttft_ms": round(ms, 2), "less": less, "same_answers": same}
    return rows


def batch(ruvllm, tokens):
    """Returns the share of the shared tokens that were not computed again, of prompts that come at once."""
    # The first own token differs, so that not one more than those is shared.
    rows = [tokens[:BATCH_SHARED] + [100 + i] + tokens[60 : 60 + BATCH_OWN - 1] for i in range(BATCH)]
    ruvllm.ask(clear=True)
    reply = ruvllm.ask(batch=rows, max_tokens=1)
    n_saved = BATCH * (BATCH_SHARED + BATCH_OWN) - reply["tokens_computed"]
    return {"prompts": BATCH, "shared_tokens": BATCH_SHARED, "saved_share": n_saved / (BATCH * BATCH_SHARED)}


def main():
    args = arguments()
    peer = Peer(args)
    sides = {"ruvllm": Ruvllm(args), "llama.cpp": peer}
    pages = [ROOT / "README.md", *sorted((ROOT / "docs/src").glob("*.md"))]
    tokens = peer.tokens("\n".join(page.read_text() for page in pages))
    questions = [peer.tokens("\n" + question)[:N_QUESTION] for question in QUESTIONS]
    other = peer.tokens(OTHER)
    turn = Turn(args.lock)
    turn.take()
    sides["ruvllm"].answer(other)
    peer.answer(other)
    report = {"model": args.model, "rounds": args.rounds, "texts": []}
    for length in args.lengths:
        rows = measure(args, turn, sides, tokens[:length], other, questions)
        report["texts"].append({"tokens": length, "question_tokens": N_QUESTION, **rows})
    report["batch"] = batch(sides["ruvllm"], tokens)
    turn.end()
    if args.json:
        print(json.dumps(report))
        return
    for text in report["texts"]:
        for name in sides:
            for kind, row in text[name].items():
                same = "" if row["same_answers"] is None else f"  {row['same_answers']:4.0%} of answers as cold"
                time = f"{row['ttft_ms']:8.1f} ms  {row['less']:5.1f}x less"
                print(f"{text['tokens']:5} tokens  {name:9}  {kind:18} {time}{same}")
    summary = "{prompts} prompts that share {shared_tokens} tokens: {saved_share:.1%} of those saved"
    print(summary.format(**report["batch"]))


if __name__ == "__main__":
    main()
