"""Built-in tools: those of the engine, under the names of the toolkit."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from typing import Any

import toolpost
from toolpost.compat.llm_factory_toolkit.tools.models import ToolExecutionResult

BUILTIN_TOOLS: dict[str, dict[str, Any]] = {
    "safe_math_evaluator": {
        "description": "Calculate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
        "category": "utility",
        "tags": ["math", "calculator"],
    },
    "read_local_file": {
        "description": "Read a file in the working directory.",
        "parameters": {
            "type": "object",
            "properties": {
                "file_path": {"type": "string"},
                "format": {"type": "string", "enum": ["text", "json"], "default": "text"},
            },
            "required": ["file_path"],
        },
        "category": "utility",
        "tags": ["file", "io", "read"],
    },
}


@functools.cache
def _toolbox() -> toolpost.Toolbox:
    toolbox = toolpost.Toolbox()
    toolbox.connect_sync("builtin")
    return toolbox


def safe_math_evaluator(expression: str) -> ToolExecutionResult:
    """Calculate an arithmetic expression, with the tool `calculate` of the engine."""
    return _call(
        "calculate",
        {"expression": expression},
        lambda value: ToolExecutionResult(
            content=value["text"], payload=float(value["value"]), metadata={"expression": expression}
        ),
    )


def read_local_file(file_path: str, format: str = "text") -> ToolExecutionResult:
    """Read a file inside of the working directory, with the tool `read_file` of the engine. `format`: text or json."""

    def read(value: Any) -> ToolExecutionResult:
        data = json.loads(value["content"]) if format == "json" else value["content"]
        return ToolExecutionResult(content=data if isinstance(data, str) else json.dumps(data), payload=data)

    return _call("read_file", {"path": file_path}, read)


def _call(tool: str, arguments: dict[str, Any], read: Callable[[Any], ToolExecutionResult]) -> ToolExecutionResult:
    try:
        return read(_toolbox().call_sync(tool, arguments, working_dir=os.getcwd()).value)
    except (toolpost.ToolError, ValueError) as error:
        message = f"{'File read' if tool == 'read_file' else 'Math'} error: {error}"
        return ToolExecutionResult(content=message, error=message)
