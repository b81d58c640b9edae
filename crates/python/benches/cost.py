"""What calls from Python cost, beside the bare functions, pydantic-ai, openai-agents and FastMCP, in one run.

Prints one JSON object with `rows`. Times are the best of several rounds, so that other work of the machine counts less;
the rows of a peer that is not installed are missing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from toolpost import Agent, ScriptModel, Toolbox, tool

ROUNDS = 5
rows: list[dict[str, Any]] = []


def row(name: str, value: float, unit: str, **promise: float) -> None:
    rows.append({"name": name, "value": value, "unit": unit, **promise})


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def best(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(ROUNDS))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def add_async(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def add_suspending(a: int, b: int) -> int:
    """Add two numbers after one turn of the event loop."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn
    return a + b


ARGUMENTS = {"a": 1, "b": 2}


def sync_us(function: Callable[[], object], count: int) -> float:
    def measure() -> float:
        begin = time.perf_counter()
        for _ in range(count):
            function()
        return (time.perf_counter() - begin) / count * 1e6

    return best(measure)


def async_us(function: Callable[[], Awaitable[object]], count: int) -> float:
    async def calls() -> float:
        begin = time.perf_counter()
        for _ in range(count):
            await function()
        return (time.perf_counter() - begin) / count * 1e6

    return best(lambda: asyncio.run(calls()))


def calls() -> None:
    toolbox = Toolbox(add, add_async, add_suspending)
    bare = sync_us(lambda: add.fn(**ARGUMENTS), 50_000)
    bare_async = async_us(lambda: add_async.fn(**ARGUMENTS), 50_000)
    bare_suspending = async_us(lambda: add_suspending.fn(**ARGUMENTS), 10_000)
    sync = sync_us(lambda: toolbox.call_sync("add", ARGUMENTS), 20_000)
    awaited = async_us(lambda: toolbox.call("add_async", ARGUMENTS), 20_000)
    suspending = async_us(lambda: toolbox.call("add_suspending", ARGUMENTS), 5_000)
    blocking = async_us(lambda: toolbox.call("add", ARGUMENTS), 2_000)
    row("a sync call over the bare function", sync - bare, "µs", promise_max=6)
    row("an awaited call over the bare function", awaited - bare_async, "µs", promise_max=10)
    row("a call of a suspending tool over the bare function", suspending - bare_suspending, "µs", promise_max=15)
    row("an awaited call of a sync tool, on a thread", blocking - bare, "µs", promise_max=100)


def imports() -> None:
    def start(code: str) -> float:
        def measure() -> float:
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            return (time.perf_counter() - begin) * 1e3

        return min(measure() for _ in range(15))

    nothing = start("pass")
    row("import toolpost, over an empty program", start("import toolpost") - nothing, "ms", promise_max=30)
    for module in ("pydantic_ai", "agents", "fastmcp"):
        if has(module):
            row(f"import {module}, over an empty program", start(f"import {module}") - nothing, "ms")


ITERATIONS = 50


def cpu_us(run: Callable[[], object]) -> float:
    """Processor time of one iteration of a run."""
    run()

    def measure() -> float:
        begin = time.process_time()
        for _ in range(10):
            run()
        return (time.process_time() - begin) / 10 / ITERATIONS * 1e6

    return best(measure)


def iterations() -> None:
    # Equal calls would end the run: the agent detects loops.
    turns = [{"calls": [{"tool": "add_async", "args": {"a": 1, "b": number}}]} for number in range(ITERATIONS)]
    model = ScriptModel([*turns, {"text": "done"}])
    agent = Agent(model, tools=[add_async], max_iterations=ITERATIONS + 1)
    ours = cpu_us(lambda: asyncio.run(agent.run("Add.")))
    row("processor time of an iteration", ours, "µs")
    if has("pydantic_ai"):
        from pydantic_ai import Agent as PydanticAgent
        from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.models.function import AgentInfo, FunctionModel
        from pydantic_ai.usage import UsageLimits

        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if len(messages) > 2 * ITERATIONS:
                return ModelResponse(parts=[TextPart("done")])
            return ModelResponse(parts=[ToolCallPart("add_async", ARGUMENTS)])

        peer = PydanticAgent(FunctionModel(answer), tools=[add_async.fn])
        limits = UsageLimits(request_limit=None)
        theirs = cpu_us(lambda: asyncio.run(peer.run("Add.", usage_limits=limits)))
        row("processor time of an iteration of pydantic-ai", theirs, "µs")
        row("pydantic-ai over ours, per iteration", theirs / ours, "x", promise_min=10)
    if has("agents"):
        row_of_openai_agents(ours)


def row_of_openai_agents(ours: float) -> None:
    from agents import Agent as PeerAgent
    from agents import ModelResponse, RunConfig, Runner, Usage, function_tool
    from agents.models.interface import Model
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):
        turns = 0

        async def get_response(self, *arguments: Any, **options: Any) -> ModelResponse:
            self.turns += 1
            item: Any
            if self.turns % (ITERATIONS + 1) == 0:
                text = ResponseOutputText(annotations=[], text="done", type="output_text")
                item = ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message"
                )
            else:
                item = ResponseFunctionToolCall(
                    arguments=json.dumps(ARGUMENTS), call_id=f"c{self.turns}", name="add", type="function_call"
                )
            return ModelResponse(output=[item], usage=Usage(), response_id=None)

        def stream_response(self, *arguments: Any, **options: Any) -> Any:
            raise NotImplementedError

    async def add_numbers(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    peer = PeerAgent(name="adder", model=Scripted(), tools=[function_tool(add_numbers, name_override="add")])
    config = RunConfig(tracing_disabled=True)
    theirs = cpu_us(lambda: asyncio.run(Runner.run(peer, "Add.", max_turns=ITERATIONS + 5, run_config=config)))
    row("processor time of an iteration of openai-agents", theirs, "µs")
    row("openai-agents over ours, per iteration", theirs / ours, "x")


SERVER = """
from toolpost import Toolbox, tool
@tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
Toolbox(add).serve_sync()
"""
PEER_SERVER = """
from fastmcp import FastMCP
server = FastMCP("peer")
@server.tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
server.run(show_banner=False)
"""


def servers() -> None:
    def calls_per_second(source: str, count: int) -> tuple[float, float]:
        """Calls of a server in a process of its own, and its start with the first call in ms."""
        begin = time.perf_counter()
        client = Toolbox()
        client.connect_sync(f"stdio:{sys.executable} -c '{source}'", level="minimal")
        client.call_sync("add", ARGUMENTS)
        start = (time.perf_counter() - begin) * 1e3

        async def calls() -> float:
            begin = time.perf_counter()
            for _ in range(count // 16):
                await asyncio.gather(*(client.call("add", ARGUMENTS) for _ in range(16)))
            return count / (time.perf_counter() - begin)

        return max(asyncio.run(calls()) for _ in range(3)), start

    ours, start = calls_per_second(SERVER, 4_800)
    row("MCP calls, 16 at once", ours, "1/s")
    row("start of an MCP server and its first call", start, "ms")
    if has("fastmcp"):
        theirs, start = calls_per_second(PEER_SERVER, 480)
        row("MCP calls of FastMCP, 16 at once", theirs, "1/s")
        row("start of a FastMCP server and its first call", start, "ms")
        row("our MCP calls over those of FastMCP", ours / theirs, "x", promise_min=10)


for part in (calls, imports, iterations, servers):
    part()
print(json.dumps({"rows": rows}))
