"""The interface of `llm_factory_toolkit` 2.1 on top of Toolpost: change the import, and clients and tools run here.

>>> import asyncio
>>> from toolpost import ScriptModel
>>> from toolpost.compat.llm_factory_toolkit import LLMClient, ToolExecutionResult
>>> def get_weather(location: str) -> ToolExecutionResult:
...     "Get the weather for a location."
...     return ToolExecutionResult(content=f"20C in {location}", payload={"temp": 20})
>>> model = ScriptModel([{"calls": [{"tool": "get_weather", "args": {"location": "Oslo"}}]}, "{{ last.text }}."])
>>> client = LLMClient(model=model)
>>> client.register_tool(get_weather)
>>> result = asyncio.run(client.generate(input=[{"role": "user", "content": "Weather in Oslo?"}]))
>>> result.content, result.payloads
('20C in Oslo.', [{'tool_name': 'get_weather', 'metadata': {}, 'payload': {'temp': 20}}])

`generate` is a run of `toolpost.Agent`, and `ToolFactory.toolbox` the toolbox of its tools, which also serves them over
MCP. These differences from `llm_factory_toolkit` are deliberate:

- Arguments are checked against the schema, in runs and in `dispatch_tool`.
- Arguments outside of the schema are rejected, unless the function has `**kwargs`; they never replace a value of
  `tool_execution_context`.
- A tool may return any JSON value. In runs, the message of an unexpected exception goes to the record only.
- `safe_math_evaluator` calculates without sympy. `read_local_file` reads inside of the working directory only.
- Runs detect loops with the thresholds of the engine. Loaded tools are appended to the definitions.
- Streaming reports to `on_usage` and retries, like `generate`.
- An import loads no `.env` file.
- Calls of `ToolRuntime` are recorded in `ToolFactory.toolbox`, beside those of the run.
- Messages are plain chat messages; `messages` has no items of a provider, such as signatures of thinking.

These have no counterpart, and raise `UnsupportedFeatureError`: `retry_min_wait`, options of `web_search`, `file_search`,
a `repetition_threshold` other than 3, options of single providers except `reasoning_effort`, images in messages,
`list_models` and `get_model_info`. Models `claude-code/…` raise `ConfigurationError`. The adapters of providers,
`to_sdk_tools` and `LazyCatalogEntry` are absent. Most options of `generate` and `LLMClient` are keyword-only.
"""

from __future__ import annotations

import re

from toolpost.compat.llm_factory_toolkit.client import LLMClient
from toolpost.compat.llm_factory_toolkit.exceptions import (
    ConfigurationError,
    LLMToolkitError,
    ProviderError,
    RetryExhaustedError,
    ToolError,
    UnsupportedFeatureError,
)
from toolpost.compat.llm_factory_toolkit.models import compute_cost, get_model_info, list_models
from toolpost.compat.llm_factory_toolkit.tools import (
    BaseTool,
    InMemoryToolCatalog,
    ToolCatalog,
    ToolCatalogEntry,
    ToolExecutionResult,
    ToolFactory,
    ToolSession,
    builtins,
)
from toolpost.compat.llm_factory_toolkit.tools.models import GenerationResult, StreamChunk, UsageEvent

__all__ = [
    "BaseTool",
    "ConfigurationError",
    "GenerationResult",
    "InMemoryToolCatalog",
    "LLMClient",
    "LLMToolkitError",
    "ProviderError",
    "RetryExhaustedError",
    "StreamChunk",
    "ToolCatalog",
    "ToolCatalogEntry",
    "ToolError",
    "ToolExecutionResult",
    "ToolFactory",
    "ToolSession",
    "UnsupportedFeatureError",
    "UsageEvent",
    "builtins",
    "clean_json_string",
    "compute_cost",
    "extract_json_from_markdown",
    "get_model_info",
    "list_models",
]


def clean_json_string(text: str) -> str:
    """Remove control characters that JSON does not allow."""
    return re.sub(r"[\x00-\x08\x0b\x0e-\x1f]+", "", text)


def extract_json_from_markdown(markdown_text: str) -> str | None:
    """The first code block of a Markdown text, without control characters; None if it has none."""
    found = re.search(r"```(?:json)?\s*([\s\S]*?)\s*```", markdown_text, re.IGNORECASE)
    return clean_json_string(found[1]) if found else None
