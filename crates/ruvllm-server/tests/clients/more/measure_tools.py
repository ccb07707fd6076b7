"""Questions that need a tool, and questions that need none, with the choice left to the model."""

import json
import re
import urllib.request

import report
from report import MODEL

URL = "http://127.0.0.1:8080"
CITIES = "Paris Rome Oslo Lima Cairo Tokyo Delhi Quito Accra Seoul Berlin Madrid".split()
NAMES = "Ann Bob Cleo Dan Eva Finn Gus Hana Ivo Jo Kim Leo".split()
FUNCTIONS = [
    ("get_weather", "Returns the weather in a city", {"city": {"type": "string"}}),
    ("convert_currency", "Converts an amount of money", {
        "amount": {"type": "number"}, "source": {"type": "string"}, "target": {"type": "string"}}),
    ("send_email", "Sends an email", {"to": {"type": "string"}, "text": {"type": "string"}}),
    ("set_timer", "Starts a timer", {"minutes": {"type": "integer"}}),
    ("search_files", "Finds files whose name has a pattern", {
        "pattern": {"type": "string"}, "recursive": {"type": "boolean"}}),
]
NEEDING = [
    question
    for i, (city, name) in enumerate(zip(CITIES, NAMES))
    for question in (
        f"What is the weather like in {city} right now?",
        f"Convert {10 * i + 5} US dollars to euros.",
        f"Send an email to {name.lower()}@example.org that says the meeting is at {i + 8}.",
        f"Set a timer for {i + 2} minutes.",
        f"Find all files named *.{'py rs md txt js go c h css csv log png'.split()[i]} on my disk.",
    )
]
THINGS = "a cat|a tree|water|the moon|a book|bread|music|winter|a river|love|a clock|gold|salt|rain|a bee".split("|")
NEEDING_NONE = [
    question
    for i, thing in enumerate(THINGS)
    for question in (
        f"Write a sentence about {thing}.",
        f"What is {i + 3} plus {2 * i + 1}?",
        f"Give me three words that have to do with {thing}.",
        f"Say hello to {NAMES[i % 12]} in a friendly way.",
    )
]


def tool(name, description, properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def asked(question):
    tools = [tool(*function) for function in FUNCTIONS]
    return {"model": MODEL, "messages": [{"role": "user", "content": question}], "tools": tools}


def ask(question):
    answer = post("/v1/chat/completions", {**asked(question), "temperature": 0, "max_tokens": 96})
    return answer["choices"][0]["message"]


def written(question):
    """Returns what the model writes when nobody looks for calls."""
    prompt = post("/apply-template", asked(question))["tokens"]
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 96}
    return post("/v1/completions", body)["choices"][0]["text"]


def looks_like_a_call(text):
    """Whether the text has JSON that names a tool."""
    names = "|".join(name for name, _, _ in FUNCTIONS)
    return bool(re.search(rf'\{{[^{{}}]*"(?:name|function)"\s*:\s*"(?:{names})"', text or ""))


def counts(questions):
    """Returns the questions whose calls were recognised, and the calls that stayed text."""
    recognised, missed = [], []
    for question in questions:
        message = ask(question)
        if message.get("tool_calls"):
            recognised.append(question)
        elif looks_like_a_call(message["content"]):
            missed.append(message["content"])
    return recognised, missed


def needed():
    recognised, missed = counts(NEEDING)
    n_written = len(recognised) + len(missed)
    told = f"{len(NEEDING)} questions, {n_written} calls written, {len(recognised)} recognised"
    assert len(recognised) >= 0.95 * n_written, f"{told}; missed: {missed[:5]}"
    return f"{told}; stayed text: {missed}" if missed else told


def not_needed():
    """No call may be read where the model wrote none; that it writes some is its own doing."""
    recognised, missed = counts(NEEDING_NONE)
    false = [question for question in recognised if not looks_like_a_call(written(question))]
    assert not false, f"{len(false)} calls that the model did not write: {false[:5]}"
    told = f"{len(NEEDING_NONE)} questions, no call that the model did not write"
    if recognised or missed:
        raise report.ModelDid(f"{told}; it wrote {len(recognised) + len(missed)}, as to {recognised[0]!r}")
    return told


report.run(needed, not_needed)
