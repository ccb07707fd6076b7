"""The instructor package, in every mode that it has for OpenAI's and Anthropic's API."""

import report
from report import MODEL, PERSON, Person

# docs: instructor
import instructor
from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    name: str
    country: str


client = instructor.from_openai(
    OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none"), mode=instructor.Mode.JSON_SCHEMA
)
question = [{"role": "user", "content": "Paris is the capital of France. Which city is it, in which country?"}]
print(client.create(model="qwen2.5-coder:0.5b", response_model=City, messages=question))
# end

from collections.abc import Iterable

from anthropic import Anthropic
from instructor import Mode
from instructor.v2.providers.anthropic.client import from_anthropic

OPENAI = [
    Mode.TOOLS, Mode.PARALLEL_TOOLS, Mode.TOOLS_STRICT, Mode.JSON, Mode.JSON_O1, Mode.MD_JSON, Mode.JSON_SCHEMA,
    Mode.RESPONSES_TOOLS, Mode.RESPONSES_TOOLS_WITH_INBUILT_TOOLS,
]
ANTHROPIC = [
    Mode.ANTHROPIC_TOOLS, Mode.ANTHROPIC_REASONING_TOOLS, Mode.ANTHROPIC_JSON, Mode.ANTHROPIC_PARALLEL_TOOLS,
]
ASKED = [{"role": "user", "content": PERSON}]


def clients():
    """Every mode with a client that has it."""
    openai = OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
    anthropic = Anthropic(base_url="http://127.0.0.1:8080", api_key="none")
    for mode in OPENAI:
        yield mode, instructor.from_openai(openai, mode=mode)
    for mode in ANTHROPIC:
        yield mode, from_anthropic(anthropic, mode=mode)


def typed():
    faults = []
    for mode, client in clients():
        limit = {} if "RESPONSES" in mode.name else {"max_tokens": 200}
        kind = Iterable[Person] if "PARALLEL" in mode.name else Person
        try:
            found = client.create(model=MODEL, messages=ASKED, response_model=kind, max_retries=1, **limit)
            people = list(found) if kind is not Person else [found]
            assert people and all(isinstance(one, Person) for one in people), people
        except Exception as error:
            faults.append(f"{mode.name}: {type(error).__name__}: {error}"[:300])
    assert not faults, "; ".join(faults)
    return f"{len(OPENAI) + len(ANTHROPIC)} modes"


def stream():
    parts = list(client.create_partial(model=MODEL, messages=ASKED, response_model=Person, temperature=0))
    assert len(parts) > 1 and isinstance(Person(**parts[-1].model_dump()), Person), parts


report.run(stream, typed)
