"""The examples run as printed, offline."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolpost import Sandbox, ToolError, tool

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODEL", raising=False)


#: The programs of other toolkits and their lines of code: those of the document, or of the file that it names.
SEEDS = {
    "stateful.py": ("claude-agent-toolkit: 000, lines 269 to 298", 25),
    "code_execution.py": ("claude-agent-to-agent: examples/code_execution_example.py of 001, line 15", 51),
    "calculator.py": ("LLM agent tool calling and sandbox framework: 002, lines 81 to 132", 47),
    "orchestrator.py": ("LLM agent tool calling and sandbox framework: 002, lines 167 to 213, 358 to 366", 44),
    "mathtools.py": ("toolable: example_tool.py", 13),
    "weather.py": ("llm_factory_toolkit: README.md of 2.1.0, lines 118 to 148", 27),
}


def lines_of_code(text: str) -> int:
    """Count the lines without blank lines and comments."""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def run(example: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    )
    assert not done.stderr
    return done.stdout


def load(example: str) -> Any:
    spec = importlib.util.spec_from_file_location(example, EXAMPLES / f"{example}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Programs of other toolkits


@pytest.mark.parametrize("example", SEEDS)
def test_no_program_is_longer_than_the_original(example: str) -> None:
    source, lines = SEEDS[example]
    assert lines_of_code((EXAMPLES / "seeds" / example).read_text()) <= lines, source


def test_the_table_has_every_program() -> None:
    assert {path.name for path in (EXAMPLES / "seeds").glob("*.py")} == set(SEEDS)


def test_stateful() -> None:
    assert run("seeds/stateful.py") == "{'old_value': 0, 'new_value': 1}\n{'item_count': 1}\n"
    module = load("seeds/stateful")
    toolbox = module.toolbox

    async def many() -> list[Any]:
        return await asyncio.gather(*(toolbox.call("increment_counter") for _ in range(8)))

    assert sorted(reply.value["new_value"] for reply in asyncio.run(many())) == list(range(2, 10))
    assert toolbox.call_sync("add_item", {"item": "pear"}).value == {"item_count": 2}
    assert [item["value"] for item in toolbox.state("items").get_sync()] == ["apple", "pear"]
    assert toolbox.state("counter").version_sync() == 9

    def conflict() -> float:
        toolbox.state("items").set_sync([])
        return 0

    module.time = SimpleNamespace(time=conflict)
    with pytest.raises(ToolError, match="CONFLICT: the items have changed"):
        toolbox.call_sync("add_item", {"item": "plum"})
    assert toolbox.state("items").get_sync() == []


def test_code_execution() -> None:
    assert run("seeds/code_execution.py") == "The mean is 30.0.\n"
    execute = load("seeds/code_execution").code_execution
    outcome = asyncio.run(execute("import pandas"))
    assert outcome.exit_code == 1 and outcome.stderr and outcome.stdout == ""


def test_calculator() -> None:
    assert run("seeds/calculator.py") == "{'result': 3.5}\nDivision by zero\n"
    toolbox = load("seeds/calculator").toolbox
    results = [
        toolbox.call_sync("calculator", {"operation": name, "a": 7, "b": 2}).value
        for name in ("add", "subtract", "multiply", "divide")
    ]
    assert [result["result"] for result in results] == [9, 5, 14, 3.5]
    for arguments in ({"operation": "power", "a": 1, "b": 2}, {"operation": "add", "a": "1", "b": 2}):
        with pytest.raises(ToolError, match="INVALID_INPUT"):
            toolbox.call_sync("calculator", arguments)


def test_orchestrator() -> None:
    lines = run("seeds/orchestrator.py").splitlines()
    assert lines[:3] == ["analyze_data: success", "read_file: success", "Success rate: 100.00%"]
    assert lines[3].startswith("Average execution time: 0.0")
    module = load("seeds/orchestrator")
    assert module.result.output["mean"] == 3 and module.result.output["text"].startswith('"""Tools as the steps')
    assert [record["tool"] for record in module.toolbox.records] == ["analyze_data", "read_file"]


