"""The engine of asyncio: several streams at once, and their end."""

import asyncio

import numpy as np
import pytest
from conftest import GOLDEN, OPTIONS, total, user, wait_until_idle

from ruvllm import AsyncEngine, DisposedError, NotFoundError

PROMPTS = ["Once upon a time", "The sea is", "Name a river:", "1 2 3", "def f(x):", "Dear Sir", "In 1984", "Why?"]


async def written(engine: AsyncEngine, prompt: str) -> list[str]:
    stream = await engine.complete(prompt, stream=True, max_tokens=24, temperature=0, logprobs=0, ignore_eos=True)
    tokens = []
    async for chunk in stream:
        for choice in chunk["choices"]:
            tokens += (choice["logprobs"] or {}).get("tokens", [])
    return tokens


def test_eight_streams_at_once_are_eight_single_ones(smollm2):
    async def main() -> None:
        engine = smollm2.aio()
        single = [await written(engine, prompt) for prompt in PROMPTS]
        before = await engine.metrics()
        together = await asyncio.gather(*(written(engine, prompt) for prompt in PROMPTS))
        after = await engine.metrics()
        assert together == single and all(len(tokens) == 24 for tokens in single)
        # They had steps in common: fewer passes than tokens.
        n_steps = total(after, "ruvllm_step_seconds_count") - total(before, "ruvllm_step_seconds_count")
        assert 0 < n_steps < 8 * 24 * 0.75, n_steps

    asyncio.run(main())


def test_an_engine_is_loaded_while_the_loop_runs():
    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async with await AsyncEngine.load(GOLDEN, name="t", **OPTIONS) as engine:
            assert ticks > 2, "the loop stood still"
            answer = await engine.chat(user("a"), max_tokens=3, temperature=0)
            assert answer["choices"][0]["finish_reason"] and engine.model == "t"
        ticking.cancel()
        assert engine.closed
        with pytest.raises(DisposedError):
            await engine.chat(user("a"))

    asyncio.run(main())


async def endless(engine: AsyncEngine, n_seen: list[int]) -> None:
    async for _ in await engine.chat(user("a"), stream=True, max_tokens=900, ignore_eos=True):
        n_seen[0] += 1


def test_a_task_that_is_cancelled_ends_its_request(tiny):
    async def main() -> None:
        engine, n_seen = tiny.aio(), [0]
        before = total(await engine.metrics(), "ruvllm_generated_tokens_total")
        task = asyncio.create_task(endless(engine, n_seen))
        while n_seen[0] < 5:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wait_until_idle(tiny)
        n_written = total(await engine.metrics(), "ruvllm_generated_tokens_total") - before
        # What a stream has written ahead of its reader is bounded as well.
        assert n_written < 850, n_written

    asyncio.run(main())


def test_cancelled_before_its_first_token(tiny):
    async def main() -> None:
        engine = tiny.aio()
        for delay in (0, 0.0005, 0.002):
            task = asyncio.create_task(engine.chat(user("word " * 150), max_tokens=900, ignore_eos=True))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        wait_until_idle(tiny)

    asyncio.run(main())


def test_a_stream_that_is_left_or_closed_ends_its_request(tiny):
    async def main() -> None:
        engine = tiny.aio()
        async with await engine.chat(user("a"), stream=True, max_tokens=900, ignore_eos=True) as stream:
            async for _ in stream:
                break
        wait_until_idle(tiny)
        stream = await engine.chat(user("a"), stream=True, max_tokens=900, ignore_eos=True)
        await stream.__anext__()
        await stream.aclose()
        assert [chunk async for chunk in stream] == []
        wait_until_idle(tiny)
        texts = (await engine.chat(user("a"), stream=True, max_tokens=900, ignore_eos=True)).texts()
        await texts.__anext__()
        await texts.aclose()
        wait_until_idle(tiny)

    asyncio.run(main())


def test_a_limit_of_time(tiny):
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(tiny.aio().chat(user("a"), max_tokens=900, ignore_eos=True), 0.01)
        wait_until_idle(tiny)

    asyncio.run(main())


def test_arrays_and_tokens(tiny):
    async def main() -> None:
        engine = tiny.aio()
        tokens = await engine.tokenize("once upon a time")
        logits, embeddings = await asyncio.gather(engine.logits(tokens), engine.embed(["a", "b"]))
        assert (logits == tiny.logits(tokens)).all() and embeddings.shape[0] == 2
        assert (await engine.detokenize(tokens)).strip() == "once upon a time"
        task = asyncio.create_task(engine.logits(np.ones(900, dtype=np.uint32).tolist()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_errors_come_to_the_task(tiny):
    async def main() -> None:
        engine = tiny.aio()
        with pytest.raises(NotFoundError):
            await engine.chat(user("a"), model="other")
        with pytest.raises(NotFoundError):
            await engine.chat(user("a"), model="other", stream=True)
        with pytest.raises(NotFoundError):
            await engine.logits([1], model="other")

    asyncio.run(main())


def test_a_loop_that_ends_early_is_left_alone(tiny):
    async def main() -> None:
        stream = await tiny.aio().chat(user("a"), stream=True, max_tokens=900, ignore_eos=True)
        await stream.__anext__()
        asyncio.create_task(stream.__anext__())
        await asyncio.sleep(0)

    for _ in range(3):
        asyncio.run(main())
    wait_until_idle(tiny)
