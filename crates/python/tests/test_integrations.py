"""Agents of other frameworks, with scripted models, call the tools of a toolbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolpost import Toolbox, ToolError, tool
from toolpost.author import Output

#: The calls of each model: the first one has an error that the model corrects in the second one.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("add", {"a": 1, "b": "two"}),
    ("add", {"a": 1, "b": 2}),
    ("add_later", {"a": 3, "b": 4}),
    ("fetch", {"config": "x"}),
    ("photo", {}),
]
ERROR = '/b: expected integer, found string ("two")'


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def add_later(a: int, b: int) -> dict[str, int]:
    """Add two numbers after a while."""
    await asyncio.sleep(0.01)
    return {"sum": a + b}


@tool
def fetch(config: str) -> None:
    """Fail."""
    raise ToolError.permission(f"`{config}` is private")


@tool
def photo() -> Output:
    """Take a photo."""
    return Output({"animal": "cat"}, content=["A cat.", Output.image("image/png", b"png")])


@tool
def broken() -> None:
    """Fail."""
    raise ZeroDivisionError("by zero")


@pytest.fixture
def toolbox() -> Toolbox:
    return Toolbox(add, add_later, fetch, photo, broken)


def check_records(toolbox: Toolbox) -> None:
    assert [(record["tool"], record["arguments"]) for record in toolbox.records] == CALLS
    assert [record["status"] for record in toolbox.records] == ["error", "success", "success", "error", "success"]


@pytest.mark.parametrize("is_async", [False, True])
def test_pydantic_ai(toolbox: Toolbox, is_async: bool) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent, BinaryContent, ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.messages import ToolReturnPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from toolpost.integrations.pydantic_ai import ToolpostToolset

    steps = [*(ModelResponse([ToolCallPart(*call)]) for call in CALLS), ModelResponse([TextPart("done")])]
    remaining = iter(steps)
    definitions = {}

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        definitions.update({one.name: one for one in info.function_tools})
        return next(remaining)

    agent = Agent(FunctionModel(model), toolsets=[ToolpostToolset(toolbox)])
    result = asyncio.run(agent.run("Add.")) if is_async else agent.run_sync("Add.")
    assert result.output == "done"
    assert definitions["add"].parameters_json_schema["required"] == ["a", "b"]
    parts = [part for message in result.all_messages() for part in message.parts]
    returned = [part for part in parts if isinstance(part, ToolReturnPart)]
    assert [part.outcome for part in returned] == ["retried", "success", "success", "failed", "success"]
    assert ERROR in str(returned[0].content) and "`x` is private" in str(returned[3].content)
    assert [part.content for part in returned[1:3]] == [3, {"sum": 7}]
    assert returned[4].content == ["A cat.", BinaryContent(b"png", media_type="image/png")]
    assert returned[4].metadata == {"animal": "cat"}
    check_records(toolbox)

    def failing(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse([ToolCallPart("broken", {})])

    with pytest.raises(ZeroDivisionError):
        agent.run_sync("Fail.", model=FunctionModel(failing))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("create", ["langchain.agents:create_agent", "langgraph.prebuilt:create_react_agent"])
def test_langgraph(toolbox: Toolbox, is_async: bool, create: str) -> None:
    module, name = create.split(":")
    create_agent = getattr(pytest.importorskip(module), name)
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, ToolCall, ToolMessage

    from toolpost.integrations.langgraph import langchain_tools

    bound = {}

    class Model(GenericFakeChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            bound.update({one.name: one for one in tools})
            return self

    def run(calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
        steps = [AIMessage("", tool_calls=[ToolCall(name=name, args=args, id="1")]) for name, args in calls]
        agent = create_agent(Model(messages=iter([*steps, "done"])), langchain_tools(toolbox))
        start = {"messages": [("user", "Add.")]}
        found = asyncio.run(agent.ainvoke(start)) if is_async else agent.invoke(start)
        return [message for message in found["messages"] if isinstance(message, ToolMessage)]

    messages = run(CALLS)
    assert bound["add"].tool_call_schema["required"] == ["a", "b"]
    assert [message.status for message in messages] == ["error", "success", "success", "error", "success"]
    assert ERROR in messages[0].text and "`x` is private" in messages[3].text
    assert [(message.text, message.artifact) for message in messages[1:3]] == [("3", 3), ('{"sum":7}', {"sum": 7})]
    assert [block["type"] for block in messages[4].content_blocks] == ["text", "image"]
    check_records(toolbox)
    with pytest.raises(ZeroDivisionError):
        run([("broken", {})])


def test_a_tool_interrupts_a_graph() -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage, ToolCall
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode
    from langgraph.types import Command, interrupt

    from toolpost.integrations.langgraph import langchain_tools

    @tool
    def confirm() -> str:
        """Ask a person."""
        return str(interrupt("Continue?"))

    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(langchain_tools(Toolbox(confirm))))
    builder.set_entry_point("tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    call = AIMessage("", tool_calls=[ToolCall(name="confirm", args={}, id="1")])
    config: Any = {"configurable": {"thread_id": "1"}}
    assert graph.invoke({"messages": [call]}, config)["__interrupt__"][0].value == "Continue?"
    assert graph.invoke(Command(resume="yes"), config)["messages"][-1].text == "yes"


def test_openai_agents(toolbox: Toolbox) -> None:
    testing = pytest.importorskip("agents.testing")
    from agents import Agent, RunConfig, Runner

    from toolpost.integrations.openai_agents import function_tools

    config = RunConfig(tracing_disabled=True)

    def agent(*steps: Any) -> Agent[None]:
        return Agent(
            name="a", model=testing.ScriptedModel([[step] for step in steps]), tools=[*function_tools(toolbox)]
        )

    calls = [testing.function_call(name, args, call_id=f"{number}") for number, (name, args) in enumerate(CALLS)]
    result = asyncio.run(Runner.run(agent(*calls, testing.assistant_message("done")), "Add.", run_config=config))
    assert result.final_output == "done"
    outputs: list[Any] = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert ERROR in outputs[0] and outputs[1:3] == ["3", '{"sum":7}'] and "`x` is private" in outputs[3]
    assert [block.type for block in outputs[4]] == ["text", "image"]
    check_records(toolbox)
    with pytest.raises(Exception, match="by zero"):
        Runner.run_sync(agent(testing.function_call("broken", {}, call_id="1")), "Fail.", run_config=config)
