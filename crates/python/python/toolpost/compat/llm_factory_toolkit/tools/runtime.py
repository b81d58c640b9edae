"""Calls from one tool to others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolpost.compat.llm_factory_toolkit.exceptions import ToolError
from toolpost.compat.llm_factory_toolkit.tools.models import ToolExecutionResult

if TYPE_CHECKING:
    from toolpost.compat.llm_factory_toolkit.tools.tool_factory import ToolFactory

DEFAULT_MAX_DEPTH = 8


class ToolRuntime:
    """The parameter `tool_runtime` of a tool: it calls other tools with the same context."""

    def __init__(
        self,
        factory: ToolFactory,
        *,
        base_context: dict[str, Any] | None = None,
        use_mock: bool = False,
        depth: int = 0,
        max_depth: int = DEFAULT_MAX_DEPTH,
    ) -> None:
        self._factory, self._context, self._mock = factory, dict(base_context or {}), use_mock
        self.depth, self.max_depth = depth, max_depth

    @property
    def base_context(self) -> dict[str, Any]:
        """A copy of the context."""
        return dict(self._context)

    async def call_tool(
        self,
        name: str,
        *,
        arguments: dict[str, Any] | None = None,
        json_arguments: str | None = None,
        context: dict[str, Any] | None = None,
        use_mock: bool | None = None,
        tool_timeout: float | None = None,
    ) -> ToolExecutionResult:
        """Call a tool, with either `arguments` or `json_arguments`."""
        if arguments is not None and json_arguments is not None:
            raise ToolError("`arguments` and `json_arguments` exclude each other.")
        if self.depth >= self.max_depth:
            raise ToolError(f"Maximum tool recursion depth {self.max_depth} exceeded.")
        try:
            text = json_arguments if json_arguments is not None else json.dumps(arguments or {})
        except (TypeError, ValueError) as error:
            raise ToolError(f"The arguments of the nested tool '{name}' are not JSON: {error}") from error
        merged = {**self._context, **(context or {})}
        mock = self._mock if use_mock is None else use_mock
        child = ToolRuntime(
            self._factory, base_context=merged, use_mock=mock, depth=self.depth + 1, max_depth=self.max_depth
        )
        self._factory.increment_tool_usage(name)
        return await self._factory.dispatch_tool(name, text, None, mock, child, tool_timeout)

    async def call_tools(
        self,
        calls: Sequence[dict[str, Any]],
        *,
        parallel: bool = False,
        max_concurrent: int | None = None,
        shared_context: dict[str, Any] | None = None,
        **options: Any,
    ) -> list[ToolExecutionResult]:
        """Call tools in their order: dicts with `name`, `arguments` and optional `context`.

        Options are those of `call_tool`.
        """
        if any(not call.get("name") for call in calls):
            raise ToolError("A call has no `name`.")
        slots = asyncio.Semaphore(1 if not parallel else max_concurrent or len(calls) or 1)

        async def run(call: dict[str, Any]) -> ToolExecutionResult:
            async with slots:
                return await self.call_tool(
                    call["name"],
                    arguments=call.get("arguments"),
                    json_arguments=call.get("json_arguments"),
                    context={**(shared_context or {}), **call.get("context", {})},
                    **options,
                )

        return list(await asyncio.gather(*map(run, calls)))
