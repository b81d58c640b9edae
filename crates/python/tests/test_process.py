"""Signals, forks and exits of the interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolpost import Toolbox, author

Script = Callable[..., Any]

SETUP = """
import asyncio, os, sys, threading, time
from toolpost import Toolbox, tool

@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b

@tool
async def later(a: int) -> int:
    "Wait."
    await asyncio.sleep(0.01)
    return a

@tool
def block() -> None:
    "Block."
    print("ready", flush=True)
    time.sleep(60)

@tool
async def hang() -> None:
    "Hang."
    print("ready", flush=True)
    await asyncio.sleep(60)

toolbox = Toolbox(add, later, block, hang)
"""


WAITS = {
    "a blocking tool": 'toolbox.call_sync("block")',
    "an async tool": 'toolbox.call_sync("hang")',
    "an inline tool": 'toolbox.call_sync("inline")',
    "a busy tool": 'toolbox.call_sync("busy")',
    "a nested call": 'toolbox.call_sync("nested", {"tool": "hang"})',
    "an async callback": 'toolbox.call_sync("asks", ask=ask)',
    "an awaited blocking tool": 'asyncio.run(awaited(toolbox.call("block")))',
    "an awaited async tool": 'asyncio.run(awaited(toolbox.call("hang")))',
    "an awaited nested call": 'asyncio.run(awaited(toolbox.call("nested", {"tool": "hang"})))',
    "an awaited callback": 'asyncio.run(awaited(toolbox.call("asks", ask=ask)))',
    "an awaited plain callback": 'asyncio.run(awaited(toolbox.call("asks", ask=ask_plainly)))',
    "an agent": 'agent("hang").run_sync("Go.")',
    "an awaited agent": 'asyncio.run(awaited(agent("hang").run("Go.")))',
    "a sandbox": "Sandbox().run_sync(CODE, on_output=ready)",
    "an awaited sandbox": "asyncio.run(awaited(Sandbox().run(CODE, on_output=ready)))",
    "a chatty sandbox": 'Sandbox().run_sync("while True: print(1, flush=True)", on_output=ready)',
    "a session": "Sandbox().session().run_sync(CODE, on_output=ready)",
    "a server": 'toolbox.serve_sync(http="127.0.0.1:0", on_ready=ready)',
    "an awaited server": 'asyncio.run(awaited(toolbox.serve(http="127.0.0.1:0", on_ready=ready)))',
}

WAITING = (
    SETUP
    + """
from toolpost import Agent, Ctx, Sandbox, ScriptModel

CODE = "import time; print(1, flush=True); time.sleep(60)"

def ready(*_):
    os.write(1, b"ready\\n")  # whole: the signal may come before its end

async def awaited(call):
    return await call

async def ask(question, schema):
    ready()
    await asyncio.sleep(60)

def ask_plainly(question, schema):
    ready()
    time.sleep(60)

@tool(placement="inline")
def inline() -> None:
    "Block the waiting thread."
    ready()
    time.sleep(60)

@tool
def busy() -> None:
    "Be busy."
    ready()
    while True:
        pass

@tool
async def nested(ctx: Ctx, tool: str) -> None:
    "Call another tool."
    await ctx.call(tool)

@tool
async def asks(ctx: Ctx) -> None:
    "Ask."
    await ctx.ask("Name?")

toolbox.add(inline, busy, nested, asks)

def agent(name):
    turns = [{"calls": [{"tool": name, "args": {}}]}, {"text": "done"}]
    return Agent(ScriptModel(turns), tools=[toolbox])

try:
    WAIT
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
    raise
"""
)


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_ctrl_c_ends_a_wait_within_100_ms(script: Script, wait: str) -> None:
    latencies: list[float] = []
    # A loaded machine may delay one run. The end of the process is later: threads inside tools get half a second.
    while len(latencies) < 3 and min(latencies, default=1.0) > 0.1:
        ended = script(WAITING.replace("WAIT", wait), signal=signal.SIGINT)
        assert ended.code == -signal.SIGINT and "KeyboardInterrupt" in ended.err, ended
        latencies.append(float(ended.out.split()[-1]) - ended.begin)
    assert min(latencies) < 0.1, latencies


def test_calls_work_after_fork(script: Script) -> None:
    ended = script(
        SETUP
        + """
