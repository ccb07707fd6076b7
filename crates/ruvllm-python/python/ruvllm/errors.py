"""Errors of RuvLLM as exceptions. Each message is the line that the command and the HTTP API give: what, where, and what to do."""

from __future__ import annotations

import json
import re
from typing import Any, Optional


class RuvllmError(Exception):
    """An error of RuvLLM.

    ``param`` is the field or option that it is about, ``code`` the API's code such as ``context_length_exceeded``, and ``status`` the
    status of the HTTP API; 0 for errors that it does not have.
    """

    #: What the error is about, for programs that decide by it.
    kind: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        param: Optional[str] = None,
        code: Optional[str] = None,
        status: int = 0,
        retry_after: Optional[int] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        #: Seconds after which the same request may be taken.
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message,), self.__dict__


class UsageError(RuvllmError):
    """An option of loading or a call that cannot be honoured; the command exits with 2."""

    kind = "usage"


class LoadError(RuvllmError):
    """A model that cannot be found, fetched, read or loaded."""

    kind = "load"


class DisposedError(RuvllmError):
    """A call on an engine that was closed, or that ended because of it."""

    kind = "disposed"

    def __init__(self, message: str = "the engine was closed and takes no requests; load it again", **facts: Any) -> None:
        super().__init__(message, **facts)


class InvalidRequestError(RuvllmError):
    """A request that cannot be honoured as it is; ``param`` names the field."""

    kind = "invalid_request"


class ContextLengthError(InvalidRequestError):
    """A prompt that is longer than the context."""

    kind = "context_length"


class NotFoundError(InvalidRequestError):
    """A model, adapter, session or answer that is not known."""

    kind = "not_found"


class UnsupportedError(InvalidRequestError):
    """A request for what the model or the engine does not have."""

    kind = "unsupported"


class BusyError(RuvllmError):
    """Too many requests wait; ``retry_after`` says when to come again."""

    kind = "busy"


class UnavailableError(RuvllmError):
    """No memory or no room for the request now."""

    kind = "unavailable"


class RequestTimeoutError(RuvllmError):
    """The request's own time (``timeout_ms``) was over."""

    kind = "timeout"


class InternalError(RuvllmError):
    """A fault of the engine."""

    kind = "internal"


#: The status of an error that came in a stream, whose head said 200, by its type.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "exceed_context_size_error": 400,
    "authentication_error": 401,
    "rate_limit_error": 429,
    "server_error": 500,
    "service_unavailable_error": 503,
    "timeout_error": 504,
}


def _class_of(status: int, code: Optional[str]) -> type[RuvllmError]:
    if code == "context_length_exceeded":
        return ContextLengthError
    if code == "unsupported" or status == 501:
        return UnsupportedError
    by_status = {404: NotFoundError, 429: BusyError, 503: UnavailableError, 504: RequestTimeoutError, 408: RequestTimeoutError}
    return by_status.get(status) or (InternalError if status >= 500 else InvalidRequestError)


def of_body(body: Any, status: Optional[int] = None, retry_after: Optional[str] = None) -> RuvllmError:
    """Makes an error of the body of an answer in OpenAI's shape; without a status it came in a stream."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {"message": error}
    status = status or _STATUS_OF_TYPE.get(error.get("type", ""), 500)
    code = error.get("code")
    seconds = int(retry_after) if retry_after and retry_after.isdecimal() else None
    message = error.get("message") or f"the engine answered with {status}"
    return _class_of(status, code)(message, param=error.get("param"), code=code, status=status, retry_after=seconds)


def of_answer(text: str, status: int, retry_after: Optional[str] = None) -> RuvllmError:
    """Makes an error of the text of an answer whose status says that it is one."""
    try:
        body = json.loads(text)
    except ValueError:
        body = {"error": text.strip()}
    return of_body(body, status, retry_after)


def of_usage(line: str, *_: object) -> RuvllmError:
    """Makes an error of options, from the command's line."""
    option = re.search(r"--([a-z][a-z-]*)", line)
    return UsageError(line, param=option and option[1].replace("-", "_"))


def of_load(line: str, *_: object) -> RuvllmError:
    """Makes an error of loading, from the command's line."""
    return LoadError(line)


def of_internal(line: str, *_: object) -> RuvllmError:
    """Makes an error of a fault."""
    return InternalError(line)
