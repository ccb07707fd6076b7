"""Transports of httpx: a client's requests are answered by an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from . import _native
from ._aio import AsyncEngine, _wait
from ._sync import Engine
from .errors import DisposedError


def _library(library: Any) -> Any:
    if library is None:
        import httpx as library
    return library


def _call(engine: Engine, request: Any, content: bytes) -> _native.NativeCall:
    headers = [(name, value) for name, value in request.headers.multi_items() if name not in ("host", "content-length")]
    path = request.url.raw_path.decode("ascii")
    return engine._open_native().call(request.method, path, headers, content or None)


def _check_whole(engine: Engine) -> None:
    if engine.closed:
        raise DisposedError("the engine was closed while it answered")


def transport(engine: Engine, library: Any = None) -> Any:
    """Makes a transport for ``Client`` of ``httpx`` or of another library with its interface."""
    httpx = _library(library)

    class Body(httpx.SyncByteStream):  # type: ignore[name-defined,misc]
        def __init__(self, call: _native.NativeCall) -> None:
            self._call = call

        def __iter__(self) -> Iterator[bytes]:
            while (piece := self._call.next().wait()) is not None:
                yield piece
            _check_whole(engine)

        def close(self) -> None:
            self._call.cancel()

    class Transport(httpx.BaseTransport):  # type: ignore[name-defined,misc]
        def handle_request(self, request: Any) -> Any:
            call = _call(engine, request, request.read())
            try:
                head = call.head().wait()
            except BaseException:
                call.cancel()
                raise
            if head is None:
                raise DisposedError()
            status, headers = head
            return httpx.Response(status, headers=headers, stream=Body(call), request=request)

    return Transport()


def async_transport(engine: AsyncEngine, library: Any = None) -> Any:
    """Makes a transport for ``AsyncClient`` of ``httpx`` or of another library with its interface."""
    httpx = _library(library)

    class Body(httpx.AsyncByteStream):  # type: ignore[name-defined,misc]
        def __init__(self, call: _native.NativeCall) -> None:
            self._call = call

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                while (piece := await _wait(self._call.next(), self._call)) is not None:
                    yield piece
                _check_whole(engine.sync)
            finally:
                self._call.cancel()

        async def aclose(self) -> None:
            self._call.cancel()

    class Transport(httpx.AsyncBaseTransport):  # type: ignore[name-defined,misc]
        async def handle_async_request(self, request: Any) -> Any:
            call = _call(engine.sync, request, await request.aread())
            try:
                head = await _wait(call.head(), call)
            except BaseException:
                call.cancel()
                raise
            if head is None:
                raise DisposedError()
            status, headers = head
            return httpx.Response(status, headers=headers, stream=Body(call), request=request)

    return Transport()
