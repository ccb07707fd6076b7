"""Threads, signals, forks, memory and the end of a process."""

import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import GOLDEN, OPTIONS, run, user, wait_until_idle

from ruvllm import Engine, InternalError

#: Loads of a model after which memory is looked at.
N_LOADS = 1000


def resident() -> int:
    """Returns the bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_loads_leave_nothing():
    def loads(n: int) -> None:
        for _ in range(n):
            with Engine(GOLDEN, chat_template="chatml", ctx=64, threads=1, parallel=1) as engine:
                engine.chat(user("a"), max_tokens=1, temperature=0)
        gc.collect()

    loads(100)
    before, threads = resident(), len(os.listdir("/proc/self/task"))
    loads(N_LOADS - 100)
    grown = resident() - before
    assert len(os.listdir("/proc/self/task")) <= threads + 2, "threads are left"
    assert len(os.listdir("/proc/self/fd")) < 100, "files are left open"
    assert grown < 16 << 20, f"{N_LOADS - 100} loads left {grown >> 10} KiB"


def test_other_threads_run_while_a_prompt_is_read(smollm2):
    n_turns, is_over = 0, threading.Event()

    def count() -> None:
        nonlocal n_turns
        while not is_over.is_set():
            n_turns += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        start = n_turns
        smollm2.logits(smollm2.tokenize("The sea is deep and blue. " * 200), last=1)
        assert n_turns - start > 100, "the lock of the interpreter was held"
    finally:
        is_over.set()
        thread.join()


def test_threads_share_an_engine(tiny):
    def asked(n: int) -> str:
        return tiny.chat(user(f"question {n}"), max_tokens=8, temperature=0)["choices"][0]["message"]["content"]

    single = [asked(n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(asked, range(8))) == single


def test_control_c_ends_what_waits():
    done = run(
        f"""
import os, signal, threading, time
from ruvllm import Engine
# Whoever runs this in the background has it ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
with Engine({GOLDEN!r}, chat_template="chatml", ctx=4096) as engine:
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    try:
        while True:
            engine.chat([{{"role": "user", "content": "a"}}], max_tokens=3900, ignore_eos=True)
    except KeyboardInterrupt:
        assert time.monotonic() - start < 5
    engine.chat([{{"role": "user", "content": "a"}}], max_tokens=2)
    print("interrupted")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_process_ends_while_streams_run():
    done = run(
        f"""
import asyncio, threading
from ruvllm import Engine
engine = Engine({GOLDEN!r}, chat_template="chatml", ctx=4096, parallel=4)
body = dict(stream=True, max_tokens=3900, ignore_eos=True)
stream = engine.chat([{{"role": "user", "content": "a"}}], **body)
next(stream)
def read():
    try:
        list(engine.chat([{{"role": "user", "content": "b"}}], **body))
    except Exception as error:
        pass
threading.Thread(target=read, daemon=True).start()
async def main():
    other = await engine.aio().chat([{{"role": "user", "content": "c"}}], **body)
    await other.__anext__()
asyncio.run(main())
print("ends")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_what_was_learned_is_kept_by_a_process_that_just_ends(tmp_path):
    program = f"""
import os
os.environ["RUVLLM_HOME"] = {str(tmp_path)!r}
from ruvllm import Engine
engine = Engine({GOLDEN!r}, chat_template="chatml", ctx=512, learn=True)
"""
    done = run(program + 'engine.remember("Who is Ann?", "A smith.")')
    assert (done.returncode, done.stderr) == (0, "")
    done = run(program + 'print(engine.learned()["corrections"])')
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_forked_process_is_told_and_can_load_its_own():
    done = run(
        f"""
import os
from ruvllm import Engine, InternalError
engine = Engine({GOLDEN!r}, chat_template="chatml", ctx=512)
stream = engine.complete("a", stream=True, max_tokens=400, ignore_eos=True)
next(stream)
child = os.fork()
if child == 0:
    # Chunks that came before the fork are there still; no others follow.
    for work in (lambda: engine.complete("a"), lambda: list(stream), engine.close):
        try:
            work()
            os._exit(2)
        except InternalError as error:
            assert "forked" in str(error), error
    del engine, stream
    with Engine({GOLDEN!r}, chat_template="chatml", ctx=512) as own:
        own.complete("a", max_tokens=2)
    raise SystemExit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(list(stream)) > 10
engine.complete("a", max_tokens=2)
engine.close()
print("both")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "both\n", "")


def test_an_engine_that_is_dropped_frees_its_threads():
    def n_engines() -> int:
        names = (Path("/proc/self/task") / task / "comm" for task in os.listdir("/proc/self/task"))
        return sum(name.read_text().strip() == "ruvllm-engine" for name in names)

    before = n_engines()
    engine = Engine(GOLDEN, **OPTIONS)
    assert n_engines() == before + 1
    del engine
    gc.collect()
    deadline = time.monotonic() + 10
    while n_engines() > before:
        assert time.monotonic() < deadline, "its thread runs still"
        time.sleep(0.01)


def test_something_is_waited_for_once(tiny):
    pending = tiny._native.logits([1])
    pending.wait()
    with pytest.raises(InternalError, match="once"):
        pending.wait()
    pending = tiny._native.logits([1])
    pending.cancel()
    with pytest.raises(InternalError, match="once"):
        pending.wait()
    wait_until_idle(tiny)
