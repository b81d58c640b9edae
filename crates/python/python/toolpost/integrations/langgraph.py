"""The tools of a `Toolbox` as tools of LangChain, for `create_agent`, `create_react_agent` and `ToolNode`."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages.content import create_audio_block, create_image_block, create_text_block
from langchain_core.tools import BaseTool, ToolException
from pydantic import Field

from toolpost import Reply, Toolbox, ToolError
from toolpost.integrations import error_text, media

_BLOCKS = {"image": create_image_block, "audio": create_audio_block}


def langchain_tools(toolbox: Toolbox) -> list[BaseTool]:
    """Return the tools of a toolbox, each with a sync and an async form.

    The content of a `ToolMessage` is the text for the model, and its artifact is the structured value.
    An error that the model can act on is a message with the status `error`.
    """
    return [
        _Tool(name=spec["name"], description=spec["description"], args_schema=spec["input_schema"], toolbox=toolbox)
        for spec in toolbox.specs
    ]


class _Tool(BaseTool):
    toolbox: Toolbox = Field(exclude=True, repr=False)
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: Any = True

    # No parameter here has a name that a parameter of a tool could have.
    def _run(self, /, **arguments: Any) -> tuple[Any, Any]:
        try:
            return _content(self.toolbox.call_sync(self.name, arguments))
        except ToolError as error:
            raise ToolException(error_text(error)) from error

    async def _arun(self, /, **arguments: Any) -> tuple[Any, Any]:
        try:
            return _content(await self.toolbox.call(self.name, arguments))
        except ToolError as error:
            raise ToolException(error_text(error)) from error


def _content(reply: Reply) -> tuple[Any, Any]:
    blocks: list[Any] = [_BLOCKS[one["type"]](base64=one["data"], mime_type=one["media_type"]) for one in media(reply)]
    if blocks and reply.text:
        blocks.insert(0, create_text_block(reply.text))
    return blocks or reply.text, reply.value
