"""The openai package's embeddings against a server with all-MiniLM-L6-v2, and reranking as Jina's and Cohere's users ask."""

import sys

import openai
from openai import OpenAI

URL = sys.argv[1] + "/v1"
MODEL = "minilm:l6"
client = OpenAI(base_url=URL, api_key="none", max_retries=0)
TEXTS = ["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


# The package asks for base64 unless told otherwise.
answer = client.embeddings.create(model=MODEL, input=TEXTS)
first, second, third = (item.embedding for item in sorted(answer.data, key=lambda item: item.index))
assert len(first) == 384 and abs(cosine(first, first) - 1) < 1e-4, first
# The cosines that the published weights give in float64.
assert abs(cosine(first, second) - 0.755337) < 1e-4 and abs(cosine(first, third) + 0.104958) < 1e-4
assert answer.usage.prompt_tokens == 8 + 11 + 9 and answer.model == MODEL, answer.usage
plain = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float", dimensions=384)
assert max(abs(a - b) for a, b in zip(plain.data[0].embedding, first, strict=True)) < 1e-6
tokens = client.embeddings.create(model=MODEL, input=[101, 1037, 2158, 2003, 5983, 2833, 1012, 102])
assert tokens.data[0].embedding == first
other = client.embeddings.create(model=MODEL, input=TEXTS[0], extra_body={"pooling": "cls"})
assert other.data[0].embedding != first
for wrong in ({"dimensions": 7}, {"extra_body": {"pooling": "max"}}, {"extra_body": {"truncate": True}}):
    try:
        client.embeddings.create(model=MODEL, input="x", **wrong)
    except openai.BadRequestError as error:
        assert error.param in ("dimensions", "pooling", "truncate"), error
    else:
        raise AssertionError(wrong)

documents = ["A train to the sea", {"text": "Paris is the capital of France."}, "How to bake bread"]
body = {"model": MODEL, "query": "What is France's capital?", "documents": documents, "top_n": 2, "return_documents": True}
ranked = client.post("/rerank", body=body, cast_to=dict)
assert [result["index"] for result in ranked["results"]][0] == 1 and len(ranked["results"]) == 2, ranked
assert ranked["results"][0]["document"] == documents[1] and ranked["usage"]["total_tokens"] > 20, ranked
scores = [result["relevance_score"] for result in ranked["results"]]
assert scores == sorted(scores, reverse=True) and scores[0] > 0.7, ranked
del body["top_n"], body["return_documents"]
ranked = client.post("/rerank", body=body, cast_to=dict)
assert len(ranked["results"]) == 3 and "document" not in ranked["results"][0], ranked
print("ok")
