"""The fixtures for users of pytest. Each inner run is a test suite of a user."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import toolpost._exports  # noqa: F401  (the engine stays loaded between the inner runs)

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]
GUIDE = Path(__file__).parents[3] / "docs" / "python.md"
KEY = "sk-secret-of-the-test"


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run a test module in a pytest of its own."""
    installed = metadata.entry_points(group="pytest11", name="toolpost")
    plugin = [] if installed else ["-p", "toolpost.pytest_plugin"]

    def run(source: str = "", *arguments: str) -> pytest.RunResult:
        if source:
            pytester.makepyfile(test_inner=source)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio", *plugin, *arguments)

    return run


def failed_with(result: pytest.RunResult, *patterns: str) -> None:
    """Check that one test failed, in its call, with these words."""
    result.assert_outcomes(failed=1)
    for pattern in patterns:
        result.stdout.re_match_lines([f".*{pattern}"])


def test_importing_the_plugin_loads_neither_the_engine_nor_the_schemas() -> None:
    source = """
        import sys
        import pytest
        import toolpost.pytest_plugin
        print([name for name in sys.modules if name.startswith("toolpost")])
    """
    out = subprocess.run([sys.executable, "-c", "\n".join(map(str.strip, source.splitlines()))], capture_output=True)
    assert out.stdout.decode().strip() == "['toolpost', 'toolpost.pytest_plugin']", out


def test_the_example_of_the_guide(run: Run) -> None:
    block = re.search(r"^```python[^\n]*\n(import pytest.*?)^```", GUIDE.read_text(), flags=re.M | re.S)
    assert block
    run(block[1]).assert_outcomes(passed=3)


# Bugs of tools

BUGS = """
import asyncio
import pytest
from toolpost import Agent, ScriptModel, ToolError, Toolbox

def lost(key: str) -> str:
    "Look a key up."
    return {}[key]

async def late(key: str) -> str:
    "Look a key up."
    await asyncio.sleep(0)
    return {}[key]

def expected(key: str) -> str:
    "Look a key up."
    raise ToolError.not_found("no such key")

def agent(tool):
    call = {"tool": tool.__name__, "args": {"key": "blue"}}
    return Agent(ScriptModel([{"calls": [call]}, "Done."]), tools=[tool])
"""


@pytest.mark.parametrize(
    "run_line",
    ["agent(lost).run_sync('Go.')", "asyncio.run(awaited(lost))", "asyncio.run(awaited(late))", "agent(late).run_sync('Go.')"],
)
def test_a_bug_of_a_tool_is_raised_in_the_test(run: Run, run_line: str) -> None:
    source = f"""
async def awaited(tool):
    return await agent(tool).run("Go.")

def test_fails():
    {run_line}

def test_expects():
    with pytest.raises(KeyError, match="blue"):
        {run_line}

def test_collects(toolpost_bugs):
    assert {run_line}.text == "Done."
    assert [type(bug) for bug in toolpost_bugs] == [KeyError]

def test_errors_are_no_bugs():
    assert agent(expected).run_sync("Go.").text == "Done."
    with pytest.raises(ToolError):
        Toolbox(lost).call_sync("lost", {{"key": "blue"}})
"""
    result = run(BUGS + source)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.re_match_lines([".*KeyError: 'blue'"])


# Scripts

AGENT = """
from toolpost import Agent, RunError

def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

CALL = {"calls": [{"tool": "add", "args": {"a": 1, "b": 2}}]}
"""


