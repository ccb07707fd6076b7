"""The engine for programs that wait."""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Optional, TypeVar, Union, overload

from . import _native, _request
from ._options import Model, arguments
from ._request import JSON_HEADERS, Events, Request
from .errors import DisposedError, RuvllmError, UnavailableError, of_answer
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

    from ._aio import AsyncEngine
    from .bodies import ChatOptions, CompletionOptions, EmbeddingOptions, LoadOptions

Chunk = TypeVar("Chunk")

#: Called with the name of a task (``loading``), the bytes that are done and all of them, where their number is known.
OnProgress = Callable[[str, int, Optional[int]], object]

#: What ends with an engine that is closed says this.
_CLOSED = "the engine was closed while it answered"
#: Engines that are open, which are closed when the interpreter ends.
_OPEN: weakref.WeakSet[Engine] = weakref.WeakSet()

# A process that was forked has none.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPEN.clear)


class Answering(Generic[Chunk]):
    """State of an answer that is being written, whoever waits for its pieces."""

    def __init__(self, engine: Union[Engine, AsyncEngine], call: _native.NativeCall) -> None:
        self._engine = engine
        self._call = call
        self._events = Events()
        self._chunks: Iterator[Chunk] = iter(())

    def _take(self, piece: Optional[bytes]) -> bool:
        """Takes the next piece of the answer; returns whether there was one."""
        if piece is not None:
            self._chunks = self._events.feed(piece)
            return True
        if self._engine.closed:
            raise DisposedError(_CLOSED)
        self._events.end()
        return False

    def _told(self, error: BaseException) -> BaseException:
        """Returns an error as callers are told it: the server's word for an engine that is closed is another one."""
        is_closed = isinstance(error, UnavailableError) and self._engine.closed
        return DisposedError(_CLOSED) if is_closed else error

    def _close(self) -> None:
        self._events.has_ended = True
        self._chunks = iter(())
        self._call.cancel()


