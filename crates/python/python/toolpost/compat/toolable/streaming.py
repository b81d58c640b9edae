"""Streaming tools: generators of events."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

from toolpost.author import Ctx
from toolpost.compat.toolable._wire import lines

#: The return type of a streaming tool.
stream = Generator[dict[str, Any], None, None]


class StreamEvent:
    """Builds the events of a streaming tool."""

    @staticmethod
    def progress(message: str, percent: int | None = None) -> dict[str, Any]:
        """Progress, `percent` from 0 to 100."""
        event: dict[str, Any] = {"type": "progress", "message": message}
        return event if percent is None else {**event, "percent": percent}

    @staticmethod
    def log(message: str, level: str = "info") -> dict[str, Any]:
        """A line of the log."""
        return {"type": "log", "level": level, "message": message}

    @staticmethod
    def artifact(name: str, uri: str) -> dict[str, Any]:
        """A file that the tool created."""
        return {"type": "artifact", "name": name, "uri": uri}

    @staticmethod
    def result(response: dict[str, Any]) -> dict[str, Any]:
        """The result: an envelope of `Response`."""
        return {"type": "result", **response}


def emit_stream(data: dict[str, Any]) -> None:
    """Write an event as a line."""
    lines.emit(data)


def run_streaming_tool(gen: stream) -> dict[str, Any] | None:
    """Write all events, and return the result event; None without one."""
    result = None
    for event in gen:
        emit_stream(event)
        if event.get("type") == "result":
            result = event
    return result


def report(ctx: Ctx, event: dict[str, Any]) -> None:
    """Report an event to the engine: as progress, or as a line of the log."""
    kind = event.get("type")
    if kind == "progress":
        return ctx.progress(event["message"], event.get("percent"))
    level = str(event.get("level", "info"))
    text = f"artifact {event['name']}: {event['uri']}" if kind == "artifact" else event.get("message")
    known = level in ("debug", "info", "warning", "error")
    ctx.log(level if known else "info", str(text or json.dumps(event)))


def finish(gen: stream, ctx: Ctx | None) -> Any:
    """Run a streaming tool in a call, and return its result without the event's type."""
    result = None
    for event in gen:
        if event.get("type") == "result":
            result = {key: value for key, value in event.items() if key != "type"}
        elif ctx is None:
            emit_stream(event)
        else:
            report(ctx, event)
    return result
