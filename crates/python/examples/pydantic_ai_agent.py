"""An agent of pydantic-ai with the tools of Toolpost. The scripted model corrects its first call."""

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from toolpost import Toolbox, ToolError, tool
from toolpost.integrations.pydantic_ai import ToolpostToolset


@tool
async def temperature(city: str) -> int:
    """Get the temperature of a city in °C."""
    if city != "Oslo":
        raise ToolError.not_found(f"no city is named `{city}`", suggestion="Try `Oslo`.")
    return 4


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart) and last.outcome == "success":
        return ModelResponse([TextPart(f"Oslo: {last.content} °C")])
    city = "Osol" if len(messages) == 1 else "Oslo"
    return ModelResponse([ToolCallPart("temperature", {"city": city})])


toolbox = Toolbox(temperature)
agent = Agent(FunctionModel(model), toolsets=[ToolpostToolset(toolbox)])
result = agent.run_sync("How cold is it in Oslo?")
print(f"{result.output} ({len(toolbox.records)} calls recorded)")