toolbox.call_sync("later", {"a": 1})
child = os.fork()
if child == 0:
    assert toolbox.call_sync("add", {"a": 1, "b": 2}).value == 3
    assert toolbox.call_sync("later", {"a": 4}).value == 4
    assert asyncio.run(toolbox.call("later", {"a": 5})).value == 5
    assert asyncio.run(toolbox.call("add", {"a": 5, "b": 1})).value == 6
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7
assert toolbox.call_sync("later", {"a": 2}).value == 2
"""
    )
    assert ended.code == 0, ended


def test_an_event_loop_that_does_not_start_fails_its_call_alone(script: Script) -> None:
    ended = script(
        SETUP
        + """
from toolpost import ToolError, _bridge

start, attempts = _bridge.background, []

def broken():
    attempts.append(1)
    raise RuntimeError("can't start new thread")

_bridge.background = broken
for _ in range(2):
    try:
        toolbox.call_sync("later", {"a": 1})
    except ToolError as error:
        assert "can't start new thread" in str(error.__cause__), error
assert len(attempts) == 2
_bridge.background = start
assert toolbox.call_sync("later", {"a": 2}).value == 2
""",
        timeout=20,
    )
    assert ended.code == 0, ended


def test_a_forked_process_does_not_wait_for_threads_of_its_parent(script: Script) -> None:
    ended = script(
        SETUP
        + """
threading.Thread(target=toolbox.call_sync, args=("hang",), daemon=True).start()
time.sleep(0.2)
begin = time.monotonic()
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(time.monotonic() - begin)
"""
    )
    # Half a second is the bound of the wait.
    assert ended.code == 0 and float(ended.out.split()[-1]) < 0.4, ended


def test_a_tool_may_fork(script: Script) -> None:
    ended = script(
        SETUP
        + """
def forked() -> int:
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(toolbox.call_sync("later", {"a": 3}).value + toolbox.call_sync("add", {"a": 1, "b": 3}).value)

@tool
def forks() -> int:
    "Fork on a thread."
    return forked()

@tool
async def forks_async() -> int:
    "Fork on an event loop."
    return forked()

toolbox.add(forks, forks_async)
async def both() -> list[int]:
    return [(await toolbox.call(name)).value for name in ("forks", "forks_async")]
assert [toolbox.call_sync(name).value for name in ("forks", "forks_async")] == [7, 7]
assert asyncio.run(both()) == [7, 7]
assert toolbox.call_sync("later", {"a": 2}).value == 2
""",
        timeout=20,
    )
    assert ended.code == 0, ended


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_process_pools_run_tools(tmp_path: Path, method: str) -> None:
    program = tmp_path / "pool.py"
    # The workers import the program by its file.
    program.write_text(
        SETUP.replace("@tool\ndef block", "from toolpost import ToolError\n\n@tool\ndef block")
        + f"""
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from toolpost import Agent, RunError, Sandbox, ScriptModel

class Counter:
    start = 40

    @tool
    def count(self, by: int) -> int:
        "Count."
        return self.start + by

def work(a: int) -> int:
    return toolbox.call_sync("later", {{"a": a}}).value + asyncio.run(toolbox.call("add", {{"a": a, "b": 1}})).value

def fail() -> None:
    raise ToolError.not_found("no such city", suggestion="Try Oslo.", city="Osol")

def fail_run() -> None:
    Agent(ScriptModel([{{"calls": [{{"tool": "later", "args": {{"a": 1}}}}]}}] * 3), tools=[later],
          max_iterations=1).run_sync("Go.")

