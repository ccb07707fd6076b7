"""The package: its types, its options, and the programs of its pages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMOLLM2, run

import ruvllm
from ruvllm._options import arguments

TYPED = """
from typing import Optional
import numpy as np
from ruvllm import AsyncEngine, Engine

def main() -> None:
    with Engine("smollm2:135m", ctx=512, learn=True) as engine:
        text: Optional[str] = engine.chat([], temperature=0.5)["choices"][0]["message"]["content"]
        for chunk in engine.chat([], stream=True):
            text = chunk["choices"][0]["delta"].get("content")
        array: np.ndarray = engine.logits([1])
        engine.chat([], temperature="hot")
        engine.chat([], temperatur=1)
        Engine("x", ctxt=1)
"""


def test_the_package_passes_the_type_checker(tmp_path):
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--no-error-summary"]
    done = subprocess.run([*command, "-p", "ruvllm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "typed.py").write_text(TYPED)
    done = subprocess.run([*command, str(tmp_path / "typed.py")], capture_output=True, text=True)
    found = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    first = TYPED.splitlines().index('        engine.chat([], temperature="hot")') + 1
    assert sorted(set(found)) == [first, first + 1, first + 2], done.stdout


def test_options_become_arguments(tmp_path):
    options = {"name": "x", "chat_template": "chatml", "learn": True, "no_cache": False, "ctx": 5, "adapter": ["a", "b"]}
    assert arguments("m", {**options, "draft": None, "adapter_dir": tmp_path}) == [
        "--model=m",
        "--alias=x",
        "--chat-template=chatml",
        "--learn",
        "--ctx=5",
        "--adapter=a",
        "--adapter=b",
        f"--adapter-dir={tmp_path}",
    ]
    assert arguments([Path("a"), "b"], {}) == ["--model=a", "--model=b"]


def test_the_wheel_says_what_it_is():
    from importlib.metadata import files, metadata

    told = metadata("ruvllm")
    assert told["Version"] == ruvllm.__version__ and told["Requires-Python"] == ">=3.9"
    names = {str(file) for file in files("ruvllm") or []}
    assert {"ruvllm/py.typed", "ruvllm/_native.pyi", "ruvllm/_native.abi3.so"} <= names
    (wheel,) = (file for file in files("ruvllm") or [] if file.name == "WHEEL")
    assert re.search(r"^Tag: cp39-abi3-manylinux_2_\d+_x86_64$", wheel.read_text(), re.MULTILINE)


PROGRAMS = [
    (Path(page).parent.name + "/" + Path(page).name, i, program)
    for page in os.environ["RUVLLM_TEST_PAGES"].split(":")
    for i, program in enumerate(re.findall(r"^```python\n(.*?)^```", Path(page).read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize(("page", "i", "program"), PROGRAMS, ids=[f"{page}-{i}" for page, i, _ in PROGRAMS])
def test_the_programs_of_the_pages_run(page, i, program, tmp_path, monkeypatch):
    monkeypatch.setenv("RUVLLM_HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models/smollm2-135m.gguf").symlink_to(SMOLLM2)
    monkeypatch.chdir(tmp_path)
    done = run(program)
    assert done.returncode == 0, done.stderr
