"""Hostile values, exceptions and callbacks at the border of both languages."""

from __future__ import annotations

import asyncio
import enum
import gc
import math
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from toolpost import Agent, Ctx, Flow, Sandbox, ScriptModel, Toolbox, ToolError, tool
from toolpost.author import encode


class Text(str): ...


class Number(int): ...


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Demanding:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Obliging:
    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any, **options: Any) -> Any:
        return self


class Odd(enum.Enum):
    PAIR = (1, 2)


@dataclass
class Holder:
    value: Any


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append({"self": value})
    return value


def returning(value: Any) -> Toolbox:
    @tool(name="give")
    def give() -> object:
        """Give a value."""
        return value

    return Toolbox(give)


def both(toolbox: Toolbox, name: str, **options: Any) -> list[Any]:
    """The values or exceptions of a call in both forms."""

    async def call() -> Any:
        return (await toolbox.call(name, **options)).value

    found: list[Any] = []
    forms: list[Callable[[], Any]] = [lambda: toolbox.call_sync(name, **options).value, lambda: asyncio.run(call())]
    for form in forms:
        try:
            found.append(form())
        except BaseException as error:
            found.append(error)
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Text("x"), "x"),
        (Number(7), 7),
        (2**64 - 1, 2**64 - 1),
        (-(2**63), -(2**63)),
        (math.nan, None),
        ({"a": [math.inf]}, {"a": [None]}),
        (Holder(math.nan), {"value": None}),
        ({3, 1, 2}, [1, 2, 3]),
        (b"\xff\0", "/wA="),
        (Odd.PAIR, "PAIR"),
        ({1: "a", None: "b", True: "c", 1.5: "d"}, {"1": "c", "null": "b", "1.5": "d"}),
        (nested(120), nested(120)),
        ("x" * 1_000_000, "x" * 1_000_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unusual_values_have_one_json_form(value: Any, expected: Any) -> None:
    assert both(returning(value), "give") == [expected, expected]
    assert encode(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**64, "an integer exceeds 64 bits"),
        (Number(-(2**70)), "an integer exceeds 64 bits"),
        ("\ud800", "surrogates not allowed"),
        ({"\udcff": 1}, "surrogates not allowed"),
        (cyclic(), "more than 127 levels"),
        (nested(100_000), "more than 127 levels"),
        ((number for number in range(3)), "of the type `generator`"),
        (Mute(), "of the type `Mute`"),
        ({Mute(): 1}, "of the type `Mute`"),
        ({(1, 2): 3}, "a key of the type `tuple`"),
        (Demanding(), "no model_dump"),
        (Obliging(), "JSON cannot represent `Obliging`"),
        (sys, "of the type `module`"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "message",
)
def test_values_without_a_json_form_are_errors_in_words(value: Any, message: str) -> None:
    for error in both(returning(value), "give"):
        assert isinstance(error, ToolError) and error.code == "INTERNAL" and message in error.message, error


def root() -> int:
    raise ValueError("the root")


@tool
def fail() -> int:
    """Fail."""
    return root()


@tool
async def fail_async() -> int:
    """Fail after a wait."""
    await asyncio.sleep(0)
    return root()


@tool
async def forward(ctx: Ctx, name: str) -> Any:
    """Call another tool."""
    return await ctx.call(name)


@tool
def forward_sync(ctx: Ctx, name: str) -> Any:
    """Call another tool."""
    return ctx.call_sync(name)


@tool
def enter_again(name: str) -> Any:
    """Call the toolbox."""
    return toolbox.call_sync(name).value


toolbox = Toolbox(fail, fail_async, forward, forward_sync, enter_again)


@pytest.mark.parametrize("name", ["fail", "fail_async"])
@pytest.mark.parametrize("outer", [None, "forward", "forward_sync", "enter_again"])
def test_tracebacks_cross_every_border(name: str, outer: str | None) -> None:
    call = (name, {}) if outer is None else (outer, {"name": name})

    async def awaited() -> Any:
        return await toolbox.call(*call)

    for form in (lambda: toolbox.call_sync(*call), lambda: asyncio.run(awaited())):
        with pytest.raises(ToolError, match="ValueError: the root") as caught:
            form()
        text = "".join(traceback.format_exception(caught.value))
        # The line of the tool that failed, the line of the tool between, and the line of this caller.
        assert "return root()" in text and "form()" in text, text
        assert outer is None or f"in {outer}" in text, text


PLAN = """
kind: flow
name: failing
steps:
  - id: one
    tool: fail
"""


def test_tracebacks_of_callbacks_cross_runs() -> None:
    def on_event(event: dict[str, Any]) -> None:
        root()

    turns: list[str | dict[str, Any]] = [{"calls": [{"tool": "fail", "args": {}}]}, {"text": "done"}]
    agent = Agent(ScriptModel(turns), tools=[toolbox], on_event=on_event)
    with pytest.raises(ValueError, match="the root") as caught:
        agent.run_sync("Go.")
    assert "in on_event" in "".join(traceback.format_exception(caught.value))
    # A model gets neither message nor traceback; the record has the exception.
    [record] = Agent(ScriptModel(turns), tools=[toolbox]).run_sync("Go.").calls
    assert record["error"]["message"] == "ValueError: the root"
    with pytest.raises(ToolError) as failed:
        Flow.from_yaml(PLAN).run_sync(toolbox)
    assert "return root()" in "".join(traceback.format_exception(failed.value))


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Wordless(), ToolError),
        (StopIteration(5), ToolError),
        (MemoryError(), ToolError),
        (ExceptionGroup("both", [ValueError("a")]), ToolError),
        (SystemExit(3), SystemExit),
        (GeneratorExit(), GeneratorExit),
        (BaseExceptionGroup("stop", [KeyboardInterrupt()]), BaseExceptionGroup),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unusual_exceptions_of_tools(error: BaseException, kind: type[BaseException]) -> None:
    @tool(name="throw")
    def throw() -> None:
        """Throw."""
        raise error

    for found in both(Toolbox(throw), "throw"):
        assert type(found) is kind, found
        assert not isinstance(found, ToolError) or (found.code == "INTERNAL" and found.__cause__ is error)


