"""What learning adds to a decoded token: `ruvllm run --learn` beside `ruvllm run`, in turns.

    python learning_cost.py --model FILE.gguf --text FILE … [--ruvllm target/release/ruvllm] [--entries 16384]
                            [--tokens 256] [--rounds 7] [--threads 2] [--json]

First a tenant of its own reads the texts, a piece at a time, until its memory has so many entries (the texts have to be that long). Each
round then continues the end of what it read three times, one process after another, greedily and without guesses:

    off        without learning
    unscreened without learning and without the coarse copy of the head that greedy tokens need less reading by
    learn      with all that was learned

Times are milliseconds from one token on the standard output to the next, the median of a process (p50) and the mean; added is the
median over rounds of the difference to the same round's. Means hold what happens once (the coarse copy is made behind the
sixteenth token) and every eighth token (MicroLoRA learns of eight). Greedy answers are learned by the coarse copy, so `learn`
has it too: beside `off` it shows what a user pays, beside `unscreened` whether the copy is worth more than learning costs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

SIDES = {"off": [], "unscreened": ["--no-head-shortlist"], "learn": ["--learn"]}
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


def times_per_token(args, home, prompt, extra):
    """Returns the median and the mean of the milliseconds between a process's tokens."""
    line = [
        args.ruvllm, "run", "--model", args.model, "--threads", str(args.threads), "--raw", "--prompt", prompt,
        "--max-tokens", str(args.tokens), "--ignore-eos", "--temp", "0", "--speculate", "off", "--no-prefix-cache", *extra,
    ]  # fmt: skip
    process = subprocess.Popen(
        line, env=os.environ | {"RUVLLM_HOME": home}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    came = []
    while os.read(process.stdout.fileno(), 1 << 16):
        came.append(time.perf_counter())
    complaint = process.communicate()[1].decode(errors="replace").strip()
    # A token may end in the middle of a character, and is written with the next one then.
    if process.returncode != 0 or len(came) < args.tokens // 2:
        sys.exit(f"learning_cost.py: {len(came)} of {args.tokens} tokens, status {process.returncode}: {complaint}")
    # Behind the last token comes the end of the line, once all is taken in and kept.
    came = came[: args.tokens]
    gaps = [1e3 * (later - earlier) for earlier, later in zip(came, came[1:])]
    return {"p50": statistics.median(gaps), "mean": statistics.mean(gaps)}


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
            times_per_token(args, home, prompt, extra)
        rounds = [
            {side: times_per_token(args, home, prompt, extra) for side, extra in SIDES.items()}
            for _ in range(args.rounds)
        ]
    table = {}
    for side in SIDES:
        table[side] = {}
        for of in ("p50", "mean"):
            added = sorted(r["learn"][of] - r[side][of] for r in rounds)
            row = {"ms": statistics.median(r[side][of] for r in rounds)}
            if side != "learn":
                row |= {"added": statistics.median(added), "added_min": added[0], "added_max": added[-1]}
            table[side][of] = row
    model = os.path.basename(args.model)
    if args.json:
        return print(json.dumps({"model": model, "entries": n_entries, "rounds": args.rounds, "results": table}))
    print(f"{model}, {args.threads} threads, {n_entries} entries, {args.rounds} rounds of {args.tokens} tokens")
    for side, times in table.items():
        for of, row in times.items():
            line = f"  {side:10s} {of:4s} {row['ms']:6.3f} ms a token"
            if "added" in row:
                line += f"; learning adds {row['added']:.3f} ms ({row['added_min']:.3f} to {row['added_max']:.3f})"
            print(line)


if __name__ == "__main__":
    main()
