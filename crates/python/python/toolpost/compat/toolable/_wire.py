"""The JSON Lines of a program that runs one call, and the context of the current call."""

from __future__ import annotations

import json
import sys
from contextvars import ContextVar
from typing import Any, TextIO

from toolpost.author import Ctx

#: The context of the running call.
context: ContextVar[Ctx | None] = ContextVar("context", default=None)


class Lines:
    """The program's standard output and input. During `AgentCLI.run`, `sys.stdout` is stderr."""

    output: TextIO | None = None
    input: TextIO | None = None

    def emit(self, event: Any) -> None:
        """Write one line."""
        print(json.dumps(event), file=self.output, flush=True)

    def next(self) -> str:
        """Read one line; empty at the end of the input."""
        return (self.input or sys.stdin).readline()


lines = Lines()


def caller() -> Ctx | None:
    """The context of a call by the engine. None in a program that runs one call: it uses `lines`."""
    return context.get() if lines.output is None else None
