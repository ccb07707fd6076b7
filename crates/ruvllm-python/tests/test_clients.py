"""Clients of other people over the engine in process."""

import asyncio

import httpx
import httpx2
import numpy as np
import openai
import pytest
from conftest import total, user, wait_until, wait_until_idle
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from lm_eval.api.instance import Instance

from ruvllm.lm_eval import RuvllmLM

ADDRESS = {"base_url": "http://ruvllm/v1", "api_key": "-"}
GREEDY = {"temperature": 0, "max_tokens": 12}


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_openai_runs_on_the_engine(smollm2, library):
    expected = smollm2.chat(user("Name three rivers."), **GREEDY)["choices"][0]["message"]["content"]
    with library.Client(transport=smollm2.transport(library)) as http:
        client = openai.OpenAI(http_client=http, **ADDRESS)
        answer = client.chat.completions.create(model="smollm2", messages=user("Name three rivers."), **GREEDY)
        assert answer.choices[0].message.content == expected
        stream = client.chat.completions.create(
            model="smollm2", messages=user("Name three rivers."), stream=True, **GREEDY
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == expected
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=user("a"))
        vectors = client.embeddings.create(model="smollm2", input=["a", "b"])
        assert np.allclose([one.embedding for one in vectors.data], smollm2.embed(["a", "b"]), atol=1e-7)


def test_a_stream_of_openai_that_is_left_ends_its_request(smollm2):
    with httpx.Client(transport=smollm2.transport()) as http:
        client = openai.OpenAI(http_client=http, **ADDRESS)
        with client.chat.completions.create(
            model="smollm2", messages=user("a"), stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
        ) as stream:
            next(iter(stream))
            wait_until(lambda: total(smollm2.metrics(), "ruvllm_requests_running") == 1)
        wait_until_idle(smollm2)


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_openai_runs_on_asyncio(smollm2, library):
    async def main() -> None:
        async with library.AsyncClient(transport=smollm2.aio().transport(library)) as http:
            client = openai.AsyncOpenAI(http_client=http, **ADDRESS)

            async def asked(text: str) -> str:
                stream = await client.chat.completions.create(
                    model="smollm2", messages=user(text), stream=True, **GREEDY
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

            texts = await asyncio.gather(*(asked(f"Say {n}.") for n in range(4)))
        for n, text in enumerate(texts):
            assert text == smollm2.chat(user(f"Say {n}."), **GREEDY)["choices"][0]["message"]["content"]

    asyncio.run(main())


def test_langchain_runs_on_the_engine(smollm2):
    expected = smollm2.chat(user("Name three rivers."), **GREEDY)["choices"][0]["message"]["content"]
    with httpx.Client(transport=smollm2.transport()) as http:
        model = ChatOpenAI(model="smollm2", http_client=http, **ADDRESS, **GREEDY)
        question = [HumanMessage("Name three rivers.")]
        assert model.invoke(question).content == expected
        assert "".join(str(chunk.content) for chunk in model.stream(question)) == expected

    async def main() -> None:
        async with httpx.AsyncClient(transport=smollm2.aio().transport()) as http:
            model = ChatOpenAI(model="smollm2", http_async_client=http, **ADDRESS, **GREEDY)
            assert (await model.ainvoke(question)).content == expected

    asyncio.run(main())


def instances(kind: str, *all_args: tuple) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=args, idx=i) for i, args in enumerate(all_args)]


def test_the_harness_asks_for_likelihoods(smollm2):
    model = RuvllmLM(smollm2)
    likely, unlikely = model.loglikelihood(
        instances("loglikelihood", ("The capital of France is", " Paris"), ("The capital of France is", " banana"))
    )
    assert likely[0] > unlikely[0] + 3 and likely[1] and not unlikely[1]
    # The same by the log-probabilities of a prompt that the API tells.
    answer = smollm2.complete("The capital of France is Paris", echo=True, logprobs=0, max_tokens=1, temperature=0)
    told = answer["choices"][0]["logprobs"]
    assert told["tokens"][5] == " Paris" and abs(told["token_logprobs"][5] - likely[0]) < 1e-3


def test_the_harness_asks_for_texts(smollm2):
    model = RuvllmLM(smollm2)
    text = "The sea is deep and blue, and nobody knows what lives in it. "
    short, long = model.loglikelihood_rolling(instances("loglikelihood_rolling", (text,), (text * 200,)))
    assert long < short < 0, "a text beyond the context is read in windows"
    (until,) = model.generate_until(
        instances("generate_until", ("The capital of France is", {"until": ["."], "max_gen_toks": 12}))
    )
    assert "Paris" in until and "." not in until
    assert model.apply_chat_template(user("Hi")).endswith("assistant\n")


def test_the_harness_evaluates_a_task(smollm2, tmp_path):
    import json

    import lm_eval
    from lm_eval.tasks import TaskManager

    rows = [
        {"q": "The capital of France is", "choices": [" Paris", " banana"], "a": 0},
        {"q": "Two and two make", "choices": [" purple", " four"], "a": 1},
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "capitals.yaml").write_text(
        f"""
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: a
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
    )
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = lm_eval.simple_evaluate(model=RuvllmLM(smollm2), tasks=["capitals"], task_manager=manager, bootstrap_iters=0)
    assert results["results"]["capitals"]["acc,none"] == 1.0
