"""Tools and contexts of the engine, without asyncio, whose import takes longer than the rest. Private."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from toolpost import author

if TYPE_CHECKING:
    from toolpost._engine import CallContext, StateDoc, Toolbox


def tools_of(objects: Any) -> list[Any]:
    """Return the tools of functions, tools, objects with tool methods, modules and lists of these."""
    found: list[Any] = []
    for item in objects:
        found.extend(tools_of(item) if isinstance(item, (list, tuple)) else author._tools_of(item))
    return found


def registered(toolbox: Toolbox, decorated: Any) -> Any:
    """Add the tool of a decorator to a toolbox, once the decorator has its function."""
    if not isinstance(decorated, author.Tool):
        return lambda function: registered(toolbox, decorated(function))
    toolbox.add(decorated)
    return decorated


def log_failure(tool: str, message: str, error: BaseException | None) -> None:
    """Log a defect of a served tool for its developer."""
    import logging

    logging.getLogger("toolpost").error("`%s` failed: %s", tool, message, exc_info=error)


def report_bug(tool: str, error: Exception) -> bool:
    """Log an unexpected exception of a tool in a run of an agent. Return whether it ends the run."""
    if isinstance(error, author.ToolError):
        return False
    import logging

    logging.getLogger("toolpost").error("the tool `%s` raised %s", tool, type(error).__name__, exc_info=error)
    # pytest loads the plugin before the engine.
    plugin = sys.modules.get("toolpost.pytest_plugin")
    return plugin is not None and bool(plugin.ends_run(error))


class Context(author.Ctx[Any]):
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


def is_offline() -> bool:
    """Whether `TOOLPOST_NO_NETWORK` blocks connections to other hosts."""
    return bool(os.environ.get("TOOLPOST_NO_NETWORK"))


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
