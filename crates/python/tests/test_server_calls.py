"""Calls of an MCP server in a process of its own, which arrive many at once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolpost import Toolbox, ToolError

SERVER = """
import asyncio, contextvars, sys, time
from toolpost import Toolbox, tool

variable = contextvars.ContextVar("variable", default="none")
variable.set("of the program")
events = []

@tool
async def swap(value: str) -> str:
    "Set the variable, and return the value before."
    before = variable.get()
    variable.set(value)
    await asyncio.sleep(0)
    return before

@tool
async def hang() -> None:
    "Hang."
    events.append("begin")
    try:
        await asyncio.sleep(60)
    finally:
        events.append("cancelled")

@tool
async def hold_loop() -> None:
    "Block the event loop."
    events.append("held")
    time.sleep(0.5)

@tool
async def late() -> None:
    "Run late."
    events.append("late")

@tool
def block() -> None:
    "Block a thread."
    time.sleep(0.5)

@tool
async def leave() -> None:
    "Exit."
    raise SystemExit(3)

@tool
async def names() -> list[str]:
    "List what happened, and who runs this tool."
    task = asyncio.current_task()
    return [*events, type(task).__name__]

toolbox = Toolbox(swap, hang, hold_loop, late, block, leave, names)
"""
SERVE = {"serve_sync": "toolbox.serve_sync()", "serve": "asyncio.run(toolbox.serve())"}


@pytest.fixture(params=list(SERVE))
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Toolbox]:
    program = tmp_path / "server.py"
    # The server gets no variables that choose modules.
    path = f"import sys\nsys.path[:] = {sys.path!r}\n"
    program.write_text(f"{path}{SERVER}\n{SERVE[request.param]}\n")
    client = Toolbox()
    client.connect_sync(f"stdio:{sys.executable} {program}", level="minimal")
    yield client


def events(client: Toolbox) -> list[str]:
    return list(client.call_sync("names").value)


def test_calls_at_once_have_context_variables_of_their_own(client: Toolbox) -> None:
    async def main() -> list[str]:
        befores = []
        for _ in range(20):
            calls = (client.call("swap", {"value": str(number)}) for number in range(50))
            befores += [reply.value for reply in await asyncio.gather(*calls)]
        return befores

    befores = asyncio.run(main())
    assert len(befores) == 1000 and set(befores) == {"none"}


def test_a_coroutine_runs_in_a_task(client: Toolbox) -> None:
    assert events(client) == ["Task"]


def test_a_cancelled_call_reaches_its_coroutine(client: Toolbox) -> None:
    with pytest.raises(ToolError) as caught:
        client.call_sync("hang", timeout=0.2)
    assert caught.value.code == "TIMEOUT"
    end = time.monotonic() + 5
    while (seen := events(client)) == ["begin", "Task"] and time.monotonic() < end:
        time.sleep(0.01)
    assert seen == ["begin", "cancelled", "Task"]


def test_a_call_that_is_cancelled_before_its_start_never_starts(client: Toolbox) -> None:
    async def main() -> None:
        held = asyncio.create_task(client.call("hold_loop"))
        await asyncio.sleep(0.1)
        with pytest.raises(ToolError):
            await client.call("late", timeout=0.1)
        await held

    asyncio.run(main())
    assert events(client) == ["held", "Task"]


def test_a_blocking_function_delays_no_other_call(client: Toolbox) -> None:
    async def main() -> float:
        blocked = [asyncio.create_task(client.call("block")) for _ in range(8)]
        await asyncio.sleep(0.1)
        begin = time.monotonic()
        await asyncio.gather(*(client.call("swap", {"value": "x"}) for _ in range(32)))
        seconds = time.monotonic() - begin
        await asyncio.gather(*blocked)
        return seconds

    begin = time.monotonic()
    assert asyncio.run(main()) < 0.35
    # The eight ran at once.
    assert time.monotonic() - begin < 2


def test_an_exit_inside_a_tool_ends_that_call_alone(client: Toolbox) -> None:
    with pytest.raises(ToolError):
        client.call_sync("leave")
    assert events(client) == ["Task"]