if __name__ == "__main__":
    assert work(1) == 3 and Sandbox().run_sync("1").value == 1
    with ProcessPoolExecutor(2, mp_context=get_context({method!r})) as pool:
        assert list(pool.map(work, range(4))) == [1, 3, 5, 7]
        assert pool.submit(add, 1, 2).result() == 3
        assert pool.submit(Counter().count, 2).result() == 42
        error = pool.submit(fail).exception()
        assert (error.code, error.suggestion, error.context) == ("NOT_FOUND", "Try Oslo.", {{"city": "Osol"}}), error
        error = pool.submit(fail_run).exception()
        assert (type(error), error.code) == (ToolError, "LIMIT"), repr(error)
"""
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended


def test_modules_reload(script: Script, tmp_path: Path) -> None:
    module = tmp_path / "reloaded_tools.py"
    module.write_text('from toolpost import tool\n\n@tool\ndef value() -> int:\n    "A value."\n    return 1\n')
    ended = script(
        SETUP
        + f"""
import importlib, pathlib
import toolpost

importlib.reload(toolpost)
assert toolpost.Toolbox(add).call_sync("add", {{"a": 1, "b": 2}}).value == 3
assert toolbox.call_sync("later", {{"a": 2}}).value == 2

sys.path.insert(0, {str(tmp_path)!r})
import reloaded_tools
toolbox.add(reloaded_tools)
path = pathlib.Path(reloaded_tools.__file__)
path.write_text(path.read_text().replace("return 1", "return 200"))
importlib.reload(reloaded_tools)
assert toolbox.call_sync("value").value == 1
toolbox.remove("value")
toolbox.add(reloaded_tools)
assert toolbox.call_sync("value").value == 200
"""
    )
    assert ended.code == 0, ended


LOOPS = (
    SETUP
    + """
@tool
async def nested(a: int) -> int:
    "Wait for another tool on the thread of the event loop."
    return toolbox.call_sync("later", {"a": a}).value

@tool
async def deep(a: int) -> int:
    "The same, twice, with a thread between."
    return await asyncio.to_thread(lambda: toolbox.call_sync("nested", {"a": a}).value)

@tool
async def deepest(a: int) -> int:
    "The same, thrice."
    return toolbox.call_sync("deep", {"a": a}).value

toolbox.add(nested, deep, deepest)
NAMES = ["later", "nested", "deep", "deepest"]

async def main() -> list[int]:
    found = [(await toolbox.call(name, {"a": 1})).value for name in NAMES]
    found += [toolbox.call_sync(name, {"a": 2}).value for name in NAMES]
    replies = await asyncio.gather(*(toolbox.call("later", {"a": 3}) for _ in range(50)))
    return found + sorted({reply.value for reply in replies})

EXPECTED = [1] * 4 + [2] * 4 + [3]
"""
)


def test_call_sync_inside_event_loops_ends(script: Script) -> None:
    ended = script(
        LOOPS
        + """
for _ in range(3):
    assert asyncio.run(main()) == EXPECTED
assert asyncio.run(main(), debug=True) == EXPECTED
assert [toolbox.call_sync(name, {"a": 4}).value for name in NAMES] == [4] * 4
""",
        timeout=20,
    )
    assert ended.code == 0, ended


def test_other_event_loops(script: Script) -> None:
    pytest.importorskip("uvloop")
    pytest.importorskip("nest_asyncio")
    ended = script(
        LOOPS
        + """
import nest_asyncio, uvloop
assert uvloop.run(main()) == EXPECTED
nest_asyncio.apply()
async def outer() -> list[int]:
    return asyncio.get_event_loop().run_until_complete(main())
assert asyncio.run(outer()) == EXPECTED
""",
        timeout=20,
    )
    assert ended.code == 0, ended


def test_an_await_without_asyncio_is_rejected_in_words() -> None:
    call = Toolbox(author.tool(lambda_tool)).call("lambda_tool")
    with pytest.raises(RuntimeError, match="no asyncio event loop runs in this thread; use the form with `_sync`"):
        call.__await__().send(None)


def lambda_tool() -> int:
    """Return 1."""
    return 1


def test_destructors_leave_the_exception_that_passes(script: Script) -> None:
    # The destructor of the call runs while its exception passes.
    ended = script(
        SETUP.replace("import asyncio, ", "import ")
        + """
