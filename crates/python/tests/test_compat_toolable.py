"""`toolpost.compat.toolable`: the test suite of toolable, and our own tests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

import toolpost
from toolpost.compat.toolable import AgentCLI, Response, ToolError, ToolRegistry, notify, sample, toolable
from toolpost.compat.toolable.streaming import StreamEvent

PEERS = os.environ.get("TOOLPOST_PEERS")
TABLE = Path(__file__).with_name("toolable_expected.toml")
PACKAGE = Path(toolpost.__file__).parents[1]


@pytest.mark.skipif(not PEERS, reason="TOOLPOST_PEERS does not name the directory with toolable/tests")
def test_the_suite_of_toolable_fails_only_where_the_table_says(tmp_path: Path) -> None:
    assert PEERS
    suite = Path(PEERS, "toolable", "tests")
    for source in suite.rglob("*.py"):
        target = tmp_path / "tests" / source.relative_to(suite)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(re.sub(r"\b(from|import) toolable\b", r"\1 toolpost.compat.toolable", source.read_text()))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml", "tests"]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTEST_ADDOPTS": ""}
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    cases = list(xml.etree.ElementTree.parse(tmp_path / "report.xml").iter("testcase"))
    not_passed = {f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}" for case in cases if len(case)}
    table = tomllib.loads(TABLE.read_text())
    assert len(cases) == table.pop("tests")
    expected = {f"{module}.{test}" for module, tests in table.items() for test in tests}
    assert not_passed - expected == set(), "new failures; fix them:\n" + run.stdout
    assert expected - not_passed == set(), f"these tests pass now; remove them from {TABLE.name}"


@toolable(summary="Add two numbers", examples=[{"a": 1, "b": 2}], tags=["math"])
def add(a: int, b: int = 2) -> dict[str, int]:
    """Add integers."""
    notify.progress("half", 50)
    return {"sum": a + b}


@toolable(summary="Count", streaming=True)
def count(n: int) -> Any:
    for number in range(n):
        yield StreamEvent.progress(str(number))
    yield StreamEvent.result(Response.success({"n": n}))


@toolable(summary="Import what exists")
def load() -> dict[str, Any]:
    missing = {"code": "NOT_FOUND", "message": "no b.txt", "recoverable": True}
    return Response.partial({"loaded": ["a.txt"]}, [missing])


@toolable(summary="Fail")
def fail(status: str = "") -> dict[str, Any]:
    if status:
        return {"status": status}
    raise ToolError("CONFLICT", "taken", suggestion="Retry.", context={"row": 1})


PROGRAM = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(PACKAGE)!r})
from toolpost.compat.toolable import AgentCLI, Response, ToolError, prompt, resource, sample, toolable
from toolpost.compat.toolable.session import SessionEvent

@toolable(summary="Divide")
def divide(a: float, b: float):
    print("a stray line")
    if b == 0:
        raise ToolError("INVALID_INPUT", "b is 0", suggestion="Use another divisor.")
    return {{"quotient": a / b}}

@toolable(summary="Echo", session_mode=True)
def echo(deaf: bool = False):
    reply = yield SessionEvent.start("hello")
    while deaf or reply.get("action") != "quit":
        reply = yield {{"type": "echo", "of": reply}}
    yield SessionEvent.end()

@toolable(summary="Load")
def load():
    return Response.partial({{"ids": [1]}}, [{{"code": "NOT_FOUND", "message": "no 2", "recoverable": True}}])

@toolable(summary="Ask the model")
def ask():
    return {{"text": sample("Why?", max_tokens=5)}}

@resource("/notes/{{id}}", "A note")
def note(id: str):
    return {{"id": id}}

@prompt("Greet", {{"name": "Whom"}})
def greet(name: str):
    return f"Hello {{name}}"

cli = AgentCLI("demo", [divide, echo, load, ask])
cli.register_resource(note)
cli.register_prompt(greet)
cli.run()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "demo.py"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return path


def run(program: Path, *words: str, stdin: str = "") -> tuple[int, list[Any]]:
    """Run a program; return its exit code and the JSON lines of its standard output."""
    done = subprocess.run([program, *words], input=stdin, capture_output=True, text=True, timeout=30)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_a_program_prints_envelopes_and_exits_with_a_code(program: Path) -> None:
    assert run(program, "divide", "--a", "3", "--b", "2") == (0, [{"status": "success", "result": {"quotient": 1.5}}])
    code, [envelope] = run(program, "divide", '{"a": 1, "b": 0}')
    assert (code, envelope["error"]["suggestion"]) == (1, "Use another divisor.")
    code, [envelope] = run(program, "divide", '{"a": 1}')
    assert (code, envelope["error"]["code"]) == (1, "MISSING_PARAM")


def test_a_session_exchanges_the_events_of_the_generator(program: Path) -> None:
    code, lines = run(program, "echo", "--session", stdin='{"x": 1}\n')
    assert code == 0 and lines == [
        {"type": "session_start", "message": "hello", "prompt": "> "},
        {"type": "echo", "of": {"x": 1}},
        {"type": "session_end", "status": "success"},
        {"status": "success"},
    ]


def test_a_session_that_ignores_the_end_of_the_input_is_stopped(program: Path) -> None:
    code, lines = run(program, "echo", "--session", "--deaf")
    assert code == 130 and len(lines) < 20 and "ignored" in lines[-1]["error"]["message"]


def test_sampling_reads_the_reply_to_its_request(program: Path) -> None:
    command = [str(program), "ask", "--sample-via", "stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        request = json.loads(child.stdout.readline())
        assert (request["type"], request["prompt"], request["max_tokens"]) == ("sample_request", "Why?", 5)
        child.stdin.write(json.dumps({"type": "sample_response", "id": request["id"], "content": "Because."}) + "\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["result"] == {"text": "Because."}


def test_tools_run_in_a_toolbox_with_checks_and_events() -> None:
    events: list[dict[str, Any]] = []
    toolbox = toolpost.Toolbox(add, count, load, on_event=events.append)
    assert toolbox.call_sync("add", {"a": 1}).value == {"sum": 3}
    assert toolbox.call_sync("count", {"n": 2}).value == {"n": 2}
    reply = toolbox.call_sync("load")
    assert (reply.value, reply.record["status"]) == ({"loaded": ["a.txt"]}, "partial")
    assert [event["message"] for event in events if event["type"] == "call.progress"] == ["half", "0", "1"]
    with pytest.raises(toolpost.ToolError, match="expected integer"):
        toolbox.call_sync("add", {"a": "x"})


def test_an_error_keeps_its_facts_and_a_status_is_no_envelope() -> None:
    toolbox = toolpost.Toolbox(fail)
    with pytest.raises(toolpost.ToolError) as caught:
        toolbox.call_sync("fail")
    error = caught.value
    assert (error.code, error.message, error.suggestion, error.context) == ("CONFLICT", "taken", "Retry.", {"row": 1})
    assert toolbox.call_sync("fail", {"status": "success"}).value == {"status": "success"}


def test_a_model_checks_redacts_and_plans() -> None:
    from toolpost.compat.toolable import ToolInput

    class Login(ToolInput):
        user: str
        password: str
        dry_run: bool = False

        def pre_validate(self) -> None:
            if self.user == "root":
                raise ToolError("PERMISSION", "root has no login")

        def to_log_safe(self) -> dict[str, Any]:
            return {"user": self.user}

    @toolable(summary="Log in", input_model=Login)
    def login(input: Login) -> dict[str, str]:
        return {"user": input.user}

    toolbox = toolpost.Toolbox(login)
    given = {"user": "ada", "password": "secret"}
    assert toolbox.call_sync("login", given).value == {"user": "ada"}
    plan = {"dry_run": True, "would_execute": {"user": "ada"}}
    assert toolbox.call_sync("login", {**given, "dry_run": True}).value == plan
    assert toolbox.call_sync("login", given, dry_run=True).value == plan
    for arguments, code in [({"user": "ada"}, "MISSING_PARAM"), ({**given, "user": "root"}, "PERMISSION")]:
        with pytest.raises(toolpost.ToolError) as caught:
            toolbox.call_sync("login", arguments)
        assert caught.value.code == code


def test_methods_are_tools_of_their_instance() -> None:
    class Counter:
        value = 1

        @toolable(summary="Increase")
        def increase(self, by: int) -> dict[str, int]:
            return {"value": self.value + by}

    assert Counter().increase(by=1) == {"value": 2}
    assert toolpost.Toolbox(Counter()).call_sync("increase", {"by": 2}).value == {"value": 3}


def test_run_returns_and_restores_the_streams_if_stdout_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, os.fstat(0), os.fstat(1)
    monkeypatch.setattr(sys, "argv", ["add", '{"a": 1}'])
    AgentCLI(add).run()
    assert json.loads(capsys.readouterr().out)["result"] == {"sum": 3}
    assert (sys.stdout, os.fstat(0), os.fstat(1)) == before


def test_a_registry_runs_programs_in_the_sandbox(program: Path, tmp_path: Path) -> None:
    registry = ToolRegistry([program, tmp_path / "missing.py"])
    assert registry.discover() == {"divide": "Divide", "echo": "Echo", "load": "Load", "ask": "Ask the model"}
    assert registry.schema("divide")["schema"]["required"] == ["a", "b"]
    assert registry.call("divide", {"a": 3, "b": 2}) == {"status": "success", "result": {"quotient": 1.5}}
    assert registry.call("divide", {"a": 3, "b": 0})["error"]["message"] == "b is 0"
    assert registry.call("load", {})["summary"]["failed"] == 1
    assert registry.fetch_resource("/notes/7") == {"id": "7"}
    assert registry.render_prompt("greet", {"name": "Ada"}) == "Hello Ada"
    (tmp_path / "broken.py").write_text("import no_such_module")
    with pytest.warns(UserWarning, match="(?s)Failed to load tool.*no_such_module"):
        ToolRegistry([tmp_path / "broken.py"])


def test_pydantic_loads_only_for_models(program: Path) -> None:
    code = "import sys, toolpost.compat.toolable as t; assert 'pydantic' not in sys.modules; t.ToolInput"
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    assert subprocess.run([sys.executable, "-c", code], env=env, timeout=30).returncode == 0


def test_sampling_outside_of_a_call_needs_a_known_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolpost.compat.toolable import sampling

    for via, error in [("carrier pigeon", ValueError), ("http://127.0.0.1:1/", toolpost.ToolError)]:
        monkeypatch.setitem(sampling._sample_config, "via", via)
        with pytest.raises(error):
            sample("Why?")
