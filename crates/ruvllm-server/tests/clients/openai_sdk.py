"""The openai package against a server: what its users do, and what they are told when it cannot be."""

import json
import sys
from typing import Literal

import openai
import pydantic
from openai import OpenAI

URL = sys.argv[1] + "/v1"
MODEL = "smollm2:135m"
client = OpenAI(base_url=URL, api_key="key-of-the-tests", max_retries=0)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def raises(kind, call):
    """Returns the error of this kind that the call must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def chat():
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=24, temperature=0)
    choice = answer.choices[0]
    assert "Paris" in choice.message.content and choice.message.role == "assistant", answer
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.id.startswith("chatcmpl-") and "-ruvllm-" in answer.system_fingerprint
    # The answer goes back as it came, and the conversation goes on.
    again = client.chat.completions.create(
        model=MODEL,
        messages=[*QUESTION, choice.message, {"role": "user", "content": "And of Italy?"}],
        max_tokens=24,
        temperature=0,
    )
    assert again.usage.prompt_tokens_details.cached_tokens > 20, again.usage
    return choice.message.content


def streaming(expected):
    text, usage, role, reasons = "", None, None, []
    with client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                role = choice.delta.role or role
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == expected and role == "assistant" and len(reasons) == 1, (text, expected)
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1, usage
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, max_tokens=24, temperature=0) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        assert "".join(deltas) == stream.get_final_completion().choices[0].message.content == expected


def choices_and_seeds():
    def ask(n, seed):
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, n=n, seed=seed, temperature=1.5, max_tokens=12, top_p=1.0
        )
        assert [choice.index for choice in answer.choices] == list(range(n))
        return [choice.message.content for choice in answer.choices]

    three = ask(3, 7)
    assert three == ask(3, 7) and len(set(three)) > 1 and three[1] == ask(1, 8)[0], three


def stopping(expected):
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=24, temperature=0, stop=["Paris"])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == expected[: expected.index("Paris")]


def log_probabilities():
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=5, temperature=0, logprobs=True, top_logprobs=4
    )
    tokens = answer.choices[0].logprobs.content
    assert all(token.top_logprobs[0].logprob == token.logprob <= 0 for token in tokens)
    written = b"".join(bytes(token.bytes) for token in tokens).decode()
    assert written.strip() == answer.choices[0].message.content.strip(), (written, answer)


def completions():
    answer = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", max_tokens=6, temperature=0, logprobs=2)
    assert "5" in answer.choices[0].text, answer
    assert len(answer.choices[0].logprobs.tokens) == 6
    echoed = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", max_tokens=6, temperature=0, echo=True)
    assert echoed.choices[0].text == "1, 2, 3, 4," + answer.choices[0].text
    texts = {}
    stream = client.completions.create(model=MODEL, prompt=["1, 2,", "a, b,"], max_tokens=4, temperature=0, stream=True)
    for chunk in stream:
        texts[chunk.choices[0].index] = texts.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert sorted(texts) == [0, 1] and all(texts.values()), texts
    best = client.completions.create(model=MODEL, prompt="1, 2,", max_tokens=4, n=1, best_of=3, seed=1)
    assert len(best.choices) == 1


def structured_outputs():
    # A small model is held to short texts: it would write on in a long one.
    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        kind: Literal["town", "village"]
        population: int = pydantic.Field(ge=0, le=10**8)

    question = [{"role": "user", "content": "Tell me about Paris as JSON with name, kind and population."}]
    parsed = client.chat.completions.parse(
        model=MODEL, messages=question, response_format=City, max_tokens=200, temperature=0
    )
    city = parsed.choices[0].message.parsed
    assert isinstance(city, City) and city.name, parsed
    plain = client.chat.completions.create(
        model=MODEL, messages=question, response_format={"type": "json_object"}, max_tokens=300, temperature=0
    )
    if plain.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(plain.choices[0].message.content), dict), plain
    chosen = client.completions.create(
        model=MODEL, prompt="Is the sky blue?", extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert chosen.choices[0].text in ("yes", "no") and chosen.choices[0].finish_reason == "stop"
    schema = {"type": "object", "x-guidance": {}}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    ask = client.chat.completions.create
    error = raises(openai.BadRequestError, lambda: ask(model=MODEL, messages=question, response_format=schema))
    assert error.param == "response_format" and "'x-guidance'" in error.message, error


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FORECAST = [{"role": "user", "content": "What will the weather be like in Paris the next 3 days?"}]


def tools():
    """The whole loop: a function is asked for, called, and what it returned is answered."""
    function = {"name": "get_weather", "description": "Returns a forecast", "parameters": WEATHER, "strict": True}
    given = {"tools": [{"type": "function", "function": function}], "temperature": 0, "max_tokens": 80, "model": MODEL}
    named = {"type": "function", "function": {"name": "get_weather"}}
    ask = client.chat.completions.create
    answer = ask(messages=FORECAST, tool_choice=named, **given)
    choice = answer.choices[0]
    call = choice.message.tool_calls[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None, answer
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Paris", "Rome") and 1 <= arguments["days"] <= 9 and len(arguments) == 2, call

    with client.chat.completions.stream(messages=FORECAST, tool_choice="required", parallel_tool_calls=False, **given) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert len(deltas) > 2 and final.finish_reason == "tool_calls", final
    assert final.message.tool_calls[0].function.parsed_arguments == arguments, final

    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 31 degrees"}
    told = ask(messages=[*FORECAST, choice.message, result], tool_choice="none", **given)
    assert "sunny" in told.choices[0].message.content.lower() and told.choices[0].finish_reason != "tool_calls", told
    free = ask(messages=FORECAST, tool_choice="auto", **given).choices[0].message
    assert free.content or free.tool_calls, free

    class GetWeather(pydantic.BaseModel):
        city: Literal["Paris", "Rome"]

    parsed = client.chat.completions.parse(
        model=MODEL, messages=FORECAST, tools=[openai.pydantic_function_tool(GetWeather)], tool_choice="required",
        parallel_tool_calls=False, temperature=0,
    )
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather), parsed
    unsupported = {"name": "f", "strict": True, "parameters": {"type": "object", "not": {}}}
    error = raises(
        openai.BadRequestError,
        lambda: ask(model=MODEL, messages=FORECAST, tools=[{"type": "function", "function": unsupported}]),
    )
    assert error.param == "tools" and "allows no text at all" in error.message, error


def response_tools():
    tool = {"type": "function", "name": "get_weather", "description": "Returns a forecast", "parameters": WEATHER, "strict": True}
    given = {"model": MODEL, "tools": [tool], "temperature": 0, "max_output_tokens": 80}
    answer = client.responses.create(input=FORECAST, tool_choice="required", parallel_tool_calls=False, **given)
    call = answer.output[0]
    assert call.type == "function_call" and call.status == "completed" and json.loads(call.arguments)["city"], answer
    with client.responses.stream(input=FORECAST, tool_choice={"type": "function", "name": "get_weather"}, **given) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = stream.get_final_response().output[0]
    assert "".join(deltas) == final.arguments == call.arguments and final.parsed_arguments, final
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 31 degrees"}
    told = client.responses.create(input=[*FORECAST, *answer.output, result], tool_choice="none", **given)
    assert "sunny" in told.output_text.lower(), told


def responses():
    answer = client.responses.create(
        model=MODEL, input="What is the capital of France?", max_output_tokens=24, temperature=0, metadata={"k": "v"}
    )
    assert "Paris" in answer.output_text and answer.metadata == {"k": "v"}, answer
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    stream = client.responses.create(
        model=MODEL, input=[*QUESTION], max_output_tokens=24, temperature=0, stream=True, instructions="Be brief."
    )
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.output_text == text and events[0].type == "response.created", events
    # The answer goes back as it came.
    again = client.responses.create(
        model=MODEL,
        input=[*QUESTION, *answer.output, {"role": "user", "content": "And of Italy?"}],
        max_output_tokens=4,
        temperature=0,
    )
    assert again.status == "incomplete" and again.incomplete_details.reason == "max_output_tokens", again

    class Answer(pydantic.BaseModel):
        city: Literal["Paris", "Rome"]

    parsed = client.responses.parse(model=MODEL, input="The capital of France, as JSON", text_format=Answer)
    assert parsed.output_parsed.city in ("Paris", "Rome"), parsed
    error = raises(
        openai.BadRequestError,
        lambda: client.responses.create(model=MODEL, input="x", previous_response_id="resp_1"),
    )
    assert error.param == "previous_response_id", error


def kept_responses():
    given = dict(model=MODEL, max_output_tokens=8, temperature=0)
    first = client.responses.create(input="The capital of France?", **given)
    assert client.responses.retrieve(first.id) == first
    stream = client.responses.create(input="And of Italy?", previous_response_id=first.id, stream=True, **given)
    second = list(stream)[-1].response
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.type for item in items] == ["message"] * 3 and items[0].content[0].text == "The capital of France?", items
    count = client.responses.input_tokens.count(model=MODEL, input="And of Italy?", previous_response_id=first.id)
    assert count.input_tokens == second.usage.input_tokens, (count, second.usage)
    client.responses.delete(first.id)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    unkept = client.responses.create(input="x", store=False, **given)
    raises(openai.NotFoundError, lambda: client.responses.retrieve(unkept.id))

    conversation = client.conversations.create(metadata={"k": "v"}, items=[{"role": "user", "content": "Be brief."}])
    answer = client.responses.create(input="Hello", conversation=conversation.id, **given)
    assert answer.conversation.id == conversation.id, answer
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "user", "assistant"] and items[2].id == answer.output[0].id, items
    added = client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "Bye"}])
    item = added.data[0]
    assert client.conversations.items.retrieve(item.id, conversation_id=conversation.id).content[0].text == "Bye"
    client.conversations.items.delete(item.id, conversation_id=conversation.id)
    assert client.conversations.update(conversation.id, metadata={"k": "w"}).metadata == {"k": "w"}
    assert client.conversations.retrieve(conversation.id).metadata == {"k": "w"}
    assert client.conversations.delete(conversation.id).deleted
    raises(openai.NotFoundError, lambda: client.conversations.retrieve(conversation.id))


def models():
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "ruvllm"
    assert raises(openai.NotFoundError, lambda: client.models.retrieve("gpt-5")).code == "model_not_found"


def errors():
    ask = client.chat.completions.create
    error = raises(openai.BadRequestError, lambda: ask(model=MODEL, messages=QUESTION, extra_body={"temprature": 1}))
    assert error.param == "temprature" and error.code == "unknown_field", error
    error = raises(openai.BadRequestError, lambda: ask(model=MODEL, messages=QUESTION, temperature=-101))
    assert error.param == "temperature", error
    long = [{"role": "user", "content": "word " * 5000}]
    error = raises(openai.BadRequestError, lambda: ask(model=MODEL, messages=long))
    assert error.code == "context_length_exceeded" and "2048" in error.message, error
    short = ask(model=MODEL, messages=[*QUESTION, *long, *QUESTION], max_tokens=4, extra_body={"truncation": "auto"})
    assert short.usage.prompt_tokens < 200, short.usage
    stranger = OpenAI(base_url=URL, api_key="key-of-nobody", max_retries=0)
    raises(openai.AuthenticationError, stranger.models.list)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]
    raises(openai.BadRequestError, lambda: ask(model=MODEL, messages=image))
    raises(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input=""))


def retries():
    """A refusal for want of room is tried again by the client, and succeeds when there is some."""
    one = OpenAI(base_url=URL, api_key="one-at-a-time", max_retries=0)
    patient = OpenAI(base_url=URL, api_key="one-at-a-time", max_retries=5)
    body = {"ignore_eos": True}
    stream = one.completions.create(model=MODEL, prompt="1, 2,", max_tokens=1500, stream=True, extra_body=body)
    next(iter(stream))
    error = raises(openai.RateLimitError, lambda: one.completions.create(model=MODEL, prompt="1, 2,"))
    assert error.response.headers["retry-after"] == "1", error
    stream.close()
    assert patient.completions.create(model=MODEL, prompt="1, 2,", max_tokens=2).choices[0].text


expected = chat()
streaming(expected)
choices_and_seeds()
stopping(expected)
log_probabilities()
completions()
structured_outputs()
tools()
response_tools()
responses()
kept_responses()
models()
errors()
retries()
print("ok")
