"""A program of a user, as type checkers see it. The tests check it, and do not run it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Annotated, Any, assert_type

from toolpost import (
    Agent,
    Artifact,
    Ctx,
    Flow,
    FlowResult,
    Outcome,
    Output,
    Param,
    Partial,
    Reply,
    RunError,
    RunResult,
    Sandbox,
    ScriptModel,
    Session,
    Toolbox,
    ToolError,
    prompt,
    resource,
    tool,
)


@tool
def add(a: int, b: Annotated[int, Param("The second number.", ge=0)] = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(tags=["text"], timeout=2)
async def shout(text: str, ctx: Ctx) -> Output:
    """Shout a text."""
    ctx.progress("shouting", 50)
    ctx.log("info", "half of it")
    visits = await ctx.state("visits").get()
    if not text:
        raise ToolError("INVALID_INPUT", "`text` is empty", suggestion="Pass a text.")
    return Output({"visits": visits}, content=[text.upper()], artifacts=[Artifact("a.txt", text)])


@resource("notes://{name}")
def note(name: str) -> str:
    """A note."""
    return name


@prompt
def review(code: str) -> str:
    """Review code."""
    return code


class Counter:
    def __init__(self) -> None:
        self.count = 0

    @tool
    def increment(self, by: int = 1) -> int:
        """Increment the counter."""
        self.count += by
        return self.count


@dataclass
class Answer:
    city: str


def approve(tool: str, arguments: dict[str, Any]) -> bool:
    return tool != "remove"


async def calls(toolbox: Toolbox) -> None:
    assert_type(add(1, 2), int)
    assert_type(Counter().increment(by=2), int)
    assert_type(note("x"), str)
    assert_type(review("x"), str)
    reply = await toolbox.call("add", {"a": 1}, timeout=5, retries=1, priority="high", approve=approve)
    assert_type(reply, Reply)
    print(reply.value, reply.text, reply.record["id"])
    tasks = [asyncio.create_task(toolbox.call("add", {"a": number})) for number in range(3)]
    assert_type(await asyncio.gather(*tasks), list[Reply])
    call: Awaitable[Reply] = asyncio.wait_for(toolbox.call("add", {"a": 1}), 1)
    print((await call).partial, toolbox.specs, "add" in toolbox, len(toolbox))
    document = toolbox.state("visits")
    assert_type(await document.set(1), int)
    await toolbox.connect("builtin", level="strict")
    await toolbox.serve(http="127.0.0.1:0", token="secret", on_ready=print)


async def runs() -> None:
    model = ScriptModel([{"calls": [{"tool": "add", "args": {"a": 1}}]}, "Two."])
    agent = Agent(model, tools=[add, shout, Counter()], answer=Answer, max_cost_usd=0.1, approve=approve)
    try:
        result = await agent.run("How much is 1 + 1?", user="ada")
    except RunError as error:
        print(error.result, error.code)
        return
    assert_type(result, RunResult[Answer])
    assert_type(result.text, str)
    assert_type(result.cost_usd, float | None)
    async for event in agent.stream("More?", conversation=result.conversation):
        print(event["type"])


async def sandboxes() -> None:
    sandbox = Sandbox(timeout=5, allow_hosts=["example.com"])
    outcome = await sandbox.run("1 + 1", files={"a.csv": "a,b"}, on_output=lambda stream, text: print(stream, text))
    assert_type(outcome, Outcome)
    assert_type(outcome.verdict.kind, str)
    async with sandbox.session() as session:
        assert_type(session, Session)
        assert_type(await session.fork(2), list[Session])
    with sandbox.session() as session:
        print(session.run_sync("x = 1").raise_for_status().stdout)


def flows(toolbox: Toolbox) -> None:
    flow = Flow.from_yaml("name: one")
    assert_type(flow.run_sync(toolbox, {"city": "Oslo"}), FlowResult)
    print([problem.hint for problem in flow.check(toolbox)])


def main() -> None:
    toolbox = Toolbox(add, shout, note, review, Counter(), name="demo", timeout=10)
    print(Partial(1, [ToolError.not_found("no city is named Osol")]))
    print(toolbox.call_sync("add", {"a": 1}).value)
    asyncio.run(calls(toolbox))
    asyncio.run(runs())
    asyncio.run(sandboxes())
    flows(toolbox)
