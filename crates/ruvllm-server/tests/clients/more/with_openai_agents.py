"""The openai-agents package: its Responses API (the usual one) and its chat API."""

import asyncio

import report
from report import FORECAST, MODEL, PERSON, QUESTION, Person, get_weather, said

# docs: openai-agents
from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
client = AsyncOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
model = OpenAIResponsesModel("qwen2.5-coder:0.5b", openai_client=client)
agent = Agent(name="Helper", model=model)
print(Runner.run_sync(agent, "What is the capital of France?").final_output)
# end

from agents import ModelSettings, OpenAIChatCompletionsModel, function_tool

MODELS = [model, OpenAIChatCompletionsModel(MODEL, openai_client=client)]


def agents(tool_choice=None, **more):
    settings = ModelSettings(temperature=0, max_tokens=200, tool_choice=tool_choice)
    return [Agent(name="Helper", model=model, model_settings=settings, **more) for model in MODELS]


def chat():
    for agent in agents():
        said(Runner.run_sync(agent, QUESTION).final_output, "Paris")


def stream():
    async def read(agent):
        run, text = Runner.run_streamed(agent, QUESTION), ""
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert text == run.final_output, (text, run.final_output)
        return text

    for agent in agents():
        said(asyncio.get_event_loop().run_until_complete(read(agent)), "Paris")


def tools():
    for agent in agents(tools=[function_tool(get_weather)], tool_choice="required"):
        run = Runner.run_sync(agent, FORECAST)
        assert any(item.type == "tool_call_output_item" for item in run.new_items), run.new_items
        said(run.final_output, "31")


def typed():
    for agent in agents(output_type=Person):
        assert isinstance(Runner.run_sync(agent, PERSON).final_output, Person)


def history():
    for agent in agents():
        first = Runner.run_sync(agent, QUESTION).to_input_list()
        said(Runner.run_sync(agent, [*first, {"role": "user", "content": "And of Italy?"}]).final_output, "Rome")


report.run(chat, stream, tools, typed, history)
