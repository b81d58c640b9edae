"""Measure calls, agents and servers in Python beside pydantic-ai, openai-agents and FastMCP, in one run.

Prints one JSON object with `rows`. Times are the best of several rounds, so that other work of the machine counts less.
The rows of a peer that is not installed are missing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from toolpost import Agent, ScriptModel, Toolbox, tool

ROUNDS = 5
# Programs start as those of users: the first start stores the bytecode of modules.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
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


def seconds(code: str, rounds: int = 15) -> float:
    """Return the time of a whole program."""

    def measure() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begin

    return min(measure() for _ in range(rounds))


def resident_mib(status: str) -> float:
    """Return the resident memory in the text of `/proc/PID/status`."""
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def memory_after(code: str) -> float:
    """Return the resident memory at the end of a program."""
    program = f"{code}\nprint(open('/proc/self/status').read())"
    run = subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT, stdout=subprocess.PIPE)
    return resident_mib(run.stdout.decode())


def imports() -> None:
    empty, memory = seconds("pass"), memory_after("pass")
    row("start of an empty program", empty * 1e3, "ms")
    row("memory of an empty program", memory, "MiB")
    # What `toolpost.author` needs of the standard library.
    needed = seconds("import contextlib, re, typing") - empty
    row("import contextlib, re, typing, over an empty program", needed * 1e3, "ms")
    for module in ("toolpost", "pydantic_ai", "agents", "fastmcp"):
        if has(module):
            promise = {"promise_max": 30.0} if module == "toolpost" else {}
            # The first name loads the engine.
            statement = "from toolpost import Toolbox" if module == "toolpost" else f"import {module}"
            over = seconds(statement) - empty
            row(f"{statement}, over an empty program", over * 1e3, "ms", **promise)
            row(f"memory after {statement}", memory_after(statement), "MiB")


ITERATIONS = 50
AGENTS = 16
Run = Callable[[], Coroutine[Any, Any, Any]]


def cpu_us(run: Run) -> float:
    """Return the processor time of one iteration of a run."""
    asyncio.run(run())

    def measure() -> float:
        begin = time.process_time()
        for _ in range(10):
            asyncio.run(run())
        return (time.process_time() - begin) / 10 / ITERATIONS * 1e6

    return best(measure)


def per_second(agents: list[Run]) -> float:
    """Return the iterations per second of agents that run at once."""

    async def all_at_once() -> float:
        begin = time.perf_counter()
        await asyncio.gather(*(run() for run in agents))
        return len(agents) * ITERATIONS / (time.perf_counter() - begin)

    return max(asyncio.run(all_at_once()) for _ in range(ROUNDS))


def agent_of_toolpost() -> Run:
    # Equal calls would end the run: the agent detects loops.
    turns = [{"calls": [{"tool": "add_async", "args": {"a": 1, "b": number}}]} for number in range(ITERATIONS)]
    agent = Agent(ScriptModel([*turns, {"text": "done"}]), tools=[add_async], max_iterations=ITERATIONS + 1)

    async def run() -> None:
        await agent.run("Add.")

    return run


def agent_of_pydantic_ai() -> Run:
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
    return lambda: peer.run("Add.", usage_limits=limits)


def agent_of_openai_agents() -> Run:
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
    return lambda: Runner.run(peer, "Add.", max_turns=ITERATIONS + 5, run_config=config)


# Programs with one agent, from the start of the interpreter to the first answer of the agent.
PROGRAMS = {
    "toolpost": """
import asyncio
from toolpost import Agent, ScriptModel, tool
@tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
model = ScriptModel([{"calls": [{"tool": "add", "args": {"a": 1, "b": 2}}]}, {"text": "done"}])
asyncio.run(Agent(model, tools=[add]).run("Add."))
""",
    "pydantic_ai": """
import asyncio
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
def answer(messages, info):
    return ModelResponse(parts=[TextPart("done") if len(messages) > 2 else ToolCallPart("add", {"a": 1, "b": 2})])
asyncio.run(Agent(FunctionModel(answer), tools=[add]).run("Add."))
""",
    "agents": """
import asyncio
from agents import Agent, ModelResponse, RunConfig, Runner, Usage, function_tool
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
@function_tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
class Scripted(Model):
    turns = 0
    async def get_response(self, *arguments, **options):
        self.turns += 1
        if self.turns == 1:
            item = ResponseFunctionToolCall(arguments='{"a": 1, "b": 2}', call_id="c", name="add", type="function_call")
        else:
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            item = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[item], usage=Usage(), response_id=None)
    def stream_response(self, *arguments, **options):
        raise NotImplementedError
