"""Sandboxes and sessions: outcomes, limits, cancellation."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolpost import Outcome, Sandbox, Session, Toolbox, tool
from toolpost.author import ToolError

ENDLESS = "import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01)"


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox()


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as session:
        yield session


def processes(marker: str) -> list[int]:
    """The processes whose environment has a marker."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for_process(marker: str) -> None:
    until = time.monotonic() + 10
    while not processes(marker):
        assert time.monotonic() < until, "the program did not start"
        time.sleep(0.01)


# Outcomes


def test_a_run_has_output_and_value(sandbox: Sandbox) -> None:
    outcome = sandbox.run_sync("import sys; print('out'); print('err', file=sys.stderr); {'n': 1 + 1}")
    assert outcome.ok and outcome.exit_code == 0
    assert (outcome.stdout, outcome.stderr, outcome.value) == ("out\n", "err\n", {"n": 2})
    assert (outcome.verdict.kind, str(outcome.verdict)) == ("ok", "the program exited with status 0")
    assert 0 < outcome.duration < 30
    assert outcome.level in ("standard", "strict") and "seccomp" in outcome.layers
    assert outcome.usage["wall_ms"] == pytest.approx(outcome.duration * 1000, abs=0.01)
    assert outcome.to_dict()["report"]["effective"] == outcome.level
    assert outcome.raise_for_status() is outcome
    assert repr(outcome).startswith('Outcome(ok, value={"n":2}, ')


def test_a_result_line_is_a_value(sandbox: Sandbox) -> None:
    assert sandbox.run_sync("""echo '::result {"n": 2}'""", "bash").value == {"n": 2}


def test_a_failed_program_is_an_outcome(sandbox: Sandbox) -> None:
    outcome = sandbox.run_sync("raise ValueError('no')")
    assert (outcome.ok, outcome.exit_code, outcome.verdict.kind, outcome.value) == (False, 1, "exit", None)
    assert "ValueError: no" in outcome.stderr
    with pytest.raises(ToolError, match="exited with status 1: ValueError: no") as raised:
        outcome.raise_for_status()
    assert raised.value.code == "DEPENDENCY"


def test_files_and_input_reach_the_program(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "host.txt").write_text("of the host")
    outcome = sandbox.run_sync(
        "import sys; [open(n).read() for n in ('text', 'bytes', 'dir/path')] + [sys.stdin.read(), sys.argv[1:]]",
        files={"text": "é", "bytes": b"raw", "dir/path": tmp_path / "host.txt"},
        stdin="typed",
        args=["-x", "1"],
    )
    assert outcome.value == ["é", "raw", "of the host", "typed", ["-x", "1"]]


def test_new_files_are_artifacts(sandbox: Sandbox) -> None:
    outcome = sandbox.run_sync("open('a.csv', 'w').write('x,y')\nNone")
    (artifact,) = outcome.artifacts
    assert (artifact.name, artifact.media_type, artifact.size, artifact.data) == ("a.csv", "text/csv", 3, b"x,y")


def test_a_tool_returns_an_outcome(sandbox: Sandbox) -> None:
    @tool
    async def python(code: str) -> Outcome:
        """Run Python code."""
        return await sandbox.run(code)

    toolbox = Toolbox(python)
    assert toolbox.specs[0]["output_schema"] == {"type": "object"}
    value = toolbox.call_sync("python", {"code": "open('a.txt', 'w').write('x'); print('out'); [1]"}).value
    assert value == {
        "exit_code": 0,
        "stdout": "out\n",
        "stderr": "",
        "value": [1],
        "artifacts": [{"name": "a.txt", "media_type": "text/plain", "size": 1}],
        "verdict": {"kind": "ok", "message": "the program exited with status 0"},
    }
    # A model gets a table as its text.
    table = "{'type': 'DataFrame', 'shape': [1, 1], 'text': 'table', 'columns': ['a'], 'index': [0], 'data': [[1]]}"
    value = toolbox.call_sync("python", {"code": table}).value["value"]
    assert value == {"type": "DataFrame", "shape": [1, 1], "text": "table"}


