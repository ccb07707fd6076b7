"""Requests as they stand in the HTTP API, and what is read of their answers: shared by both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional
from urllib.parse import quote

from .errors import InternalError, InvalidRequestError, of_body

if TYPE_CHECKING:
    import numpy as np

    from ._native import Floats

JSON_HEADERS = [("content-type", "application/json")]


class Request(NamedTuple):
    """A request: its method, its path and its body as JSON, if it has one."""

    method: str
    path: str
    body: Optional[Mapping[str, Any]] = None

    def content(self) -> Optional[bytes]:
        """Returns the body as bytes."""
        return None if self.body is None else packed(self.body)


def packed(body: Mapping[str, Any]) -> bytes:
    """Returns JSON as bytes.

    Raises InvalidRequestError for what is none.
    """
    try:
        return json.dumps(body, allow_nan=False, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"the body is no JSON: {error}", status=400) from None


def _plain(value: Any) -> Any:
    """Returns what NumPy has as Python has it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of the type {type(value).__name__} has no place in it")


def chat(messages: Sequence[Mapping[str, Any]], stream: bool, body: Mapping[str, Any]) -> Request:
    return Request("POST", "/v1/chat/completions", {"messages": messages, **body, "stream": stream})


def complete(prompt: Any, stream: bool, body: Mapping[str, Any]) -> Request:
    return Request("POST", "/v1/completions", {"prompt": prompt, **body, "stream": stream})


def named(folder: str, name: str) -> str:
    """Returns the path of something with a name."""
    return f"{folder}/{quote(name, safe=':')}"


def embeddings(texts: Any, body: Mapping[str, Any]) -> bytes:
    return packed({"input": texts, **body, "encoding_format": "base64"})


def array(floats: Floats) -> np.ndarray:
    """Returns an array that shares the memory of numbers."""
    import numpy as np

    return np.asarray(floats)


def metrics(text: str) -> dict[str, float]:
    """Returns metrics in Prometheus' text format by their names with labels."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


class Events:
    """Server-sent events, read from pieces of bytes."""

    def __init__(self) -> None:
        self._rest = b""
        #: Whether the last event of an answer has come.
        self.has_ended = False

    def feed(self, piece: bytes) -> Iterator[Any]:
        """Yields the data of events that are whole with this piece.

        Raises the error that an event tells.
        """
        *whole, self._rest = (self._rest + piece).split(b"\n\n")
        for event in whole:
            # Others are comments, which keep a connection alive.
            if not event.startswith(b"data: ") or self.has_ended:
                continue
            data = event[len(b"data: ") :]
            if data == b"[DONE]":
                self.has_ended = True
                continue
            value = json.loads(data)
            if "error" in value:
                raise of_body(value)
            yield value

    def end(self) -> None:
        """Raises an error if the answer ends here before its last event."""
        if not self.has_ended:
            raise InternalError("the answer broke off before its end")


def text_of(chunk: Mapping[str, Any]) -> str:
    """Returns the text that a chunk adds to the first choice."""
    for choice in chunk["choices"]:
        if choice["index"] == 0:
            return choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    return ""
