"""Gaps in functions of Python's library, filled in three ways that must write the same text."""

import ast
import importlib
import inspect
import json
import urllib.request

import report
from report import MODEL

URL = "http://127.0.0.1:8080"
N_TOKENS = 48
MODULES = [
    "bisect", "heapq", "shlex", "textwrap", "fnmatch", "posixpath", "random", "statistics", "string", "calendar",
    "colorsys", "copy", "difflib", "fractions", "functools", "glob", "gzip", "hmac", "base64", "bdb",
]
N_FUNCTIONS = 50


def gaps():
    """Functions in the order of the modules: what stands before the body, and what stands behind it."""
    for name in MODULES:
        source = inspect.getsource(importlib.import_module(name))
        lines = source.splitlines(keepends=True)
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        fitting = [node for node in functions if 2 <= node.end_lineno - node.body[0].lineno <= 30]
        for node in fitting[:4]:
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            before = "".join(lines[node.lineno - 1 : first.lineno - 1]) + " " * first.col_offset
            yield f"{name}.{node.name}", before, "\n" + "".join(lines[node.end_lineno : node.end_lineno + 6])


def post(path, **body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(request))


def fim():
    given = {"model": MODEL, "temperature": 0}
    chosen = list(gaps())[:N_FUNCTIONS]
    assert len(chosen) == N_FUNCTIONS, f"only {len(chosen)} functions"
    n_filled, differing = 0, []
    for name, before, behind in chosen:
        prompt = f"<|fim_prefix|>{before}<|fim_suffix|>{behind}<|fim_middle|>"
        raw = post("/v1/completions", prompt=prompt, max_tokens=N_TOKENS, **given)["choices"][0]["text"]
        gap = post("/v1/completions", prompt=before, suffix=behind, max_tokens=N_TOKENS, **given)["choices"][0]["text"]
        infill = post("/infill", input_prefix=before, input_suffix=behind, n_predict=N_TOKENS, **given)["content"]
        n_filled += bool(raw.strip())
        if not raw == gap == infill:
            differing.append(f"{name}: {raw!r}, {gap!r}, {infill!r}")
    assert not differing, f"{len(differing)} of {N_FUNCTIONS} differ: " + "; ".join(differing[:3])
    return f"{N_FUNCTIONS} gaps, the same text in all three ways; {n_filled} are not empty"


report.run(fim)
