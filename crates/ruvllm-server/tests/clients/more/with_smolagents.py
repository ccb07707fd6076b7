"""The smolagents package."""

import report
from report import FORECAST, PERSON, QUESTION, ModelDid, Person, called, said

# docs: smolagents
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(
    model_id="qwen2.5-coder:0.5b", api_base="http://127.0.0.1:8080/v1", api_key="none", temperature=0, max_tokens=200
)


@tool
def get_weather(city: str) -> str:
    """Returns the weather in a city.

    Args:
        city: the name of the city
    """
    return f"In {city} it is sunny, 31 degrees"


agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=3)
print(agent.run("What is the weather like in Paris?"))
# end


def say(role, text):
    return {"role": role, "content": [{"type": "text", "text": text}]}


def chat():
    said(model.generate([say("user", QUESTION)]).content, "Paris")


def stream():
    said("".join(delta.content or "" for delta in model.generate_stream([say("user", QUESTION)])), "Paris")


def tools():
    message = model.generate([say("user", FORECAST)], tools_to_call_from=[get_weather])
    assert called(message.tool_calls).function.name == "get_weather", message
    answer = agent.run(FORECAST + " Then give the final answer.")
    steps = [step for step in agent.memory.steps if getattr(step, "tool_calls", None)]
    if not any(call.name == "get_weather" for step in steps for call in step.tool_calls):
        raise ModelDid("the model did not call")
    said(str(answer), "31")


def typed():
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema(), "strict": True}}
    Person.model_validate_json(model.generate([say("user", PERSON)], response_format=form).content)


def history():
    first = model.generate([say("user", QUESTION)]).content
    turns = [say("user", QUESTION), say("assistant", first), say("user", "And of Italy?")]
    said(model.generate(turns).content, "Rome")


report.run(chat, stream, tools, typed, history)
