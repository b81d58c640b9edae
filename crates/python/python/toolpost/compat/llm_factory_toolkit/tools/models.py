"""The results of runs and tools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel


@dataclass(slots=True)
class GenerationResult:
    """The result of `LLMClient.generate`. It unpacks to `content, payloads`."""

    content: BaseModel | str | None
    """The last text, or the value of a pydantic `response_format`."""
    payloads: list[Any] = field(default_factory=list)
    """A dict per tool call: `tool_name`, `metadata` and, if the tool returned one, `payload`."""
    tool_messages: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] | None = None
    """The input and all new messages, for the next `generate`."""
    usage: dict[str, int] | None = None
    """`prompt_tokens`, `completion_tokens` and `total_tokens` of the run."""
    cost_usd: float | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.content, self.payloads))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return (self.content, self.payloads)[index]


@dataclass(slots=True)
class StreamChunk:
    """A piece of a streamed text. The last one has `done` and the usage."""

    content: str = ""
    done: bool = False
    usage: dict[str, Any] | None = None


@dataclass(frozen=True)
class UsageEvent:
    """The usage of one request to the model, from 1, and the names of the tools that it called."""

    model: str
    iteration: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    tool_calls: list[str]
    metadata: dict[str, Any]


class ParsedToolCall(BaseModel):
    """A planned tool call."""

    id: str
    name: str
    arguments: dict[str, Any] | str
    arguments_parsing_error: str | None = None


class ToolIntentOutput(BaseModel):
    """Planned tool calls, which have not run."""

    content: str | None = None
    tool_calls: list[ParsedToolCall] | None = None
    raw_assistant_message: list[dict[str, Any]] = []


class ToolExecutionResult(BaseModel):
    """The result of a tool: `content` for the model, `payload` for the application."""

    content: str
    payload: Any = None
    metadata: dict[str, Any] | None = None
    error: str | None = None
