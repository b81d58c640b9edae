"""Completions by the caller's model."""

from __future__ import annotations

import json
from typing import Any

from toolpost.author import ToolError
from toolpost.compat.toolable._wire import caller, context, lines

_sample_config = {"via": "stdin"}


def configure_sampling(via: str) -> None:
    """Set the transport of a program that runs one call: `stdin` or a URL. `--sample-via` sets it too."""
    _sample_config["via"] = via


def sample(
    prompt: str,
    max_tokens: int = 1000,
    system: str | None = None,
    temperature: float | None = None,
    stop_sequences: list[str] | None = None,
) -> str:
    """Request a completion from the caller's model, and return its text."""
    options: dict[str, Any] = {"system": system, "temperature": temperature, "stop_sequences": stop_sequences}
    options = {name: value for name, value in options.items() if value is not None}
    via = _sample_config["via"]
    ctx = caller()
    if ctx is None and via != "stdin":
        if not via.startswith("http"):
            raise ValueError(f"Unknown sample transport: {via}; use `stdin` or a URL")
        # The context of the program posts the request.
        ctx = context.get()
        if ctx is None:
            raise ToolError.precondition(
                "`sample` over HTTP needs a running call", suggestion="Call it in a tool that `AgentCLI.run` runs."
            )
    if ctx is not None:
        return ctx.sample_sync(prompt, max_tokens=max_tokens, **options).content
    return _over_lines({"prompt": prompt, "max_tokens": max_tokens, **options})


def _over_lines(request: dict[str, Any]) -> str:
    import uuid

    id = str(uuid.uuid4())[:8]
    lines.emit({"type": "sample_request", "id": id, **request})
    while line := lines.next():
        reply = json.loads(line)
        if (reply.get("type"), reply.get("id")) == ("sample_response", id):
            return str(reply.get("content", ""))
    raise RuntimeError("stdin closed while waiting for the sample response")
