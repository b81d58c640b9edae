"""An agent behind HTTP: its events as server-sent events, approvals by a second request. `uvicorn fastapi_agent:app`

curl -N "http://127.0.0.1:8000/run?prompt=Delete+my+notes."
curl -X POST "http://127.0.0.1:8000/approvals/ID?approved=true"
"""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse

from toolpost import Agent, ScriptModel, tool

PAGE = """<!doctype html><meta charset="utf-8"><button>Delete my notes.</button><pre></pre><script>
document.querySelector("button").onclick = ({target}) => {
  const source = new EventSource(`run?prompt=${encodeURIComponent(target.textContent)}`);
  source.onmessage = ({data}) => {
    const event = JSON.parse(data);
    document.querySelector("pre").append(event.text ?? `[${event.type}]\\n`);
    if (event.type == "run.finished") source.close();
    if (event.type != "approval") return;
    const approved = confirm(`${event.tool} ${JSON.stringify(event.arguments)}`);
    fetch(`approvals/${event.id}?approved=${approved}`, {method: "POST"});
  };
};</script>"""
SCRIPT = [{"calls": [{"tool": "delete", "args": {"name": "notes"}}]}, "Result: {{ last.text }}."]
app = FastAPI()
approvals: dict[str, asyncio.Future[bool]] = {}


@tool(approval="ask", destructive=True)
async def delete(name: str) -> str:
    """Delete a document."""
    return f"{name} deleted"


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


@app.get("/run", response_class=EventSourceResponse)
async def run(prompt: str) -> AsyncIterator[dict[str, Any]]:
    events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def approve(tool: str, arguments: dict[str, Any]) -> bool:
        id = uuid4().hex
        approvals[id] = asyncio.Future()
        events.put_nowait({"type": "approval", "id": id, "tool": tool, "arguments": arguments})
        try:
            return await approvals[id]
        finally:
            del approvals[id]

    model = os.environ.get("MODEL") or ScriptModel(SCRIPT)
    agent = Agent(model, tools=[delete], approve=approve, on_event=events.put_nowait)
    running = asyncio.create_task(agent.run(prompt))
    running.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while event := await events.get():
            yield event
    finally:
        running.cancel()  # The client is gone, or the run has ended.


@app.post("/approvals/{id}")
async def decide(id: str, approved: bool) -> None:
    if id not in approvals or approvals[id].done():
        raise HTTPException(404, "no such pending approval")
    approvals[id].set_result(approved)
