"""An agent of LangChain, on LangGraph, with the tools of Toolpost. The scripted model corrects its first call."""

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolCall

from toolpost import Toolbox, ToolError, tool
from toolpost.integrations.langgraph import langchain_tools


@tool
def temperature(city: str) -> int:
    """Get the temperature of a city in °C."""
    if city != "Oslo":
        raise ToolError.not_found(f"no city is named `{city}`", suggestion="Try `Oslo`.")
    return 4


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        return self


def ask(city: str) -> AIMessage:
    return AIMessage("", tool_calls=[ToolCall(name="temperature", args={"city": city}, id=city)])


toolbox = Toolbox(temperature)
agent = create_agent(Model(messages=iter([ask("Osol"), ask("Oslo"), "Done."])), langchain_tools(toolbox))
messages = agent.invoke({"messages": [HumanMessage("How cold is it in Oslo?")]})["messages"]
print(f"Oslo: {messages[-2].text} °C ({len(toolbox.records)} calls recorded)")
