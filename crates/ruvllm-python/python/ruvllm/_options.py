"""Options of loading as arguments of ``ruvllm serve``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Union

from .errors import UsageError

#: A name (``smollm2:135m``, ``hf:owner/repo/file.gguf``) or a path.
Model = Union[str, "os.PathLike[str]"]


def arguments(model: Union[Model, Sequence[Model]], options: dict[str, Any]) -> list[str]:
    """Returns the arguments for models and options: ``chat_template="chatml"`` is ``--chat-template=chatml``."""
    models = [model] if isinstance(model, (str, os.PathLike)) else list(model)
    names = [os.fspath(one) if isinstance(one, (str, os.PathLike)) else "" for one in models]
    if not names or not all(names):
        raise UsageError("give the name or the path of a model, such as 'smollm2:135m'", param="model")
    return [f"--model={name}" for name in names] + [arg for name, value in options.items() for arg in _option(name, value)]


def _option(name: str, value: Any) -> Iterator[str]:
    option = f"--{'alias' if name == 'name' else name.replace('_', '-')}"
    if value is None or value is False:
        return
    if value is True:
        yield option
    elif isinstance(value, (str, int, float, os.PathLike)):
        yield f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}"
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _option(name, one)
    else:
        kind = type(value).__name__
        raise UsageError(f"'{name}' is of the type {kind}; give a text, a number, True, or a list of them", param=name)
