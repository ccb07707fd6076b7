"""The engine for ``asyncio``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeVar, Union, overload

from . import _native, _request
from ._options import Model, arguments
from ._request import JSON_HEADERS, Request
from ._sync import Answering, Chunk, Engine, OnProgress
from .types import (
    Adapter,
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    FeedbackResult,
    LearningStatus,
    Prompt,
    Session,
)

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from .bodies import ChatOptions, CompletionOptions, EmbeddingOptions, LoadOptions

T = TypeVar("T")


async def _wait(pending: _native.Pending[T], call: Optional[_native.NativeCall] = None) -> T:
    """Waits for something; a task that is cancelled meanwhile ends it, or the call that it belongs to."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: Any, error: Optional[BaseException]) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def tell(value: Any, error: Optional[BaseException]) -> None:
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            pass

    pending.then(tell)
    try:
        return await future
    except asyncio.CancelledError:
        (call or pending).cancel()
        raise


class AsyncStream(Answering[Chunk]):
    """An answer that is being written: an asynchronous iterator over its chunks, each of which is given once.

    The request begins when the stream is made. Cancelling the task that reads it, leaving an ``async with`` block, :meth:`aclose` and
    dropping the last reference end it; it then leaves the engine within a step.
    """

    def __aiter__(self) -> AsyncStream[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        try:
            while (chunk := next(self._chunks, None)) is None:
                if self._events.has_ended or not self._take(await _wait(self._call.next(), self._call)):
                    raise StopAsyncIteration
            return chunk
        except BaseException as error:
            self._close()
            raise self._told(error)

    async def texts(self) -> AsyncIterator[str]:
        """Iterates over the pieces of the first choice's text."""
        try:
            async for chunk in self:
                text = _request.text_of(chunk)  # type: ignore[arg-type]
                if text:
                    yield text
        finally:
            self._close()

    async def aclose(self) -> None:
        """Ends the request; the iterator is then at its end."""
        self._close()

    async def __aenter__(self) -> AsyncStream[Chunk]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None:
            call.cancel()


class AsyncEngine:
    """A loaded model that answers requests of ``asyncio`` tasks, several at once by continuous batching.

    ``async with await AsyncEngine.load("smollm2:135m") as engine: ...``. A task that is cancelled ends its request within a step. See
    :class:`Engine` for options and for what the methods do.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    async def load(
        cls,
        model: Union[Model, Sequence[Model]],
        *,
        on_progress: Optional[OnProgress] = None,
        **options: Unpack[LoadOptions],
    ) -> AsyncEngine:
        """Loads models; the event loop runs meanwhile. Progress is told on another thread."""
        native = await _wait(_native.load(arguments(model, dict(options)), on_progress))
        engine = Engine.__new__(Engine)
        engine._adopt(native)
        return cls(engine)

    @property
    def closed(self) -> bool:
        """Whether the engine was closed."""
        return self._engine.closed

    @property
    def model(self) -> str:
        """Name of the model in answers; the first, where there are several."""
        return self._engine.model

    @property
    def models(self) -> list[str]:
        """Names of all models."""
        return self._engine.models

    @property
    def sync(self) -> Engine:
        """The same engine, for programs that wait."""
        return self._engine

    # Requests

    async def _open(self, request: Request) -> _native.NativeCall:
        content = request.content()
        headers = JSON_HEADERS if content is not None else []
        call = self._engine._open_native().call(request.method, request.path, headers, content)
        try:
            head = await _wait(call.head(), call)
            if head is not None and head[0] < 400:
                return call
            text = "" if head is None else await self._read(call)
        except BaseException:
            call.cancel()
            raise
        raise self._engine._failure(head, text)

    @staticmethod
    async def _read(call: _native.NativeCall) -> str:
        pieces = []
        while (piece := await _wait(call.next(), call)) is not None:
            pieces.append(piece)
        return b"".join(pieces).decode()

    async def _text(self, request: Request) -> str:
        call = await self._open(request)
        try:
            return await self._read(call)
        finally:
            call.cancel()

    async def request(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Any:
        """Sends a request of the HTTP API and returns what its answer says: for endpoints that have no method here."""
        return self._engine._value(await self._text(Request(method, path, body)))

    # Answers

    @overload
    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> ChatCompletion: ...

    @overload
    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> AsyncStream[ChatChunk]: ...

    async def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **options: Any) -> Any:
        """Answers a conversation; with ``stream=True`` it returns the stream once the answer has begun."""
        request = _request.chat(messages, stream, options)
        return AsyncStream(self, await self._open(request)) if stream else await self.request(*request)

    @overload
    async def complete(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: Unpack[CompletionOptions]
    ) -> Completion: ...

    @overload
    async def complete(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[CompletionOptions]
    ) -> AsyncStream[CompletionChunk]: ...

    async def complete(self, prompt: Prompt, *, stream: bool = False, **options: Any) -> Any:
        """Continues a text, or tokens."""
        request = _request.complete(prompt, stream, options)
        return AsyncStream(self, await self._open(request)) if stream else await self.request(*request)

    async def embed(self, texts: Prompt, **options: Unpack[EmbeddingOptions]) -> np.ndarray:
        """Returns the embeddings of texts as an array of float32, ``(n, dim)``."""
        floats, _ = await _wait(self._engine._open_native().embed(_request.embeddings(texts, options)))
        return _request.array(floats)

    async def logits(
        self, tokens: Sequence[int], *, last: Optional[int] = None, model: Optional[str] = None
    ) -> np.ndarray:
        """Returns the logits after each token as an array of float32, ``(n, n_vocab)``, or after the ``last`` ones."""
        return _request.array(await _wait(self._engine._open_native().logits(list(tokens), last, model)))

    async def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Returns the tokens of a text."""
        body = {"text": text, "add_special": add_special, "parse_special": parse_special}
        return (await self.request("POST", "/tokenize", body))["tokens"]

    async def detokenize(self, tokens: Sequence[int], *, render_special: bool = False) -> str:
        """Returns the text of tokens."""
        body = {"tokens": tokens, "render_special": render_special}
        return (await self.request("POST", "/detokenize", body))["text"]

    # Learning; it takes ``learn=True``

    async def feedback(self, id: str, score: float, **options: Any) -> FeedbackResult:
        """Says what an answer was worth, from 0 to 1."""
        return await self.request("POST", "/v1/feedback", {"id": id, "score": score, **options})

    async def correct(self, id: str, correction: str, **options: Any) -> FeedbackResult:
        """Says what an answer should have been; it is given when the same is asked again."""
        return await self.request("POST", "/v1/feedback", {"id": id, "correction": correction, **options})

    async def remember(self, question: str, answer: str, **options: Any) -> LearningStatus:
        """Remembers an answer to a question."""
        return await self.request("POST", "/v1/memory", {"question": question, "answer": answer, **options})

    async def learned(self) -> LearningStatus:
        """Tells what was learned."""
        return await self.request("GET", "/v1/learning")

    async def forget(self) -> None:
        """Forgets everything that was learned."""
        await self.request("DELETE", "/v1/memory")

    async def export_learned(self) -> bytes:
        """Returns what was learned as a signed file."""
        return await _wait(self._engine._open_native().export_learned())

    async def import_learned(self, file: bytes, *, trust: Sequence[str] = ()) -> LearningStatus:
        """Puts what a file says in the place of what was learned."""
        await _wait(self._engine._open_native().import_learned(file, list(trust)))
        return await self.learned()

    # Adapters and sessions

    async def adapters(self) -> list[Adapter]:
        """Lists the adapters that requests may name."""
        return (await self.request("GET", "/v1/adapters"))["data"]

    async def sessions(self) -> list[Session]:
        """Lists the sessions that are kept."""
        return (await self.request("GET", "/v1/sessions"))["data"]

    # What it is and does

    async def capabilities(self) -> dict[str, Any]:
        """Tells what the engine has and takes."""
        return await self.request("GET", "/v1/capabilities")

    async def metrics(self) -> dict[str, float]:
        """Returns the metrics of the server by their names with labels."""
        return _request.metrics(await self._text(Request("GET", "/metrics")))

    def transport(self, library: Any = None) -> Any:
        """Returns a transport for an asynchronous client of ``httpx``, or of ``library``, which may be ``httpx2``."""
        from ._transport import async_transport

        return async_transport(self, library)

    # Its end

    async def close(self) -> None:
        """Ends what still runs (those calls raise DisposedError), keeps what was learned, and frees the model."""
        native = self._engine._release()
        if native is not None:
            await _wait(native.dispose())

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<ruvllm.AsyncEngine {'closed' if self.closed else self.model!r}>"
