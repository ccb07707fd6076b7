"""The litellm package: by the APIs of OpenAI, Anthropic and Ollama."""

import json

import report
from report import FORECAST, MODEL, QUESTION, SUNNY, WEATHER, Person, called, said

# docs: litellm
import litellm

answer = litellm.completion(
    model="openai/qwen2.5-coder:0.5b",
    api_base="http://127.0.0.1:8080/v1",
    api_key="none",
    messages=[{"role": "user", "content": "What is the capital of France?"}],
)
print(answer.choices[0].message.content)
# end

URL = "http://127.0.0.1:8080"
WAYS = [
    {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none"},
    {"model": f"anthropic/{MODEL}", "api_base": URL, "api_key": "none"},
    {"model": f"ollama_chat/{MODEL}", "api_base": URL},
]
ASKED = [{"role": "user", "content": QUESTION}]
WANTED = [{"role": "user", "content": FORECAST}]
FUNCTION = {"name": "get_weather", "description": "Returns the weather in a city", "parameters": WEATHER}
TOOL = {"type": "function", "function": FUNCTION}


def ask(way, **more):
    return litellm.completion(**way, temperature=0, max_tokens=80, **more)


def chat():
    for way in WAYS:
        said(ask(way, messages=ASKED).choices[0].message.content, "Paris")


def stream():
    for way in WAYS:
        chunks = ask(way, messages=ASKED, stream=True)
        said("".join(chunk.choices[0].delta.content or "" for chunk in chunks), "Paris")


def tools():
    for way in WAYS:
        # Ollama's API cannot ask for a call.
        choice = {} if way is WAYS[2] else {"tool_choice": "required"}
        message = ask(way, messages=WANTED, tools=[TOOL], **choice).choices[0].message
        call = called(message.tool_calls)
        assert json.loads(call.function.arguments)["city"], call
        result = {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": SUNNY}
        told = ask(way, messages=[*WANTED, message, result], tools=[TOOL])
        said(told.choices[0].message.content, "31")


def typed():
    for way in WAYS:
        answer = ask(way, messages=[{"role": "user", "content": report.PERSON}], response_format=Person)
        Person.model_validate_json(answer.choices[0].message.content)


def history():
    for way in WAYS:
        first = ask(way, messages=ASKED).choices[0].message
        told = ask(way, messages=[*ASKED, first, {"role": "user", "content": "And of Italy?"}])
        said(told.choices[0].message.content, "Rome")


report.run(chat, stream, tools, typed, history)
