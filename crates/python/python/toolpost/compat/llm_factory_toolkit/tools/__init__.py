"""Tools: their registry, catalog and sessions."""

from __future__ import annotations

from toolpost.compat.llm_factory_toolkit.tools import builtins
from toolpost.compat.llm_factory_toolkit.tools.base_tool import BaseTool
from toolpost.compat.llm_factory_toolkit.tools.catalog import (
    InMemoryToolCatalog,
    ToolCatalog,
    ToolCatalogEntry,
    estimate_token_count,
)
from toolpost.compat.llm_factory_toolkit.tools.models import ParsedToolCall, ToolExecutionResult, ToolIntentOutput
from toolpost.compat.llm_factory_toolkit.tools.runtime import ToolRuntime
from toolpost.compat.llm_factory_toolkit.tools.session import ToolSession
from toolpost.compat.llm_factory_toolkit.tools.tool_factory import ToolFactory

__all__ = [
    "BaseTool",
    "InMemoryToolCatalog",
    "ParsedToolCall",
    "ToolCatalog",
    "ToolCatalogEntry",
    "ToolExecutionResult",
    "ToolFactory",
    "ToolIntentOutput",
    "ToolRuntime",
    "ToolSession",
    "builtins",
    "estimate_token_count",
]
