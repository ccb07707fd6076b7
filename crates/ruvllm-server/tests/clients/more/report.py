"""What the Python scripts in this folder share: their questions, and how they report.

Each check of a client is a function. A line of JSON tells what came of it: `ok`, `model` (client and server did their
part, the model did not do what it was asked) or `failed`. `cargo xtask clients` reads these lines.
"""

import json
import time
import traceback
from typing import Literal

from pydantic import BaseModel

MODEL = "qwen2.5-coder:0.5b"
QUESTION = "What is the capital of France? Answer in a word."
FORECAST = "What is the weather like in Paris?"
PERSON = "Bob is 3 years old. Answer as JSON with name and age."
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
SUNNY = "sunny, 31 degrees"


class Person(BaseModel):
    """A person and how old they are."""

    name: Literal["Bob", "Alice"]
    age: int


class ModelDid(Exception):
    """Client and server did their part; the model did not do what it was asked."""


def said(text, word):
    """The model should have said the word."""
    if word.lower() not in (text or "").lower():
        raise ModelDid(f"the model said {(text or '')[:80]!r}, not {word!r}")


def called(calls):
    """Returns the first call, which the model should have made."""
    if not calls:
        raise ModelDid("the model did not call")
    return calls[0]


def get_weather(city: str) -> str:
    """Returns the weather in a city.

    Args:
        city: the name of the city
    """
    return f"In {city} it is {SUNNY}"


def tell(check, outcome, note="", **more):
    print(json.dumps({"check": check, "outcome": outcome, "note": note, **more}), flush=True)


def run(*checks):
    """Runs each check. What one returns is its note."""
    for check in checks:
        start = time.monotonic()
        try:
            outcome, note = "ok", check() or ""
        except ModelDid as did:
            outcome, note = "model", str(did)
        except Exception as error:
            traceback.print_exc()
            outcome, note = "failed", f"{type(error).__name__}: {error}"[:600]
        tell(check.__name__, outcome, note, seconds=round(time.monotonic() - start, 1))
