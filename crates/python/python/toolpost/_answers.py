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

    return _closed_union(compiler.document(kind)), decode


def _closed_union(schema: dict[str, Any]) -> dict[str, Any]:
    """Close the members of a union: else a member without required fields matches an invalid answer of another one."""
    for member in schema.get("anyOf", ()):
        name = str(member.get("$ref", "")).removeprefix("#/$defs/")
        target = schema.get("$defs", {}).get(name, member)
        if target.get("type") == "object" and "properties" in target:
            target.setdefault("additionalProperties", False)
    return schema


def run_context(context: Any) -> author.Ctx[Any]:
    """Return the context of a run, for functions that no tool calls."""
    return author.Ctx(context=context)


def correction(error: BaseException) -> str | None:
    """Return the problem that the model corrects; None if the exception is a defect of the function."""
    if isinstance(error, author.ToolError):
        return f"{error.message}. {error.suggestion}" if error.suggestion else error.message
    return str(error) if isinstance(error, ValueError) else None
