"""What learning adds to a decoded token: `ruvllm run --learn` beside `ruvllm run`, in turns.

    python learning_cost.py --model FILE.gguf --text FILE … [--ruvllm target/release/ruvllm] [--entries 16384]
                            [--tokens 256] [--rounds 7] [--threads 2] [--json]

First a tenant of its own reads the texts, a piece at a time, until its memory has so many entries (the texts have to be that long). Each
round then continues the end of what it read three times, one process after another, greedily and without guesses:

    off        without learning
    unscreened without learning and without the coarse copy of the head that greedy tokens need less reading by
    learn      with all that was learned

Times are milliseconds a token of a process; added is the median over rounds of the difference to the same round's. Learning
needs all logits, so `learn` has no use of the coarse copy either: beside `off` it shows what a user pays, beside `unscreened`
what memory, gate and MicroLoRA cost.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SIDES = {"off": [], "unscreened": ["--no-screen"], "learn": ["--learn"]}
# What a tenant reads between two looks at how much it knows.
PIECE = 24_000


def ours(args, home, *command):
    """Returns the object that a command answers with."""
    line = [args.ruvllm, *command, "--model", args.model, "--threads", str(args.threads), "--json"]
    done = subprocess.run(line, env=os.environ | {"RUVLLM_HOME": home}, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"learning_cost.py: {' '.join(line[:2])} ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def teach(args, home):
    """Has the tenant read until it has so many entries. Returns how many, and the end of what it read."""
    text = "\n".join(open(path, encoding="utf-8").read() for path in args.text)
    path, n_entries, at = os.path.join(home, "piece.txt"), 0, 0
    while n_entries < args.entries:
        piece = text[at : at + PIECE]
        if not piece:
            sys.exit(f"learning_cost.py: the texts end after {n_entries} of {args.entries} entries; give more")
        with open(path, "w", encoding="utf-8") as file:
            file.write(piece)
        n_entries, at = ours(args, home, "learn", "--file", path)["learned"]["entries"], at + PIECE
    return n_entries, text[max(at - 1500, 0) : at]


def ms_per_token(args, home, prompt, extra):
    answer = ours(
        args, home, "run", "--raw", "--prompt", prompt, "--max-tokens", str(args.tokens), "--ignore-eos", "--temp", "0",
        "--speculate", "off", "--no-prefix-cache", *extra,
    )  # fmt: skip
    return answer["timings"]["decode_ms"] / (args.tokens - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ruvllm", default="target/release/ruvllm")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, nargs="+")
    parser.add_argument("--entries", type=int, default=16384)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    for path in [args.model, *args.text]:
        if not os.path.isfile(path):
            sys.exit(f"learning_cost.py: no file {path}")
    with tempfile.TemporaryDirectory() as home:
        n_entries, prompt = teach(args, home)
        for extra in SIDES.values():
            ms_per_token(args, home, prompt, extra)
        rounds = [
            {side: ms_per_token(args, home, prompt, extra) for side, extra in SIDES.items()} for _ in range(args.rounds)
        ]
    table = {side: {"ms": statistics.median(r[side] for r in rounds)} for side in SIDES}
    for side in ("off", "unscreened"):
        added = sorted(r["learn"] - r[side] for r in rounds)
        table[side] |= {"added": statistics.median(added), "added_min": added[0], "added_max": added[-1]}
    model = os.path.basename(args.model)
    if args.json:
        return print(json.dumps({"model": model, "entries": n_entries, "rounds": args.rounds, "results": table}))
    print(f"{model}, {args.threads} threads, {n_entries} entries, {args.rounds} rounds of {args.tokens} tokens")
    for side, row in table.items():
        line = f"  {side:10s} {row['ms']:6.3f} ms a token"
        if "added" in row:
            line += f"; learning adds {row['added']:.3f} ms ({row['added_min']:.3f} to {row['added_max']:.3f})"
        print(line)


if __name__ == "__main__":
    main()
