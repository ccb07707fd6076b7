"""The llama-index package, by its class for servers that are like OpenAI's."""

import report
from report import FORECAST, QUESTION, Person, called, get_weather, said

# docs: llama-index
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model="qwen2.5-coder:0.5b",
    api_base="http://127.0.0.1:8080/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32768,
    max_tokens=80,
    temperature=0,
)
print(model.complete("What is the capital of France?"))
# end

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.tools import FunctionTool

ASKED = [ChatMessage(role="user", content=QUESTION)]


def chat():
    said(model.chat(ASKED).message.content, "Paris")


def stream():
    said("".join(part.delta or "" for part in model.stream_chat(ASKED)), "Paris")


def tools():
    tool = FunctionTool.from_defaults(get_weather)
    wanted = ChatMessage(role="user", content=FORECAST)
    asked = model.chat_with_tools([tool], chat_history=[wanted], tool_required=True)
    call = called(model.get_tool_calls_from_response(asked, error_on_no_tool_call=False))
    result = ChatMessage(
        role="tool", content=get_weather(**call.tool_kwargs), additional_kwargs={"tool_call_id": call.tool_id}
    )
    said(model.chat_with_tools([tool], chat_history=[wanted, asked.message, result]).message.content, "31")


def typed():
    answer = model.as_structured_llm(Person).complete(report.PERSON)
    assert isinstance(answer.raw, Person), answer


def history():
    first = model.chat(ASKED).message
    said(model.chat([*ASKED, first, ChatMessage(role="user", content="And of Italy?")]).message.content, "Rome")


report.run(chat, stream, tools, typed, history)
