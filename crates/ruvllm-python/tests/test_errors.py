"""Errors: a class for each kind, with the line of the command or the HTTP API."""

import pickle
import subprocess
import threading

import pytest
from conftest import BIN, GOLDEN, OPTIONS, total, user, wait_until

from ruvllm import (
    BusyError,
    ContextLengthError,
    DisposedError,
    Engine,
    InvalidRequestError,
    LoadError,
    NotFoundError,
    RequestTimeoutError,
    RuvllmError,
    UnsupportedError,
    UsageError,
)


def line_of(*args: str) -> str:
    """Returns the error line of the command."""
    done = subprocess.run([BIN, *args], capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[0].removeprefix("error: ")


@pytest.mark.parametrize(
    ("options", "args", "param"),
    [
        ({"ctx": 0}, ["--ctx=0"], "ctx"),
        ({"parallel": "many"}, ["--parallel=many"], "parallel"),
        ({"threads": -1}, ["--threads=-1"], "threads"),
    ],
)
def test_options_are_refused_as_by_the_command(options, args, param):
    with pytest.raises(UsageError) as caught:
        Engine(GOLDEN, **options)
    assert str(caught.value) == line_of("serve", f"--model={GOLDEN}", *args)
    assert caught.value.param == param and caught.value.kind == "usage"


def test_options_of_connections_and_of_other_types():
    with pytest.raises(UsageError, match="--port is for 'ruvllm serve'"):
        Engine(GOLDEN, port=1)
    with pytest.raises(UsageError, match="'ctx' is of the type dict"):
        Engine(GOLDEN, ctx={})
    with pytest.raises(UsageError, match="give the name or the path of a model"):
        Engine([])


def test_a_model_that_is_not_there():
    with pytest.raises(LoadError) as caught:
        Engine("/no/such/model.gguf")
    assert str(caught.value) == line_of("serve", "--model=/no/such/model.gguf")


def test_a_file_that_is_no_model(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LoadError):
        Engine(path)


@pytest.mark.parametrize(
    ("kind", "body", "param", "code"),
    [
        (InvalidRequestError, {"temperature": "hot"}, "temperature", None),
        (InvalidRequestError, {"temperatur": 1}, "temperatur", None),
        (InvalidRequestError, {"messages": "a"}, "messages", None),
        (NotFoundError, {"model": "other"}, "model", "model_not_found"),
        (NotFoundError, {"adapter": "none"}, "adapter", None),
        (ContextLengthError, {"messages": user("word " * 3000)}, None, "context_length_exceeded"),
    ],
)
def test_requests_are_refused_by_class(tiny, kind, body, param, code):
    with pytest.raises(kind) as caught:
        tiny.chat(**{"messages": user("a"), **body})
    error = caught.value
    assert type(error) is kind and isinstance(error, RuvllmError)
    assert 400 <= error.status < 500 and error.param == param
    if code:
        assert error.code == code
    # A stream is refused when it is made.
    with pytest.raises(kind, match=None):
        tiny.chat(**{"messages": user("a"), "stream": True, **body})


def test_the_line_is_that_of_the_http_api(tiny):
    httpx = pytest.importorskip("httpx")
    with httpx.Client(transport=tiny.transport(), base_url="http://ruvllm") as client:
        told = client.post("/v1/chat/completions", json={"messages": "a"}).json()["error"]
    with pytest.raises(InvalidRequestError) as caught:
        tiny.chat("a")
    assert (caught.value.message, caught.value.param) == (told["message"], told["param"])


def test_logits_are_refused_by_class(tiny):
    with pytest.raises(InvalidRequestError, match="no tokens to compute"):
        tiny.logits([])
    with pytest.raises(InvalidRequestError, match="is outside the vocabulary"):
        tiny.logits([1 << 30])
    with pytest.raises(ContextLengthError):
        tiny.logits([1] * 5000)
    with pytest.raises(NotFoundError):
        tiny.logits([1], model="other")
    with pytest.raises(OverflowError):
        tiny.logits([-1])


def test_an_encoder_writes_no_text():
    model = GOLDEN.replace("llama-a", "bert-a")
    with Engine(model) as engine:
        with pytest.raises(UnsupportedError, match="makes embeddings, not text"):
            engine.logits([1, 2])
        with pytest.raises(RuvllmError):
            engine.complete("a")


def test_what_learns_takes_learn(tiny):
    for work in (tiny.learned, tiny.export_learned, lambda: tiny.correct("x", "y")):
        with pytest.raises(NotFoundError, match="--learn"):
            work()


def test_a_time_that_is_over(tiny):
    with pytest.raises(RequestTimeoutError):
        tiny.chat(user("a"), max_tokens=900, ignore_eos=True, timeout_ms=1)


def test_a_full_queue_says_when_to_come_again():
    with Engine(GOLDEN, **{**OPTIONS, "parallel": 1, "queue": 1}) as engine:
        streams = [engine.chat(user("a"), stream=True, max_tokens=900, ignore_eos=True)]
        waiting = threading.Thread(target=lambda: engine.chat(user("b"), max_tokens=1))
        waiting.start()
        wait_until(lambda: total(engine.metrics(), "ruvllm_requests_waiting") == 1)
        with pytest.raises(BusyError) as caught:
            for _ in range(1000):
                engine.chat(user("c"), max_tokens=1, timeout_ms=20)
        assert caught.value.retry_after >= 1 and caught.value.code == "queue_full"
        streams[0].close()
        waiting.join(20)
        assert not waiting.is_alive()


def test_a_closed_engine_takes_nothing():
    engine = Engine(GOLDEN, **OPTIONS)
    stream = engine.chat(user("a"), stream=True, max_tokens=900, ignore_eos=True)
    next(stream)
    engine.close()
    with pytest.raises(DisposedError):
        list(stream)
    for work in (lambda: engine.chat(user("a")), engine.metrics, lambda: engine.logits([1]), engine.export_learned):
        with pytest.raises(DisposedError, match="was closed"):
            work()
    engine.close()
    assert engine.closed


def test_what_is_no_json_is_no_request(tiny):
    with pytest.raises(InvalidRequestError, match="the body is no JSON"):
        tiny.chat(user("a"), seed=object())
    with pytest.raises(InvalidRequestError, match="the body is no JSON"):
        tiny.chat(user("a"), temperature=float("nan"))


def test_errors_travel_between_processes(tiny):
    with pytest.raises(NotFoundError) as caught:
        tiny.chat(user("a"), model="other")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is NotFoundError and str(again) == str(caught.value) and again.status == 404
