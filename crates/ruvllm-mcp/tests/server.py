"""An MCP server of the tests: JSON-RPC over standard input and output, by the standard library alone.

Its first argument says how it behaves at the start and when it lists its tools; the tools themselves do the rest.
"""

import json
import os
import sys
import threading
import time

MODE = sys.argv[1] if len(sys.argv) > 1 else "good"
LOCK = threading.Lock()
CANCELLED = []
GROWN = []
N_CALLS = 0


def send(message):
    with LOCK:
        if MODE == "garbage":
            sys.stdout.write("Listening on stdio\n{\"half\": \n\n[1, 2]\n\x00\xff\n")
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def tool(name, description="", **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "inputSchema": schema}


TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
# What a model of random weights can call: there is one text that fits.
FIXED = {"type": "string", "enum": ["harbour"]}
TOOLS = [
    tool("echo", "Returns the text", text=TEXT),
    tool("fixed", "Returns the word", word=FIXED),
    tool("place", "Returns the folder and the variables that the server has"),
    tool("big", "Returns so many bytes", n=NUMBER),
    tool("huge", "Returns ten million bytes"),
    tool("wait", "Returns after some seconds", seconds={"type": "number"}),
    tool("cancelled", "Returns the calls that were given up"),
    tool("picture", "Returns an image"),
    tool("fail", "Fails"),
    tool("refuse", "Is answered with an error of the protocol"),
    tool("die", "Ends the server"),
    tool("flood", "Sends a message without an end"),
    tool("grow", "Adds a tool to the list"),
    tool("child", "Starts a process, and returns its id"),
]
# The tests of the command have one tool that fits.
if MODE in [each["name"] for each in TOOLS]:
    TOOLS = [each for each in TOOLS if each["name"] == MODE]


def listed(params):
    if MODE == "endless":
        at = int((params or {}).get("cursor") or 0)
        return {"tools": [tool(f"tool_{at}")], "nextCursor": str(at + 1)}
    if MODE == "pages_without_tools":
        return {"tools": [], "nextCursor": "again"}
    if MODE == "many":
        return {"tools": [tool(f"tool_{i}") for i in range(5000)]}
    if MODE == "odd":
        wide = tool("wide", **{f"p{i}": TEXT for i in range(5000)})
        wordy = tool("wordy", "\x1b[2J" + "x" * 100_000)
        plain = {"name": "list", "inputSchema": {"type": "array"}}
        return {"tools": [wide, wordy, plain, tool("a b"), tool("a/b"), {"name": "bare", "inputSchema": {}}]}
    return {"tools": TOOLS + GROWN}


def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}


def called(request, name, arguments):
    if name == "echo":
        return text(arguments["text"])
    if name == "fixed":
        return text(f"the word is {arguments['word']}")
    if name == "place":
        return text(json.dumps({"cwd": os.getcwd(), "env": dict(os.environ)}))
    if name == "big":
        return text("x" * arguments["n"])
    if name == "huge":
        return text(" and the" * 1_250_000)
    if name == "wait":
        # A test that gives it up makes sure first that it runs.
        if "begun" in arguments:
            open(arguments["begun"], "w").close()
        time.sleep(arguments["seconds"])
        return text("waited")
    if name == "cancelled":
        return text(json.dumps(CANCELLED))
    if name == "picture":
        return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    if name == "fail":
        return text("no such file: \x1b[31mred", isError=True)
    if name == "die":
        print("the disk is full", file=sys.stderr, flush=True)
        os._exit(7)
    if name == "flood":
        with LOCK:
            while True:
                sys.stdout.write("x" * 65536)
    if name == "grow":
        GROWN.append(tool(f"grown_{len(GROWN)}"))
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        return text("grown")
    if name == "child":
        pid = os.fork()
        if pid == 0:
            os.execvp("sleep", ["sleep", "60"])
        return text(str(pid))
    raise LookupError(f"unknown tool: {name}")


def answer(request):
    method, params = request["method"], request.get("params")
    try:
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "test", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
        elif method == "tools/list":
            result = listed(params)
        elif method == "tools/call":
            result = called(request, params["name"], params.get("arguments") or {})
        else:
            raise LookupError(f"unknown method: {method}")
    except LookupError as error:
        error = {"code": -32602, "message": str(error)}
        return send({"jsonrpc": "2.0", "id": request["id"], "error": error})
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def main():
    if MODE == "broken":
        print("cannot open the database\nno such file: /nowhere", file=sys.stderr)
        sys.exit(3)
    for line in sys.stdin:
        if MODE == "silent":
            continue
        message = json.loads(line)
        if message.get("method") == "notifications/cancelled":
            CANCELLED.append(message["params"].get("requestId"))
        elif "id" in message and "method" in message:
            threading.Thread(target=answer, args=[message], daemon=True).start()
    if MODE == "stubborn":
        time.sleep(60)


main()
