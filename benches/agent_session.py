#!/usr/bin/env python3
"""Makes benches/data/agent_session.jsonl from this repository's own history.

A turn is what an editing agent asks a model for. Changes of small functions are read from `git log`, oldest first; each
becomes turns: a call of a tool that reads the function, the function written anew with the change, and a call of a tool
that checks it. Prompts hold the text before the change, never the answer. At the end stand questions in prose, as a
control: nothing of them stands in earlier turns.

    python3 benches/agent_session.py            writes the file
"""

import difflib
import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
AT = "6f2dc97"                 # the newest commit that is read, so that the file can be made again
OUT = ROOT / "benches/data/agent_session.jsonl"
FN = re.compile(r"^( *)(?:pub(?:\([a-z]+\))? )?fn (\w+)")
LINES = range(10, 34)          # of a function
CHANGED = range(1, 7)          # lines that a change takes out and puts in
LINE_MAX = 110
N_CHANGES = 21                 # each gives two turns, and one more where another function was changed before
PER_FUNCTION = 3

SYSTEM = (
    "You are an agent that edits a Rust repository. When you are given a function and a change, answer with the whole function "
    "after the change, as one block of code and nothing else. When you are told to use a tool, answer with one JSON object and "
    'nothing else: {"tool": "read_function", "arguments": {"path": PATH, "name": NAME}} or {"tool": "run_tests", "arguments": '
    '{"package": PACKAGE, "filter": NAME, "profile": "ci", "threads": 2}}.'
)

PROSE = [
    "Why is the sky dark at night although there are so many stars?",
    "Describe how bread rises, for a child of ten.",
    "What did people use to write on before there was paper?",
    "Name some reasons why a city grows at a river.",
    "How does a sailing boat move against the wind?",
    "Tell me about the life of a honey bee in winter.",
    "What makes a good listener? Answer in a short paragraph.",
    "Why do leaves change their colour in autumn?",
    "Explain what inflation is without technical terms.",
    "How would you plan a garden for a dry climate?",
]


def git(*args):
    return subprocess.run(["git", "-C", str(ROOT), *args], check=True, capture_output=True, text=True, errors="replace").stdout


def functions(text):
    """Returns the functions of a file by name; of names that stand there twice none."""
    lines, found, twice = text.split("\n"), {}, set()
    for i, line in enumerate(lines):
        match = FN.match(line)
        if not match:
            continue
        indent, name = match.groups()
        end = next((j for j in range(i, len(lines)) if lines[j] == indent + "}"), None)
        if end is None:
            continue
        twice.update({name} & found.keys())
        found[name] = [line[len(indent):] for line in lines[i : end + 1]]
    return {name: body for name, body in found.items() if name not in twice}


def changes():
    """Iterates over changes of small functions, oldest first."""
    for commit in git("rev-list", "--reverse", "--no-merges", AT).split():
        for line in git("diff-tree", "-r", "--no-commit-id", "--name-status", commit, "--", "crates/*.rs").splitlines():
            status, path = line.split("\t", 1)
            if status != "M" or "/tests" in path:
                continue
            before, after = functions(git("show", f"{commit}~1:{path}")), functions(git("show", f"{commit}:{path}"))
            for name in sorted(before.keys() & after.keys()):
                old, new = before[name], after[name]
                diff = [x for x in difflib.ndiff(old, new) if x[:2] in ("- ", "+ ")]
                fits = len(old) in LINES and len(new) in LINES and max(map(len, old + new)) <= LINE_MAX
                if fits and len(diff) in CHANGED and all(line[2:].strip() for line in diff):
                    yield path, name, old, new


def said(old, new):
    """Returns a change as a request to an agent says it."""
    parts = []
    for tag, i, j, k, l in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        took, put = "\n".join(old[i:j]), "\n".join(new[k:l])
        if tag == "replace":
            parts.append(f"Replace\n```rust\n{took}\n```\nby\n```rust\n{put}\n```")
        elif tag == "delete":
            parts.append(f"Remove\n```rust\n{took}\n```")
        elif tag == "insert":
            parts.append(f"After the line\n```rust\n{old[i - 1]}\n```\ninsert\n```rust\n{put}\n```")
    return "\n".join(parts)


def chosen():
    """Returns changes of functions that were changed several times, in order of time."""
    by_function = {}
    for change in changes():
        by_function.setdefault(change[:2], []).append(change)
    order = sorted(by_function.values(), key=lambda each: (-min(len(each), PER_FUNCTION), each[0][:2]))
    picked = []
    for each in order:
        if len(picked) + min(len(each), PER_FUNCTION) <= N_CHANGES:
            picked += each[:PER_FUNCTION]
    return picked


def turns():
    before = None
    for path, name, old, new in chosen():
        package = path.split("/")[1]
        if before != (path, name):
            yield "call", 80, f"The function `{name}` in {path} is to be changed. Read it: use the tool read_function."
        before = (path, name)
        function = "\n".join(old)
        yield "edit", 640, f"The function `{name}` in {path}:\n```rust\n{function}\n```\n{said(old, new)}\nAnswer with the whole function as code."
        yield "call", 80, f"The function `{name}` in {path} was written. Test it in the package {package}: use the tool run_tests."
    for question in PROSE:
        yield "prose", 128, question


def main():
    OUT.parent.mkdir(exist_ok=True)
    rows = []
    for kind, max_tokens, text in turns():
        row = {"kind": kind, "max_tokens": max_tokens, "user": text}
        rows.append(json.dumps(row, ensure_ascii=False))
    head = json.dumps({"kind": "system", "user": SYSTEM})
    OUT.write_text("\n".join([head, *rows]) + "\n")
    print(f"{len(rows)} turns, {OUT.stat().st_size} bytes in {OUT}")


if __name__ == "__main__":
    main()
