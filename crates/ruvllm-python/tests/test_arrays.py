"""Logits and embeddings as arrays of NumPy."""

import gc
import json
import subprocess
from pathlib import Path

import numpy as np
from conftest import BIN, GOLDEN, OPTIONS

from ruvllm import Engine, _native


def test_logits_are_the_bits_of_the_command(tiny, tmp_path):
    tokens = tiny.tokenize("once upon a time there was a small model") * 12
    (tmp_path / "ids.json").write_text(json.dumps(tokens))
    out = tmp_path / "logits.f32"
    command = [BIN, "logits", "--tokens", tmp_path / "ids.json", "--out", out, "--model", GOLDEN]
    subprocess.run(command, check=True, capture_output=True)
    logits = tiny.logits(tokens)
    assert logits.dtype == np.float32 and len(logits) == len(tokens)
    expected = np.fromfile(out, dtype=np.float32).reshape(logits.shape)
    assert (logits.view(np.uint32) == expected.view(np.uint32)).all()


def test_the_last_logits_are_the_end_of_all(tiny):
    tokens = tiny.tokenize("once upon a time")
    everything = tiny.logits(tokens)
    assert (tiny.logits(tokens, last=2) == everything[-2:]).all()
    assert (tiny.logits(tokens, last=100) == everything).all()
    assert tiny.logits(tokens, last=0).shape[0] == 0


def test_greedy_answers_follow_the_logits(tiny):
    tokens = tiny.tokenize("once upon a time")
    text = tiny.complete(tokens, max_tokens=1, temperature=0, ignore_eos=True)["choices"][0]["text"]
    assert tiny.detokenize([int(tiny.logits(tokens, last=1)[0].argmax())]) in ("", text)


def test_arrays_share_the_memory_of_the_engine(tiny):
    floats = tiny._native.logits(tiny.tokenize("once upon a time")).wait()
    address, is_read_only = floats.__array_interface__["data"]
    one, other = np.asarray(floats), np.asarray(floats)
    for array in (one, other):
        assert array.__array_interface__["data"][0] == address and not array.flags.owndata
        assert array.flags.c_contiguous and array.flags.writeable and not is_read_only
    assert np.shares_memory(one, other) and np.shares_memory(one, one[1:])
    one[0, 0] = 42.0
    assert other[0, 0] == 42.0


def test_arrays_outlive_their_engine():
    with Engine(GOLDEN, **OPTIONS) as engine:
        logits = engine.logits([1, 2, 3])
        expected = logits.copy()
    del engine
    gc.collect()
    assert isinstance(logits.base, _native.Floats) or logits.base is not None
    assert (logits == expected).all()


def test_arrays_free_their_memory(tiny):
    # 200 arrays of 4 MiB at once would be seen.
    tokens = [1] * 1000
    n_bytes = tiny.logits(tokens).nbytes

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before = resident()
    for _ in range(200):
        tiny.logits(tokens)
    assert n_bytes * 200 > 100 << 20, "too small to tell"
    assert resident() - before < 64 << 20


def test_embeddings_are_rows(tiny):
    texts = ["a small model", "a large model", "the sea"]
    array = tiny.embed(texts)
    assert array.dtype == np.float32 and array.shape[0] == 3 and not array.flags.owndata
    answer = tiny.request("POST", "/v1/embeddings", {"input": texts})
    assert np.allclose(array, [one["embedding"] for one in answer["data"]], rtol=0, atol=0)
    assert np.allclose(np.linalg.norm(array, axis=1), 1.0, atol=1e-5)
    assert (tiny.embed("the sea") == array[2:]).all()


def test_an_encoder_embeds():
    model = str(Path(GOLDEN).parent.parent / "bert-a" / "model.gguf")
    with Engine(model) as engine:
        array = engine.embed(["hello world", "hello"], pooling="mean")
        assert array.shape[0] == 2 and np.isfinite(array).all()
