"""The types of answers. Private: the engine calls `answer_type`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolpost import author


def answer_type(declared: Any) -> tuple[dict[str, Any], Callable[[Any], Any] | None]:
    """Return the JSON Schema of an answer type, and the function that converts a JSON value into it.

    A dict is a JSON Schema, whose values stay as they are. The function raises ValueError for a mismatch.
    """
    if isinstance(declared, dict):
        return declared, None
    compiler = author._Compiler("the answer of an agent", ())
    kind = compiler.compile(declared)

    def decode(value: Any) -> Any:
        try:
            return author._decoded(kind, value)
        except author.ToolError as error:
            raise ValueError(error.message) from error

    return compiler.document(kind), decode
