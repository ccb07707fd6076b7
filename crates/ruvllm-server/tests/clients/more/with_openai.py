"""The openai package of PyPI: both of its APIs."""

import json

import report
from report import FORECAST, MODEL, QUESTION, SUNNY, WEATHER, Person, called, said

# docs: openai
from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
answer = client.chat.completions.create(
    model="qwen2.5-coder:0.5b",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
)
print(answer.choices[0].message.content)
print(client.responses.create(model="qwen2.5-coder:0.5b", input="And of Italy?").output_text)
# end

GIVEN = {"model": MODEL, "temperature": 0, "max_tokens": 80}
ASKED = [{"role": "user", "content": QUESTION}]
WANTED = [{"role": "user", "content": FORECAST}]
FUNCTION = {"name": "get_weather", "description": "Returns the weather in a city", "parameters": WEATHER, "strict": True}
TOOL = {"type": "function", "function": FUNCTION}
ask = client.chat.completions.create


def chat():
    said(ask(messages=ASKED, **GIVEN).choices[0].message.content, "Paris")
    said(client.responses.create(model=MODEL, input=QUESTION, temperature=0).output_text, "Paris")


def stream():
    chunks = ask(messages=ASKED, stream=True, **GIVEN)
    said("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), "Paris")
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as events:
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert deltas == events.get_final_response().output_text
    said(deltas, "Paris")


def tools():
    message = ask(messages=WANTED, tools=[TOOL], tool_choice="required", **GIVEN).choices[0].message
    call = called(message.tool_calls)
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome"), call
    result = {"role": "tool", "tool_call_id": call.id, "content": SUNNY}
    told = ask(messages=[*WANTED, message, result], tools=[TOOL], tool_choice="none", **GIVEN)
    flat = {"type": "function", **FUNCTION}
    asked = client.responses.create(model=MODEL, input=WANTED, tools=[flat], tool_choice="required", temperature=0)
    call = called([item for item in asked.output if item.type == "function_call"])
    result = {"type": "function_call_output", "call_id": call.call_id, "output": SUNNY}
    again = client.responses.create(model=MODEL, input=[*WANTED, *asked.output, result], temperature=0)
    said(told.choices[0].message.content, "31")
    said(again.output_text, "31")


def typed():
    question = [{"role": "user", "content": report.PERSON}]
    parsed = client.chat.completions.parse(messages=question, response_format=Person, **GIVEN)
    assert isinstance(parsed.choices[0].message.parsed, Person), parsed
    parsed = client.responses.parse(model=MODEL, input=question, text_format=Person, temperature=0)
    assert isinstance(parsed.output_parsed, Person), parsed


def history():
    first = ask(messages=ASKED, **GIVEN).choices[0].message
    more = {"role": "user", "content": "And of Italy?"}
    said(ask(messages=[*ASKED, first, more], **GIVEN).choices[0].message.content, "Rome")
    first = client.responses.create(model=MODEL, input=ASKED, temperature=0)
    said(client.responses.create(model=MODEL, input=[*ASKED, *first.output, more], temperature=0).output_text, "Rome")


report.run(chat, stream, tools, typed, history)
