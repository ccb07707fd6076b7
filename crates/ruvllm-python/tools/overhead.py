"""Measures what a token costs in Python beside the command, in turns:

    python tools/overhead.py path/of/ruvllm MODEL.gguf

It needs the package installed, and a machine on which nothing else runs. Both write the same tokens, one request at a time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

from ruvllm import Engine

N_ROUNDS = 9
N_TOKENS = 256
PROMPT = "Once upon a time"


def of_command(program: str, model: str) -> float:
    """Returns the milliseconds of a token of `ruvllm run`."""
    args = ["run", "--model", model, "--prompt", PROMPT, "--raw", "--temp", "0", "--max-tokens", str(N_TOKENS), "--json"]
    answer = json.loads(subprocess.run([program, *args], check=True, capture_output=True, text=True).stdout)
    assert len(answer["tokens"]) == N_TOKENS, "it ended early; choose another model"
    return 1e3 / answer["timings"]["decode_tps"]


def of_engine(engine: Engine) -> float:
    """Returns the milliseconds from a token's chunk to the next in a stream."""
    times = []
    for _ in engine.complete(PROMPT, stream=True, temperature=0, max_tokens=N_TOKENS):
        times.append(time.perf_counter())
    assert len(times) > N_TOKENS * 0.9
    return 1e3 * (times[-1] - times[0]) / (N_TOKENS - 1)


def main(program: str, model: str) -> None:
    with Engine(model, ctx=1024) as engine:
        of_engine(engine)
        rounds = [(of_command(program, model), of_engine(engine)) for _ in range(N_ROUNDS)]
    command, python = (statistics.median(column) for column in zip(*rounds))
    print(f"ms a token: command {command:.3f}, Python {python:.3f} ({100 * (python / command - 1):+.1f} %)")
    print("of the rounds:", " ".join(f"{100 * (python / command - 1):+.1f}" for command, python in rounds))


main(*sys.argv[1:])
