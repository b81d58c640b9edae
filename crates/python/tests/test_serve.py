"""What MCP clients get of a toolbox, with the protocol version of 2025 that most clients speak."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import runpy
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from toolpost import Ctx, Output, Toolbox, ToolError, tool


class Client:
    """An MCP client of a URL."""

    def __init__(self, url: str, **headers: str) -> None:
        self.address = urlsplit(url).netloc
        self.headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
        client = {"name": "test", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        self.server = self.request("initialize", **hello)["serverInfo"]
        self.send("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, method: str, message: Any = None) -> tuple[int, str]:
        connection = HTTPConnection(self.address, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, "/mcp", json.dumps(message) if message else None, self.headers)
            response = connection.getresponse()
            if session := response.getheader("mcp-session-id"):
                self.headers["mcp-session-id"] = session
            return response.status, response.read().decode()

    def request(self, method: str, /, **params: Any) -> Any:
        status, text = self.send("POST", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        if status != 200:
            raise ConnectionError(f"{status} {text}")
        lines = [line[5:] for line in text.splitlines() if line.startswith("data:")] or [text]
        answer = json.loads(lines[-1])
        return answer["result"] if "result" in answer else answer["error"]

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.request("tools/call", name=tool, arguments=arguments)


@contextlib.asynccontextmanager
async def served(toolbox: Toolbox, **options: Any) -> AsyncIterator[str]:
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(toolbox.serve(http="127.0.0.1:0", on_ready=url.set_result, **options))
    try:
        yield await url
    finally:
        server.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await server


def visit(toolbox: Toolbox, work: Callable[[Client], Any], **options: Any) -> Any:
    """Return what a function gets from a client of a toolbox."""

    async def main() -> Any:
        async with served(toolbox, **options) as url:
            return await asyncio.to_thread(lambda: work(Client(url)))

    return asyncio.run(main())


@dataclass
class City:
    name: str


def test_decorators_of_a_toolbox() -> None:
    mcp = Toolbox(name="cities")

    @mcp.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @mcp.tool(title="Negate", read_only=True)
    async def negate(a: int) -> int:
        """Negate a number."""
        return -a

    @mcp.resource("cities://{name}/{number}")
    def city(name: str, number: int) -> str:
        return f"{name} {number!r}"

    @mcp.prompt()
    def greet(name: str, times: int = 1) -> str:
        return f"Greet {name} {times!r} times."

    @mcp.prompt
    def debug(error: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": error}, {"role": "assistant", "content": "What did you try?"}]

    assert add(1, 2) == 3
    assert [spec["name"] for spec in mcp.specs] == ["add", "negate"]
    assert mcp.call_sync("negate", {"a": 2}).value == -2

    def work(client: Client) -> Any:
        return (
            client.server["name"],
            client.request("tools/list")["tools"][1]["title"],
            client.request("resources/templates/list")["resourceTemplates"][0]["name"],
            client.request("resources/read", uri="cities://oslo/3")["contents"][0]["text"],
            # MCP has texts alone.
            client.request("prompts/get", name="greet", arguments={"name": "Ada", "times": "2"})["messages"][0],
            client.request("prompts/get", name="debug", arguments={"error": "E1"})["messages"],
        )

    name, title, template, text, message, messages = visit(mcp, work)
    assert (name, title, template, text) == ("cities", "Negate", "city", "oslo 3")
    assert message["content"]["text"] == "Greet Ada 2 times."
    assert [(one["role"], one["content"]["text"]) for one in messages] == [
        ("user", "E1"),
        ("assistant", "What did you try?"),
    ]
    assert visit(mcp, lambda client: client.server["name"], name="towns") == "towns"


def test_a_toolbox_adds_toolboxes() -> None:
    weather, main = Toolbox(name="weather"), Toolbox()

    @weather.tool
    def forecast(city: str) -> str:
        """Forecast the weather."""
        return f"{city}: sun"

    @weather.resource("weather://{city}")
    def current(city: str) -> str:
        return f"{city}: rain"

    main.add(weather)
    assert main.call_sync("forecast", {"city": "Oslo"}).value == "Oslo: sun"
    assert main.read_sync("weather://Oslo") == "Oslo: rain"
    assert [spec["name"] for spec in Toolbox(main).specs] == ["forecast"]
    with pytest.raises(ToolError, match="forecast"):
        Toolbox(weather, Toolbox(weather))


def test_structured_results_match_their_schemas() -> None:
    toolbox = Toolbox()

    @toolbox.tool
    def find(name: str) -> City | None:
        """Find a city."""
        return City(name) if name else None

    assert toolbox.call_sync("find", {"name": ""}).value is None
    schema, found, missing = visit(
        toolbox,
        lambda client: (
            client.request("tools/list")["tools"][0]["outputSchema"],
            client.call("find", name="Oslo")["structuredContent"],
            client.call("find", name="")["structuredContent"],
        ),
    )
    assert schema["required"] == ["result"]
    assert (found, missing) == ({"result": {"name": "Oslo"}}, {"result": None})


def test_images_and_bytes() -> None:
    toolbox = Toolbox()

    @toolbox.tool
    def plot() -> Output:
        """Plot."""
        return Output(content=["A plot.", Output.image("image/png", b"PNG")])

    @toolbox.resource("logo://png", mime_types=["image/png"])
    def logo() -> bytes:
        return b"PNG"

    content, resource = visit(
        toolbox,
        lambda client: (
            client.call("plot")["content"],
            client.request("resources/read", uri="logo://png")["contents"][0],
        ),
    )
    png = base64.b64encode(b"PNG").decode()
    assert content == [{"type": "text", "text": "A plot."}, {"type": "image", "data": png, "mimeType": "image/png"}]
    assert resource == {"uri": "logo://png", "mimeType": "image/png", "blob": png}


def test_tools_get_the_object_of_the_server() -> None:
    @dataclass
    class Database:
        is_open: bool = True

    toolbox, events = Toolbox(), []

    @toolbox.tool
    async def query(ctx: Ctx) -> bool:
        """Query the database."""
        return bool(ctx.context.is_open)

    @toolbox.tool
    def outer(ctx: Ctx) -> bool:
        """Query the database in a nested call."""
        return bool(ctx.call_sync("query"))

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[Database]:
        database = Database()
        yield database
        database.is_open = False
        events.append("closed")

    async def main() -> Any:
        async with lifespan() as database, served(toolbox, context=database) as url:
            return await asyncio.to_thread(
                lambda: [Client(url).call(tool)["structuredContent"]["result"] for tool in ("query", "outer")]
            )

    assert asyncio.run(main()) == [True, True] and events == ["closed"]
    assert Ctx().context is None


def test_a_question_has_optional_fields() -> None:
    @dataclass
    class Person:
        name: str
        age: int | None = None

    toolbox, forms = Toolbox(), []

    @toolbox.tool
    async def greet(ctx: Ctx) -> str:
        """Greet a person."""
        person = await ctx.ask("Who?", Person)
        return f"{person.name} {person.age}"

    async def ask(message: str, schema: Any) -> Any:
        forms.append((message, schema["properties"]["age"]))
        return {"name": "Ada"}

    async def main() -> Any:
        async with served(toolbox) as url:
            client = Toolbox()
            await client.connect(url)
            return (await client.call("greet", ask=ask)).value

    assert asyncio.run(main()) == "Ada None"
    assert forms == [("Who?", {"type": "integer"})]


def test_a_defect_of_a_tool_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    toolbox = Toolbox()

    @toolbox.tool
    def fail(code: str) -> str:
        """Fail."""
        if code:
            raise ToolError(code, "a message for the model")
        raise ValueError("a secret")

    defect, error = visit(toolbox, lambda client: (client.call("fail", code=""), client.call("fail", code="NOT_FOUND")))
    assert defect["isError"] and "a secret" not in json.dumps(defect)
    assert error["content"][0]["text"] == "NOT_FOUND: a message for the model"
    (record,) = caplog.records
    assert record.name == "toolpost" and record.getMessage().startswith("`fail` failed:")
    assert record.exc_info is not None and "a secret" in str(record.exc_info[1])


def test_hosts_and_addresses() -> None:
    toolbox = Toolbox()

    async def status(host: str, **options: Any) -> str:
        async with served(toolbox, **options) as url:
            try:
                await asyncio.to_thread(Client, url, Host=host)
            except ConnectionError as error:
                return str(error)
        return "200"

    assert asyncio.run(status("tools.example")) == "403 this Host is not allowed"
    assert asyncio.run(status("tools.example", hosts=["tools.example"])) == "200"
    for options in ({}, {"token": "t" * 32}, {"hosts": ["tools.example"]}):
        with pytest.raises(ToolError, match="`0.0.0.0:0` is reachable from other hosts. Set `token`, and the names"):
            toolbox.serve_sync(http="0.0.0.0:0", **options)


def test_the_address_is_free_after_the_server() -> None:
    async def main() -> None:
        for _ in range(20):
            async with served(Toolbox()) as url:
                port = urlsplit(url).port or 0
            with socket.socket() as other:
                assert other.connect_ex(("127.0.0.1", port)) != 0

    asyncio.run(main())


def test_a_session_ends_without_a_warning_of_the_client() -> None:
    # The client of the package `mcp` warns of other statuses.
    assert visit(Toolbox(), lambda client: client.send("DELETE")[0]) == 200


EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "mcp_server.py"
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "moving" / "fastmcp.md"


def test_the_example_of_a_server(tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    toolbox, lines = Toolbox(), []
    # The server gets no `PYTHONPATH`.
    program = tmp_path / "server.py"
    program.write_text(
        f"import runpy, sys\nsys.path[:] = {sys.path}\nrunpy.run_path({str(EXAMPLE)!r}, run_name='__main__')\n"
    )
    toolbox.connect_sync(f"stdio:{sys.executable} {program}", level="minimal")

    def call(tool: str, **arguments: Any) -> Any:
        options = {
            "approve": "allow",
            "ask": lambda message, schema: message == "Delete all notes?",
            "sample": lambda request: "short",
            "on_progress": lambda message, percent: lines.append((message, percent)),
            "on_log": lambda level, message: lines.append((level, message)),
        }
        return toolbox.call_sync(tool, arguments, **options)  # type: ignore[arg-type]

    assert call("add_note", text="Buy milk.").value == {"id": 1, "text": "Buy milk."}
    assert call("import_notes", texts=["a", "b"]).value == 2
    assert [line for line in lines if line[0] != "info"] == [("1 of 2", 50.0), ("2 of 2", 100.0)]
    assert ("info", "add_note: added note 1") in lines
    assert toolbox.read_sync("notes://1") == "Buy milk."
    assert "Write a short review of notes://1." in str(toolbox.render_sync("review", {"id": "1"}))
    assert call("summarize_note", id=1).value == "short"
    assert [block["type"] for block in call("dot").content] == ["text", "image"]
    assert call("delete_notes").value == "deleted"
    with pytest.raises(ToolError, match="no note has the id 1"):
        toolbox.read_sync("notes://1")
    with pytest.raises(ToolError, match="INVALID_INPUT: /text"):
        call("add_note", text="")


@pytest.mark.skipif(not GUIDE.exists(), reason="the guide is in a checkout")
def test_the_example_has_the_code_of_the_guide() -> None:
    rows = [line.split("|")[2] for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    assert len(rows) == 15
    missing = [row.strip(" `") for row in rows if row.strip(" `") not in EXAMPLE.read_text()]
    assert not missing


def test_a_tool_of_a_server_without_a_client() -> None:
    pytest.importorskip("pydantic")
    example = runpy.run_path(str(EXAMPLE))

    async def main() -> Any:
        async with example["database"]() as db:
            return await example["notes"].call("add_note", {"text": "Hi"}, context=db)

    assert asyncio.run(main()).value == {"id": 1, "text": "Hi"}


@pytest.mark.parametrize("form", ["closed", "dropped"])
def test_a_server_hears_of_a_call_that_is(form: str) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        """Hang."""
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    async def main() -> None:
        async with served(Toolbox(hang)) as url:
            client = Toolbox()
            await client.connect(url)
            call: Any = client.call("hang").__await__()
            while not started.is_set():
                waiting = call.send(None)
                if waiting is not None:
                    waiting._asyncio_future_blocking = False
                    await asyncio.wait([waiting], timeout=0.1)
                await asyncio.sleep(0)
            if form == "closed":
                call.close()
            del call
            await asyncio.wait_for(cancelled.wait(), 5)

    asyncio.run(main())


def test_on_ready_is_a_plain_function() -> None:
    async def ready(url: str) -> None:
        pass

    with pytest.raises(TypeError, match="plain function"):
        Toolbox().serve_sync(http="127.0.0.1:0", on_ready=ready)
