"""The interface of `toolable` 0.1 on top of Toolpost: change the import, and tools, programs and registries run here.

>>> from toolpost.compat.toolable import toolable
>>> @toolable(summary="Add two numbers")
... def add(a: int, b: int):
...     return {"sum": a + b}
>>> add(1, 2)
{'sum': 3}
>>> from toolpost import Toolbox
>>> Toolbox(add).call_sync("add", {"a": 1, "b": 2}).value
{'sum': 3}

`AgentCLI.run` is `toolpost.author.main`: it adds `@FILE` and `-` as arguments, `--resident`, exit codes and text for a
terminal. These differences from `toolable` are deliberate:

- Arguments are checked against the signature, also without an input model. `Field` defaults work.
- `AgentCLI.run` applies `working_dir`, `timeout` and `dry_run` without an input model too.
- A flag's value follows the schema: `--name 123` is text for `str`. A repeated flag is an error, except for arrays.
- The exit code is not 0 after an error. A missing URI or prompt name is an error.
- The message of an unexpected exception goes to stderr and the record, not to the caller.
- Prints of a tool go to stderr.
- A dict with a `status` is a result. Only the exact shapes of `Response` are envelopes.
- `--manifest` repeats the summary as the first line of `description`.
- A streaming call always ends with a result. A session whose tool ignores the end of the input is stopped.
- `ToolRegistry` runs programs in the sandbox, without network at its default level, and with timeouts. It warns if
  two programs have the same name.

Private names of `toolable`, such as `AgentCLI._parse_input`, are absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolpost.compat.toolable.cli import AgentCLI
from toolpost.compat.toolable.decorators import prompt, resource, toolable
from toolpost.compat.toolable.errors import ErrorCode, ToolError
from toolpost.compat.toolable.notifications import notify
from toolpost.compat.toolable.registry import ToolRegistry
from toolpost.compat.toolable.response import Response
from toolpost.compat.toolable.sampling import sample
from toolpost.compat.toolable.session import session
from toolpost.compat.toolable.streaming import stream

if TYPE_CHECKING:
    from toolpost.compat.toolable.input import ToolInput

__all__ = [
    "AgentCLI",
    "ErrorCode",
    "Response",
    "ToolError",
    "ToolInput",
    "ToolRegistry",
    "notify",
    "prompt",
    "resource",
    "sample",
    "session",
    "stream",
    "toolable",
]


def __getattr__(name: str) -> Any:
    # Only users of `ToolInput` pay for the import of pydantic.
    if name == "ToolInput":
        from toolpost.compat.toolable.input import ToolInput

        return ToolInput
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