def test_commands_run_without_a_shell(sandbox: Sandbox) -> None:
    assert sandbox.exec_sync(["echo", "$HOME", "a b"]).stdout == "$HOME a b\n"
    assert asyncio.run(_exec(sandbox)).stdout == "typed"


async def _exec(sandbox: Sandbox) -> Outcome:
    return await sandbox.exec(["cat"], stdin=b"typed")


def test_the_environment_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "host")
    outcome = Sandbox(env={"OWN": "1"}).run_sync("import os; [os.environ.get(n) for n in ('OWN', 'SECRET')]")
    assert outcome.value == ["1", None]


def test_a_working_directory_gets_checked_changes(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("1")
    outcome = Sandbox(workdir=tmp_path).run_sync("open('out.txt', 'w').write(open('in.txt').read() + '2')\nNone")
    assert outcome.ok and (tmp_path / "out.txt").read_text() == "12"
    assert outcome.to_dict()["changes"]["new"] == ["out.txt"]


def test_output_arrives_as_text(sandbox: Sandbox) -> None:
    code = """
import sys, time
for byte in 'é'.encode():
    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(0.05)
print('bad', file=sys.stderr)
"""
    pieces: list[tuple[str, str, threading.Thread]] = []
    outcome = sandbox.run_sync(code, on_output=lambda *piece: pieces.append((*piece, threading.current_thread())))
    assert pieces == [("stdout", "é", threading.current_thread()), ("stderr", "bad\n", threading.current_thread())]
    assert outcome.stdout == "é"


def test_an_exception_of_the_callback_ends_the_run(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        sandbox.run_sync(ENDLESS, on_output=lambda *_: 1 / 0)
    assert time.monotonic() - begun < 5


# Limits


def test_limits_are_verdicts() -> None:
    slow = Sandbox(timeout=0.3).run_sync(ENDLESS)
    assert slow.verdict.kind == "timeout" and slow.stdout == "up\n"
    with pytest.raises(ToolError, match="timed out after 300 ms") as raised:
        slow.raise_for_status()
    assert raised.value.code == "TIMEOUT"
    assert Sandbox().run_sync(ENDLESS, timeout=0.2).verdict.kind == "timeout"
    big = Sandbox(memory=64 << 20).run_sync("x = b'x' * (300 << 20)")
    if "memory_limit" in big.layers:
        assert (big.verdict.kind, str(big.verdict)) == ("memory", "the program exceeded 64 MiB of memory")
        with pytest.raises(ToolError, match="64 MiB of memory") as raised:
            big.raise_for_status()
        assert raised.value.code == "LIMIT"
    else:
        assert not big.ok
    full = Sandbox(max_output=1000).run_sync("print('x' * 5000)")
    assert "bytes dropped" in full.stdout and len(full.stdout) < 1100


def test_a_program_has_no_network(sandbox: Sandbox) -> None:
    code = "import socket; socket.create_connection(('127.0.0.1', 80), 1)"
    assert sandbox.run_sync(code).exit_code == 1


def test_egress_reaches_allowed_hosts_only() -> None:
    code = """
import urllib.request
try:
    urllib.request.urlopen('http://other.example/', timeout=5)
    found = None
except Exception as error:
    found = str(error)
found
"""
    outcome = Sandbox(allow_hosts=["allowed.example"]).run_sync(code)
    assert "403" in outcome.raise_for_status().value
    assert "egress" in outcome.layers


def test_a_missing_language_names_its_fix_once() -> None:
    programs = {"r": "Rscript", "lua": "lua5.4", "java": "javac", "php": "php", "ruby": "ruby"}
    language = next((language for language, program in programs.items() if shutil.which(program) is None), None)
    if language is None:
        pytest.skip("all languages are installed")
    with pytest.raises(ToolError) as raised:
        Sandbox().run_sync("1", language)
    assert raised.value.code == "PRECONDITION"
    assert str(raised.value).count("apt-get install") == 1


def test_packages_are_installed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = "toolpost_probe-1.0.dist-info"
    files = {
        "toolpost_probe.py": "ANSWER = 42\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: toolpost-probe\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(tmp_path / "toolpost_probe-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sandbox = Sandbox(requirements=["toolpost-probe==1.*"])
    code = "import toolpost_probe; toolpost_probe.ANSWER"
    assert sandbox.run_sync(code).raise_for_status().value == 42
    assert sandbox.run_sync(code).value == 42
    with sandbox.session() as session:
        assert session.run_sync(code).value == 42
    with pytest.raises(ToolError, match="no-such-package") as raised:
        Sandbox(requirements=["no-such-package"]).run_sync("1")
    assert raised.value.code == "DEPENDENCY"


def test_code_uses_a_virtual_environment(tmp_path: Path) -> None:
    directory = tmp_path / "venv"
    venv.create(directory, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "own_module.py").write_text("ANSWER = 42")
    (tmp_path / "secret").write_text("")
    sandbox = Sandbox(venv=directory)
    code = f"import os, sys, own_module; [own_module.ANSWER, sys.prefix, os.path.exists({str(tmp_path / 'secret')!r})]"
    assert sandbox.run_sync(code).raise_for_status().value == [42, str(directory), False]
    with sandbox.session() as session:
        assert session.run_sync(code).value == [42, str(directory), False]
        assert not session.run_sync(f"open({str(packages / 'x')!r}, 'w')").ok
    with pytest.raises(ValueError, match="has no `bin/python3`"):
        Sandbox(venv=tmp_path)


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "strickt"}, "unknown level `strickt`, did you mean `strict`?"),
        ({"memory": 1}, "limit `memory` is 1, expected at least 2097152 bytes"),
        ({"timeout": -1}, "`timeout` must be a number of seconds, found -1"),
        ({"env": {"LD_PRELOAD": "x"}}, "variable `LD_PRELOAD` is not allowed"),
        ({"requirements": ["../x"]}, "requirement `../x` is not allowed"),
        ({"allow_hosts": ["a b"]}, "a b"),
        ({"live": True}, "`live` needs `workdir`"),
    ],
)
def test_an_invalid_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Sandbox(**options)  # type: ignore[arg-type]
    assert message in str(raised.value)