def test_mathtools() -> None:
    assert json.loads(run("seeds/mathtools.py", "add", "--a", "1", "--b", "2"))["result"] == {"sum": 3}
    assert json.loads(run("seeds/mathtools.py", "multiply", '{"a": 3, "b": 4}'))["result"] == {"product": 12}
    found = json.loads(run("seeds/mathtools.py", "--discover"))
    assert (found["name"], found["version"]) == ("mathtools", "1.0.0")
    assert [one["name"] for one in found["tools"]] == ["add", "multiply"]
    assert "Usage" in run("seeds/mathtools.py", "--help")


def test_weather() -> None:
    text, payloads = run("seeds/weather.py").splitlines()
    assert text == "Today: 20C and sunny in London."
    assert payloads == "[{'temp': 20, 'condition': 'sunny', 'location': 'London'}]"
    spec = load("seeds/weather").get_weather.spec()
    assert spec["input_schema"]["properties"]["location"] == {"type": "string", "description": "City name"}
    assert (spec["category"], spec["tags"], spec["group"]) == ("data", ["weather", "api"], "api.weather")


# Other frameworks, notebooks and servers


@pytest.mark.parametrize(
    ("example", "peer"), [("pydantic_ai_agent.py", "pydantic_ai"), ("langgraph_agent.py", "langchain.agents")]
)
def test_an_agent_of_another_framework(example: str, peer: str) -> None:
    pytest.importorskip(peer)
    assert run(example) == "Oslo: 4 °C (2 calls recorded)\n"


def test_an_analyst_in_a_notebook() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    try:
        Sandbox(requirements=["pandas", "matplotlib"]).run_sync("1")
    except ToolError as error:
        pytest.skip(f"pandas and matplotlib cannot be installed: {error}")
    notebook = nbformat.read(EXAMPLES / "analyst.ipynb", 4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(notebook, timeout=60).execute()
    cells = [cell.outputs[0].data for cell in notebook.cells if cell.get("outputs")]
    assert [sorted(cell) for cell in cells] == [
        ["text/html", "text/plain"],
        ["image/png", "text/plain"],
        ["text/plain"],
    ]
    assert "12 months, 985 mm" in cells[0]["text/html"] and "<th>mean</th><td>82.083333</td>" in cells[0]["text/html"]
    assert cells[2]["text/plain"] == "'The wettest month is Nov.'"


@pytest.fixture
def server() -> Iterator[tuple[Any, int]]:
    """The example behind FastAPI, and the port of its server."""
    pytest.importorskip("fastapi.sse")
    uvicorn = pytest.importorskip("uvicorn")
    module = load("fastapi_agent")
    server = uvicorn.Server(uvicorn.Config(module.app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    yield module, server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def wait_until(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@contextmanager
def request(port: int, method: str, path: str) -> Iterator[http.client.HTTPResponse]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path)
        with connection.getresponse() as response:
            yield response


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


@pytest.mark.parametrize(("approved", "text"), [("true", "Result: notes deleted."), ("false", "refused")])
def test_a_server_streams_events_and_asks(server: tuple[Any, int], approved: str, text: str) -> None:
    _, port = server
    with request(port, "GET", "/run?prompt=Delete+my+notes.") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found = []
        for event in events(response):
            found.append(event)
            if event["type"] == "approval":
                assert (event["tool"], event["arguments"]) == ("delete", {"name": "notes"})
                decision = f"/approvals/{event['id']}?approved={approved}"
                with request(port, "POST", decision) as decided:
                    assert decided.status == 200
        with request(port, "POST", decision) as decided:
            assert decided.status == 404
    assert text in "".join(event["text"] for event in found if event["type"] == "text.delta")
    assert found[0]["type"] == "run.started" and found[-1]["type"] == "run.finished"
    with request(port, "GET", "/") as page:
        assert b"EventSource" in page.read()


def test_a_run_ends_when_its_client_leaves(server: tuple[Any, int]) -> None:
    module, port = server
    ended = threading.Event()

    @tool
    async def delete(name: str) -> None:
        """Hang."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with request(port, "GET", "/run?prompt=Go") as response:
        next(event for event in events(response) if event["type"] == "approval")
        assert len(module.approvals) == 1
    wait_until(lambda: not module.approvals)
    module.delete = delete
    with request(port, "GET", "/run?prompt=Go") as response:
        next(event for event in events(response) if event["type"] == "call.started")
        assert not ended.wait(0.1)
    assert ended.wait(5)
