"""Options whose effect no other test shows."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import toolpost.author
from toolpost import Agent, Ctx, Flow, RecordingModel, RunError, Sandbox, ScriptModel, Toolbox, ToolError, tool
from toolpost.author import Artifact, Sample, prompt, resource


@tool
def facts(ctx: Ctx) -> dict[str, Any]:
    """Return the facts of the call."""
    own: Any = ctx
    return {
        "user": ctx.caller.get("identity"),
        "metadata": dict(ctx.metadata),
        "key": ctx.idempotency_key,
        "dir": str(ctx.working_dir),
        "level": own._facts.get("level"),
        "remaining": ctx.remaining,
        "context": own.context,
    }


# Calls


@pytest.mark.parametrize(
    ("option", "value", "fact"),
    [
        ("user", "ann", "user"),
        ("metadata", {"tenant": 7}, "metadata"),
        ("idempotency_key", "k1", "key"),
        ("working_dir", "/usr", "dir"),
        ("context", "database", "context"),
    ],
)
def test_an_option_of_a_call_reaches_the_tool(option: str, value: Any, fact: str) -> None:
    toolbox = Toolbox(facts)
    options: Any = {option: value}
    assert toolbox.call_sync("facts", **options).value[fact] == value

    async def main() -> Any:
        return (await toolbox.call("facts", **options)).value[fact]

    assert asyncio.run(main()) == value
    assert toolbox.call_sync("facts").value[fact] != value


def test_a_deadline_includes_the_queue() -> None:
    @tool
    def slow() -> None:
        """Wait."""
        time.sleep(0.3)

    toolbox = Toolbox(slow, facts, concurrency=1)
    assert 0 < toolbox.call_sync("facts", deadline=5).value["remaining"] <= 5
    first = threading.Thread(target=lambda: toolbox.call_sync("slow"))
    first.start()
    time.sleep(0.1)
    with pytest.raises(ToolError) as raised:
        toolbox.call_sync("facts", deadline=0.05)
    assert raised.value.code == "TIMEOUT"
    first.join()


def test_timeouts_of_a_toolbox_and_of_a_call() -> None:
    @tool
    async def slow() -> str:
        """Wait."""
        await asyncio.sleep(0.3)
        return "done"

    for toolbox, options in ((Toolbox(slow, timeout=0.05), {}), (Toolbox(slow), {"timeout": 0.05})):
        with pytest.raises(ToolError) as raised:
            toolbox.call_sync("slow", **options)  # type: ignore[arg-type]
        assert raised.value.code == "TIMEOUT"


def test_retries_repeat_a_failed_call() -> None:
    attempts = []

    @tool(idempotent=True)
    def flaky(ctx: Ctx) -> int:
        """Fail once."""
        attempts.append(ctx.attempt)
        if ctx.attempt < 2:
            raise ToolError.dependency("no answer")
        return ctx.attempt

    toolbox = Toolbox(flaky)
    with pytest.raises(ToolError):
        toolbox.call_sync("flaky", retries=0)
    assert toolbox.call_sync("flaky", retries=1).value == 2
    assert attempts == [1, 1, 2]


def test_priority_orders_queued_calls() -> None:
    order = []

    @tool
    async def note(name: str) -> None:
        """Note the order."""
        order.append(name)
        await asyncio.sleep(0.1)

    async def main() -> None:
        toolbox = Toolbox(note, concurrency=1)

        async def call(name: str, priority: Any) -> None:
            await toolbox.call("note", {"name": name}, priority=priority)

        tasks = []
        for name, priority in (("first", "normal"), ("low", "low"), ("critical", "critical")):
            tasks.append(asyncio.create_task(call(name, priority)))
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert order == ["first", "critical", "low"]


def test_no_cache_runs_the_tool() -> None:
    runs = []

    @tool(idempotent=True, cache=60)
    def count() -> int:
        """Count the runs."""
        runs.append(1)
        return len(runs)

    toolbox = Toolbox(count)
    values = [toolbox.call_sync("count").value, toolbox.call_sync("count").value]
    assert values == [1, 1] and toolbox.call_sync("count", no_cache=True).value == 2


def test_validate_and_mock_run_nothing() -> None:
    @tool
    def forecast(city: str) -> str:
        """Forecast."""
        raise AssertionError("the tool ran")

    toolbox = Toolbox(forecast)
    toolbox.call_sync("forecast", {"city": "Oslo"}, validate=True)
    with pytest.raises(ToolError, match="INVALID_INPUT"):
        toolbox.call_sync("forecast", {"city": 1}, validate=True)
    assert isinstance(toolbox.call_sync("forecast", {"city": "Oslo"}, mock=True).value, str)


def test_the_level_of_a_call_confines_its_code() -> None:
    toolbox = Toolbox()
    toolbox.connect_sync("builtin:run_code")
    arguments = {"language": "python", "code": "1"}
    # A call cannot request less than the default of the host.
    for level in ("standard", "strict"):
        record = toolbox.call_sync("run_code", arguments, level=level, approve="allow").record
        assert record["sandbox"]["report"]["requested"] == "strict"
    assert toolbox.call_sync("run_code", arguments, approve="allow").record["sandbox"]["report"]["requested"] is None


def test_toolboxes_and_scripts_have_a_name() -> None:
    assert ScriptModel(["hi"], name="sum").name == "script/sum"
    assert "mail" in json.dumps(Toolbox(facts, name="mail").call_sync("facts").record)


def test_a_log_has_the_changes_of_a_range() -> None:
    document = Toolbox().state("counter")
    for value in range(5):
        document.set_sync(value)
    assert [change["version"] for change in document.log_sync(2, 2)] == [3, 4]
    assert [change["version"] for change in document.log_sync(after=3)] == [4, 5]

    async def main() -> list[Any]:
        return await document.log(after=1, limit=1)

    assert [change["version"] for change in asyncio.run(main())] == [2]


# Runs


async def _stream(agent: Agent, **options: Any) -> Any:
    events = agent.stream("Go.", **options)
    async for _ in events:
        pass
    return events.result


RUNS: list[Callable[..., Any]] = [
    lambda agent, **options: agent.run_sync("Go.", **options),
    lambda agent, **options: asyncio.run(_await(agent, **options)),
    lambda agent, **options: asyncio.run(_stream(agent, **options)),
]


async def _await(agent: Agent, **options: Any) -> Any:
    return await agent.run("Go.", **options)


@pytest.mark.parametrize("run", RUNS, ids=["run_sync", "run", "stream"])
def test_the_options_of_a_run(run: Callable[..., Any]) -> None:
    seen: list[Any] = []

    @tool(approval="ask")
    def work(ctx: Ctx) -> Any:
        """Work."""
        own: Any = ctx
        ctx.progress("half", 50.0)
        ctx.log("info", "working")
        ctx.artifact_sync("a.txt", b"abc")
        answer = ctx.ask_sync("Name?")
        return [answer, ctx.caller["identity"], ctx.metadata, own.context, (ctx.remaining or 99) < 30]

    agent = Agent(ScriptModel([{"calls": [{"tool": "work"}]}, "{{ last.text }}"]), tools=[work])
    options = {
        "context": "database",
        "approve": lambda name, arguments: name == "work",
        "ask": lambda message, schema: "Ann",
        "on_progress": lambda *progress: seen.append(progress),
        "on_log": lambda *line: seen.append(line),
        "on_artifact": lambda artifact: seen.append(artifact["name"]),
        "user": "ann",
        "metadata": {"tenant": 7},
        "deadline": 30,
    }
    result = run(agent, **options)
    assert json.loads(result.text) == ["Ann", "ann", {"tenant": 7}, "database", True]
    assert seen == [("half", 50.0), ("info", "working"), "a.txt"]


@pytest.mark.parametrize("run", RUNS, ids=["run_sync", "run", "stream"])
def test_a_run_continues_a_conversation(run: Callable[..., Any]) -> None:
    agent = Agent(ScriptModel(lambda messages: f"{len(messages)} messages"))
    first = agent.run_sync("Hi.")
    assert run(agent, conversation=first.conversation).text == "3 messages"
    assert run(agent, conversation=first).text == "3 messages"


def test_an_agent_stops_at_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            usage = {"input_tokens": 1_000_000, "output_tokens": 1}
            call = {"type": "tool_use", "id": f"toolu_{time.monotonic_ns()}", "name": "facts", "input": {}}
            message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "content": []}
            events: list[dict[str, Any]] = [
                {"type": "message_start", "message": {**message, "model": "claude-sonnet-5-5", "usage": usage}},
                {"type": "content_block_start", "index": 0, "content_block": call},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
                {"type": "message_stop"},
            ]
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for event in events:
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-of-the-test")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    with pytest.raises(RunError) as raised:
        Agent("anthropic/claude-sonnet-5-5", tools=[facts], max_cost_usd=0.01, max_iterations=4).run_sync("Go.")
    assert raised.value.stop_reason == "max_cost" and (raised.value.result.cost_usd or 0) > 0.01
    server.shutdown()
    server.server_close()


def test_an_agent_stops_at_its_iterations() -> None:
    agent = Agent(ScriptModel(lambda messages: {"calls": [{"tool": "facts"}]}), tools=[facts], max_iterations=2)
    with pytest.raises(RunError) as raised:
        agent.run_sync("Go.")
    assert raised.value.stop_reason == "max_iterations" and len(raised.value.result.calls) <= 2


def test_an_agent_has_an_effort(tmp_path: Path) -> None:
    model = RecordingModel(ScriptModel(["Hi."]), tmp_path / "run.jsonl")
    Agent(model, effort="low").run_sync("Go.")
    settings = json.loads((tmp_path / "run.jsonl").read_text())["request"]["settings"]
    assert settings["effort"] == "low"


# Servers


def test_options_of_connections_and_servers(tmp_path: Path) -> None:
    toolbox = Toolbox(facts)

    async def main() -> None:
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            toolbox.serve(
                http="127.0.0.1:0",
                token="t0ken-of-the-test",
                name="mail",
                version="7.8.9",
                instructions="Be kind.",
                on_ready=url.set_result,
            )
        )
        address = await url
        with pytest.raises(ToolError, match="requires authorization"):
            await Toolbox().connect(address)
        client = Toolbox()
        await client.connect(address, token="t0ken-of-the-test")
        assert "facts" in client
        about = await asyncio.to_thread(_initialize, address)
        assert about["serverInfo"]["name"] == "mail" and about["serverInfo"]["version"] == "7.8.9"
        assert "Be kind." in about["instructions"]
        server.cancel()

    asyncio.run(main())


def _initialize(address: str) -> Any:
    client = {"name": "test", "version": "1"}
    body = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    request = urllib.request.Request(
        address,
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": body}).encode(),
        {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Authorization": "Bearer t0ken-of-the-test",
        },
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        for line in answer:
            text = line.decode().removeprefix("data:").strip()
            if text.startswith("{"):
                return json.loads(text)["result"]
    raise AssertionError("no answer")


PROGRAM = """#!{python}
import os, sys
sys.path.insert(0, {author!r})
from author import main, tool

