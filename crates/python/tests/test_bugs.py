"""Bugs of tools in runs of agents, and calls that nothing awaits."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from toolpost import Agent, Flow, RunResult, Sandbox, ScriptModel, ToolError, Toolbox, tool

SHELF: dict[str, str] = {}


def lost(key: str) -> str:
    """Look a key up."""
    return SHELF[key]


async def late(key: str) -> str:
    """Look a key up after a while."""
    await asyncio.sleep(0.01)
    return SHELF[key]


class Shelf:
    @tool(timeout=5)
    def found(self, key: str) -> str:
        """Look a key up on a thread of its own."""
        return SHELF[key]


def agent(*tools: Any, name: str) -> Agent:
    call = {"tool": name, "args": {"key": "blue"}}
    return Agent(ScriptModel([{"calls": [call]}, "Done."]), tools=list(tools))


def nested() -> Agent:
    inner = Agent(
        ScriptModel([{"calls": [{"tool": "lost", "args": {"key": "blue"}}]}, "Inside."]),
        tools=[lost],
        name="helper",
        description="Help.",
    )
    return Agent(ScriptModel([{"calls": [{"tool": "helper", "args": {"prompt": "x"}}]}, "Done."]), tools=[inner])


AGENTS: dict[str, Callable[[], Agent]] = {
    "lost": lambda: agent(lost, name="lost"),
    "late": lambda: agent(late, name="late"),
    "found": lambda: agent(Shelf(), name="found"),
    "nested": nested,
}


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_bug_is_logged_with_its_traceback_and_stands_in_the_record(
    kind: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made = AGENTS[kind]()
    name = "lost" if kind == "nested" else kind

    async def awaited() -> RunResult[str]:
        return await made.run("Go.")

    with caplog.at_level(logging.INFO, logger="toolpost"):
        result = asyncio.run(awaited()) if is_async else made.run_sync("Go.")
    assert result.text == "Done."
    (line,) = [line for line in caplog.records if line.name == "toolpost"]
    assert line.levelno == logging.ERROR
    assert line.getMessage() == f"the tool `{name}` raised KeyError"
    assert line.exc_info and line.exc_info[0] is KeyError
    assert f"in {name}" in caplog.text and "return SHELF[key]" in caplog.text
    if kind != "nested":
        (call,) = result.record["tool_calls"]
        assert call["error"]["code"] == "INTERNAL" and "blue" in str(call["causes"]), call
        (notice,) = result.record["notices"]
        assert f"`{name}`" in notice and "blue" in notice


def test_errors_of_tools_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def absent(key: str) -> str:
        """Look a key up."""
        raise ToolError.not_found(f"no {key}")

    with caplog.at_level(logging.INFO, logger="toolpost"):
        assert agent(absent, name="absent").run_sync("Go.").record.get("notices", []) == []
        with pytest.raises(ToolError) as caught:
            Toolbox(lost).call_sync("lost", {"key": "blue"})
    assert isinstance(caught.value.__cause__, KeyError)
    assert not [line for line in caplog.records if line.name == "toolpost"]


def test_a_call_that_is_never_awaited_warns_with_its_name() -> None:
    toolbox = Toolbox(lost)
    plan = Flow.from_yaml("kind: flow\nname: f\nsteps:\n  - id: a\n    tool: lost\n    with: {key: blue}\n")
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: toolbox.call("lost", {"key": "blue"}), """coroutine 'Toolbox.call("lost")' was never awaited"""),
        (lambda: AGENTS["lost"]().run("Go."), "coroutine 'Agent.run' was never awaited"),
        (lambda: Sandbox().run("1"), "coroutine 'Sandbox.run' was never awaited"),
        (lambda: plan.run(toolbox), "coroutine 'Flow.run' was never awaited"),
        (lambda: tool(late).fn("blue"), "coroutine 'late' was never awaited"),
    ]
    for make, name in calls:
        with pytest.warns(RuntimeWarning) as caught:
            make()
            gc.collect()
        assert [str(warning.message) for warning in caught] == [name]


def echo(key: str) -> str:
    """Echo."""
    return key


def test_an_awaited_or_closed_call_does_not_warn() -> None:
    toolbox = Toolbox(tool(name="echo", description="Echo.")(echo))

    async def main() -> None:
        await toolbox.call("echo", {"key": "a"})
        task = asyncio.ensure_future(toolbox.call("echo", {"key": "a"}))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())
        toolbox.call("echo", {"key": "a"}).close()
        gc.collect()


def test_a_warning_that_is_an_error_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda reported: seen.append(reported.exc_value))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Toolbox(lost).call("lost", {"key": "blue"})
        gc.collect()
    assert [type(error) for error in seen] == [RuntimeWarning]