agent = Agent(name="adder", model=Scripted(), tools=[add])
asyncio.run(Runner.run(agent, "Add.", run_config=RunConfig(tracing_disabled=True)))
""",
}


def iterations() -> None:
    makers = {
        "toolpost": ("Toolpost", agent_of_toolpost),
        "pydantic_ai": ("pydantic-ai", agent_of_pydantic_ai),
        "agents": ("openai-agents", agent_of_openai_agents),
    }
    ours = ours_per_second = 0.0
    for module, (name, make) in makers.items():
        if not has(module):
            continue
        time_us, rate = cpu_us(make()), per_second([make() for _ in range(AGENTS)])
        row(f"{name}: processor time of an iteration", time_us, "µs")
        row(f"{name}: iterations of {AGENTS} agents at once", rate, "1/s")
        row(f"{name}: start of a program to the answer of its agent", seconds(PROGRAMS[module], 5) * 1e3, "ms")
        row(f"{name}: memory after that answer", memory_after(PROGRAMS[module]), "MiB")
        if module == "toolpost":
            ours, ours_per_second = time_us, rate
        else:
            promise = {"promise_min": 10.0} if module == "pydantic_ai" else {}
            row(f"{name} over Toolpost, processor time of an iteration", time_us / ours, "x", **promise)
            row(f"Toolpost over {name}, iterations at once", ours_per_second / rate, "x")


FUNCTION = """
{kind} add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
"""
OURS = "from toolpost import Toolbox, tool\n@tool{function}\nToolbox(add).serve_sync()"
FASTMCP = """
from fastmcp import FastMCP
server = FastMCP("peer")
@server.tool{function}
server.run(show_banner=False)
"""
# The lower limit: a loop that parses a line, calls the function and writes the answer. It checks nothing.
LOOP = """
import json, sys
{function}
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        server = {{"name": "loop", "version": "1"}}
        result = {{"protocolVersion": "2025-06-18", "capabilities": {{}}, "serverInfo": server}}
    elif message["method"] == "tools/call":
        result = {{"content": [{{"type": "text", "text": str(add(**message["params"]["arguments"]))}}]}}
    else:
        continue
    print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], "result": result}}), flush=True)
"""
AT_ONCE = 16


class Server:
    """An MCP server in a process of its own. The client only writes calls and counts the lines of the answers."""

    def __init__(self, program: str) -> None:
        begin = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENVIRONMENT,
            bufsize=0,
        )
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        self.send({"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": client})
        self.lines(1)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.number = 0
        self.calls_per_second(1)
        self.start = time.perf_counter() - begin

    def send(self, *messages: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def lines(self, least: int) -> int:
        assert self.process.stdout is not None
        count = 0
        while count < least:
            read = self.process.stdout.read(1 << 16)
            if not read:
                raise RuntimeError("the server has ended")
            count += read.count(b"\n")
        return count

    def call(self) -> dict[str, Any]:
        self.number += 1
        params = {"name": "add", "arguments": ARGUMENTS}
        return {"jsonrpc": "2.0", "id": self.number, "method": "tools/call", "params": params}

    def calls_per_second(self, count: int) -> float:
        begin = time.perf_counter()
        sent = min(AT_ONCE, count)
        self.send(*(self.call() for _ in range(sent)))
        answered = 0
        while answered < count:
            read = self.lines(1)
            answered += read
            more = min(read, count - sent)
            if more:
                self.send(*(self.call() for _ in range(more)))
                sent += more
        return count / (time.perf_counter() - begin)

    def processor_seconds(self) -> float:
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        with open(f"/proc/{self.process.pid}/status") as status:
            return resident_mib(status.read())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


def server_rows(name: str, program: str, count: int) -> float:
    """Print the rows of a server, and return its calls per second."""
    starts = []
    for _ in range(3):
        server = Server(program)
        starts.append(server.start)
        server.close()
    server = Server(program)
    row(f"{name}: start to the first answer", min(starts) * 1e3, "ms")
    row(f"{name}: idle memory", server.memory_mib(), "MiB")
    server.calls_per_second(10_000)
    row(f"{name}: memory after 10,000 calls", server.memory_mib(), "MiB")
    begin = server.processor_seconds()
    rate = max(server.calls_per_second(count) for _ in range(3))
    row(f"{name}: calls, {AT_ONCE} at once", rate, "1/s")
    processor = (server.processor_seconds() - begin) / 3 / count
    row(f"{name}: processor time of a call", processor * 1e6, "µs")
    server.close()
    return rate


def calls_of_our_client(program: str, count: int) -> float:
    """Return the calls per second of a client with Toolpost, which checks and records each call."""
    client = Toolbox()
    client.connect_sync(f"stdio:{sys.executable} -c '{program}'", level="minimal")

    async def calls() -> float:
        begin = time.perf_counter()
        for _ in range(count // AT_ONCE):
            await asyncio.gather(*(client.call("add", ARGUMENTS) for _ in range(AT_ONCE)))
        return count / (time.perf_counter() - begin)

    return max(asyncio.run(calls()) for _ in range(3))


def servers() -> None:
    for kind, tools in (("async def", "async tools"), ("def", "sync tools")):
        function = FUNCTION.format(kind=kind)
        program = OURS.format(function=function)
        ours = server_rows(f"MCP server, {tools}", program, 20_000)
        ours_with_client = calls_of_our_client(program, 4_800)
        row(f"MCP server, {tools}: calls of a Toolpost client", ours_with_client, "1/s")
        if has("fastmcp"):
            program = FASTMCP.format(function=function)
            theirs = server_rows(f"FastMCP, {tools}", program, 2_000)
            with_client = calls_of_our_client(program, 480)
            row(f"FastMCP, {tools}: calls of a Toolpost client", with_client, "1/s")
            row(f"our MCP calls over those of FastMCP, {tools}", ours / theirs, "x", promise_min=10)
            over = ours_with_client / with_client
            row(f"our MCP calls over those of FastMCP, {tools}, Toolpost client", over, "x")
    server_rows("a loop over lines", LOOP.format(function=FUNCTION.format(kind="def")), 20_000)


for part in (calls, imports, iterations, servers):
    part()
print(json.dumps({"rows": rows}))