def test_an_invalid_argument_is_named(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="unknown language `pyton`, did you mean `python`?"):
        sandbox.run_sync("1", "pyton")
    with pytest.raises(ValueError, match="file name `../x` is not allowed"):
        sandbox.run_sync("1", files={"../x": ""})
    with pytest.raises(TypeError, match=r'`files\["x"\]` must be a str, bytes or a Path; found `int`'):
        sandbox.run_sync("1", files={"x": 1})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="`on_output` must be a function"):
        sandbox.run_sync("1", on_output=1)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="`workdir` names `/missing`"):
        Sandbox(workdir="/missing")


def test_a_missing_program_is_named(sandbox: Sandbox) -> None:
    with pytest.raises(ToolError, match="program `no-such-program` not found") as raised:
        sandbox.exec_sync(["no-such-program"])
    assert raised.value.code == "NOT_FOUND" and "read_only" in str(raised.value.to_dict() | vars(raised.value))


def test_unavailable_egress_is_an_error() -> None:
    with pytest.raises(ToolError, match="egress is unavailable: ") as raised:
        Sandbox("minimal", allow_hosts=["allowed.example"]).run_sync("1")
    assert raised.value.code == "PERMISSION"


def test_an_unavailable_level_is_an_error() -> None:
    # Root in a user namespace without other users cannot start level `strict`.
    code = """
import sys
from toolpost import Sandbox
from toolpost.author import ToolError
try:
    Sandbox("strict").run_sync("1")
except ToolError as error:
    print(error.code, error.message, vars(error))
"""
    unshare = ["unshare", "--user", "--map-root-user", sys.executable, "-c", code]
    done = subprocess.run(unshare, capture_output=True, text=True, timeout=60)
    if not done.stdout:
        pytest.skip(f"this host gives level `strict`, or no user namespace: {done.stderr}")
    assert done.stdout.startswith("PERMISSION level `strict` is unavailable: "), done.stderr
    assert "allow_degraded=True" in done.stdout


