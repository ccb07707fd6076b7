"""The llm package: a program and a library."""

import os
import pathlib
import subprocess
import sys

import report
from report import FORECAST, PERSON, QUESTION, ModelDid, Person, get_weather, said

FILE = """\
# docs: llm
# extra-openai-models.yaml, in the folder that `dirname "$(llm logs path)"` tells
- model_id: qwen
  model_name: qwen2.5-coder:0.5b
  api_base: http://127.0.0.1:8080/v1
  supports_tools: true
  supports_schema: true
# end
"""
folder = pathlib.Path("llm-user").absolute()
folder.mkdir(exist_ok=True)
(folder / "extra-openai-models.yaml").write_text(FILE)
os.environ["LLM_USER_PATH"] = str(folder)
os.environ["OPENAI_API_KEY"] = "none"

import llm

model = llm.get_model("qwen")
GREEDY = {"temperature": 0, "max_tokens": 80}


def chat():
    said(model.prompt(QUESTION, stream=False, **GREEDY).text(), "Paris")
    program = pathlib.Path(sys.executable).with_name("llm")
    said(subprocess.run([program, "-m", "qwen", QUESTION], check=True, capture_output=True, text=True).stdout, "Paris")


def stream():
    said("".join(model.prompt(QUESTION, **GREEDY)), "Paris")


def tools():
    chain = model.conversation(tools=[get_weather]).chain(FORECAST, options=GREEDY)
    text = chain.text()
    if not any(response.tool_calls() for response in chain._responses):
        raise ModelDid("the model did not call")
    said(text, "31")


def typed():
    Person.model_validate_json(model.prompt(PERSON, schema=Person, **GREEDY).text())


def history():
    talk = model.conversation()
    talk.prompt(QUESTION, **GREEDY).text()
    said(talk.prompt("And of Italy?", **GREEDY).text(), "Rome")


report.run(chat, stream, tools, typed, history)
