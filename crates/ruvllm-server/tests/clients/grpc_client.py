"""A client made by grpcio-tools: generate, embed, tokenize, with keys, deadlines and cancellation."""

import pathlib
import sys
import tempfile
import time
import urllib.request

import grpc
from grpc_tools import protoc

PROTO = pathlib.Path(__file__).parents[2] / "proto"
made = tempfile.mkdtemp()
arguments = ["protoc", f"-I{PROTO}", f"--python_out={made}", f"--grpc_python_out={made}", "ruvllm.proto"]
assert protoc.main(arguments) == 0
sys.path.insert(0, made)
import ruvllm_pb2 as pb  # noqa: E402
import ruvllm_pb2_grpc as pb_grpc  # noqa: E402

URL = sys.argv[1]
KEY = [("authorization", "Bearer key-of-the-tests")]
stub = pb_grpc.RuvllmStub(grpc.insecure_channel(URL.removeprefix("http://")))


def refused(call, code, text):
    try:
        list(call())
    except grpc.RpcError as error:
        assert error.code() == code and text in error.details(), (error.code(), error.details())
        return
    raise AssertionError(f"it was not refused with {code}")


def running():
    request = urllib.request.Request(f"{URL}/metrics", headers={"authorization": KEY[0][1]})
    text = urllib.request.urlopen(request).read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("ruvllm_requests_running"))


# An answer in pieces: the tokens' texts and the rest make the whole.
def answer(**fields):
    events = list(stub.Generate(pb.GenerateRequest(temperature=0, **fields), metadata=KEY))
    done = [event.done for event in events if event.HasField("done")]
    tokens = [event.token for event in events if event.HasField("token")]
    return "".join(token.text for token in tokens) + done[-1].text, tokens, done


conversation = pb.Conversation(messages=[pb.Message(role="user", content="What is the capital of France?")])
text, tokens, done = answer(conversation=conversation, max_tokens=16)
assert "Paris" in text and len(tokens) == done[0].answer_tokens <= 16 and done[0].prompt_tokens > 8, (text, done)
assert done[0].ttft_ms > 0 and done[0].finish_reason in ("stop", "length")

# The same prompt as text and as tokens.
ids = stub.Tokenize(pb.TokenizeRequest(text="1, 2, 3,", model="smollm2:135m"), metadata=KEY).tokens
by_text = answer(prompt="1, 2, 3,", max_tokens=8)[0]
assert by_text == answer(tokens=pb.Tokens(ids=ids), max_tokens=8)[0] and "4" in by_text, by_text

# Fields of the HTTP API; what they refuse is refused here.
text, _, done = answer(prompt="A number: ", fields_json='{"structured_outputs": {"regex": "[0-9]{3}"}, "n": 2}')
assert len(done) == 2 and text[:3].isdigit(), text
for fields, line in [
    ({"prompt": "x", "fields_json": '{"colour": 1}'}, "'colour' is no field"),
    ({"prompt": "x", "fields_json": "["}, "is no JSON object"),
    ({"prompt": "x", "temperature": -101}, "'temperature' is -101"),
    ({"prompt": "x", "max_tokens": 1, "fields_json": '{"max_tokens": 2}'}, "send one of them"),
    ({}, "has no input"),
]:
    request = pb.GenerateRequest(**fields)
    refused(lambda: stub.Generate(request, metadata=KEY), grpc.StatusCode.INVALID_ARGUMENT, line)
request = pb.GenerateRequest(prompt="x", model="gpt-5")
refused(lambda: stub.Generate(request, metadata=KEY), grpc.StatusCode.NOT_FOUND, "is not served here")
refused(lambda: stub.Generate(request), grpc.StatusCode.UNAUTHENTICATED, "no API key")
tokenize = pb.TokenizeRequest(text="x")
refused(lambda: [stub.Tokenize(tokenize, metadata=[("x-api-key", "no")])], grpc.StatusCode.UNAUTHENTICATED, "not known")
try:
    embeddings = stub.Embed(pb.EmbedRequest(texts=["x", "y"]), metadata=KEY).embeddings
    assert len(embeddings) == 2 and abs(sum(x * x for x in embeddings[0].values) - 1) < 1e-3
except grpc.RpcError as error:
    # A model that makes no embeddings says so.
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and "embed" in error.details(), error.details()

# A deadline ends a call, and a cancelled call ends its request.
long = pb.GenerateRequest(prompt="Once", max_tokens=1900, fields_json='{"ignore_eos": true}')
start = time.monotonic()
refused(lambda: stub.Generate(long, metadata=KEY, timeout=0.4), grpc.StatusCode.DEADLINE_EXCEEDED, "")
assert time.monotonic() - start < 5
call = stub.Generate(long, metadata=KEY)
next(iter(call))
call.cancel()
start = time.monotonic()
while running():
    assert time.monotonic() - start < 2, "a cancelled call goes on"
    time.sleep(0.02)

# A key that may have one request at once.
ONE = [("authorization", "Bearer one-at-a-time")]
call = stub.Generate(long, metadata=ONE)
next(iter(call))
refused(lambda: stub.Generate(long, metadata=ONE), grpc.StatusCode.RESOURCE_EXHAUSTED, "at once")
call.cancel()
print("ok")
