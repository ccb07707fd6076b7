"""The ollama package of PyPI."""

import report
from report import FORECAST, MODEL, QUESTION, Person, called, get_weather, said

# docs: ollama
from ollama import Client

client = Client(host="http://127.0.0.1:8080")
answer = client.chat("qwen2.5-coder:0.5b", [{"role": "user", "content": "What is the capital of France?"}])
print(answer.message.content)
# end

GREEDY = {"temperature": 0, "num_predict": 80}
ASKED = [{"role": "user", "content": QUESTION}]
WANTED = [{"role": "user", "content": FORECAST}]


def chat():
    said(client.chat(MODEL, ASKED, options=GREEDY).message.content, "Paris")


def stream():
    said("".join(part.message.content for part in client.chat(MODEL, ASKED, stream=True, options=GREEDY)), "Paris")


def tools():
    asked = client.chat(MODEL, WANTED, tools=[get_weather], options=GREEDY).message
    call = called(asked.tool_calls).function
    result = {"role": "tool", "tool_name": call.name, "content": get_weather(**call.arguments)}
    said(client.chat(MODEL, [*WANTED, asked, result], options=GREEDY).message.content, "31")


def typed():
    question = [{"role": "user", "content": report.PERSON}]
    Person.model_validate_json(
        client.chat(MODEL, question, format=Person.model_json_schema(), options=GREEDY).message.content
    )


def history():
    first = client.chat(MODEL, ASKED, options=GREEDY).message
    more = {"role": "user", "content": "And of Italy?"}
    said(client.chat(MODEL, [*ASKED, first, more], options=GREEDY).message.content, "Rome")


report.run(chat, stream, tools, typed, history)
