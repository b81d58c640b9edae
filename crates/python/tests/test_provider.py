"""Runs of agents with a provider over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from toolpost import Agent, Model, RunError, RunResult, ScriptModel, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """A server of Chat Completions that asks for a sum and repeats it; the requests that it got."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append({**body, "headers": dict(self.headers)})
            if body["model"] == "broken":
                self.send_response(500)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            if body["model"] == "slow":
                time.sleep(3)
            last = body["messages"][-1]
            if last["role"] == "tool":
                delta: dict[str, Any] = {"content": f"The sum is {last['content']}."}
            else:
                function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
                delta = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
            reason = "tool_calls" if "tool_calls" in delta else "stop"
            chunks: list[dict[str, Any]] = [
                {"choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}]},
                {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
                {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}},
            ]
            head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for chunk in chunks:
                self.wfile.write(f"data: {json.dumps({**head, **chunk})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OPENAI_COMPATIBLE_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    yield requests
    server.shutdown()
    server.server_close()


def test_a_run_over_http(provider: list[dict[str, Any]]) -> None:
    agent = Agent("openai-compatible/m", tools=[add], system="Be brief.", temperature=0.5)

    async def main() -> RunResult:
        return await agent.run("Go.")

    result = asyncio.run(main())
    assert result.text == "The sum is 3." and result.cost_usd is None
    assert (result.usage["input_tokens"], result.usage["output_tokens"]) == (10, 6)
    assert provider[0]["temperature"] == 0.5 and provider[0]["messages"][0]["content"] == "Be brief."
    assert agent.run_sync("Again.", conversation=result.conversation).text == "The sum is 3."


def test_a_model_has_its_own_access(provider: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    url = os.environ["OPENAI_COMPATIBLE_BASE_URL"]
    monkeypatch.setenv("OPENAI_COMPATIBLE_BASE_URL", "http://127.0.0.1:1/v1")
    model = Model("openai-compatible/m", api_key="s3cret", base_url=url)
    assert Agent(model, tools=[add], max_output_tokens=77).run_sync("Add 1 and 2.").text == "The sum is 3."
    headers = {name.lower(): value for name, value in provider[0]["headers"].items()}
    assert headers["authorization"] == "Bearer s3cret" and "s3cret" not in repr(model)
    assert 77 in (provider[0].get("max_tokens"), provider[0].get("max_completion_tokens"))
    with pytest.raises(ValueError, match="no-such"):
        Model("no-such/m", api_key="s3cret")


def test_a_model_has_its_own_retries_and_timeout(provider: list[dict[str, Any]]) -> None:
    for retries in (0, 1):
        provider.clear()
        with pytest.raises(RunError):
            Agent(Model("openai-compatible/broken", max_retries=retries)).run_sync("Hello.")
        assert len(provider) == 1 + retries
    begin = time.monotonic()
    with pytest.raises(RunError):
        Agent(Model("openai-compatible/slow", timeout=0.3)).run_sync("Hello.")
    assert time.monotonic() - begin < 2


def test_tools_are_loaded_on_demand(provider: list[dict[str, Any]]) -> None:
    def subtract(a: int, b: int) -> int:
        """Subtract two numbers."""
        return a - b

    model = "openai-compatible/m"
    Agent(model, tools=[add, subtract], dynamic="browse", core_tools=["add"]).run_sync("Add 1 and 2.")
    names = {tool["function"]["name"] for tool in provider[0]["tools"]}
    assert {"add", "browse_toolkit"} <= names and "subtract" not in names
    provider.clear()
    picker = ScriptModel(["unused"])
    Agent(model, tools=[add, subtract], dynamic=picker, core_tools=["add"]).run_sync("Add 1 and 2.")
    assert "find_tools" in {tool["function"]["name"] for tool in provider[0]["tools"]}
    provider.clear()
    Agent(model, tools=[add, subtract], dynamic=False).run_sync("Add 1 and 2.")
    assert {tool["function"]["name"] for tool in provider[0]["tools"]} == {"add", "subtract"}
    with pytest.raises(TypeError, match="`model` must be a name"):
        Agent(model, dynamic=7)  # type: ignore[call-overload]


def test_hosted_tools_are_named(provider: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="`hosted_tools` has an invalid tool"):
        Agent("openai-compatible/m", hosted_tools=["web_serch"])
    with pytest.raises(RunError, match="web_search"):
        Agent("openai-compatible/m", hosted_tools=[{"web_search": {"max_uses": 3}}]).run_sync("Search.")
