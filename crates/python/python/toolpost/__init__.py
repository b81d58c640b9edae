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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpost._exports import *
    from toolpost._exports import __all__ as __all__


def __getattr__(name: str) -> Any:
    # The first use of a name loads the engine, so that the plugin of pytest starts without it.
    if name == "__all__" or not name.startswith("_"):
        from toolpost import _exports

        globals().update({public: getattr(_exports, public) for public in ["__all__", *_exports.__all__]})
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module 'toolpost' has no attribute '{name}'")


def __dir__() -> list[str]:
    __getattr__("__all__")
    return sorted(globals())