def test_a_script_that_is_played_to_its_end(run: Run) -> None:
    result = run(
        AGENT
        + """
import pytest

def test_requests(toolpost_script):
    model = toolpost_script([CALL, "The sum is {{ last.text }}."], name="sum")
    other = toolpost_script(lambda messages: f"{len(messages)} messages")
    agent = Agent(model, tools=[add], system="Be brief.", temperature=0.5)
    assert agent.run_sync("Go.").text == "The sum is 3."
    assert Agent(other).run_sync("And you?").text == "1 messages"
    first, second = toolpost_script.requests(model)
    assert first.messages == [{"role": "user", "text": "Go."}]
    assert first.system == "Be brief." and first.settings["temperature"] == 0.5
    assert [tool["name"] for tool in first.tools] == ["add"]
    assert first.tools[0]["input_schema"]["required"] == ["a", "b"]
    assert second.messages[-1]["text"] == "3" and second.messages[-1]["tool"] == "add"
    assert [len(request.messages) for request in toolpost_script.requests()] == [1, 3, 1]
    assert not toolpost_script.requests(other)[0].tools
    with pytest.raises(ValueError, match="is not a model of `toolpost_script`"):
        toolpost_script.requests("sum")
"""
    )
    result.assert_outcomes(passed=1)


def test_a_script_serves_several_conversations(run: Run) -> None:
    result = run(
        AGENT
        + """
def test_two(toolpost_script):
    agent = Agent(toolpost_script(["one", "two"]))
    first = agent.run_sync("1")
    assert agent.run_sync("again").text == "one"
    assert agent.run_sync("2", conversation=first).text == "two"
"""
    )
    result.assert_outcomes(passed=1)


def test_unused_turns_fail_the_test(run: Run) -> None:
    result = run(
        AGENT
        + """
def test_unused(toolpost_script):
    model = toolpost_script(["first", "second", {"text": "third"}], name="long")
    assert Agent(model).run_sync("Go.").text == "first"
"""
    )
    failed_with(result, r"script/long: 2 of 3 turns of the script were not played")
    failed_with(result, r"  turn 2: second", r"  turn 3: \{'text': 'third'\}")


def test_a_script_that_is_not_played_fails_the_test(run: Run) -> None:
    failed_with(run("def test_none(toolpost_script): toolpost_script(['first'])"), "script/script: 1 of 1 turns")


def test_a_request_beyond_the_script_fails_the_test(run: Run) -> None:
    result = run(
        AGENT
        + """
def test_beyond(toolpost_script):
    try:
        Agent(toolpost_script([CALL], name="short"), tools=[add]).run_sync("Go.")
    except RunError:
        pass
"""
    )
    failed_with(result, r"script/short: turn 2: all 1 turns of the script were played", r"  last message: .*'add'")


def test_a_wrong_expectation_fails_the_test(run: Run) -> None:
    result = run(
        AGENT
        + """
def test_expect(toolpost_script):
    model = toolpost_script([CALL, {"expect": {"result_contains": "4"}, "text": "four"}])
    try:
        Agent(model, tools=[add]).run_sync("Go.")
    except RunError:
        pass
"""
    )
    failed_with(result, r"result_contains: expected \"4\"")


def test_a_failed_test_reports_its_own_error_alone(run: Run) -> None:
    result = run("def test_own(toolpost_script):\n    toolpost_script(['first'])\n    assert 1 == 2")
    failed_with(result, "assert 1 == 2")
    assert "not played" not in result.stdout.str()


