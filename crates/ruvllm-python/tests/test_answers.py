"""Answers, whole and streamed, and what goes with them."""

import json
import math

import pytest
from conftest import GOLDEN, OPTIONS, total, user, wait_until, wait_until_idle

from ruvllm import Engine

GREEDY = {"temperature": 0, "max_tokens": 12}


def test_a_chat_has_the_fields_of_the_api(tiny):
    answer = tiny.chat(user("Hello"), **GREEDY)
    assert answer["object"] == "chat.completion" and answer["model"] == "tiny"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] in ("stop", "length")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stream_is_the_same_answer_in_pieces(smollm2):
    whole = smollm2.chat(user("Name three rivers."), **GREEDY)
    chunks = list(smollm2.chat(user("Name three rivers."), stream=True, stream_options={"include_usage": True}, **GREEDY))
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text == whole["choices"][0]["message"]["content"] and len(text) > 10
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_texts_are_the_pieces_of_the_first_choice(smollm2):
    whole = smollm2.complete("The capital of France is", **GREEDY)["choices"][0]["text"]
    assert "".join(smollm2.complete("The capital of France is", stream=True, **GREEDY).texts()) == whole
    assert "Paris" in whole


def test_completions_take_tokens_and_several_prompts(tiny):
    tokens = tiny.tokenize("once upon a time")
    one = tiny.complete(tokens, **GREEDY)["choices"][0]["text"]
    assert [choice["text"] for choice in tiny.complete([tokens, tokens], **GREEDY)["choices"]] == [one, one]


def test_log_probabilities_of_a_prompt(tiny):
    answer = tiny.complete("once upon a time", echo=True, logprobs=2, max_tokens=1, temperature=0)
    logprobs = answer["choices"][0]["logprobs"]
    first, *others = logprobs["token_logprobs"]
    assert first is None and all(value < 0 and math.isfinite(value) for value in others)


def test_tokens_become_the_text_again(tiny):
    tokens = tiny.tokenize("Grüße, 世界! <|im_end|>")
    assert tokens and all(isinstance(token, int) for token in tokens)
    assert tiny.detokenize(tokens).strip() == "Grüße, 世界! <|im_end|>"


def test_a_conversation_as_the_model_reads_it(tiny):
    assert tiny.render(user("Hi")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_schema_is_held_to(smollm2):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = smollm2.chat(user("Give a number."), response_format=form, max_tokens=40, temperature=0)
    assert isinstance(json.loads(answer["choices"][0]["message"]["content"])["n"], int)


def test_a_stream_that_is_closed_leaves_the_engine(tiny):
    before = total(tiny.metrics(), "ruvllm_generated_tokens_total")
    stream = tiny.chat(user("Hello"), stream=True, max_tokens=900, ignore_eos=True)
    next(stream)
    wait_until(lambda: total(tiny.metrics(), "ruvllm_requests_running") == 1)
    stream.close()
    wait_until_idle(tiny)
    assert total(tiny.metrics(), "ruvllm_generated_tokens_total") - before < 900
    assert list(stream) == []


def test_leaving_a_block_and_dropping_a_stream_end_the_request(tiny):
    with tiny.chat(user("Hello"), stream=True, max_tokens=900, ignore_eos=True) as stream:
        next(stream)
    wait_until_idle(tiny)
    stream = tiny.chat(user("Hello"), stream=True, max_tokens=900, ignore_eos=True)
    next(stream)
    del stream
    wait_until_idle(tiny)


def test_capabilities_metrics_and_other_endpoints(tiny):
    assert tiny.capabilities()["version"] == tiny.request("GET", "/version")["version"]
    assert total(tiny.metrics(), "ruvllm_generated_tokens_total") > 0
    assert tiny.request("GET", "/v1/models")["data"][0]["id"] == "tiny"
    assert tiny.model == "tiny" and tiny.models == ["tiny"] and "tiny" in repr(tiny)


def test_two_models_in_one_engine():
    with Engine([GOLDEN, GOLDEN], name=["a", "b"], **OPTIONS) as engine:
        assert engine.models == ["a", "b"]
        texts = [engine.complete("x", model=name, **GREEDY)["choices"][0]["text"] for name in ("a", "b")]
        assert texts[0] == texts[1]


def test_progress_is_told():
    told = []
    with Engine(GOLDEN, on_progress=lambda what, done, total: told.append((what, done, total)), ctx=128):
        pass
    assert told and all(what == "loading" and total for what, _, total in told)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_numpy_numbers_are_numbers(tiny):
    np = pytest.importorskip("numpy")
    tokens = np.asarray(tiny.tokenize("once upon a time"))
    assert tiny.complete(tokens, max_tokens=np.int64(2), temperature=0)["usage"]["completion_tokens"] <= 2
    assert isinstance(tiny.detokenize(tokens), str)
