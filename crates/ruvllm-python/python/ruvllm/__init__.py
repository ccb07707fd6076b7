"""RuvLLM in Python: language models in this process, without a socket.

    from ruvllm import Engine

    with Engine("smollm2:135m") as engine:
        for text in engine.chat([{"role": "user", "content": "Why is the sky blue?"}], stream=True).texts():
            print(text, end="", flush=True)

:class:`Engine` is for programs that wait, :class:`AsyncEngine` for asyncio. Both have the whole HTTP API of ``ruvllm serve``; clients such
as ``openai`` run on :meth:`Engine.transport`.
"""

from . import errors, types
from ._aio import AsyncEngine, AsyncStream
from ._native import version as _version
from ._sync import Engine, Stream
from .errors import (
    BusyError,
    ContextLengthError,
    DisposedError,
    InternalError,
    InvalidRequestError,
    LoadError,
    NotFoundError,
    RequestTimeoutError,
    RuvllmError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

__version__ = _version()

__all__ = [
    "AsyncEngine",
    "AsyncStream",
    "BusyError",
    "ContextLengthError",
    "DisposedError",
    "Engine",
    "InternalError",
    "InvalidRequestError",
    "LoadError",
    "NotFoundError",
    "RequestTimeoutError",
    "RuvllmError",
    "Stream",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "errors",
    "types",
]