def test_a_rerun_has_scripts_of_its_own(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    runtestprotocol(item, nextitem=nextitem, log=False)
    item._initrequest()
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runtestprotocol(item, nextitem=nextitem)
    return True
"""
    )
    source = """
runs = []

def test_flaky(toolpost_script):
    runs.append(toolpost_script(["Hi."]))
    if len(runs) == 2:
        Agent(runs[1]).run_sync("Go.")
"""
    run(AGENT + source).assert_outcomes(passed=1)


# No network

NETWORK = """
import asyncio, socket, _socket
import pytest
from toolpost import Agent, RunError, Sandbox, Toolbox
from toolpost.pytest_plugin import NetworkBlocked

pytestmark = pytest.mark.usefixtures("no_network")
"""


def test_sockets_reach_no_other_host(run: Run) -> None:
    result = run(
        NETWORK
        + """
import urllib.request

def v6():
    return socket.socket(socket.AF_INET6)

@pytest.mark.parametrize(("target", "connect"), [
    ("192.0.2.1:80", lambda: socket.create_connection(("192.0.2.1", 80), 1)),
    ("192.0.2.1:80", lambda: socket.socket().connect_ex(("192.0.2.1", 80))),
    ("192.0.2.1:80", lambda: _socket.socket().connect(("192.0.2.1", 80))),
    ("192.0.2.1:53", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))),
    ("192.0.2.1:53", lambda: socket.socket(type=socket.SOCK_DGRAM).sendmsg([b"x"], [], 0, ("192.0.2.1", 53))),
    ("2001:db8::1:80", lambda: v6().connect(("2001:db8::1", 80))),
    ("::ffff:192.0.2.1:80", lambda: v6().connect(("::ffff:192.0.2.1", 80))),
    ("api.example.com:80", lambda: socket.socket().connect(("api.example.com", 80))),
    ("api.example.com", lambda: socket.getaddrinfo("api.example.com", 443)),
    ("api.example.com", lambda: socket.gethostbyname("api.example.com")),
    ("api.example.com", lambda: urllib.request.urlopen("https://api.example.com/v1", timeout=1)),
    ("api.example.com", lambda: asyncio.run(asyncio.open_connection("api.example.com", 443))),
    ("192.0.2.1:443", lambda: asyncio.run(asyncio.open_connection("192.0.2.1", 443))),
])
def test_blocked(target, connect):
    with pytest.raises(NetworkBlocked) as caught:
        connect()
    assert f"to `{target}`" in str(caught.value)
"""
    )
    result.assert_outcomes(passed=13)


def test_this_machine_is_reachable(run: Run) -> None:
    result = run(
        NETWORK
        + """
import http.server, threading, urllib.request

@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
def test_http(host):
    server = http.server.HTTPServer((host, 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.handle_request, daemon=True).start()
    url = f"http://{host or '127.0.0.1'}:{server.server_port}/missing"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url, timeout=5)
    server.server_close()

def test_local_sockets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s")
        server.listen()
        client.connect("s")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_INET6) as client:
        client.connect(("::ffff:127.0.0.1", server.getsockname()[1]))
    left, right = socket.socketpair()
    left.sendmsg([b"x"])
    assert right.recv(1) == b"x"
    with socket.socket(type=socket.SOCK_DGRAM) as server, socket.socket(type=socket.SOCK_DGRAM) as client:
        server.bind(("127.0.0.1", 0))
        client.sendto(b"x", server.getsockname())
        client.connect(server.getsockname())
        client.sendmsg([b"y"])
        assert server.recv(1) == b"x" and server.recv(1) == b"y"

def test_asyncio():
    async def main():
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "0.0.0.0", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        assert await reader.read() == b""
        writer.close()
        server.close()
    asyncio.run(main())
"""
    )
    result.assert_outcomes(passed=5)


def test_the_network_returns_after_the_test(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLPOST_NO_NETWORK", raising=False)
    result = run("def test_blocked(no_network): pass")
    result.assert_outcomes(passed=1)
    assert "TOOLPOST_NO_NETWORK" not in os.environ
    import socket

    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        # The kernel may lack a route; the plugin does not interfere.
        try:
            sender.sendto(b"x", ("192.0.2.1", 9))
        except OSError:
            pass


def test_models_reach_no_provider(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://192.0.2.1")
    result = run(
        NETWORK
        + """
# A model from before the fixture, as in the module of an application.
early = Agent("anthropic/claude-x")

@pytest.mark.parametrize("agent", [early, None])
def test_agent(agent):
    agent = agent or Agent("anthropic/claude-x")
    with pytest.raises(RunError, match="may not connect to `192.0.2.1`"):
        agent.run_sync("Hello?")
    with pytest.raises(RunError, match="may not connect to `192.0.2.1`"):
        asyncio.run(agent.run("Hello?"))