@tool
def variable(name: str) -> str:
    "Return a variable."
    return os.environ.get(name, "")

@tool
def is_visible(path: str) -> bool:
    "Return whether a path of the host is visible."
    return os.path.exists(path)

main(variable, is_visible, name="weather-tools", version="7.8.9")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program"
    file.write_text(PROGRAM.format(python=sys.executable, author=str(Path(toolpost.author.__file__).parents[1])))
    file.chmod(0o755)
    return file


def test_a_program_has_its_variables_and_level(program: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("host") / "a.txt"
    outside.write_text("abc")
    toolbox = Toolbox()
    # A stricter level hides the files of the host.
    toolbox.connect_sync(str(program), env={"CITY": "Oslo"}, level="minimal")
    assert toolbox.call_sync("variable", {"name": "CITY"}).value == "Oslo"
    assert toolbox.call_sync("is_visible", {"path": str(outside)}).value is True


def test_main_has_a_name_and_a_version(program: Path) -> None:
    out = [
        subprocess.run([program, *args], capture_output=True, text=True).stdout for args in (["--version"], ["--help"])
    ]
    assert "7.8.9" in out[0] + out[1] and "weather-tools" in out[0] + out[1]


# Sandboxes


def test_limits_of_a_sandbox() -> None:
    code = "import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, args=(1,)).start()"
    few = Sandbox(pids=16).run_sync(code)
    assert not few.ok and Sandbox().run_sync(code).ok
    with pytest.raises((ValueError, ToolError), match="cpu|processor"):
        Sandbox(cpu=-1.0).run_sync("1")


def test_host_paths_of_a_sandbox(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "a.txt").write_text("abc")
    read = f"print(open({str(tmp_path / 'in' / 'a.txt')!r}).read())"
    write = f"open({str(tmp_path / 'out' / 'b.txt')!r}, 'w').write('b')"
    assert Sandbox(read_only=[tmp_path / "in"]).run_sync(read).stdout == "abc\n"
    assert not Sandbox().run_sync(read).ok
    assert Sandbox(read_write=[tmp_path / "out"]).run_sync(write).ok
    assert (tmp_path / "out" / "b.txt").read_text() == "b"


def test_options_of_a_command(tmp_path: Path) -> None:
    pieces: list[Any] = []
    sandbox = Sandbox()
    outcome = sandbox.exec_sync(["cat", "a.txt"], files={"a.txt": "abc"}, on_output=lambda *piece: pieces.append(piece))
    assert outcome.stdout == "abc" and pieces == [("stdout", "abc")]
    begun = time.monotonic()
    assert sandbox.exec_sync(["sleep", "20"], timeout=0.2).verdict.kind == "timeout"
    assert sandbox.run_sync("import time; time.sleep(20)", timeout=0.2).verdict.kind == "timeout"
    assert time.monotonic() - begun < 10


def test_options_of_a_session() -> None:
    pieces: list[Any] = []
    with Sandbox().session() as session:
        session.run_sync("print('hi')", on_output=lambda *piece: pieces.append(piece))
        assert "".join(text for _, text in pieces) == "hi\n"
        forks = session.fork_sync(3)
        assert len(forks) == 3
        for fork in forks:
            fork.close_sync()
        begun = time.monotonic()
        session.run_sync("import time; time.sleep(20)", timeout=0.2)
        assert time.monotonic() - begun < 10


# Workflows

TWO_CALLS = """
kind: flow
name: two
steps:
  - { id: ok, approve: "Continue?" }
  - { id: all, needs: ok, map: "${{ [1, 2, 3, 4] }}", steps: [{ id: it, tool: meet, with: { value: "${{ item }}" } }] }
"""


def test_options_of_a_resumed_flow(tmp_path: Path) -> None:
    store = tmp_path / "flows.db"
    lock, running, most = threading.Lock(), 0, 0

    def meet(value: int) -> int:
        """Count the calls at once."""
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        if value == 4:
            raise ToolError.dependency("no answer")
        return value

    toolbox = Toolbox(meet)
    flow = Flow.from_yaml(TWO_CALLS)
    events: list[Any] = []

    async def pause() -> str:
        seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def watch(event: Any) -> None:
            if not seen.done():
                seen.set_result(event["run"])

        task = asyncio.ensure_future(flow.run(toolbox, store=store, on_progress=watch))
        run = await seen
        await asyncio.sleep(0.1)
        task.cancel()
        return run

    run = asyncio.run(pause())
    Flow.approve_sync(run, "ok", store=store)
    with pytest.raises(ValueError, match="expected none, normal or full"):
        Flow.resume_sync(run, toolbox, store=store, durability="some")  # type: ignore[arg-type]
    result = Flow.resume_sync(
        run, toolbox, store=store, durability="none", max_parallel=1, on_progress=events.append, check=False
    )
    assert result.status == "failed" and most == 1 and events and events[0]["run"] == run


def test_max_parallel_limits_a_flow() -> None:
    running, most = 0, 0

    async def meet(value: int) -> int:
        """Count the calls at once."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return value

    plan = TWO_CALLS.replace('  - { id: ok, approve: "Continue?" }\n', "").replace("needs: ok, ", "")
    flow = Flow.from_yaml(plan)
    flow.run_sync(Toolbox(meet))
    assert most > 1
    most = 0
    flow.run_sync(Toolbox(meet), max_parallel=1)
    assert most == 1


# Authors


@pytest.mark.parametrize(
    "code",
    ["invalid_input", "missing_param", "invalid_path", "not_found", "conflict", "precondition", "timeout", "permission",
     "internal", "dependency", "overloaded", "limit", "cancelled"],
)  # fmt: skip
def test_every_error_has_a_suggestion(code: str) -> None:
    error = getattr(ToolError, code)("no", suggestion="Try Oslo.")
    assert error.code == code.upper() and error.suggestion == "Try Oslo."


def test_an_artifact_has_a_media_type() -> None:
    assert Artifact("a.bin", b"a", "text/csv").to_dict()["media_type"] == "text/csv"
    assert Sample("hi", usage={"input_tokens": 1}).usage == {"input_tokens": 1}

    @tool
    async def send(ctx: Ctx) -> None:
        """Send a file."""
        await ctx.artifact("a.bin", b"a", "text/csv")
        await asyncio.to_thread(ctx.artifact_sync, "b.bin", b"b", "text/tsv")

    types: list[str] = []
    Toolbox(send).call_sync("send", on_artifact=lambda artifact: types.append(artifact["media_type"]))
    assert types == ["text/csv", "text/tsv"]


def test_a_question_has_a_type_and_a_prompt_its_settings() -> None:
    seen: list[Any] = []

    @tool
    def work(ctx: Ctx) -> Any:
        """Work."""
        settings: Any = {"system": "Be brief.", "max_tokens": 5, "temperature": 0.5, "stop_sequences": ["."]}
        ctx.sample_sync("Say hi.", **settings)
        return ctx.ask_sync("Days?", int)

    def ask(message: str, schema: Any) -> Any:
        seen.append(schema)
        return 3

    def sample(request: Any) -> str:
        seen.append(request)
        return "hi"

    reply = Toolbox(work).call_sync("work", ask=ask, sample=sample)
    assert reply.value == 3
    request, schema = seen
    assert {key: request[key] for key in ("system", "max_tokens", "temperature")} == {
        "system": "Be brief.",
        "max_tokens": 5,
        "temperature": 0.5,
    }
    assert request["stop_sequences"] == ["."] and schema["type"] == "integer"


def test_a_context_has_its_attempt_and_its_questions_a_name() -> None:
    questions = []

    class Caller(Ctx):
        def _wait(self, verb: str, body: dict[str, Any]) -> Any:
            questions.append(body["question"]["name"])
            return {"answer": "given", "value": "3"}

    ctx = Caller(attempt=3)
    assert ctx.attempt == 3 and ctx.ask_sync("Days?", name="days") == "3" and questions == ["days"]


def test_options_of_a_definition() -> None:
    @tool(name="job", destructive=True, open_world=True, placement="worker", memory=1 << 30)
    def work() -> None:
        """Work."""

    spec = work.spec()
    assert spec["name"] == "job"
    assert spec["annotations"]["destructive"] is True and spec["annotations"]["open_world"] is True
    assert spec["policy"]["placement"] == "worker" and str(1 << 30) in json.dumps(spec)


def test_names_of_resources_and_prompts() -> None:
    @resource("notes://{id}", name="notes", description="The notes.")
    def read(id: str) -> str:
        """Read."""
        return id

    @prompt(name="review", description="Review code.", tags=["code"])
    def check() -> str:
        """Check."""
        return ""

    assert (read.spec()["name"], read.spec()["description"]) == ("notes", "The notes.")
    assert (check.spec()["name"], check.spec()["description"], check.spec()["tags"]) == (
        "review",
        "Review code.",
        ["code"],
    )
