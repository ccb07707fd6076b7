"""What the tests share. They run with the wheel installed: ``cargo xtask wheel``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ruvllm import Engine

#: A tiny llama with random weights.
GOLDEN = os.environ["RUVLLM_TEST_GOLDEN"]
#: SmolLM2 135M.
SMOLLM2 = os.environ["RUVLLM_TEST_SMOLLM2"]
#: The program.
BIN = os.environ["RUVLLM_TEST_BIN"]

OPTIONS: dict[str, Any] = {"chat_template": "chatml", "ctx": 1024, "threads": 2, "parallel": 8}


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keeps what tests leave behind apart from what a person has."""
    folder = tmp_path_factory.mktemp("home")
    os.environ["RUVLLM_HOME"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(home: Path) -> Iterator[Engine]:
    with Engine(GOLDEN, name="tiny", **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="session")
def smollm2(home: Path) -> Iterator[Engine]:
    with Engine(SMOLLM2, name="smollm2", ctx=2048, parallel=8) as engine:
        yield engine


def total(metrics: dict[str, float], name: str) -> float:
    """Returns the sum of a metric over its labels."""
    return sum(value for key, value in metrics.items() if key.split("{")[0] == name)


def wait_until(holds: Callable[[], bool], limit: float = 10.0) -> None:
    """Waits until something holds."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < limit, f"it does not hold after {limit} s"
        time.sleep(0.001)


def wait_until_idle(engine: Engine) -> None:
    """Waits until no request waits or runs."""

    def is_idle() -> bool:
        metrics = engine.metrics()
        return total(metrics, "ruvllm_requests_running") + total(metrics, "ruvllm_requests_waiting") == 0

    wait_until(is_idle)


def run(program: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Runs a program's text in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout)
