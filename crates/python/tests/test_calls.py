"""Calls of Python tools: results, errors, awaits, cancellation, threads."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from toolpost import Artifact, Ctx, Output, Partial, Toolbox, ToolError, prompt, resource, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def add_later(a: int, b: int, seconds: float = 0.01) -> int:
    """Add two numbers after a while."""
    await asyncio.sleep(seconds)
    return a + b


@tool
def fail(kind: str) -> None:
    """Fail."""
    if kind == "own":
        raise ToolError("NOT_FOUND", "no such city")
    raise ZeroDivisionError("by zero")


@pytest.fixture
def toolbox() -> Toolbox:
    return Toolbox(add, add_later, fail)


def test_a_call_returns_the_value_and_its_record(toolbox: Toolbox) -> None:
    output = toolbox.call_sync("add", {"a": 1, "b": 2})
    assert (output.value, output.text, output.artifacts) == (3, "3", [])
    assert output.record["tool"] == "add" and output.record["caller"]["front"] == "python"
    assert [record["tool"] for record in toolbox.records] == ["add"]


def test_arguments_are_checked_before_the_function_runs(toolbox: Toolbox) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"a": "x", "b": 2}, "INVALID_INPUT"),
        ({"a": 1}, "MISSING_PARAM"),
    ]
    for arguments, code in cases:
        with pytest.raises(ToolError) as caught:
            toolbox.call_sync("add", arguments)
        assert caught.value.code == code
    with pytest.raises(ToolError, match="no_such"):
        toolbox.call_sync("no_such", {})
    with pytest.raises(TypeError, match="unexpected keyword"):
        toolbox.call_sync("add", {"a": 1, "b": 2}, colour="red")  # type: ignore[call-arg]


def test_exceptions_cross_the_engine_with_their_tracebacks(toolbox: Toolbox) -> None:
    with pytest.raises(ToolError) as own:
        toolbox.call_sync("fail", {"kind": "own"})
    assert own.value.code == "NOT_FOUND" and "fail" in [frame.name for frame in own.traceback]
    with pytest.raises(ToolError) as other:
        toolbox.call_sync("fail", {"kind": "other"})
    cause = other.value.__cause__
    assert other.value.code == "INTERNAL" and isinstance(cause, ZeroDivisionError)
    assert cause.__traceback__ is not None


def test_both_forms_run_both_kinds_of_functions(toolbox: Toolbox) -> None:
    async def main() -> list[int]:
        return [(await toolbox.call(name, {"a": 1, "b": 2})).value for name in ("add", "add_later")]

    assert asyncio.run(main()) == [3, 3]
    assert toolbox.call_sync("add_later", {"a": 1, "b": 2}).value == 3


def test_awaited_calls_overlap(toolbox: Toolbox) -> None:
    async def main() -> float:
        begin = time.perf_counter()
        arguments = {"a": 1, "b": 2, "seconds": 0.2}
        await asyncio.gather(*(toolbox.call("add_later", arguments) for _ in range(20)))
        return time.perf_counter() - begin

    assert asyncio.run(main()) < 1


def test_a_blocking_function_leaves_the_event_loop_free(toolbox: Toolbox) -> None:
    names: list[str] = []

    @tool
    def block() -> None:
        """Block."""
        names.append(threading.current_thread().name)
        time.sleep(0.2)

    toolbox.add(block)

    async def main() -> int:
        call = asyncio.ensure_future(toolbox.call("block"))
        ticks = 0
        while not call.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 5
    toolbox.call_sync("block")
    assert names[0] != names[1] == threading.current_thread().name


def test_functions_see_the_context_variables_of_the_caller() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    @tool
    def sync() -> str:
        """Read it."""
        return variable.get()

    @tool
    async def later() -> str:
        """Read it."""
        await asyncio.sleep(0)
        return variable.get()

    toolbox = Toolbox(sync, later)

    async def main(value: str) -> list[str]:
        variable.set(value)
        return [(await toolbox.call(name)).value for name in ("sync", "later")]

    assert asyncio.run(main("set")) == ["set", "set"]
    variable.set("outer")
    assert toolbox.call_sync("later").value == "outer"


def test_a_cancelled_await_reaches_the_coroutine_and_leaves_no_task() -> None:
    seen: list[str] = []

    @tool
    async def hang() -> None:
        """Hang."""
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("cancelled")
            await asyncio.sleep(0.05)
            seen.append("cleaned")

    toolbox = Toolbox(hang)

    async def main() -> int:
        task = asyncio.create_task(toolbox.call("hang"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["cancelled", "cleaned"]
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert toolbox.records[-1]["error"]["code"] == "CANCELLED"


def test_the_timeout_of_asyncio_works_inside_and_outside() -> None:
    @tool
    async def inside() -> str:
        """Time out inside."""
        try:
            async with asyncio.timeout(0.05):
                await asyncio.sleep(60)
        except TimeoutError:
            return "inside"
        return "none"

    @tool
    async def hang() -> None:
        """Hang."""
        await asyncio.sleep(60)

    toolbox = Toolbox(inside, hang)

    async def main() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await toolbox.call("hang")
        with pytest.raises(ToolError) as caught:
            await toolbox.call("hang", timeout=0.05)
        assert caught.value.code == "TIMEOUT"
        return str((await toolbox.call("inside")).value)

    assert asyncio.run(main()) == "inside"


def test_exits_end_the_call_and_never_become_an_answer() -> None:
    @tool
    def leave(kind: str) -> None:
        """Leave."""
        raise {"interrupt": KeyboardInterrupt, "exit": SystemExit}[kind]("now")

    @tool
    async def leave_later(kind: str) -> None:
        """Leave."""
        await asyncio.sleep(0)
        raise {"interrupt": KeyboardInterrupt, "exit": SystemExit}[kind]("now")

    toolbox = Toolbox(leave, leave_later)
    for kind, error in [("interrupt", KeyboardInterrupt), ("exit", SystemExit)]:
        with pytest.raises(error, match="now"):
            toolbox.call_sync("leave", {"kind": kind})
        for name in ("leave", "leave_later"):
            with pytest.raises(error, match="now"):
                asyncio.run(toolbox.call(name, {"kind": kind}))


def test_nested_calls_of_tools() -> None:
    @tool
    async def twice(a: int, ctx: Ctx) -> Any:
        """Add twice."""
        first, second = await asyncio.gather(ctx.call("add_later", {"a": a, "b": 1}), ctx.call("add", {"a": a, "b": 2}))
        return [first, second]

    @tool
    def twice_sync(a: int, ctx: Ctx) -> Any:
        """Add twice."""
        return [ctx.call_sync("add_later", {"a": a, "b": 1}), ctx.call_sync("add", {"a": a, "b": 2})]

    toolbox = Toolbox(add, add_later, twice, twice_sync)
    assert asyncio.run(toolbox.call("twice", {"a": 1})).value == [2, 3]
    assert toolbox.call_sync("twice_sync", {"a": 1}).value == [2, 3]
    assert asyncio.run(toolbox.call("twice_sync", {"a": 1})).value == [2, 3]


def test_many_threads_call_at_once(toolbox: Toolbox) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(100):
                assert toolbox.call_sync("add", {"a": number, "b": 1}).value == number + 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_ten_thousand_calls_leak_nothing(toolbox: Toolbox) -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    def calls(count: int) -> None:
        for _ in range(count):
            toolbox.call_sync("add", {"a": 1, "b": 2})
            with pytest.raises(ToolError):
                toolbox.call_sync("add", {"a": "x", "b": 2})

    calls(2_000)
    gc.collect()
    before = resident()
    calls(10_000)
    gc.collect()
    assert resident() - before < 8 << 20


def test_a_tool_that_holds_its_toolbox_is_collected() -> None:
    class Holder:
        toolbox: Toolbox

        @tool
        def own(self) -> int:
            """Count the tools."""
            return len(self.toolbox)

    holder = Holder()
    holder.toolbox = Toolbox(holder)
    assert holder.toolbox.call_sync("own").value == 1
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_methods_of_one_object_share_its_state() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        @tool
        def increment(self, by: int = 1) -> int:
            """Count up."""
            self.count += by
            return self.count

        @tool
        async def reset(self) -> None:
            """Start again."""
            self.count = 0

    counter = Counter()
    toolbox = Toolbox(counter)
    assert toolbox.call_sync("increment", {"by": 2}).value == 2
    toolbox.call_sync("reset")
    assert toolbox.call_sync("increment").value == counter.count == 1
    with pytest.raises(TypeError, match="has no tools"):
        Toolbox(object())


def test_documents_are_versioned_and_survive(tmp_path: Any) -> None:
    @tool
    def visit(name: str, ctx: Ctx) -> Any:
        """Count the visits of a guest."""
        return ctx.state("guests").update_sync(
            lambda guests: {**(guests or {}), name: ((guests or {}).get(name) or 0) + 1}
        )

    path = tmp_path / "store.db"
    toolbox = Toolbox(visit, store=path)
    for _ in range(3):
        toolbox.call_sync("visit", {"name": "ann"})
    document = Toolbox(store=path).state("guests")
    assert document.get_sync() == {"ann": 3} and document.version_sync() == 3
    assert document.at_sync(1) == {"ann": 1} and len(document.log_sync()) == 3
    assert asyncio.run(document.set({"bob": 1})) == 4


def test_a_document_is_dropped_while_its_store_answers(tmp_path: Any) -> None:
    # The end of a store waits for its writer, which has just woken the event loop.
    for number in range(100):
        assert asyncio.run(Toolbox(store=tmp_path / f"{number % 4}.db").state("n").set(number)) == number // 4 + 1


def test_resources_and_prompts_are_read_here_and_by_a_client() -> None:
    @resource("notes://{topic}")
    async def note(topic: str) -> str:
        """Read a note."""
        return f"about {topic}"

    @prompt
    def review(language: str) -> str:
        """Ask for a review."""
        return f"Review this {language} code."

    toolbox = Toolbox(note, review, add)
    assert len(toolbox) == 1
    assert toolbox.read_sync("notes://rust") == "about rust"
    assert toolbox.render_sync("review", {"language": "Python"}) == "Review this Python code."

    async def main() -> list[Any]:
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(toolbox.serve(http="127.0.0.1:0", on_ready=url.set_result))
        client = Toolbox()
        await client.connect(await url)
        values = [
            await client.read("notes://mcp"),
            await client.render("review", {"language": "Go"}),
            (await client.call("add", {"a": 1, "b": 2})).value,
        ]
        server.cancel()
        return values

    note_text, rendered, total = asyncio.run(main())
    assert "about mcp" in str(note_text) and "Review this Go code." in str(rendered) and total == 3


def test_an_output_has_content_artifacts_and_counts() -> None:
    @tool
    def report() -> Output:
        """Write a report."""
        return Output(
            {"rows": 2},
            content=["Two rows."],
            artifacts=[Artifact("rows.csv", b"a,b")],
            partial=Partial(1, [ToolError.dependency("no disk")]),
        )

    reply = Toolbox(report).call_sync("report")
    assert (reply.value, reply.text) == ({"rows": 2}, "Two rows.")
    assert [(artifact["name"], artifact["data"]) for artifact in reply.artifacts] == [("rows.csv", b"a,b")]
    assert reply.partial is not None and reply.partial["errors"][0]["code"] == "DEPENDENCY"


def test_a_limit_of_a_sync_call_holds_for_a_plain_function() -> None:
    def doze(seconds: float) -> str:
        """Sleep."""
        time.sleep(seconds)
        return "done"

    calls: list[Callable[[], object]] = [
        lambda: Toolbox(doze).call_sync("doze", {"seconds": 1.0}, timeout=0.05),
        lambda: Toolbox(doze).call_sync("doze", {"seconds": 1.0}, deadline=0.05),
        lambda: Toolbox(doze, timeout=0.05).call_sync("doze", {"seconds": 1.0}),
    ]
    for call in calls:
        begin = time.monotonic()
        with pytest.raises(ToolError, match="TIMEOUT"):
            call()
        assert time.monotonic() - begin < 0.9
    assert Toolbox(doze).call_sync("doze", {"seconds": 0.0}, timeout=5).value == "done"
