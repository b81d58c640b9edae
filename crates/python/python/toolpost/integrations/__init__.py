"""The tools of a `Toolbox` in agent frameworks, checked, limited and recorded by Toolpost.

Each module needs its framework installed. The model gets the errors of a call as text, and can act on them.
An exception of a Python tool other than `ToolError` reaches the framework unchanged, so that those of the framework
itself work inside tools, such as an interrupt of LangGraph.
"""

from __future__ import annotations

from typing import Any

from toolpost import Reply, ToolError


def error_text(error: ToolError) -> str:
    """Return the text of an error for the model. Raise an exception of the tool, or an error no model can act on."""
    if error.code in ("INTERNAL", "CANCELLED"):
        raise error.__cause__ or error
    return str(error)


def media(reply: Reply) -> list[dict[str, Any]]:
    """Return the image and audio blocks of a reply: dicts with `type`, `media_type` and `data` in base64."""
    return [block for block in reply.content if block["type"] in ("image", "audio")]
