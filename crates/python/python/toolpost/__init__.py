"""A tool runtime for LLM agents: define a tool once, call it from anywhere, sandboxed and recorded.

>>> from toolpost import Toolbox, tool
>>> @tool
... def add(a: int, b: int) -> int:
...     "Add two numbers."
...     return a + b
>>> Toolbox(add).call_sync("add", {"a": 1, "b": 2}).value
3
"""

from __future__ import annotations

import os as _os

from toolpost import _bridge as _bridge
from toolpost import author as _author
from toolpost._engine import Output, Toolbox, reset_after_fork as _reset_after_fork
from toolpost.author import Ctx, ToolError, tool

__all__ = ["Ctx", "Output", "ToolError", "Toolbox", "tool"]

_os.register_at_fork(after_in_child=_reset_after_fork)