async def main() -> None:
    try:
        await toolbox.call("add")
    except RuntimeError as error:
        print(error)
        raise

def run() -> None:
    try:
        Toolbox(add).add(5)
    except TypeError as error:
        print(error)
    coroutine = main()
    try:
        coroutine.send(None)
    except RuntimeError:
        print("raised")

run()
thread = threading.Thread(target=run)
thread.start()
thread.join()
""",
    )
    message = "no asyncio event loop runs in this thread; use the form with `_sync` instead"
    invalid = "`5` has no tools; pass a tool, a function, a module or an object with tools"
    assert ended.out.splitlines() == [invalid, message, "raised"] * 2, ended


def test_trio_is_rejected_in_words(script: Script) -> None:
    pytest.importorskip("trio")
    ended = script(SETUP + 'import trio\nasync def main(): await toolbox.call("add")\ntrio.run(main)')
    assert "no asyncio event loop runs in this thread" in ended.err, ended


def test_threads_start_while_calls_run(script: Script) -> None:
    ended = script(
        SETUP
        + """
done = []

@tool
def starts(depth: int) -> int:
    "Start a thread that calls, and do not wait for it."
    if depth:
        thread = threading.Thread(target=lambda: done.append(toolbox.call_sync("starts", {"depth": depth - 1}).value))
        thread.start()
    return depth

toolbox.add(starts)
threads = [threading.Thread(target=toolbox.call_sync, args=("starts", {"depth": 5})) for _ in range(10)]
for thread in threads:
    thread.start()
for thread in list(threading.enumerate()):
    if thread is not threading.current_thread() and not thread.daemon:
        thread.join()
deadline = time.monotonic() + 10
while len(done) < 50 and time.monotonic() < deadline:
    time.sleep(0.01)
assert sorted(done) == sorted(list(range(5)) * 10), done
""",
        timeout=30,
    )
    assert ended.code == 0, ended


@pytest.mark.parametrize("form", ['toolbox.call_sync("busy")', 'asyncio.run(toolbox.call("busy"))'])
def test_a_daemon_thread_inside_a_tool_lets_the_interpreter_exit(script: Script, form: str) -> None:
    ended = script(
        SETUP
        + f"""
@tool
def busy() -> None:
    "Be busy."
    started.set()
    while True:
        sum(range(100))

toolbox.add(busy)
started = threading.Event()
for _ in range(4):
    threading.Thread(target=lambda: {form}, daemon=True).start()
started.wait()
time.sleep(0.1)
print("end")
""",
        timeout=20,
    )
    assert ended.code == 0 and ended.out == "end\n" and ended.err == "", ended


def test_sub_interpreters_are_rejected_in_words(script: Script) -> None:
    ended = script(
        """
import sys
import toolpost._engine
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
interpreter = interpreters.create()
failed = interpreters.run_string(interpreter, f"import sys; sys.path[:] = {sys.path!r}; import toolpost._engine")
print(failed)
"""
    )
    assert "subinterpreters" in ended.err + ended.out, ended


def test_a_fresh_import_is_light(script: Script) -> None:
    ended = script(
        """
import sys
before = set(sys.modules)
from toolpost import Toolbox
heavy = {"asyncio", "inspect", "dataclasses", "pydantic", "typing_extensions"}
print(sorted(heavy & (set(sys.modules) - before)))
"""
    )
    assert ended.out.strip() == "[]", ended


def test_sync_tools_run_without_the_import_of_asyncio(script: Script) -> None:
    ended = script(
        """
import sys
from toolpost import Ctx, Toolbox, tool

@tool
def add(a: int, b: int, ctx: Ctx) -> int:
    "Add."
    return a + b

print(Toolbox(add).call_sync("add", {"a": 1, "b": 2}).value, "asyncio" in sys.modules)
"""
    )
    assert ended.out.strip() == "3 False", ended
