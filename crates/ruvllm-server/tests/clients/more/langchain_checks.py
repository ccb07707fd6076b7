"""What LangChain's packages have in common: the checks of a chat model."""

from langchain_core.messages import HumanMessage, ToolMessage

import report
from report import FORECAST, QUESTION, Person, called, get_weather, said


def run(model, **forced):
    """Checks a model; `forced` is what asks for a call, where it can be asked for."""

    def chat():
        said(model.invoke(QUESTION).text, "Paris")

    def stream():
        said("".join(chunk.text for chunk in model.stream(QUESTION)), "Paris")

    def tools():
        question = HumanMessage(FORECAST)
        asked = model.bind_tools([get_weather], **forced).invoke([question])
        call = called(asked.tool_calls)
        result = ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])
        said(model.bind_tools([get_weather]).invoke([question, asked, result]).text, "31")

    def typed():
        assert isinstance(model.with_structured_output(Person, method="json_schema").invoke(report.PERSON), Person)

    def history():
        first = model.invoke([HumanMessage(QUESTION)])
        said(model.invoke([HumanMessage(QUESTION), first, HumanMessage("And of Italy?")]).text, "Rome")

    report.run(chat, stream, tools, typed, history)