@tool(approval="ask")
def danger() -> int:
    """Do something dangerous."""
    return 1


@tool
def report(ctx: Ctx) -> int:
    """Report."""
    ctx.progress("half", 50)
    ctx.log("info", "line")
    return 1


@tool
def collect() -> bool:
    """Collect garbage."""
    gc.collect()
    return True


callbacks = Toolbox(danger, report, collect, fail)


def raises(*_: Any) -> bool:
    raise ValueError("in a callback")


def exits(*_: Any) -> bool:
    raise SystemExit(4)


def calls(*_: Any) -> Any:
    return callbacks.call_sync("collect").value


async def awaits(*_: Any) -> Any:
    return (await callbacks.call("collect")).value


def collects(*_: Any) -> bool:
    gc.collect()
    return True


def test_callbacks_for_approval() -> None:
    for approve in (calls, awaits, collects):
        assert both(callbacks, "danger", approve=approve) == [1, 1]
    for found in both(callbacks, "danger", approve=raises):
        assert isinstance(found, ToolError) and isinstance(found.__cause__, ValueError), found
    assert [type(found) for found in both(callbacks, "danger", approve=exits)] == [SystemExit, SystemExit]
    for found in both(callbacks, "danger"):
        assert "approve=" in found.suggestion and "--approve" not in str(found), found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["on_progress", "on_log"])
def test_callbacks_in_the_middle_of_a_call(name: str) -> None:
    for callback in (calls, collects, raises):
        assert both(callbacks, "report", **{name: callback}) == [1, 1]
    assert [type(found) for found in both(callbacks, "report", **{name: exits})] == [SystemExit, SystemExit]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("callback", [raises, calls, collects])
def test_callbacks_of_a_toolbox(callback: Callable[..., Any]) -> None:
    assert both(Toolbox(report, on_event=callback), "report") == [1, 1]


def test_callbacks_that_use_their_own_toolbox() -> None:
    seen: list[str] = []

    def on_event(event: dict[str, Any]) -> None:
        if len(seen) < 20:
            seen.append(event["type"])
            box.add(tool(name=f"tool{len(seen)}")(collect.fn))
            box.call_sync(f"tool{len(seen)}")

    box = Toolbox(report, on_event=on_event)
    assert box.call_sync("report").value == 1
    assert len(box) == 21


def test_functions_that_change_documents() -> None:
    with pytest.raises(ToolError, match="in a callback"):
        callbacks.state("shared").update_sync(raises)
    with pytest.raises(SystemExit):
        callbacks.state("shared").update_sync(exits)
    assert callbacks.state("shared").update_sync(calls) is True


def test_output_callbacks_of_a_sandbox() -> None:
    with pytest.raises(ValueError, match="in a callback"):
        Sandbox().run_sync("print(1)", on_output=raises)
    with pytest.raises(SystemExit):
        Sandbox().run_sync("print(1)", on_output=exits)
    found = []
    Sandbox().run_sync("print(1)", on_output=lambda *_: found.append(Sandbox().run_sync("2").value))
    assert found == [2]


def test_a_cancelled_await_ends_what_the_tool_awaits() -> None:
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    @tool
    async def hang() -> None:
        """Hang."""
        await wait("tool")

    @tool
    async def call(ctx: Ctx) -> None:
        """Call a tool that hangs."""
        try:
            await ctx.call("hang")
        finally:
            ended.append("outer")

    @tool
    async def ask(ctx: Ctx) -> None:
        """Ask a caller that hangs."""
        await ctx.ask("Name?")

    async def answer(*_: Any) -> None:
        await wait("callback")

    box = Toolbox(hang, call, ask)

    async def main() -> None:
        for name in ("call", "ask"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(box.call(name, ask=answer), 0.05)

    asyncio.run(asyncio.wait_for(main(), 10))
    assert ended == ["tool", "outer", "callback"]


def test_a_tool_survives_the_exception_of_an_awaited_call() -> None:
    @tool
    async def recover(ctx: Ctx) -> str:
        """Recover."""
        try:
            await ctx.call("fail")
        except ToolError as error:
            return error.code
        return "none"

    assert both(Toolbox(recover, fail), "recover") == ["INTERNAL", "INTERNAL"]


def test_hostile_annotations_name_the_tool() -> None:
    class Bad(type):
        def __hash__(cls) -> int:
            raise RuntimeError("no hash")

    def deep() -> Any:
        hint: Any = int
        for _ in range(3000):
            hint = list[hint]
        return hint

    for hint in (Bad("Bad", (), {}), Mute(), deep(), 5, [int], "1/0", len, ...):

        def take(value: Any) -> None:
            """Take a value."""

        take.__annotations__ = {"value": hint}
        with pytest.raises(TypeError, match="`take`"):
            Toolbox(take)
