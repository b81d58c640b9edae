"""Runs of agents that end without an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolpost.author import ToolError

if TYPE_CHECKING:
    from typing import Any

    from toolpost._engine import RunResult


class RunError(ToolError):
    """A run that ended without an answer: at a limit, or because the model failed or refused.

    The code is ``LIMIT`` for a limit, else ``DEPENDENCY``. In a tool, the error reaches the calling model like any
    other `ToolError`.

    >>> try:
    ...     result = await agent.run("Read all files.")
    ... except RunError as error:
    ...     print(error.stop_reason, error.result.text)
    """

    result: RunResult[Any]
    """The run: its record, its conversation, its last text."""

    def __init__(self, message: str, code: str, result: RunResult[Any]) -> None:
        super().__init__(code=code, message=message)
        self.result = result

    def __reduce__(self) -> Any:
        # Another process gets the error without the run, which stays in this one.
        return ToolError.from_dict, (self.to_dict(),)

    @property
    def stop_reason(self) -> str:
        """Why the run ended, such as ``max_iterations`` or ``model_error``."""
        return self.result.stop_reason
