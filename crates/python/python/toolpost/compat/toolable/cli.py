"""Programs with tools, resources and prompts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from toolpost import author
from toolpost.compat.toolable._wire import lines
from toolpost.compat.toolable.decorators import ToolableTool, get_prompt_meta, get_resource_meta
from toolpost.compat.toolable.sampling import configure_sampling


class AgentCLI:
    """A program: `AgentCLI("notes", tools=[add, find]).run()`, or `AgentCLI(add).run()` for one tool."""

    def __init__(
        self,
        name: str | Callable[..., Any],
        tools: list[Callable[..., Any]] | None = None,
        version: str = "0.1.0",
    ) -> None:
        self.name = name if isinstance(name, str) else name.__name__
        self.version = version
        self._tools: dict[str, Callable[..., Any]] = {}
        self._resources: dict[str, Callable[..., Any]] = {}
        self._prompts: dict[str, Callable[..., Any]] = {}
        for tool in [*([] if isinstance(name, str) else [name]), *(tools or [])]:
            self.register(tool)

    def register(self, fn: Callable[..., Any], name: str | None = None) -> None:
        """Add a tool."""
        self._tools[name or fn.__name__] = fn

    def register_resource(self, fn: Callable[..., Any]) -> None:
        """Add a resource."""
        meta = get_resource_meta(fn)
        if meta is None:
            raise ValueError(f"{fn.__name__} is not decorated with @resource")
        self._resources[meta["uri_pattern"]] = fn

    def register_prompt(self, fn: Callable[..., Any]) -> None:
        """Add a prompt."""
        if get_prompt_meta(fn) is None:
            raise ValueError(f"{fn.__name__} is not decorated with @prompt")
        self._prompts[fn.__name__] = fn

    def run(self) -> None:
        """Run the command line, and exit. If `sys.stdout` is replaced, as in tests, write to it and return."""
        words = sys.argv[1:]
        if "--sample-via" in words[:-1]:
            configure_sampling(words[words.index("--sample-via") + 1])
        tools = [ToolableTool.of(fn, name) for name, fn in self._tools.items()]
        # Without sources, `main` would search `__main__`.
        sources = [*tools, *self._resources.values(), *self._prompts.values(), ModuleType("empty")]
        with _streams(is_resident=words == ["--resident"]):
            author.main(*sources, name=self.name, version=self.version)


@contextmanager
def _streams(*, is_resident: bool) -> Iterator[None]:
    """Keep standard output and input for the lines of tools: `main` takes the file descriptors."""
    if sys.stdout is not sys.__stdout__:
        with _replaced():
            yield
        return
    if not is_resident:
        lines.output, lines.input = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    yield


@contextmanager
def _replaced() -> Iterator[None]:
    """Copy what `main` writes to the file descriptor 1 to the replaced `sys.stdout`, and absorb its exit."""
    import tempfile

    output, before = sys.stdout, [os.dup(0), os.dup(1)]
    lines.output = output
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 1)
        try:
            yield
        except SystemExit:
            pass
        finally:
            lines.output, sys.stdout = None, output
            for number, saved in enumerate(before):
                os.dup2(saved, number)
                os.close(saved)
        written.seek(0)
        output.write(written.read().decode())
