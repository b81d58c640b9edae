"""Workflows with tools in Python."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import toolpost
from toolpost import Flow, Toolbox
from toolpost.author import ToolError

PLAN = """
kind: flow
name: sums
input: { n: { type: integer, default: 2 } }
steps:
  - id: both
    parallel:
      - { id: one, tool: meet, with: { value: "${{ input.n }}" } }
      - { id: two, tool: meet_async, with: { value: "${{ input.n }}" } }
  - { id: sum, tool: add, with: { a: "${{ steps.both.output.one }}", b: "${{ steps.both.output.two }}" } }
output: "${{ steps.sum.output }}"
"""
APPROVAL = """
kind: flow
name: approval
steps:
  - { id: before, tool: count }
  - { id: ok, needs: before, approve: "Continue?" }
  - { id: after, needs: ok, tool: count }
"""


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(value: int) -> int:
    """Fail."""
    raise KeyError("lost")


@pytest.fixture
def toolbox() -> Toolbox:
    return Toolbox(add, fail)


def plan(*steps: str) -> Flow:
    return Flow.from_yaml("kind: flow\nname: test\nsteps:\n" + "".join(f"  - {{ {step} }}\n" for step in steps))


def test_a_run_calls_tools_at_once(toolbox: Toolbox) -> None:
    in_function, in_coroutine = threading.Event(), threading.Event()

    def meet(value: int) -> int:
        """Wait for the coroutine."""
        in_function.set()
        assert in_coroutine.wait(10)
        return value

    async def meet_async(value: int) -> int:
        """Wait for the function."""
        in_coroutine.set()
        while not in_function.is_set():
            await asyncio.sleep(0.01)
        return value * 10

    flow = Flow.from_yaml(PLAN)
    toolbox.add(meet, meet_async)
    result = asyncio.run(_run(flow, toolbox))
    assert (result.status, result.output, result.error) == ("succeeded", 33, None)
    assert (result.succeeded, result.failed) == (4, 0) and 0 < result.duration < 10 and result.id
    in_function.clear()
    in_coroutine.clear()
    assert flow.run_sync(toolbox).output == 22


async def _run(flow: Flow, toolbox: Toolbox) -> Any:
    return await flow.run(toolbox, {"n": 3})


def test_functions_run_at_once() -> None:
    barrier = threading.Barrier(4)

    def meet(value: int) -> int:
        """Wait for three others."""
        barrier.wait(10)
        return value

    items = "id: all, map: '${{ [1, 2, 3, 4] }}', steps: [{ id: it, tool: meet, with: { value: '${{ item }}' } }]"
    assert plan(items).run_sync(Toolbox(meet)).output == [1, 2, 3, 4]
    barrier = threading.Barrier(1)
    assert plan(items).run_sync(Toolbox(meet), max_parallel=1).output == [1, 2, 3, 4]


def test_a_plan_has_a_name_and_a_hash(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(PLAN)
    flow = Flow.from_file(file)
    assert (flow.name, flow.hash, repr(flow)) == ("sums", Flow.from_yaml(PLAN).hash, 'Flow("sums", 4 steps)')


def test_a_step_may_name_an_alias_of_a_tool() -> None:
    toolbox = Toolbox()
    toolbox.connect_sync("builtin")
    flow = plan('id: a, tool: safe_math_evaluator, with: { expression: "6*7" }')
    assert flow.check(toolbox) == []
    assert flow.run_sync(toolbox).output["text"] == "42"


def test_problems_are_named(tmp_path: Path, toolbox: Toolbox) -> None:
    with pytest.raises(ValueError, match="4:5: step `a`: a step has one of tool"):
        Flow.from_yaml("kind: flow\nname: x\nsteps:\n  - { id: a, tol: add }\n")
    with pytest.raises(ValueError, match=r"missing\.yaml"):
        Flow.from_file(tmp_path / "missing.yaml")
    assert plan("id: a, tool: add, with: { a: 1, b: 2 }").check(toolbox) == []
    flow = plan("id: a, tool: ad, with: { a: 1, b: 2 }")
    (problem,) = flow.check(toolbox)
    assert (problem.line, problem.step, problem.is_warning) == (4, "a", False)
    assert "`ad`" in problem.message and problem.message in str(problem)
    with pytest.raises(ValueError, match="step `a`: .*`ad`"):
        flow.run_sync(toolbox)
    with pytest.raises(ValueError, match="expected none, normal or full"):
        flow.run_sync(toolbox, durability="some")  # type: ignore[arg-type]
    typed = "kind: flow\nname: x\ninput: { n: { type: integer } }\nsteps: [{ tool: add, with: { a: 1, b: 2 } }]"
    with pytest.raises(ToolError) as raised:
        Flow.from_yaml(typed).run_sync(toolbox, {"n": "x"})
    assert raised.value.code == "INVALID_INPUT"


def test_a_failed_run_raises_the_error_of_the_tool(toolbox: Toolbox) -> None:
    flow = plan("id: a, tool: fail, with: { value: 1 }")
    for run in (lambda: flow.run_sync(toolbox), lambda: asyncio.run(_await(flow, toolbox))):
        with pytest.raises(ToolError) as raised:
            run()
        assert raised.value.code == "INTERNAL" and isinstance(raised.value.__cause__, KeyError)
    result = flow.run_sync(toolbox, check=False)
    assert (result.status, result.output, result.failed) == ("failed", None, 1)
    assert isinstance(result.error, ToolError) and isinstance(result.error.__cause__, KeyError)


async def _await(flow: Flow, toolbox: Toolbox) -> Any:
    return await flow.run(toolbox)


def test_progress_has_every_event(toolbox: Toolbox) -> None:
    events: list[dict[str, Any]] = []
    result = plan("id: a, tool: add, with: { a: 1, b: 2 }").run_sync(toolbox, on_progress=events.append)
    assert [event["kind"] for event in events] == ["started", "called", "ended"]
    assert {event["step"] for event in events} == {"a"} and {event["run"] for event in events} == {result.id}
    assert events[1]["record"]["tool"] == "add" and events[2]["output"] == 3


def test_an_exception_of_on_progress_ends_the_run(toolbox: Toolbox) -> None:
    add = "tool: add, with: { a: 1, b: 2 }"
    flow = plan(f"id: a, {add}", f"id: b, needs: a, {add}")
    with pytest.raises(ZeroDivisionError):
        flow.run_sync(toolbox, on_progress=lambda event: 1 / 0)
    assert len(toolbox.records) <= 1


def test_a_cancelled_await_cancels_the_tools() -> None:
    ended: list[str] = []

    async def wait() -> None:
        """Wait."""
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("wait")

    async def main() -> None:
        flow = plan("id: all, parallel: [{ id: a, tool: wait }, { id: b, tool: wait }]")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flow.run(Toolbox(wait)), 0.3)
        assert ended == ["wait", "wait"]

    asyncio.run(main())


def test_a_stored_run_waits_for_an_approval(tmp_path: Path) -> None:
    calls = []

    def count() -> int:
        """Count the calls."""
        calls.append(1)
        return len(calls)

    store = tmp_path / "store.db"
    run: list[str] = []

    def approve(event: dict[str, Any]) -> None:
        if event["kind"] == "waiting":
            run.append(event["run"])
            send = lambda: Flow.approve_sync(event["run"], event["step"], store=store)  # noqa: E731
            threading.Timer(0.3, send).start()

    result = Flow.from_yaml(APPROVAL).run_sync(Toolbox(count), store=store, on_progress=approve)
    assert (result.output, result.id, len(calls)) == (2, run[0], 2)


def test_a_stored_run_is_resumed(tmp_path: Path) -> None:
    calls = []

    def count() -> int:
        """Count the calls."""
        calls.append(1)
        return len(calls)

    store, toolbox = tmp_path / "store.db", Toolbox(count)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Flow.from_yaml(APPROVAL).run(toolbox, store=store), 0.5)
        assert len(calls) == 1
        await Flow.approve("last", store=store)
        result = await Flow.resume("last", toolbox, store=store)
        assert (result.status, result.output, len(calls)) == ("succeeded", 2, 2)
        with pytest.raises(ToolError, match="the run has ended"):
            await Flow.resume(result.id, toolbox, store=store)

    asyncio.run(main())


def test_a_denied_approval_fails_the_run(tmp_path: Path) -> None:
    def count() -> int:
        """Count the calls."""
        return 1

    store, toolbox = tmp_path / "store.db", Toolbox(count)

    def deny(event: dict[str, Any]) -> None:
        if event["kind"] == "waiting":
            Flow.approve_sync(event["run"], "ok", approved=False, comment="no", store=store)

    with pytest.raises(ToolError, match="it was denied: no") as raised:
        Flow.from_yaml(APPROVAL).run_sync(toolbox, store=store, on_progress=deny)
    assert raised.value.code == "PERMISSION"


def test_an_approval_of_several_names_its_step(tmp_path: Path) -> None:
    store, waiting = tmp_path / "store.db", list[str]()
    asked = ('id: first, approve: "One?"', 'id: second, approve: "Two?"')

    def answer(event: dict[str, Any]) -> None:
        waiting.extend([event["step"]] if event["kind"] == "waiting" else [])
        if sorted(waiting) != ["first", "second"]:
            return
        waiting.clear()
        with pytest.raises(ToolError, match="name one of the steps that wait: first, second"):
            Flow.approve_sync(event["run"], store=store)
        Flow.approve_sync(event["run"], "second", store=store)
        with pytest.raises(ToolError, match="`second` already has an answer") as raised:
            Flow.approve_sync(event["run"], "second", approved=False, store=store)
        assert raised.value.code == "CONFLICT"
        # The only one that still waits.
        Flow.approve_sync(event["run"], store=store)

    result = plan(*asked).run_sync(Toolbox(), store=store, on_progress=answer)
    assert (result.status, result.succeeded, waiting) == ("succeeded", 2, [])


def test_a_signal_has_a_value_and_is_not_an_approval(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    asked = ('id: paid, signal: paid', 'id: ok, needs: paid, approve: "Continue?"')
    flow = plan(*asked)

    def send(event: dict[str, Any]) -> None:
        if event["kind"] == "waiting" and event["step"] == "paid":
            assert event["signal"] == "paid"
            Flow.signal_sync(event["run"], "paid", {"amount": 3}, store=store)
        elif event["kind"] == "waiting":
            with pytest.raises(ToolError, match="`ok` is an approval, not a signal"):
                Flow.signal_sync(event["run"], "ok", {"approved": True}, store=store)
            Flow.approve_sync(event["run"], store=store)
        elif event["kind"] == "ended" and event["step"] == "paid":
            assert event["output"] == {"amount": 3}

    assert flow.run_sync(Toolbox(), store=store, on_progress=send).status == "succeeded"


def test_file_tools_work_in_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    toolbox = Toolbox()
    toolbox.connect_sync("builtin:read_file")
    flow = plan("id: a, tool: read_file, with: { path: a.txt }")
    assert flow.run_sync(toolbox, working_dir=tmp_path).output["content"] == "hello"
    store = tmp_path / "runs.db"
    with pytest.raises(toolpost.ToolError, match="PRECONDITION"):
        flow.run_sync(toolbox, store=store)
