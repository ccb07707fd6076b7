"""The haystack-ai package: its generator for OpenAI's chat API, and its agent."""

import report
from report import FORECAST, PERSON, QUESTION, Person, called, get_weather, said

# docs: haystack
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret

generator = OpenAIChatGenerator(
    model="qwen2.5-coder:0.5b",
    api_base_url="http://127.0.0.1:8080/v1",
    api_key=Secret.from_token("none"),
    generation_kwargs={"temperature": 0, "max_tokens": 80},
)
print(generator.run([ChatMessage.from_user("What is the capital of France?")])["replies"][0].text)
# end

from haystack.tools import create_tool_from_function

ASKED = [ChatMessage.from_user(QUESTION)]


def ask(turns, **more):
    return generator.run(turns, **more)["replies"][0]


def chat():
    said(ask(ASKED).text, "Paris")


def stream():
    parts = []
    said(ask(ASKED, streaming_callback=lambda chunk: parts.append(chunk.content)).text, "Paris")
    assert len(parts) > 1, parts


def tools():
    tool = create_tool_from_function(get_weather)
    wanted = ChatMessage.from_user(FORECAST)
    asked = ask([wanted], tools=[tool], generation_kwargs={"tool_choice": "required"})
    call = called(asked.tool_calls)
    result = ChatMessage.from_tool(get_weather(**call.arguments), origin=call)
    said(ask([wanted, asked, result], tools=[tool], generation_kwargs={"tool_choice": "none"}).text, "31")


def typed():
    answer = ask([ChatMessage.from_user(PERSON)], generation_kwargs={"response_format": Person})
    Person.model_validate_json(answer.text)


def history():
    said(ask([*ASKED, ask(ASKED), ChatMessage.from_user("And of Italy?")]).text, "Rome")


report.run(chat, stream, tools, typed, history)