"""
    )
    result.assert_outcomes(passed=2)


def test_toolboxes_and_sandboxes_reach_no_host(run: Run) -> None:
    result = run(
        NETWORK
        + """
from toolpost import ToolError

@pytest.mark.parametrize("url", ["https://192.0.2.1/mcp", "wss://192.0.2.1/ws"])
def test_connect(url):
    with pytest.raises(ToolError, match="`?192.0.2.1"):
        Toolbox().connect_sync(url)

def test_builtin():
    toolbox = Toolbox()
    toolbox.connect_sync("builtin:http_request")
    with pytest.raises(ToolError, match="192.0.2.1.*TOOLPOST_NO_NETWORK"):
        toolbox.call_sync("http_request", {"url": "https://192.0.2.1/"}, approve="allow")

def test_sandbox():
    code = "import urllib.request; urllib.request.urlopen('http://1.1.1.1:9/', timeout=2)"
    outcome = Sandbox(allow_hosts=["1.1.1.1:9"]).run_sync(code)
    assert not outcome.ok and "no_network" in str(outcome.to_dict()), outcome.to_dict()
"""
    )
    result.assert_outcomes(passed=4)


# Toolboxes


def test_a_toolbox_of_the_tools_of_the_module(run: Run) -> None:
    result = run(
        """
import pytest
from toolpost import Ctx, tool

@tool
def count(ctx: Ctx, by: int = 1) -> int:
    "Count."
    document = ctx.state("count")
    return document.update_sync(lambda value: (value or 0) + by)

@pytest.fixture
def toolpost_tools():
    return [count]

@pytest.mark.parametrize("attempt", [1, 2])
def test_counts(toolbox, attempt):
    assert not toolbox.records
    assert toolbox.call_sync("count", {"by": 2}).value == 2
    assert [(record["tool"], record["arguments"]) for record in toolbox.records] == [("count", {"by": 2})]
"""
    )
    result.assert_outcomes(passed=2)


def test_a_toolbox_without_tools_and_one_of_a_module(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        app="from toolpost import tool\n@tool\ndef add(a: int, b: int) -> int:\n    'Add.'\n    return a + b"
    )
    result = run(
        """
import pytest, app

def test_empty(toolbox):
    assert len(toolbox) == 0

class TestApp:
    @pytest.fixture
    def toolpost_tools(self):
        return app

    def test_add(self, toolbox):
        assert "add" in toolbox
"""
    )
    result.assert_outcomes(passed=2)


# Cassettes


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A provider that repeats the API key in its answer; the keys that it got."""
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            keys.append(self.headers["authorization"])
            text = f"answer {len(keys)} for {self.headers['authorization']}"
            head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            choices: list[Any] = [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]
            end: list[Any] = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for part in (choices, end):
                self.wfile.write(f"data: {json.dumps({**head, 'choices': part})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OPENAI_COMPATIBLE_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", KEY)
    yield keys
    server.shutdown()
    server.server_close()


CASSETTE = f"""
from toolpost import Agent

class TestAgent:
    def test_city(self, toolpost_cassette, record_property):
        model = toolpost_cassette("openai-compatible/m")
        text = Agent(model).run_sync("Where? My key is {KEY}.").text
        print("text:", text)
        assert text.startswith("answer")
"""


