"""The ollama package, and LangChain's on top of it, against a server."""

import json
import sys

import ollama
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_ollama import ChatOllama, OllamaEmbeddings

URL, MODEL = sys.argv[1], "qwen2.5-coder:0.5b"
KEY = {"Authorization": "Bearer key-of-the-tests"}
client = ollama.Client(host=URL, headers=KEY)
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in a word."}]
GREEDY = {"temperature": 0, "num_predict": 24}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def raises(call):
    """Returns the error that the call must raise."""
    try:
        call()
    except ollama.ResponseError as error:
        return error
    raise AssertionError("no ResponseError")


def get_weather(city: str) -> str:
    """Returns the weather in a city.

    Args:
        city: the name of the city
    """
    return f"In {city} it is sunny, 31 degrees"


def answers():
    whole = client.chat(MODEL, QUESTION, options=GREEDY)
    assert "Paris" in whole.message.content and whole.done_reason == "stop" and whole.eval_count > 0, whole
    pieces = list(client.chat(MODEL, QUESTION, stream=True, options=GREEDY))
    assert len(pieces) >= 2 and "".join(piece.message.content for piece in pieces) == whole.message.content, pieces
    assert pieces[-1].done and pieces[-1].eval_count == whole.eval_count, pieces[-1]
    told = client.generate(MODEL, "Say hello.", system="Answer in French.", options=GREEDY)
    assert told.response and told.total_duration >= told.eval_duration > 0, told
    assert "".join(piece.response for piece in client.generate(MODEL, "Say hello.", system="Answer in French.", options=GREEDY, stream=True)) == told.response
    filled = client.generate(MODEL, "def add(a, b):\n    return ", suffix="\n\nprint(add(1, 2))\n", options={**GREEDY, "stop": ["\n"]})
    assert filled.response == "a + b", filled
    assert client.generate(MODEL).done_reason == "load"
    shaped = client.chat(MODEL, [{"role": "user", "content": "Bob is 3 years old."}], format=PERSON, options=GREEDY)
    assert json.loads(shaped.message.content) == {"name": "Bob", "age": 3}, shaped
    likely = client.generate(MODEL, "1, 2, 3,", raw=True, options=GREEDY, logprobs=True, top_logprobs=1)
    assert len(likely.logprobs) == likely.eval_count and likely.logprobs[0].logprob <= 0, likely


def tools():
    """The whole loop: a function is asked for, called, and its result answered."""
    question = {"role": "user", "content": "What is the weather like in Paris? Use the function."}
    answer = client.chat(MODEL, [question], tools=[get_weather], options={**GREEDY, "num_predict": 80})
    call = answer.message.tool_calls[0].function
    assert (call.name, dict(call.arguments)) == ("get_weather", {"city": "Paris"}), answer
    result = {"role": "tool", "tool_name": call.name, "content": get_weather(**call.arguments)}
    told = client.chat(MODEL, [question, answer.message, result], options={**GREEDY, "num_predict": 80})
    assert "31" in told.message.content, told
    pieces = client.chat(MODEL, [question], tools=[get_weather], options={**GREEDY, "num_predict": 80}, stream=True)
    calls = [call for piece in pieces for call in piece.message.tool_calls or []]
    assert [dict(call.function.arguments) for call in calls] == [{"city": "Paris"}], calls


def models():
    listed = client.list().models
    assert [model.model for model in listed] == [MODEL] and listed[0].size > 100_000_000, listed
    shown = client.show(MODEL)
    assert {"completion", "tools", "insert"} <= set(shown.capabilities), shown
    assert shown.modelinfo["qwen2.context_length"] == 32768 and shown.details.format == "gguf", shown.details
    assert [model.model for model in client.ps().models] == [MODEL]
    assert client.pull(MODEL).status == "success"
    assert [step.status for step in client.pull(MODEL, stream=True)][-1] == "success"
    two = client.embed(MODEL, ["a cat", "a dog"], dimensions=64)
    assert [len(vector) for vector in two.embeddings] == [64, 64] and two.prompt_eval_count > 2, two
    assert len(client.embeddings(MODEL, "a cat").embedding) == 896


def refusals():
    error = raises(lambda: client.chat("llama3", QUESTION))
    assert error.status_code == 404 and error.error == "model 'llama3' not found", error
    assert "does not support thinking" in raises(lambda: client.chat(MODEL, QUESTION, think=True)).error
    assert "ruvllm pull llama3" in raises(lambda: client.pull("llama3")).error
    assert "ruvllm rm" in raises(lambda: client.delete(MODEL)).error
    assert raises(lambda: ollama.Client(host=URL).list()).status_code == 401


def langchain():
    chat = ChatOllama(model=MODEL, base_url=URL, client_kwargs={"headers": KEY}, temperature=0, num_predict=80)
    assert "Paris" in chat.invoke(QUESTION[0]["content"]).content
    assert len(list(chat.stream("Count to five."))) > 2
    question = HumanMessage("What is the weather like in Paris? Use the function.")
    asked = chat.bind_tools([get_weather]).invoke([question])
    assert isinstance(asked, AIMessage) and asked.tool_calls[0]["args"] == {"city": "Paris"}, asked
    result = ToolMessage(get_weather("Paris"), tool_call_id=asked.tool_calls[0]["id"])
    assert "31" in chat.invoke([question, asked, result]).content
    shaped = chat.with_structured_output(PERSON | {"title": "person"}, method="json_schema").invoke("Bob is 3 years old.")
    assert shaped == {"name": "Bob", "age": 3}, shaped
    embedder = OllamaEmbeddings(model=MODEL, base_url=URL, client_kwargs={"headers": KEY})
    assert len(embedder.embed_query("a cat")) == 896


answers()
tools()
models()
refusals()
langchain()
print("ok")