# Cancellation


def test_a_cancelled_await_kills_the_program() -> None:
    marker = f"MARKER_{os.getpid()}_A"
    sandbox = Sandbox(env={marker: "1"})

    async def main() -> None:
        run = asyncio.ensure_future(sandbox.run(ENDLESS))
        while not processes(marker):
            await asyncio.sleep(0.01)
        begun = time.monotonic()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert time.monotonic() - begun < 0.5
        assert processes(marker) == []

    asyncio.run(main())


def test_a_time_limit_of_asyncio_kills_the_program(sandbox: Sandbox) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run(ENDLESS), 0.3)

    asyncio.run(main())


def test_ctrl_c_ends_a_run_at_once() -> None:
    code = f"""
import time
from toolpost import Sandbox
def interrupted(*_):
    global at
    at = time.monotonic()
    raise KeyboardInterrupt
import signal
signal.signal(signal.SIGINT, interrupted)
try:
    Sandbox(env={{"MARKER_{os.getpid()}_B": "1"}}).run_sync({ENDLESS!r}, on_output=lambda *_: print("up", flush=True))
except KeyboardInterrupt:
    print(time.monotonic() - at)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    inner = float(process.stdout.readline())
    elapsed = time.monotonic() - begun
    assert processes(f"MARKER_{os.getpid()}_B") == []
    assert process.wait(10) == 0
    assert inner < 0.1 and elapsed < 0.1


def test_ctrl_c_ends_an_awaited_run() -> None:
    code = f"""
import asyncio
from toolpost import Sandbox
async def main():
    try:
        await Sandbox().run({ENDLESS!r}, on_output=lambda *_: print("up", flush=True))
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise
asyncio.run(main())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "cancelled\n"
    assert time.monotonic() - begun < 0.2
    assert process.wait(10) != 0


def test_other_threads_run_during_a_run(sandbox: Sandbox) -> None:
    ticks = 0
    stop = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stop.wait(0.01):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    sandbox.run_sync("import time; time.sleep(0.5)")
    stop.set()
    thread.join()
    assert ticks > 20


# Several at once


def test_threads_run_sandboxes_at_once(sandbox: Sandbox) -> None:
    values: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: values.append(sandbox.run_sync(f"{n} * 2").value)) for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values) == [n * 2 for n in range(16)]  # type: ignore[type-var]


def test_tasks_run_sandboxes_at_once(sandbox: Sandbox) -> None:
    async def main() -> list[Outcome]:
        return await asyncio.gather(*(sandbox.run(f"import time; time.sleep(0.5); {n}") for n in range(4)))

    begun = time.monotonic()
    assert [outcome.value for outcome in asyncio.run(main())] == [0, 1, 2, 3]
    assert time.monotonic() - begun < 1.9


def test_a_flood_of_output_leaves_the_event_loop_free(sandbox: Sandbox) -> None:
    async def main() -> None:
        code = "while True: print('x' * 4096)"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run(code, on_output=lambda *_: None), 0.5)

    begun = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begun < 2


def test_a_child_process_runs_sandboxes(sandbox: Sandbox) -> None:
    assert sandbox.run_sync("1").value == 1
    child = os.fork()
    if child == 0:
        value = None
        try:
            value = sandbox.run_sync("40 + 2").value
        finally:
            os._exit(0 if value == 42 else 1)
    until = time.monotonic() + 20
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < until:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
    assert ended and status == 0


# Sessions


def test_a_session_keeps_its_state(session: Session) -> None:
    assert session.run_sync("x = 20; open('f', 'w').write('1')").ok
    assert session.run_sync("x + 22").value == 42
    assert (session.language, session.cells, session.ended) == ("python", 2, None)
    assert session.run_sync("open('g').read()", files={"g": "new"}).value == "new"
    failed = session.run_sync("1 / 0")
    assert not failed.ok and "ZeroDivisionError" in failed.stderr
    session.reset_sync(keep_files=True)
    assert "NameError" in session.run_sync("x").stderr
    assert session.run_sync("open('f').read()").value == "1"
    session.reset_sync()
    assert not session.run_sync("open('f')").ok


