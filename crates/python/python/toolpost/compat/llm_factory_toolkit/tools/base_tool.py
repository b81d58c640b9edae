"""Tools as classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from toolpost.compat.llm_factory_toolkit.tools.models import ToolExecutionResult


class BaseTool(ABC):
    """A tool as a class. Each call creates an instance with `from_config`."""

    NAME: str
    DESCRIPTION: str
    PARAMETERS: dict[str, Any] | None = None
    """The JSON Schema of the arguments; defaults to that of the annotations of `execute`."""
    CATEGORY: str | None = None
    TAGS: list[str] | None = None
    GROUP: str | None = None
    BLOCKING: bool = False
    """Whether a sync `execute` runs on a thread instead of the event loop."""

    @abstractmethod
    def execute(self, **kwargs: Any) -> ToolExecutionResult:
        """Run the tool."""

    def mock_execute(self, *args: Any, **kwargs: Any) -> ToolExecutionResult:
        """Return the result of a mocked call."""
        return mocked(getattr(self, "NAME", type(self).__name__))

    @classmethod
    def from_config(cls, **config: Any) -> Self:
        """Create an instance."""
        return cls(**config)


def mocked(name: str) -> ToolExecutionResult:
    """The result of a mocked call of a tool."""
    return ToolExecutionResult(
        content=f"Mocked execution for tool '{name}'.", metadata={"mock": True, "tool_name": name}
    )
