"""`BaseTool` and `@tool` of claude-agent-toolkit, served by Toolpost.

    from claude_agent_toolkit import Agent
    from toolpost.compat.claude_agent_toolkit import BaseTool, tool

A sync method runs on a thread, with or without `parallel=True`, and on the same instance as the other methods.
"""

from __future__ import annotations

import asyncio
import functools
import os
import contextlib
import importlib
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, as_completed
from typing import Any, ParamSpec, Self, TypeVar

from toolpost import Toolbox, _bridge, author

_P = ParamSpec("_P")
_R = TypeVar("_R")


def tool(
    name: str | None = None,
    description: str = "",
    *,
    parallel: bool = False,
    cpu_bound: bool = False,
    timeout_s: float | None = None,
) -> Callable[[Callable[_P, _R]], author.Tool[_P, _R]]:
    """Turn a method into a tool. The description defaults to its docstring.

    timeout_s: seconds of one call; defaults to 60 with `parallel` or `cpu_bound`, else to no limit.
    """
    timeout = timeout_s or (60 if parallel or cpu_bound else "never")

    def decorate(function: Callable[_P, _R]) -> author.Tool[_P, _R]:
        text = description or (None if function.__doc__ else f"{function.__name__} function")
        return author.tool(name=name, description=text, timeout=timeout)(function)

    return decorate


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop of the servers of a process."""
    return _bridge.background()


class BaseTool:
    """A class whose `@tool` methods are served over MCP, from the creation of an instance until `cleanup`.

    Its `toolbox` has the records of the calls.
    """

    connection_url: str
    """The URL of the MCP endpoint."""
    _server: Future[Any] | None = None

    def __init__(
        self, host: str = "127.0.0.1", port: int | None = None, *, workers: int | None = None, log_level: str = "ERROR"
    ) -> None:
        """Start the server, as `run` does. `log_level` has no effect, since the server writes no log."""
        BaseTool.run(self, host, port, workers=workers)

    def run(self, host: str = "127.0.0.1", port: int | None = None, *, workers: int | None = None) -> Self:
        """Start or restart the server, on a free port by default.

        workers: maximum number of calls that run at once.
        """
        BaseTool.cleanup(self)
        self.toolbox = Toolbox(self, concurrency=workers)
        ready: Future[Any] = Future()
        serving = self.toolbox.serve(http=f"{host}:{port or 0}", name=type(self).__name__, on_ready=ready.set_result)
        self._server = _bridge.submit(serving, _loop(os.getpid()))
        # The server ends before it is ready only with an error.
        self.connection_url = next(as_completed([ready, self._server])).result()
        return self

    def cleanup(self) -> None:
        """Stop the server."""
        if self._server is not None and self._server.cancel():
            host, port = self.connection_url.split("/")[2].split(":")
            # The port is free shortly after the cancellation.
            with contextlib.suppress(OSError):
                for _ in range(1000):
                    socket.create_connection((host, int(port)), timeout=1).close()
                    time.sleep(0.001)

    def config(self) -> dict[str, Any]:
        """Return the server configuration for an MCP client."""
        return {"type": "http", "url": self.connection_url}

    def name(self) -> str:
        """Return the name of the server: the name of the class in lower case."""
        return type(self).__name__.lower()

    @property
    def health_url(self) -> str:
        """The URL that answers `OK` while the server runs."""
        return self.connection_url.removesuffix("/mcp") + "/health"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cleanup()


# `Agent` of claude-agent-toolkit accepts no tools of other classes.
with contextlib.suppress(ImportError):
    importlib.import_module("claude_agent_toolkit.tool.abstract").AbstractTool.register(BaseTool)
