"""The wheel without anything else: loads a model, answers, and ends."""

import sys

from ruvllm import Engine, __version__

with Engine(sys.argv[1], chat_template="chatml", ctx=256) as engine:
    answer = engine.chat([{"role": "user", "content": "Hello"}], max_tokens=4, temperature=0)
    assert answer["usage"]["completion_tokens"] > 0, answer
    assert engine.logits(engine.tokenize("Hello")).ndim == 2
    assert "httpx" not in sys.modules
print(f"ruvllm {__version__} answers in an empty environment")
