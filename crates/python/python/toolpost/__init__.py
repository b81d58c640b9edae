"""A tool runtime for LLM agents."""

from toolpost._engine import Awaitable, Output, Toolbox

__all__ = ["Awaitable", "Output", "Toolbox"]
