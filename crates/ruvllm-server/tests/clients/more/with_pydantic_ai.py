"""The pydantic-ai package: OpenAI's chat API, its Responses API, and Anthropic's."""

import report
from report import FORECAST, MODEL, PERSON, QUESTION, ModelDid, Person, get_weather, said

# docs: pydantic-ai
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url="http://127.0.0.1:8080/v1", api_key="none")
agent = Agent(OpenAIChatModel("qwen2.5-coder:0.5b", provider=provider))
print(agent.run_sync("What is the capital of France?").output)
# end

from pydantic_ai import NativeOutput, ToolOutput
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from anthropic import AsyncAnthropic

anthropic = AsyncAnthropic(base_url="http://127.0.0.1:8080", api_key="none")
MODELS = [
    OpenAIChatModel(MODEL, provider=provider),
    OpenAIResponsesModel(MODEL, provider=provider),
    AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=anthropic)),
]
GREEDY = {"temperature": 0, "max_tokens": 200}


def agents(**more):
    return [Agent(model, model_settings=GREEDY, **more) for model in MODELS]


def run(agent, question):
    """Runs an agent; its model may answer with nothing, or nothing but calls, until the package gives up."""
    try:
        return agent.run_sync(question)
    except UnexpectedModelBehavior as error:
        raise ModelDid(str(error)) from error


def chat():
    for agent in agents():
        said(agent.run_sync(QUESTION).output, "Paris")


def stream():
    for agent in agents():
        said(list(agent.run_stream_sync(QUESTION).stream_text())[-1], "Paris")


def tools():
    for agent in agents(tools=[get_weather]):
        answer = run(agent, FORECAST)
        if not any(part.part_kind == "tool-call" for message in answer.all_messages() for part in message.parts):
            raise ModelDid("the model did not call")
        said(answer.output, "31")


def typed():
    for agent in agents(output_type=ToolOutput(Person)):
        assert isinstance(run(agent, PERSON).output, Person)
    # The package knows of no model but Anthropic's own that its API's form of this could be asked for.
    for agent in agents(output_type=NativeOutput(Person))[:2]:
        assert isinstance(run(agent, PERSON).output, Person)


def history():
    for agent in agents():
        first = agent.run_sync(QUESTION)
        said(agent.run_sync("And of Italy?", message_history=first.all_messages()).output, "Rome")


report.run(chat, stream, tools, typed, history)
