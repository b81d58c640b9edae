"""Runs of agents with a provider over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from toolpost import Agent, RunResult, tool


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
            requests.append(body)
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
