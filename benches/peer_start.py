"""Time and peak memory of a whole process that answers with one token, ours and llama.cpp's in turns.

    python peer_start.py --ruvllm target/release/ruvllm --model FILE.gguf [--threads 2] [--rounds 9] [--json]

Each round starts three processes, one after another:

    kept    ruvllm run --max-tokens 1, with the weights that an earlier process repacked in its cache folder
    first   the same with an empty cache folder: it repacks them there
    peer    llama.cpp loads the model, reads the prompt and writes one token; less what `import llama_cpp` takes

All files are in the page cache: each side runs once before. ratio is ours / peer of the same round, the median over
rounds; under 1 is quicker or smaller. Needs llama-cpp-python in the Python that runs it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT = "The lighthouse keeper looked out over the sea and"


def peer(model, threads):
    start = time.perf_counter()
    import llama_cpp as llama

    imported = time.perf_counter() - start
    run = llama.Llama(model_path=model, n_ctx=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    run.create_completion(PROMPT, max_tokens=1, temperature=0)
    print(json.dumps(imported), flush=True)
    os._exit(0)  # what frees memory is not measured


def measure(command, environment=None):
    """Returns a process's seconds, its peak resident bytes and its output."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"peer_start.py: {' '.join(command)} ended with {process.returncode}")
    return seconds, usage.ru_maxrss * 1024, output


def ours(args, cache):
    command = [args.ruvllm, "run", "--model", args.model, "--threads", str(args.threads), "--cache-dir", cache]
    seconds, n_bytes, _ = measure([*command, "--prompt", PROMPT, "--raw", "--max-tokens", "1", "--temp", "0", "--json"])
    return seconds, n_bytes


def one_round(args, cache):
    results = {"kept": ours(args, cache)}
    with tempfile.TemporaryDirectory() as empty:
        results["first"] = ours(args, empty)
    command = [sys.executable, __file__, "--peer", "--model", args.model, "--threads", str(args.threads)]
    seconds, n_bytes, output = measure(command)
    results["peer"] = seconds - json.loads(output), n_bytes
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ruvllm", default="target/release/ruvllm")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.model, args.threads)
    with tempfile.TemporaryDirectory() as cache:
        one_round(args, cache)
        rounds = [one_round(args, cache) for _ in range(args.rounds)]
    table = {}
    for name in ("kept", "first", "peer"):
        row = {"seconds": statistics.median(r[name][0] for r in rounds), "bytes": max(r[name][1] for r in rounds)}
        ratios = [r[name][0] / r["peer"][0] for r in rounds]
        row |= {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
        row["memory_ratio"] = statistics.median(r[name][1] / r["peer"][1] for r in rounds)
        table[name] = row
    if args.json:
        return print(json.dumps({"model": os.path.basename(args.model), "rounds": args.rounds, "results": table}))
    print(f"{os.path.basename(args.model)}, {args.threads} threads, {args.rounds} rounds")
    for name, row in table.items():
        print(
            f"  {name:6s} {row['seconds']:6.3f} s  {row['bytes'] / 1e6:7.1f} MB   time {row['ratio']:.2f} of the peer's"
            f" ({row['ratio_min']:.2f}-{row['ratio_max']:.2f}), memory {row['memory_ratio']:.2f}"
        )


if __name__ == "__main__":
    main()