def test_forks_are_independent(session: Session) -> None:
    session.run_sync("x = 1")
    forks = session.fork_sync(3)
    for number, fork in enumerate(forks):
        assert fork.run_sync(f"x += {number}; x").value == 1 + number
    assert session.run_sync("x").value == 1
    for fork in forks:
        fork.close_sync()
    assert session.run_sync("x").ok


def test_a_session_ends_with_its_block(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run_sync("1")
    assert session.ended == "it was closed" and repr(session) == "Session(python, ended: it was closed)"
    with pytest.raises(ToolError, match="the session has ended: it was closed") as raised:
        session.run_sync("1")
    assert raised.value.code == "PRECONDITION"
    session.close_sync()


def test_a_session_can_be_awaited(sandbox: Sandbox) -> None:
    async def main() -> None:
        async with sandbox.session() as session:
            await session.run("x = 20")
            (fork,) = await session.fork()
            outcome, other = await asyncio.gather(session.run("x"), fork.run("x + 22"))
            assert (outcome.value, other.value) == (20, 42)
            await session.reset()
            assert not (await session.run("x")).ok
            await fork.close()

    asyncio.run(main())


def test_a_cancelled_cell_leaves_the_session_alive(session: Session) -> None:
    async def main() -> None:
        await session.run("x = 1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.run("import time; time.sleep(60)"), 0.3)
        assert (await session.run("x")).value == 1

    asyncio.run(main())


def test_an_interrupt_ends_the_cell_alone(session: Session) -> None:
    session.run_sync("x = 1")
    assert session.interrupt() is False
    threading.Timer(0.2, session.interrupt).start()
    outcome = session.run_sync("import time; time.sleep(60)")
    assert outcome.verdict.kind == "interrupted" and str(outcome.verdict) == "the code was interrupted"
    assert session.run_sync("x").value == 1


def test_a_cell_has_a_time_limit(session: Session) -> None:
    outcome = session.run_sync("import time; time.sleep(60)", timeout=0.2)
    assert outcome.verdict.message == "the code was interrupted at its time limit"
    assert session.run_sync("1").value == 1


def test_close_cancels_the_running_cell(sandbox: Sandbox) -> None:
    async def main() -> None:
        session = sandbox.session()
        await session.run("1")
        cell = asyncio.ensure_future(session.run("import time; time.sleep(60)"))
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        await session.close()
        assert (await cell).verdict.kind in ("interrupted", "cancelled")
        assert time.monotonic() - begun < 5

    asyncio.run(main())


def test_a_session_runs_one_cell_at_a_time(session: Session) -> None:
    async def main() -> None:
        await session.run("1")
        first = asyncio.ensure_future(session.run("import time; time.sleep(0.4); 1"))
        await asyncio.sleep(0.2)
        with pytest.raises(ToolError, match="a cell is running"):
            await session.run("2")
        assert (await first).value == 1

    asyncio.run(main())


def test_a_dropped_session_ends() -> None:
    marker = f"MARKER_{os.getpid()}_C"
    session = Sandbox(env={marker: "1"}).session()
    session.run_sync("1")
    assert processes(marker)
    del session
    until = time.monotonic() + 5
    while processes(marker):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_session_survives_its_starting_thread(sandbox: Sandbox) -> None:
    session = sandbox.session()
    thread = threading.Thread(target=lambda: session.run_sync("x = 1"))
    thread.start()
    thread.join()
    assert session.run_sync("x").value == 1
    session.close_sync()


def test_only_interpreters_have_sessions(sandbox: Sandbox) -> None:
    with pytest.raises(ToolError) as raised:
        sandbox.session("bash").run_sync("1")
    assert raised.value.code == "PRECONDITION"
