"""Tools and contexts of the engine, without asyncio, whose import takes longer than the rest. Private."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolpost import author

if TYPE_CHECKING:
    from toolpost._engine import CallContext, StateDoc


def tools_of(objects: Any) -> list[Any]:
    """Return the tools of functions, tools, objects with tool methods, modules and lists of these."""
    found: list[Any] = []
    for item in objects:
        if isinstance(item, author.Tool):
            found.append(item)
        elif isinstance(item, (list, tuple)):
            found.extend(tools_of(item))
        elif isinstance(item, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
            found.append(author.tool(item))
        else:
            owner = item if isinstance(item, types.ModuleType | type) else type(item)
            names = [name for name, member in vars_of(owner) if isinstance(member, author.Tool)]
            if not names:
                raise TypeError(f"{item!r} has no tools: pass functions, or an object with `@tool` methods")
            found.extend(getattr(item, name) for name in names)
    return found


def vars_of(owner: Any) -> list[tuple[str, Any]]:
    """Return the members of a module or class, base classes first, each name once."""
    members: dict[str, Any] = {}
    for base in reversed(owner.__mro__) if isinstance(owner, type) else [owner]:
        members.update(vars(base))
    return list(members.items())


class Context(author.Ctx):
    """The context of a call in this process."""

    def __init__(self, call: CallContext) -> None:
        # The facts of the base class are requested at their first use.
        self._call = call

    def __getattr__(self, name: str) -> Any:
        if name != "_facts":
            raise AttributeError(f"'Ctx' object has no attribute '{name}'")
        self._facts = self._call.facts()
        return self._facts

    @property
    def attempt(self) -> int:
        return self._call.attempt

    @property
    def remaining(self) -> float | None:
        return self._call.remaining

    @property
    def is_cancelled(self) -> bool:
        return self._call.is_cancelled

    @property
    def context(self) -> Any:
        """The object that the application gave the call or the run as `context`."""
        return self._call.context

    def _notify(self, kind: str, body: dict[str, Any]) -> None:
        getattr(self._call, kind)(body)

    async def _await(self, verb: str, body: dict[str, Any]) -> Any:
        return await self._call.request(verb, body)

    def _wait(self, verb: str, body: dict[str, Any]) -> Any:
        return self._call.request_sync(verb, body)

    def state(self, id: str) -> StateDoc:
        return self._call.state(id)


def package_sources() -> dict[str, str | None]:
    """Return where packages for a sandbox come from and go to: the variables of pip, and the cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return {
        "directory": os.path.join(cache, "toolpost", "packages"),
        "index": os.environ.get("PIP_INDEX_URL"),
        "certificate": os.environ.get("PIP_CERT"),
        "find_links": os.environ.get("PIP_FIND_LINKS"),
        "offline": os.environ.get("PIP_NO_INDEX"),
    }


def interrupt(threads: list[int], inside: Callable[[], list[int]]) -> None:
    """Raise SystemExit in threads, and wait up to half a second until they are outside of tools."""
    import ctypes
    import threading
    import time

    end = time.monotonic() + 0.5
    own = threading.get_ident()
    while (left := [thread for thread in threads if thread != own]) and time.monotonic() < end:
        for thread in filter(None, left):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
        time.sleep(0.005)
        threads = inside()
