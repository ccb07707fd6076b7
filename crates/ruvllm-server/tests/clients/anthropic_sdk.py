"""The anthropic package against a server."""

import sys

import anthropic
from anthropic import Anthropic

URL, MODEL = sys.argv[1], "smollm2:135m"
client = Anthropic(base_url=URL, api_key="key-of-the-tests", max_retries=0)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# This package's calls have no argument for the temperature any more; the API has.
GIVEN = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "extra_body": {"temperature": 0}}


def raises(kind, call):
    """Returns the error of this kind that the call must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def ask(**more):
    return client.messages.create(**{**GIVEN, **more})


answer = ask()
text = answer.content[0].text
assert "Paris" in text and answer.role == "assistant" and answer.stop_reason in ("end_turn", "max_tokens"), answer
count = client.messages.count_tokens(model=MODEL, messages=QUESTION)
assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens

with client.messages.stream(**GIVEN) as stream:
    assert "".join(stream.text_stream) == text
    final = stream.get_final_message()
assert final.content[0].text == text and final.usage.output_tokens == answer.usage.output_tokens
assert final.usage.cache_read_input_tokens == count.input_tokens - 1, final.usage

stopped = ask(stop_sequences=["Paris"])
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "Paris", stopped
told = ask(system="Answer in capital letters.", messages=[*QUESTION, {"role": "assistant", "content": "PARIS"}])
assert told.content[0].text and told.usage.output_tokens > 0

# A model that does not think answers without, and says so in a header.
assert ask(thinking={"type": "enabled", "budget_tokens": 1024}).content[0].type == "text"
assert ask(thinking={"type": "adaptive"}).content
raises(anthropic.NotFoundError, lambda: ask(model="claude"))
stranger = Anthropic(base_url=URL, api_key="key-of-nobody", max_retries=0)
raises(anthropic.AuthenticationError, lambda: stranger.messages.count_tokens(model=MODEL, messages=QUESTION))


def tools():
    """The whole loop: a tool is asked for, used, and its result answered."""
    tool = {
        "name": "get_weather",
        "description": "Returns the weather in a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
        },
    }
    question = {"role": "user", "content": "What is the weather like in Paris?"}
    given = dict(messages=[question], tools=[tool], tool_choice={"type": "tool", "name": "get_weather"}, max_tokens=64)
    answer = ask(**given)
    use = answer.content[0]
    assert answer.stop_reason == "tool_use" and use.type == "tool_use" and use.name == "get_weather", answer
    assert use.input["city"] in ("Paris", "Rome") and use.id.startswith("toolu_"), use
    with client.messages.stream(**{**GIVEN, **given}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert len(pieces) > 1 and final.content[0].input == use.input, final
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "sunny, 31 degrees"}
    history = [question, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    told = ask(messages=history, tools=[tool], tool_choice={"type": "none"}, max_tokens=40)
    assert told.stop_reason in ("end_turn", "max_tokens") and told.content[0].type == "text", told
    free = ask(messages=[question], tools=[tool], tool_choice={"type": "auto"}, max_tokens=8)
    assert free.content[0].type in ("text", "tool_use"), free
    error = raises(anthropic.BadRequestError, lambda: ask(tools=[{**tool, "name": "a b"}]))
    assert "'a b' is no name of a function" in error.message, error


tools()
print("ok")
