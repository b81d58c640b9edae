"""The tools of a `Toolbox` as a toolset of pydantic-ai: `Agent(model, toolsets=[ToolpostToolset(toolbox)])`."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from pydantic_ai import BinaryContent, ModelRetry, RunContext, ToolDefinition, ToolFailed, ToolReturn
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from toolpost import Toolbox, ToolError
from toolpost.integrations import error_text, media

# Toolpost checks the arguments, with errors that name the fix.
_ANY_ARGUMENTS = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class ToolpostToolset(AbstractToolset[Any]):
    """The tools of a toolbox, also those added during a run.

    The model retries a tool after a recoverable error; another error is the failed result of its call.
    A tool with content for the model returns its structured value as `metadata`.
    """

    def __init__(self, toolbox: Toolbox, *, id: str | None = None) -> None:
        self.toolbox = toolbox
        self._id = id

    @property
    def id(self) -> str | None:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {
            spec["name"]: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=spec["name"],
                    description=spec["description"],
                    parameters_json_schema=spec["input_schema"],
                    return_schema=spec.get("output_schema"),
                    metadata={"annotations": spec["annotations"]},
                ),
                max_retries=ctx.max_retries,
                args_validator=_ANY_ARGUMENTS,
            )
            for spec in self.toolbox.specs
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        try:
            reply = await self.toolbox.call(name, tool_args)
        except ToolError as error:
            raise (ModelRetry if error.recoverable else ToolFailed)(error_text(error)) from error
        if not reply.content:
            return reply.value
        parts: list[Any] = [reply.text] if reply.text else []
        parts += [BinaryContent(b64decode(block["data"]), media_type=block["media_type"]) for block in media(reply)]
        return ToolReturn(parts if media(reply) else reply.text, metadata=reply.value)
