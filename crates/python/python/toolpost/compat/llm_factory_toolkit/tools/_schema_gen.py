"""JSON Schemas of signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, get_type_hints

from pydantic import TypeAdapter


def generate_schema_from_function(
    function: Callable[..., Any], *, exclude_params: Iterable[str] = ()
) -> dict[str, Any]:
    """The JSON Schema of the annotated parameters. Parameters without an annotation are not arguments."""
    hints, properties, required = get_type_hints(function), {}, []
    for name, parameter in inspect.signature(function).parameters.items():
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        hint = hints.get(name, parameter.annotation)
        if variadic or name in (*exclude_params, "self", "cls") or hint is parameter.empty:
            continue
        properties[name] = TypeAdapter(hint).json_schema()
        properties[name].pop("title", None)
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is not None:
            properties[name]["default"] = parameter.default
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}
