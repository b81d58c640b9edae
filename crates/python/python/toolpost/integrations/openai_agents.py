"""The tools of a `Toolbox` as tools of the OpenAI Agents SDK: `Agent(tools=function_tools(toolbox))`."""

from __future__ import annotations

import json
from typing import Any

from agents import FunctionTool, ToolOutputImage, ToolOutputText
from agents.tool_context import ToolContext

from toolpost import Toolbox, ToolError
from toolpost.integrations import error_text, media


def function_tools(toolbox: Toolbox) -> list[FunctionTool]:
    """Return the tools of a toolbox. An error that the model can act on is the output of its call."""
    return [_function_tool(toolbox, spec) for spec in toolbox.specs]


def _function_tool(toolbox: Toolbox, spec: dict[str, Any]) -> FunctionTool:
    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        try:
            reply = await toolbox.call(spec["name"], json.loads(arguments or "{}"))
        except json.JSONDecodeError as error:
            return f"INVALID_INPUT: invalid JSON in the arguments: {error}"
        except ToolError as error:
            return error_text(error)
        blocks = [one for one in media(reply) if one["type"] == "image"]
        images = [ToolOutputImage(image_url=f"data:{one['media_type']};base64,{one['data']}") for one in blocks]
        texts = [ToolOutputText(text=reply.text)] if reply.text else []
        return [*texts, *images] if images else reply.text

    return FunctionTool(
        name=spec["name"],
        description=spec["description"],
        params_json_schema=spec["input_schema"],
        on_invoke_tool=invoke,
        # A strict schema makes optional parameters required; Toolpost checks the arguments anyway.
        strict_json_schema=False,
    )