class Stream(Answering[Chunk]):
    """An answer that is being written: an iterator over its chunks, each of which is given once.

    The request begins when the stream is made. Leaving a ``with`` block, :meth:`close` and dropping the last reference end it; it then
    leaves the engine within a step.
    """

    def __iter__(self) -> Stream[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            while (chunk := next(self._chunks, None)) is None:
                if self._events.has_ended or not self._take(self._call.next().wait()):
                    raise StopIteration
            return chunk
        except BaseException as error:
            self._close()
            raise self._told(error)

    def texts(self) -> Iterator[str]:
        """Iterates over the pieces of the first choice's text."""
        return (text for chunk in self if (text := _request.text_of(chunk)))  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends the request; the iterator is then at its end."""
        self._close()

    def __enter__(self) -> Stream[Chunk]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None:
            call.cancel()


class Engine:
    """A loaded model that answers requests, several at once and from any thread.

    ``model`` is a name (``smollm2:135m``, ``hf:owner/repo/file.gguf``), a path, or several of them. Options are those of
    ``ruvllm serve``, with underscores for dashes: ``Engine("smollm2:135m", ctx=4096, threads=4, learn=True)``. Use it as a context
    manager, or close it: that frees the model and keeps what was learned.

    Raises LoadError for a model that cannot be had, UsageError for an option that cannot be honoured.
    """

    def __init__(
        self,
        model: Union[Model, Sequence[Model]],
        *,
        on_progress: Optional[OnProgress] = None,
        **options: Unpack[LoadOptions],
    ) -> None:
        self._native: Optional[_native.NativeEngine] = None
        self._adopt(_native.load(arguments(model, dict(options)), on_progress).wait())

    def _adopt(self, native: _native.NativeEngine) -> None:
        self._native = native
        #: Name of the model in answers; the first, where there are several.
        self.model: str = native.names[0]
        #: Names of all models.
        self.models: list[str] = native.names
        _OPEN.add(self)

    @property
    def closed(self) -> bool:
        """Whether the engine was closed."""
        return self._native is None

    def _open_native(self) -> _native.NativeEngine:
        if self._native is None:
            raise DisposedError()
        return self._native

    # Requests

    def _open(self, request: Request) -> _native.NativeCall:
        """Begins a request and returns it once its answer has begun well."""
        content = request.content()
        headers = JSON_HEADERS if content is not None else []
        call = self._open_native().call(request.method, request.path, headers, content)
        try:
            head = call.head().wait()
            if head is not None and head[0] < 400:
                return call
            text = "" if head is None else self._read(call)
        except BaseException:
            call.cancel()
            raise
        raise self._failure(head, text)

    def _failure(self, head: Optional[tuple[int, list[tuple[str, str]]]], text: str) -> RuvllmError:
        if head is None or self.closed:
            return DisposedError()
        status, headers = head
        return of_answer(text, status, dict(headers).get("retry-after"))

    @staticmethod
    def _read(call: _native.NativeCall) -> str:
        return b"".join(iter(lambda: call.next().wait(), None)).decode()

    def _text(self, request: Request) -> str:
        call = self._open(request)
        try:
            return self._read(call)
        finally:
            call.cancel()

    def request(self, method: str, path: str, body: Optional[Mapping[str, Any]] = None) -> Any:
        """Sends a request of the HTTP API and returns what its answer says: for endpoints that have no method here."""
        return self._value(self._text(Request(method, path, body)))

    def _value(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            if self.closed:
                raise DisposedError(_CLOSED) from None
            raise

    # Answers

    @overload
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> Stream[ChatChunk]: ...

    def chat(self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **options: Any) -> Any:
        """Answers a conversation: ``POST /v1/chat/completions``. Options are the fields of its body, adapters and a session among them."""
        request = _request.chat(messages, stream, options)
        return Stream(self, self._open(request)) if stream else self.request(*request)

    @overload
    def complete(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: Unpack[CompletionOptions]
    ) -> Completion: ...

    @overload
    def complete(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[CompletionOptions]
    ) -> Stream[CompletionChunk]: ...

    def complete(self, prompt: Prompt, *, stream: bool = False, **options: Any) -> Any:
        """Continues a text, or tokens: ``POST /v1/completions``."""
        request = _request.complete(prompt, stream, options)
        return Stream(self, self._open(request)) if stream else self.request(*request)

    def embed(self, texts: Prompt, **options: Unpack[EmbeddingOptions]) -> np.ndarray:
        """Returns the embeddings of texts as an array of float32, ``(n, dim)``; a single text is one row."""
        floats, _ = self._open_native().embed(_request.embeddings(texts, options)).wait()
        return _request.array(floats)

    def logits(self, tokens: Sequence[int], *, last: Optional[int] = None, model: Optional[str] = None) -> np.ndarray:
        """Returns the logits after each token as an array of float32, ``(n, n_vocab)``; after the ``last`` ones only, if that is given.

        The array shares the engine's memory: nothing is copied.
        """
        return _request.array(self._open_native().logits(list(tokens), last, model).wait())

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Returns the tokens of a text."""
        body = {"text": text, "add_special": add_special, "parse_special": parse_special}
        return self.request("POST", "/tokenize", body)["tokens"]

    def detokenize(self, tokens: Sequence[int], *, render_special: bool = False) -> str:
        """Returns the text of tokens."""
        return self.request("POST", "/detokenize", {"tokens": tokens, "render_special": render_special})["text"]

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Returns a conversation as the model reads it: ``POST /apply-template``."""
        return self.request("POST", "/apply-template", {"messages": messages, **options})["prompt"]

    # Learning; it takes ``learn=True``

    def feedback(self, id: str, score: float, **options: Any) -> FeedbackResult:
        """Says what an answer was worth, from 0 to 1: ``POST /v1/feedback``."""
        return self.request("POST", "/v1/feedback", {"id": id, "score": score, **options})

    def correct(self, id: str, correction: str, **options: Any) -> FeedbackResult:
        """Says what an answer should have been; it is given when the same is asked again."""
        return self.request("POST", "/v1/feedback", {"id": id, "correction": correction, **options})

    def remember(self, question: str, answer: str, **options: Any) -> LearningStatus:
        """Remembers an answer to a question: ``POST /v1/memory``."""
        return self.request("POST", "/v1/memory", {"question": question, "answer": answer, **options})

    def undo(self, item: int) -> LearningStatus:
        """Undoes an item, as feedback returns it and :meth:`learned` lists it."""
        return self.request("POST", "/v1/learning", {"action": "undo", "item": item})

    def learned(self) -> LearningStatus:
        """Tells what was learned: ``GET /v1/learning``."""
        return self.request("GET", "/v1/learning")

    def forget(self) -> None:
        """Forgets everything that was learned."""
        self.request("DELETE", "/v1/memory")

    def export_learned(self) -> bytes:
        """Returns what was learned as a signed file, for :meth:`import_learned` here or elsewhere with the same model."""
        return self._open_native().export_learned().wait()

    def import_learned(self, file: bytes, *, trust: Sequence[str] = ()) -> LearningStatus:
        """Puts what a file says in the place of what was learned. Files of this node are taken, and those of nodes whose public keys are
        in ``trust``."""
        self._open_native().import_learned(file, list(trust)).wait()
        return self.learned()

    @property
    def public_key(self) -> str:
        """Public key of this node, for those who are to trust its files."""
        return self._open_native().public_key()

    # Adapters and sessions

    def adapters(self) -> list[Adapter]:
        """Lists the adapters that requests may name, by ``adapter`` or ``adapters``."""
        return self.request("GET", "/v1/adapters")["data"]

    def load_adapter(self, name: str, path: Optional[str] = None, **options: Any) -> Adapter:
        """Loads an adapter of the folder ``adapter_dir`` under a name."""
        body = {"name": name, **({} if path is None else {"path": path}), **options}
        return self.request("POST", "/v1/adapters", body)

    def unload_adapter(self, name: str) -> None:
        """Removes an adapter; requests that have it go on with it."""
        self.request("DELETE", _request.named("/v1/adapters", name))

    def sessions(self) -> list[Session]:
        """Lists the sessions that are kept, the latest first; requests name theirs by ``session``."""
        return self.request("GET", "/v1/sessions")["data"]

    def forget_session(self, name: str) -> None:
        """Forgets a session."""
        self.request("DELETE", _request.named("/v1/sessions", name))

    # What it is and does

    def capabilities(self) -> dict[str, Any]:
        """Tells what the engine has and takes: ``GET /v1/capabilities``."""
        return self.request("GET", "/v1/capabilities")

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the server by their names with labels."""
        return _request.metrics(self._text(Request("GET", "/metrics")))

    def transport(self, library: Any = None) -> Any:
        """Returns a transport for a client of ``httpx``, or of ``library``, which may be ``httpx2``: its requests are answered by this
        engine, without a socket."""
        from ._transport import transport

        return transport(self, library)

    def aio(self) -> AsyncEngine:
        """Returns this engine for ``asyncio``; closing one of the two closes the other."""
        from ._aio import AsyncEngine

        return AsyncEngine(self)

    # Its end

    def close(self) -> None:
        """Ends what still runs (those calls raise DisposedError), keeps what was learned, and frees the model. Further calls do nothing."""
        native = self._release()
        if native is not None:
            native.dispose().wait()

    def _release(self) -> Optional[_native.NativeEngine]:
        native, self._native = self._native, None
        _OPEN.discard(self)
        return native

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ruvllm.Engine {'closed' if self.closed else self.model!r}>"


def _close_all() -> None:
    for engine in list(_OPEN):
        try:
            engine.close()
        except RuvllmError:
            # Nobody is left to be told.
            pass
    _native.end()


atexit.register(_close_all)
