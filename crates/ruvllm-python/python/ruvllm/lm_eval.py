"""A model class of the LM evaluation harness (``pip install ruvllm[lm-eval]``).

    import lm_eval
    from ruvllm import Engine
    from ruvllm.lm_eval import RuvllmLM

    with Engine("smollm2:135m", parallel=4) as engine:
        results = lm_eval.simple_evaluate(model=RuvllmLM(engine), tasks=["arc_easy"])

Log-probabilities are those of the engine's logits, in 64-bit arithmetic. Nothing is learned of what is evaluated, unless the engine was loaded
with ``learn=True``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
from lm_eval.api.instance import Instance  # type: ignore[import-untyped]
from lm_eval.api.model import LM  # type: ignore[import-untyped]
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # type: ignore[import-untyped]

from ._sync import Engine

#: Tokens of an answer where a task does not say how many.
MAX_TOKENS = 256


class RuvllmLM(LM):
    """A model of an engine for the evaluation harness; ``parallel`` is how many requests are asked at once."""

    def __init__(self, engine: Engine, *, parallel: int = 4) -> None:
        super().__init__()
        self._engine = engine
        self._parallel = parallel
        facts = engine.request("GET", "/tokenizer_info")
        #: Size of the context in tokens.
        self.max_length: int = facts["model_max_length"]
        bos, eos = facts["bos_token"], facts["eos_token"]
        self._eos: Optional[str] = eos
        self._adds_bos: bool = facts["add_bos_token"]
        prefix = engine.tokenize(bos or eos or "", parse_special=True)
        if not prefix:
            raise ValueError(f"the model {engine.model} has no token to begin a text with, which log-probabilities need")
        self._prefix: int = prefix[0]

    @property
    def tokenizer_name(self) -> str:
        """Name under which the harness keeps results."""
        return self._engine.model

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns a conversation as the model reads it."""
        return self._engine.render(chat_history, add_generation_prompt=add_generation_prompt)

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Returns of each pair the log-likelihood of the continuation, and whether greedy decoding would give it."""
        return self._all(lambda request: self._of_pair(*request.args), requests)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of each text, in windows of the context's size."""
        return self._all(lambda request: self._of_text(*request.args), requests)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Returns what each text goes on with, up to one of the texts that end it."""
        return self._all(lambda request: self._generated(*request.args), requests)

    def _all(self, work: Callable[[Instance], Any], requests: Sequence[Instance]) -> list[Any]:
        with ThreadPoolExecutor(self._parallel) as pool:
            return list(pool.map(work, requests))

    def _tokens(self, text: str) -> list[int]:
        return self._engine.tokenize(text, parse_special=True)

    def _of_pair(self, context: str, continuation: str) -> tuple[float, bool]:
        # Blanks belong to the continuation, as tokenizers have them.
        n_blank = len(context) - len(context.rstrip())
        if context and n_blank:
            context, continuation = context[:-n_blank], context[-n_blank:] + continuation
        begin = self._tokens(context)
        # Where the two meet, the whole text may have other tokens than its parts.
        tokens = self._tokens(context + continuation)[len(begin) :]
        if not begin or self._adds_bos:
            begin = [self._prefix, *begin]
        return self._score(begin, tokens)

    def _of_text(self, text: str) -> float:
        windows = get_rolling_token_windows(self._tokens(text), self._prefix, self.max_length, 1)
        return sum(self._score(*make_disjoint_window(window))[0] for window in windows)

    def _score(self, context: list[int], continuation: list[int]) -> tuple[float, bool]:
        """Returns the log-likelihood of tokens, and whether each is the most likely one. The oldest that do not fit are left out."""
        if not continuation:
            return 0.0, True
        tokens = (context + continuation)[-self.max_length - 1 :]
        logits = self._engine.logits(tokens[:-1], last=len(continuation)).astype(np.float64)
        continuation = continuation[-len(logits) :]
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(continuation)), continuation]
        total = (chosen - np.log(np.exp(logits).sum(axis=1))).sum()
        return float(total), bool((chosen == 0.0).all())

    def _generated(self, context: str, options: dict[str, Any]) -> str:
        options = dict(options)
        until = options.pop("until", None) or []
        stop = [until] if isinstance(until, str) else list(until)
        n_tokens = options.pop("max_gen_toks", options.pop("max_tokens", MAX_TOKENS))
        temperature = options.pop("temperature", 0.0) if options.pop("do_sample", True) else 0.0
        tokens = self._tokens(context)
        if self._adds_bos:
            tokens = [self._prefix, *tokens]
        answer = self._engine.complete(
            tokens[-max(self.max_length - n_tokens, 1) :],
            max_tokens=n_tokens,
            temperature=temperature,
            stop=[text for text in stop if text],
            **{name: options[name] for name in ("top_p", "top_k") if name in options},
        )
        return answer["choices"][0]["text"]
