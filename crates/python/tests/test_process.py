"""Signals, forks and exits of the interpreter."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    "wait",
    [
        'toolbox.call_sync("block")',
        'toolbox.call_sync("hang")',
        'asyncio.run(toolbox.call("hang"))',
        'asyncio.run(toolbox.call("block"))',
    ],
)
def test_ctrl_c_ends_a_wait_within_100_ms(script: Script, wait: str) -> None:
    ended = script(f"{SETUP}\n{wait}", signal=signal.SIGINT)
    assert ended.code == -signal.SIGINT and "KeyboardInterrupt" in ended.err, ended
    assert ended.seconds < 0.6, ended


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
import toolpost
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
import toolpost
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
