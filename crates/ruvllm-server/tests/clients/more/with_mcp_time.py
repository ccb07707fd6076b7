"""A server of PyPI in a chat: it tells the time, and fails where it is asked for a zone that is none."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import report
from report import MODEL, called, said

folder = pathlib.Path(tempfile.mkdtemp())
config = folder / "mcp.json"
program = pathlib.Path(sys.executable).with_name("mcp-server-time")
config.write_text(json.dumps({"mcpServers": {"time": {"command": str(program), "args": ["--local-timezone", "UTC"]}}}))


def chat(lines, *options):
    """Says lines to the model; returns the objects that the chat prints."""
    args = ["chat", "--model", MODEL, "--json", "--temp", "0", "--max-tokens", "120", "--mcp", config, *options]
    ended = subprocess.run(
        [os.environ["RUVLLM"], *args], input=lines, capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def listed():
    (tools,) = chat("/tools\n", "--mcp-allow", "*")
    names = [line.split()[0] for line in tools["note"].splitlines()]
    assert names == ["time__get_current_time", "time__convert_time"], names


def tools():
    question = "What time is it in the timezone Europe/Paris?\n"
    (answer,) = chat(question, "--mcp-choice", "time__get_current_time", "--mcp-allow", "time__get_current_time")
    call = called(answer["calls"])
    assert call["tool"] == "get_current_time", call
    said(json.dumps(call["arguments"]), "Europe/Paris")
    assert call["outcome"] == "ran" and json.loads(call["result"])["timezone"] == "Europe/Paris", call
    said(answer["text"], ":")


def fails():
    question = "What time is it in the timezone Nowhere/None?\n"
    (answer,) = chat(question, "--mcp-choice", "time__get_current_time", "--mcp-allow", "*")
    call = called(answer["calls"])
    said(json.dumps(call["arguments"]), "Nowhere")
    assert call["outcome"] == "failed" and call["result"].startswith("error: "), call


report.run(listed, tools, fails)