def test_a_cassette_is_recorded_once_and_replayed_without_a_key(
    run: Run, provider: list[str], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(CASSETTE, "--toolpost-record=once").assert_outcomes(passed=1)
    assert provider == [f"Bearer {KEY}"]
    cassette = pytester.path / "cassettes" / "test_inner" / "TestAgent.test_city.jsonl"
    recorded = cassette.read_text()
    assert KEY not in recorded and "answer 1" in recorded and "My key is" in recorded
    # The key and the provider are needed no more.
    run(CASSETTE, "--toolpost-record=once").assert_outcomes(passed=1)
    run(CASSETTE).assert_outcomes(passed=1)
    monkeypatch.delenv("OPENAI_COMPATIBLE_BASE_URL")
    run(CASSETTE.replace(f"My key is {KEY}", "My key is [masked]")).assert_outcomes(failed=1)
    run(CASSETTE, "-s").stdout.re_match_lines([".*text: answer 1"])
    assert len(provider) == 1 and cassette.read_text() == recorded


def test_all_records_again(run: Run, provider: list[str], pytester: pytest.Pytester) -> None:
    for number in (1, 2):
        run(CASSETTE, "--toolpost-record=all").assert_outcomes(passed=1)
        (cassette,) = (pytester.path / "cassettes" / "test_inner").iterdir()
        assert f"answer {number}" in cassette.read_text() and len(cassette.read_text().splitlines()) == 1


def test_a_missing_cassette_fails_with_the_command(run: Run, provider: list[str]) -> None:
    failed_with(
        run(CASSETTE),
        r"the cassette .*/cassettes/test_inner/TestAgent.test_city.jsonl is missing",
        r".*`pytest --toolpost-record=once` and the API key of openai-compatible/m",
    )
    assert not provider


def test_a_request_that_was_not_recorded_fails(run: Run, provider: list[str]) -> None:
    run(CASSETTE, "--toolpost-record=once").assert_outcomes(passed=1)
    failed_with(run(CASSETTE.replace("Where?", "When?")), "differences to request 1", '.*"When?|.*When')


def test_a_failed_test_leaves_the_cassette(run: Run, provider: list[str], pytester: pytest.Pytester) -> None:
    fault = CASSETTE.replace('startswith("answer")', 'startswith("other")')
    run(fault, "--toolpost-record=once").assert_outcomes(failed=1)
    assert not (pytester.path / "cassettes").exists()
    run(CASSETTE, "--toolpost-record=once").assert_outcomes(passed=1)
    (cassette,) = (pytester.path / "cassettes" / "test_inner").iterdir()
    recorded = cassette.read_text()
    run(fault, "--toolpost-record=all").assert_outcomes(failed=1)
    assert cassette.read_text() == recorded


def test_every_model_and_parameter_has_a_cassette(run: Run, provider: list[str], pytester: pytest.Pytester) -> None:
    source = """
import pytest
from toolpost import Agent, Model

@pytest.mark.parametrize("city", ["Oslo", "São/Paulo", "São-Paulo", "x" * 300])
def test_city(toolpost_cassette, city):
    for model in ("openai-compatible/m", Model("openai-compatible/n")):
        assert Agent(toolpost_cassette(model)).run_sync(city).text.startswith("answer")
"""
    run(source, "--toolpost-record=once").assert_outcomes(passed=4)
    names = {path.name for path in (pytester.path / "cassettes" / "test_inner").iterdir()}
    assert len(names) == 8 and {"test_city-Oslo.jsonl", "test_city-Oslo-2.jsonl"} <= names
    run(source).assert_outcomes(passed=4)
    assert len(provider) == 8


def test_a_recording_test_that_asks_nothing_fails(run: Run, provider: list[str], pytester: pytest.Pytester) -> None:
    source = "def test_idle(toolpost_cassette): toolpost_cassette('openai-compatible/m')"
    failed_with(run(source, "--toolpost-record=once"), "nothing to record in .*: the test did not run the model")
    assert not (pytester.path / "cassettes").exists()


def test_recording_lifts_no_network(run: Run, provider: list[str]) -> None:
    source = """
import os, pytest
from toolpost.pytest_plugin import _guard

@pytest.mark.usefixtures("no_network")
def test_lifted(toolpost_cassette, request):
    toolpost_cassette("openai-compatible/m")
    assert not _guard.is_active and "TOOLPOST_NO_NETWORK" not in os.environ
    pytest.skip("nothing is recorded")
"""
    run(source, "--toolpost-record=all").assert_outcomes(skipped=1)
