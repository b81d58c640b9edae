"""Session tools: generators that receive a reply to each event."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Any

from toolpost.author import Ctx, ToolError
from toolpost.compat.toolable._wire import lines

#: The return type of a session tool.
session = Generator[dict[str, Any], dict[str, Any], None]

#: Maximum number of consecutive `quit` replies, which the end of the input produces.
MAX_QUITS = 8


class SessionEvent:
    """Builds the events of a session tool."""

    @staticmethod
    def start(message: str, prompt: str = "> ") -> dict[str, Any]:
        """The first event."""
        return {"type": "session_start", "message": message, "prompt": prompt}

    @staticmethod
    def end(status: str = "success") -> dict[str, Any]:
        """The last event."""
        return {"type": "session_end", "status": status}

    @staticmethod
    def awaiting(prompt: str = "> ") -> dict[str, Any]:
        """An event that asks for a reply."""
        return {"type": "awaiting_input", "prompt": prompt}


def emit_session(data: dict[str, Any]) -> None:
    """Write an event as a line."""
    lines.emit(data)


def receive_session_input() -> dict[str, Any]:
    """Read a reply; at the end of the input, `{"action": "quit"}`."""
    line = lines.next()
    reply: dict[str, Any] = json.loads(line) if line else {"action": "quit"}
    return reply


def run_session_tool(gen: session) -> dict[str, Any]:
    """Run a session over standard output and input, and return its envelope."""
    try:
        end = _drive(gen, _over_lines)
        if end is not None:
            emit_session(end)
        return {"status": "success"}
    except Exception as error:  # noqa: BLE001
        return {"status": "error", "error": ToolError.internal(str(error)).to_dict()}


def finish(gen: session, ctx: Ctx | None) -> None:
    """Run a session in a call: over lines, or as questions to the engine's caller."""
    _drive(gen, _over_lines if ctx is None else lambda event: _ask(ctx, event))


def _drive(gen: session, exchange: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any] | None:
    """Run a session to its end event, which is returned; None without one. `exchange` sends an event for a reply."""
    quits = 0
    try:
        event = next(gen)
        while event.get("type") != "session_end":
            reply = exchange(event)
            quits = quits + 1 if reply == {"action": "quit"} else 0
            if quits > MAX_QUITS:
                raise ToolError.cancelled(
                    f"the session tool ignored {MAX_QUITS} `quit` replies",
                    suggestion='End the session when the reply is {"action": "quit"}.',
                )
            event = gen.send(reply)
        return event
    except StopIteration:
        return None


def _over_lines(event: dict[str, Any]) -> dict[str, Any]:
    emit_session(event)
    return receive_session_input()


def _ask(ctx: Ctx, event: dict[str, Any]) -> dict[str, Any]:
    message = event.get("message") or event.get("prompt") or json.dumps(event)
    reply = ctx.ask_sync(str(message), {"type": "object"})
    return {"action": "quit"} if reply is None else reply
