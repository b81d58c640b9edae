"""The tools in the README of claude-agent-toolkit 0.2.6, with one changed import, called by an MCP client."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from typing import Any

import pytest

from toolpost import Toolbox, ToolError
from toolpost.compat.claude_agent_toolkit import BaseTool, tool


class CalculatorTool(BaseTool):
    @tool()
    async def add(self, a: float, b: float) -> dict[str, Any]:
        """Adds two numbers together"""
        result = a + b
        return {
            "operation": f"{a} + {b}",
            "result": result,
            "message": f"The result of adding {a} and {b} is {result}",
        }


class MyTool(BaseTool):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.counter = 0

    @tool()
    async def increment(self) -> dict[str, Any]:
        """Increment counter and return value"""
        self.counter += 1
        return {"value": self.counter}

    @tool("process", "Heavy computation", parallel=True, timeout_s=120)
    def process_data(self, data: str, seconds: float = 0) -> dict[str, Any]:
        time.sleep(seconds)
        self.counter += 1
        return {"processed": f"result_{data}"}

    @tool(cpu_bound=True, timeout_s=0.1)
    def hang(self) -> None:
        time.sleep(1)


def client(server: BaseTool) -> Toolbox:
    toolbox = Toolbox()
    toolbox.connect_sync(server.connection_url)
    return toolbox


def test_the_first_example() -> None:
    with CalculatorTool() as calculator:
        assert calculator.config() == {"type": "http", "url": calculator.connection_url}
        assert calculator.name() == "calculatortool"
        value = client(calculator).call_sync("add", {"a": 15, "b": 27}).value
    assert value["result"] == 42 and value["message"] == "The result of adding 15 and 27 is 42"
    assert [record["tool"] for record in calculator.toolbox.records] == ["add"]
    assert asyncio.run(calculator.add(1, 2))["result"] == 3


def test_names_and_descriptions() -> None:
    with MyTool() as server:
        found = {spec["name"]: spec["description"] for spec in client(server).specs}
    assert found == {
        "increment": "Increment counter and return value",
        "process": "Heavy computation",
        "hang": "hang function",
    }


def test_all_methods_share_one_instance() -> None:
    with MyTool() as server:
        calls = client(server)
        assert [calls.call_sync("increment").value["value"] for _ in range(2)] == [1, 2]
        assert calls.call_sync("process", {"data": "x"}).value == {"processed": "result_x"}
        assert server.counter == 3


def test_parallel_calls_overlap_up_to_the_number_of_workers() -> None:
    async def seconds(server: MyTool) -> float:
        calls = client(server)
        begin = time.perf_counter()
        await asyncio.gather(*(calls.call("process", {"data": "x", "seconds": 0.2}) for _ in range(4)))
        return time.perf_counter() - begin

    with MyTool() as free, MyTool(workers=1) as limited:
        assert asyncio.run(seconds(free)) < 0.7 < asyncio.run(seconds(limited))


def test_errors_reach_the_client() -> None:
    with MyTool() as server:
        calls = client(server)
        for name, arguments, code in [("hang", {}, "TIMEOUT"), ("process", {"data": 1}, "INVALID_INPUT")]:
            with pytest.raises(ToolError) as caught:
                calls.call_sync(name, arguments)
            assert caught.value.code == code


def test_the_server_runs_until_cleanup_and_restarts() -> None:
    server = CalculatorTool()
    port = int(server.connection_url.split("/")[2].split(":")[1])
    with pytest.raises(ToolError, match="in use"):
        CalculatorTool(port=port)
    for _ in range(10):
        assert server.run(port=port) is server
        with urllib.request.urlopen(server.health_url) as reply:
            assert reply.read() == b"OK"
    server.cleanup()
    server.cleanup()
    with pytest.raises(OSError):
        urllib.request.urlopen(server.health_url)


def test_the_agent_of_the_original_accepts_the_tools() -> None:
    original = pytest.importorskip("claude_agent_toolkit")
    with CalculatorTool() as calculator, MyTool() as other:
        executor = original.ExecutorType.SUBPROCESS
        agent = original.Agent(oauth_token="token", tools=[calculator, other], executor=executor)
        assert list(agent.tool_connector.get_connected_tools()) == ["calculatortool", "mytool"]
        found = asyncio.run(original.list_tools(calculator))
    assert [info.mcp_tool_id for info in found] == ["mcp__calculatortool__add"]
    assert found[0].input_schema["required"] == ["a", "b"]
