"""The anthropic package of PyPI."""

import report
from report import FORECAST, MODEL, QUESTION, SUNNY, WEATHER, Person, called, said

# docs: anthropic
from anthropic import Anthropic

client = Anthropic(base_url="http://127.0.0.1:8080", api_key="none")
answer = client.messages.create(
    model="qwen2.5-coder:0.5b",
    max_tokens=100,
    messages=[{"role": "user", "content": "What is the capital of France?"}],
)
print(answer.content[0].text)
# end

GIVEN = {"model": MODEL, "max_tokens": 80}
ASKED = [{"role": "user", "content": QUESTION}]
WANTED = [{"role": "user", "content": FORECAST}]
TOOL = {"name": "get_weather", "description": "Returns the weather in a city", "input_schema": WEATHER}
ask = client.messages.create


def chat():
    said(ask(messages=ASKED, **GIVEN).content[0].text, "Paris")


def stream():
    with client.messages.stream(messages=ASKED, **GIVEN) as events:
        deltas = "".join(events.text_stream)
        assert deltas == events.get_final_message().content[0].text
    said(deltas, "Paris")


def tools():
    asked = ask(messages=WANTED, tools=[TOOL], tool_choice={"type": "any"}, **GIVEN)
    call = called([block for block in asked.content if block.type == "tool_use"])
    assert call.input["city"] in ("Paris", "Rome"), call
    result = {"type": "tool_result", "tool_use_id": call.id, "content": SUNNY}
    turns = [*WANTED, {"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
    said(ask(messages=turns, tools=[TOOL], tool_choice={"type": "none"}, **GIVEN).content[0].text, "31")


def typed():
    question = [{"role": "user", "content": report.PERSON}]
    parsed = client.messages.parse(messages=question, output_format=Person, **GIVEN)
    assert isinstance(parsed.parsed_output, Person), parsed


def history():
    first = {"role": "assistant", "content": ask(messages=ASKED, **GIVEN).content}
    more = {"role": "user", "content": "And of Italy?"}
    said(ask(messages=[*ASKED, first, more], **GIVEN).content[0].text, "Rome")


report.run(chat, stream, tools, typed, history)
