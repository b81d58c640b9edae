"""Runs of agents: tools, answers, limits, approvals, events, conversations, cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import signal
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pydantic
import pytest

from toolpost import (
    Agent,
    Conversation,
    Ctx,
    Model,
    RecordingModel,
    RunError,
    RunResult,
    ScriptModel,
    Toolbox,
    ToolError,
    tool,
)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def add_later(a: int, b: int) -> int:
    """Add two numbers after a while."""
    await asyncio.sleep(0.05)
    return a + b


@tool
def fail() -> None:
    """Fail."""
    raise ToolError.not_found("no such city")


@tool(approval="ask")
def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"tool": name, "args": args}


def script(*turns: Any) -> ScriptModel:
    return ScriptModel(turns)


SUM = [{"calls": [call("add", a=1, b=2)]}, "The sum is {{ last.text }}."]


def test_a_run_calls_tools_and_answers() -> None:
    agent = Agent(script(*SUM), tools=[add])
    result = agent.run_sync("Add 1 and 2.")
    assert isinstance(result, RunResult)
    assert (result.answer, result.text, result.stop_reason, result.success) == (
        "The sum is 3.",
        "The sum is 3.",
        "end_turn",
        True,
    )
    assert [(call["tool"], call["arguments"]) for call in result.calls] == [("add", {"a": 1, "b": 2})]
    assert result.record["iterations"] == 2 and result.record["tools_used"] == ["add"]
    assert set(result.usage) >= {"input_tokens", "output_tokens"} and result.cost_usd == 0
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.messages[1]["calls"] == [{"id": "call_1_1", **call("add", a=1, b=2)}]
    assert (result.messages[2]["tool"], result.messages[2]["value"]) == ("add", 3)


async def run_many() -> list[RunResult]:
    agent = Agent(script(*SUM), tools=[add])
    return await asyncio.gather(*(agent.run("Add 1 and 2.") for _ in range(8)))


def test_an_agent_runs_many_times_at_once() -> None:
    assert {result.text for result in asyncio.run(run_many())} == {"The sum is 3."}


def test_async_tools_of_one_answer_overlap_on_the_loop_of_the_caller() -> None:
    seen = []

    @tool
    async def where(n: int) -> int:
        """Report a number."""
        seen.append((asyncio.get_running_loop(), asyncio.current_task(), threading.get_ident()))
        await asyncio.sleep(0.1)
        return n

    async def main() -> None:
        begin = time.monotonic()
        agent = Agent(script({"calls": [call("where", n=n) for n in range(4)]}, "done"), tools=[where])
        result = await agent.run("Go.")
        assert time.monotonic() - begin < 0.3
        assert [message["value"] for message in result.messages if message["role"] == "tool"] == [0, 1, 2, 3]
        assert {loop for loop, _, _ in seen} == {asyncio.get_running_loop()}
        assert {thread for _, _, thread in seen} == {threading.get_ident()}
        assert len({task for _, task, _ in seen}) == 4
        assert asyncio.current_task() not in {task for _, task, _ in seen}

    asyncio.run(main())


def test_sync_tools_run_in_threads_under_a_loop_and_inline_without_one() -> None:
    threads: list[int] = []

    @tool
    def wait(n: int) -> int:
        """Wait."""
        threads.append(threading.get_ident())
        time.sleep(0.1)
        return n

    agent = Agent(script({"calls": [call("wait", n=n) for n in range(4)]}, "done"), tools=[wait])
    begin = time.monotonic()
    asyncio.run(_awaited(agent))
    assert time.monotonic() - begin < 0.35
    assert threading.get_ident() not in threads
    threads.clear()
    agent.run_sync("Go.")
    assert set(threads) == {threading.get_ident()}


async def _awaited(agent: Agent, **options: Any) -> RunResult:
    return await agent.run("Go.", **options)


def test_async_tools_run_in_the_background_without_a_loop() -> None:
    agent = Agent(script({"calls": [call("add_later", a=n, b=1) for n in range(4)]}, "done"), tools=[add_later])
    begin = time.monotonic()
    assert len(agent.run_sync("Go.").calls) == 4
    assert time.monotonic() - begin < 0.19


def test_at_most_so_many_tools_run_at_once() -> None:
    running, most = 0, 0

    @tool
    async def wait() -> None:
        """Wait."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    agent = Agent(script({"calls": [call("wait")] * 6}, "done"), tools=[wait], max_parallel_tools=2)
    asyncio.run(_awaited(agent))
    assert most == 2


def test_the_model_reads_the_error_of_a_tool() -> None:
    agent = Agent(
        script({"calls": [call("fail")]}, {"expect": {"is_error": True}, "text": "{{ last.text }}"}), tools=[fail]
    )
    result = agent.run_sync("Go.")
    assert "no such city" in result.text and result.calls[0]["error"]["code"] == "NOT_FOUND"


def test_options_of_a_run_reach_its_tools() -> None:
    @tool
    def look(ctx: Ctx) -> str:
        """Look."""
        own: Any = ctx
        return json.dumps([ctx.caller["identity"], ctx.metadata, own.context is database, (ctx.remaining or 99) < 30])

    database = object()
    agent = Agent(script({"calls": [call("look")]}, "{{ last.text }}"), tools=[look])
    result = agent.run_sync("Go.", user="ann", metadata={"tenant": 7}, context=database, deadline=30)
    assert json.loads(result.text) == ["ann", {"tenant": 7}, True, True]
    with pytest.raises(TypeError, match="colour"):
        agent.run_sync("Go.", colour="red")  # type: ignore[call-arg]


# Models.


def test_a_function_makes_the_turns() -> None:
    seen = []

    def turn(messages: list[dict[str, Any]]) -> Any:
        seen.append([message["role"] for message in messages])
        if messages[-1]["role"] == "tool":
            return f"It is {messages[-1]['value']}."
        return {"calls": [call("add", a=1, b=2)]}

    assert Agent(ScriptModel(turn), tools=[add]).run_sync("Go.").text == "It is 3."
    assert seen == [["user"], ["user", "assistant", "tool"]]


def test_an_exception_of_the_function_reaches_the_caller() -> None:
    def turn(messages: list[dict[str, Any]]) -> Any:
        assert len(messages) == 2, "two messages"

    agent = Agent(ScriptModel(turn))
    with pytest.raises(AssertionError, match="two messages"):
        agent.run_sync("Go.")
    with pytest.raises(AssertionError, match="two messages"):
        asyncio.run(_awaited(agent))


def test_invalid_models_and_turns_are_explained() -> None:
    invalid: list[tuple[Any, str]] = [
        ([], "at least one"),
        (["a", {"txt": "b"}], "turn 2: unknown field `txt`"),
        ([{"calls": [{"tool": "add", "args": {"a": "{{ x }}"}}]}], "turn 1: call of `add`"),
    ]
    for turns, expected in invalid:
        with pytest.raises(ValueError, match=expected):
            ScriptModel(turns)
    with pytest.raises(ValueError, match="Did you mean `anthropic`"):
        Agent("antropic/claude-x")
    with pytest.raises(TypeError, match="must be a name"):
        Agent(7)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="minimal, low"):
        Agent(script("a"), effort="huge")  # type: ignore[call-overload]
    assert isinstance(script("a"), Model) and repr(script("a")) == "ScriptModel(script/script)"


def test_a_script_file_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "hello.yaml"
    path.write_text("turns: [{ text: Hello. }]")
    assert Agent(f"script:{path}").run_sync("Greet me.").text == "Hello."


def test_a_recorded_run_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    recorded = Agent(RecordingModel(script(*SUM), path), tools=[add]).run_sync("Add 1 and 2.")
    assert path.stat().st_mode & 0o777 == 0o600
    replayed = Agent(f"replay:{path}", tools=[add]).run_sync("Add 1 and 2.")
    assert (replayed.text, replayed.messages) == (recorded.text, recorded.messages)
    with pytest.raises(RunError, match="differ") as caught:
        Agent(f"replay:{path}", tools=[add]).run_sync("Add 1 and 3.")
    assert caught.value.stop_reason == "model_error"
    with pytest.raises(FileExistsError):
        RecordingModel(script("a"), path)


# Answers.


@dataclass
class City:
    name: str
    people: int
    mayor: str | None = None


class Town(TypedDict):
    name: str


class Village(pydantic.BaseModel):
    name: str
    people: int

    @pydantic.field_validator("people")
    @classmethod
    def _is_small(cls, people: int) -> int:
        if people > 1000:
            raise ValueError("a village has at most 1000 people")
        return people


def test_answers_have_the_declared_type() -> None:
    for declared, text, answer in [
        (City, '{"name": "Oslo", "people": 7}', City("Oslo", 7)),
        (list[City], '[{"name": "Oslo", "people": 7, "mayor": "A"}]', [City("Oslo", 7, "A")]),
        (Village, 'Here: {"name": "Å", "people": 7}', Village(name="Å", people=7)),
        (Town, '{"name": "Oslo"}', {"name": "Oslo"}),
        ({"type": "integer"}, "7", 7),
    ]:
        result = Agent(script(text), answer=declared).run_sync("Which?")
        assert (result.answer, result.text) == (answer, text)


def test_the_model_corrects_an_answer_that_does_not_match() -> None:
    agent = Agent(script("Oslo", '{"name": "Oslo"}', '{"name": "Oslo", "people": 7}'), answer=City)
    result = agent.run_sync("Which?")
    assert (result.answer, result.record["iterations"]) == (City("Oslo", 7), 3)
    village = Agent(script('{"name": "Oslo", "people": 5000}', '{"name": "Å", "people": 7}'), answer=Village)
    corrected = asyncio.run(_awaited(village))
    assert corrected.answer == Village(name="Å", people=7)
    assert "at most 1000 people" in corrected.messages[2]["text"]


def test_an_answer_that_never_matches_is_an_error() -> None:
    with pytest.raises(RunError) as caught:
        Agent(script("a", "b", "c"), answer=City).run_sync("Which?")
    assert (caught.value.stop_reason, caught.value.result.answer) == ("answer_schema", None)


def test_a_defect_of_an_answer_type_reaches_the_caller() -> None:
    @dataclass
    class Broken:
        name: str

        def __post_init__(self) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Agent(script('{"name": "a"}'), answer=Broken).run_sync("Go.")
    with pytest.raises(TypeError, match="the answer of an agent"):
        Agent(script("a"), answer=threading.Lock)


# Limits.


def test_limits_end_a_run() -> None:
    endless = [{"calls": [call("add", a=n, b=0)], "usage": {"input": 10, "output": 10}} for n in range(30)]
    reached: list[tuple[dict[str, Any], str]] = [
        ({"max_iterations": 3}, "max_iterations"),
        ({"max_tool_calls": 2}, "max_tool_calls"),
        ({"max_tokens": 50}, "max_tokens"),
        ({"max_time": 0.000001}, "max_time"),
    ]
    for limits, stop in reached:
        with pytest.raises(RunError) as caught:
            Agent(script(*endless), tools=[add], **limits).run_sync("Go.")
        error = caught.value
        assert (error.stop_reason, error.code, error.result.success) == (stop, "LIMIT", False)
        assert stop in str(error) and error.result.answer is None
        assert error.result.record["stop_reason"] == stop


def test_a_failing_model_is_an_error() -> None:
    with pytest.raises(RunError, match="all 1 turns") as caught:
        Agent(script({"calls": [call("add", a=1, b=2)]}), tools=[add]).run_sync("Go.")
    assert (caught.value.stop_reason, caught.value.code) == ("model_error", "DEPENDENCY")
    assert len(caught.value.result.conversation) == 3


def test_a_tool_times_out_and_its_task_is_cancelled() -> None:
    ended = []

    @tool
    async def hang() -> None:
        """Hang."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def main() -> None:
        agent = Agent(script({"calls": [call("hang")]}, "{{ last.text }}"), tools=[hang], tool_timeout=0.05)
        result = await agent.run("Go.")
        assert result.calls[0]["error"]["code"] == "TIMEOUT"
        await asyncio.sleep(0)
        assert ended == [True] and len(asyncio.all_tasks()) == 1

    asyncio.run(main())


# Approvals.


def test_approvals() -> None:
    asked = []

    def yes(name: str, arguments: dict[str, Any]) -> bool:
        asked.append((name, arguments))
        return True

    async def no(name: str, arguments: dict[str, Any]) -> bool:
        await asyncio.sleep(0.01)
        asked.append((name, arguments))
        return False

    turns = [{"calls": [call("delete", path="a")]}, "{{ last.text }}"]
    decisions: list[tuple[Any, str]] = [
        (None, "needs approval"),
        ("allow", "deleted a"),
        ("deny", "refused"),
        (yes, "deleted a"),
        (no, "refused"),
    ]
    for approve, expected in decisions:
        agent = Agent(script(*turns), tools=[delete], approve=approve)
        assert expected in agent.run_sync("Go.").text
        assert expected in asyncio.run(_awaited(agent)).text
    assert asked == [("delete", {"path": "a"})] * 4
    agent = Agent(script(*turns), tools=[delete], approve="deny")
    assert "deleted" in agent.run_sync("Go.", approve="allow").text


def test_only_a_bool_approves() -> None:
    turns = [{"calls": [call("delete", path="a")]}, "{{ last.text }}"]
    word: Any = lambda *_: "no"  # noqa: E731
    result = Agent(script(*turns), tools=[delete], approve=word).run_sync("Go.")
    assert result.calls[0]["status"] == "error" and "deleted" not in result.text
    with pytest.raises(ValueError, match='"allow", "deny" or a function'):
        Agent(script("a"), approve="yes")  # type: ignore[call-overload]


def test_an_async_approval_runs_on_the_loop_of_the_caller() -> None:
    loops = []

    async def approve(name: str, arguments: dict[str, Any]) -> bool:
        loops.append(asyncio.get_running_loop())
        return True

    async def main() -> None:
        agent = Agent(script({"calls": [call("delete", path="a")]}, "done"), tools=[delete])
        await agent.run("Go.", approve=approve)
        await Toolbox(delete).call("delete", {"path": "a"}, approve=approve)
        assert loops == [asyncio.get_running_loop()] * 2

    asyncio.run(main())


def test_a_plain_callback_leaves_the_event_loop_of_the_caller_free() -> None:
    user = contextvars.ContextVar[str]("user")
    threads = set()

    @tool
    async def work(ctx: Ctx) -> list[str]:
        """Work."""
        return [await ctx.ask("Name?"), str(await ctx.sample("Say hi.", max_tokens=5))]

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def after_a_turn_of_the_loop(value: Any) -> Any:
            done = threading.Event()
            loop.call_soon_threadsafe(done.set)
            assert done.wait(10), "the event loop is blocked"
            threads.add(threading.get_ident())
            return value

        options: Any = {
            "approve": lambda *_: after_a_turn_of_the_loop(user.get() == "ann"),
            "ask": lambda message, schema: after_a_turn_of_the_loop(user.get()),
            # A plain function may return a coroutine, which the event loop of the caller runs.
            "sample": lambda request: asyncio.sleep(0, after_a_turn_of_the_loop("hi")),
        }
        user.set("ann")
        agent = Agent(script({"calls": [call("delete", path="a")]}, "done"), tools=[delete])
        assert (await agent.run("Go.", approve=options["approve"])).calls[0]["status"] == "success"
        assert (await Toolbox(work).call("work", **options)).value == ["ann", "hi"]

    asyncio.run(main())
    assert threading.get_ident() not in threads
    # A thread that waits for the call runs the function itself.
    here = threading.get_ident()
    decided = Toolbox(delete).call_sync("delete", {"path": "a"}, approve=lambda *_: threading.get_ident() == here)
    assert decided.value == "deleted a"


def test_an_agent_made_in_a_closed_loop_still_asks() -> None:
    async def approve(name: str, arguments: dict[str, Any]) -> bool:
        await asyncio.sleep(0)
        return True

    async def main() -> Agent:
        agent = Agent(script({"calls": [call("delete", path="a")]}, "done"), tools=[delete], approve=approve)
        # It blocks this loop, so the function runs on another one.
        assert agent.run_sync("Go.").calls[0]["status"] == "success"
        return agent

    agent = asyncio.run(main())
    assert agent.run_sync("Go.").calls[0]["status"] == "success"
    assert asyncio.run(_awaited(agent)).calls[0]["status"] == "success"


def test_calls_have_the_same_callbacks() -> None:
    @tool
    async def work(ctx: Ctx) -> Any:
        """Work."""
        ctx.progress("half", 50.0)
        ctx.log("info", "working")
        await ctx.artifact("a.txt", b"abc", "text/plain")
        return [await ctx.ask("Name?"), str(await ctx.sample("Say hi.", max_tokens=5))]

    @tool
    def work_sync(ctx: Ctx) -> Any:
        """Work."""
        return [ctx.ask_sync("Name?"), str(ctx.sample_sync("Say hi.", max_tokens=5))]

    seen: list[Any] = []
    loops = set()

    async def ask(message: str, schema: Any) -> str:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0.01)
        return f"{message} Ann."

    options: Any = {
        "ask": ask,
        "sample": lambda request: request["prompt"].upper(),
        "on_progress": lambda *progress: seen.append(progress),
        "on_log": lambda *line: seen.append(line),
        "on_artifact": lambda artifact: seen.append((artifact["name"], artifact["data"])),
    }
    toolbox = Toolbox(work, work_sync)
    answer = ["Name? Ann.", "SAY HI."]
    assert toolbox.call_sync("work", **options).value == answer
    assert seen == [("half", 50.0), ("info", "working"), ("a.txt", b"abc")]
    loops.clear()

    async def main() -> None:
        assert (await toolbox.call("work", **options)).value == answer
        # The thread of a sync tool asks the loop of its caller.
        assert (await toolbox.call("work_sync", **options)).value == answer
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(main())
    with pytest.raises(TypeError, match="plain function"):
        toolbox.call_sync("work", on_log=ask)


# Events.


def test_events_have_an_order_and_end_with_the_result() -> None:
    async def main() -> None:
        agent = Agent(script(*SUM), tools=[add])
        events = [event async for event in agent.stream("Add 1 and 2.")]
        kinds = [event["type"] for event in events if event["type"] != "usage"]
        assert kinds[:5] == ["run.started", "turn.started", "turn.finished", "call.started", "call.finished"]
        assert kinds[-2:] == ["turn.finished", "run.finished"]
        assert "".join(event["text"] for event in events if event["type"] == "text.delta") == "The sum is 3."
        assert json.loads(json.dumps(events))[-1]["answer"] == "The sum is 3."

    asyncio.run(main())


def test_the_last_event_has_the_answer_as_json_and_the_stream_the_result() -> None:
    @dataclass
    class Sum:
        value: int

    async def main() -> None:
        events = Agent(script('{"value": 3}'), answer=Sum).stream("Add 1 and 2.")
        assert events.result is None
        async for event in events:
            last = json.dumps(event)
        assert json.loads(last)["answer"] == {"value": 3}
        assert events.result is not None and events.result.answer == Sum(3)
        events = Agent(script({"calls": [call("add", a=1, b=2)]}), tools=[add]).stream("Go.")
        with pytest.raises(RunError) as raised:
            async for event in events:
                last = json.dumps(event)
        assert json.loads(last)["answer"] is None
        assert events.result is raised.value.result

    asyncio.run(main())


def test_a_stream_without_an_answer_raises_after_its_last_event() -> None:
    async def main() -> None:
        kinds = []
        with pytest.raises(RunError, match="all 1 turns"):
            async for event in Agent(script({"calls": [call("add", a=1, b=2)]}), tools=[add]).stream("Go."):
                kinds.append(event["type"])
        assert kinds[-1] == "run.finished"

    asyncio.run(main())


def test_leaving_a_stream_ends_the_run() -> None:
    ended = []

    @tool
    async def hang() -> None:
        """Hang."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    def agent() -> Agent:
        return Agent(script({"calls": [call("hang")]}, "done"), tools=[hang])

    async def left() -> None:
        async for event in agent().stream("Go."):
            if event["type"] == "call.started":
                await asyncio.sleep(0.01)
                break
        await asyncio.sleep(0.01)
        assert ended == [True] and len(asyncio.all_tasks()) == 1

    async def closed() -> None:
        async with agent().stream("Go.") as events:
            async for event in events:
                if event["type"] == "call.started":
                    await asyncio.sleep(0.01)
                    break
        assert ended == [True] and len(asyncio.all_tasks()) == 1
        assert [event async for event in events] == []

    async def cancelled() -> None:
        events = agent().stream("Go.")

        async def read() -> None:
            async for _ in events:
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True] and len(asyncio.all_tasks()) == 1

    for main in (left, closed, cancelled):
        ended.clear()
        asyncio.run(main())


def test_a_listener_gets_the_events_of_runs_and_nested_runs() -> None:
    seen: list[str] = []
    inner = Agent(script(*SUM), tools=[add], name="sums", description="Adds numbers.")
    agent = Agent(
        script({"calls": [call("sums", prompt="1 and 2")]}, "{{ last.text }}"),
        tools=[inner],
        on_event=lambda event: seen.append(event["type"]),
    )
    assert agent.run_sync("Go.").text == "The sum is 3."
    assert (seen.count("run.started"), seen.count("call.started"), seen[-1]) == (2, 2, "run.finished")
    seen.clear()

    async def listen(event: dict[str, Any]) -> None:
        await asyncio.sleep(0)
        seen.append(event["type"])

    asyncio.run(_awaited(Agent(script("a"), on_event=listen)))
    assert seen[0] == "run.started" and seen[-1] == "run.finished"

    def broken(event: dict[str, Any]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Agent(script("a"), on_event=broken).run_sync("Go.")


# Agents as tools, toolboxes, conversations.


def test_an_agent_is_a_tool_of_another() -> None:
    inner = Agent(script(*SUM), tools=[add], name="sums", description="Adds numbers.", answer=None)
    agent = Agent(script({"calls": [call("sums", prompt="1 and 2")]}, "{{ last.text }}"), tools=[inner, add_later])

    async def main() -> None:
        stream = agent.stream("Go.")
        events = [event async for event in stream]
        result = stream.result
        assert result is not None and result.text == "The sum is 3."
        assert [child["stop_reason"] for child in result.record["children"]] == ["end_turn"]
        started = [event for event in events if event["type"] == "run.started"]
        assert started[1]["parent"] == started[0]["run"]

    asyncio.run(main())
    with pytest.raises(ValueError, match="name and a description"):
        Agent(script("a"), tools=[Agent(script("b"))])


def test_a_toolbox_brings_its_tools() -> None:
    toolbox = Toolbox(add)
    assert Agent(script(*SUM), tools=toolbox).run_sync("Go.").text == "The sum is 3."
    assert [record["tool"] for record in toolbox.records] == ["add"]
    agent = Agent(
        script({"calls": [call("add", a=1, b=2), call("add_later", a=1, b=2)]}, "ok"), tools=[toolbox, add_later]
    )
    assert [record["status"] for record in agent.run_sync("Go.").calls] == ["success", "success"]
    with pytest.raises(ValueError, match="add"):
        Agent(script("a"), tools=[add, add])


def test_methods_of_an_object_are_tools_and_no_cycle_leaks() -> None:
    class Bot:
        def __init__(self) -> None:
            self.agent = Agent(script(*SUM), tools=[self])

        @tool
        def add(self, a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

    bot = Bot()
    assert bot.agent.run_sync("Go.").text == "The sum is 3."
    gone = weakref.ref(bot)
    del bot
    gc.collect()
    assert gone() is None


def test_a_conversation_continues() -> None:
    agent = Agent(script("Hello.", "You said: hello."))
    first = agent.run_sync("Hello.")
    second = agent.run_sync("What did I say?", conversation=first.conversation)
    assert second.text == "You said: hello." and len(second.conversation) == 4
    stored = Conversation.from_json(first.conversation.to_json())
    assert stored.messages == first.messages
    assert agent.run_sync("What did I say?", conversation=stored).text == "You said: hello."
    assert agent.run_sync("What did I say?", conversation=first).messages == second.messages
    with pytest.raises(TypeError, match="result.conversation"):
        agent.run_sync("Go.", conversation=[])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a stored conversation"):
        Conversation.from_json("{}")


# Cancellation and signals.


def test_a_cancelled_run_leaves_no_task() -> None:
    ended = []

    @tool
    async def hang(n: int) -> None:
        """Hang."""
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(n)

    async def main() -> None:
        agent = Agent(script({"calls": [call("hang", n=n) for n in range(3)]}, "done"), tools=[hang])
        task = asyncio.create_task(agent.run("Go."))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sorted(ended) == [0, 1, 2] and len(asyncio.all_tasks()) == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.run("Go."), 0.05)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


@pytest.mark.parametrize("fatal", [KeyboardInterrupt, SystemExit])
def test_a_fatal_exception_of_a_tool_ends_the_run_unchanged(fatal: type[BaseException]) -> None:
    raised = fatal("stop")
    later: list[str] = []

    @tool
    def stop() -> None:
        """Stop."""
        raise raised

    @tool
    async def stop_later() -> None:
        """Stop."""
        await asyncio.sleep(0)
        raise raised

    @tool
    def after() -> None:
        """Run after."""
        later.append("after")

    async def main(name: str) -> None:
        agent = Agent(
            script({"calls": [call(name)]}, {"calls": [call("after")]}, "done"), tools=[stop, stop_later, after]
        )
        with pytest.raises(fatal) as caught:
            await agent.run("Go.")
        assert caught.value is raised
        with pytest.raises(fatal):
            async for _ in agent.stream("Go."):
                pass
        assert len(asyncio.all_tasks()) == 1

    for name in ("stop", "stop_later"):
        asyncio.run(main(name))
        agent = Agent(
            script({"calls": [call(name)]}, {"calls": [call("after")]}, "done"), tools=[stop, stop_later, after]
        )
        with pytest.raises(fatal) as caught:
            agent.run_sync("Go.")
        assert caught.value is raised
    assert later == []


def test_ctrl_c_ends_a_run_within_100_ms(script: Any) -> None:
    for body in (
        "agent.run_sync('Go.')",
        "asyncio.run(main())",
    ):
        for kind in (
            "async def hang():\n    'Hang.'\n    await asyncio.sleep(60)",
            "def hang():\n    'Hang.'\n    time.sleep(60)",
        ):
            source = f"""
import asyncio, os, time
from toolpost import Agent, ScriptModel, tool

@tool
{kind}

async def main():
    await agent.run('Go.')

agent = Agent(ScriptModel([{{"calls": [{{"tool": "hang"}}]}}, "done"]), tools=[hang])
print("ready", flush=True)
try:
    {body}
except KeyboardInterrupt:
    # A thread that sleeps would delay the exit.
    print("interrupted", flush=True)
    os._exit(0)
"""
            finished = script(source, signal=signal.SIGINT)
            assert finished.out.strip() == "interrupted" and finished.code == 0, finished
            assert finished.seconds < 0.1, finished


def test_an_exception_in_the_body_of_a_stream_ends_the_run() -> None:
    ended: list[str] = []

    async def wait(name: str) -> None:
        """Wait."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    async def main() -> None:
        for kind in ("run.started", "turn.started", "call.started"):
            model = ScriptModel([{"calls": [{"tool": "wait", "args": {"name": kind}}]}, {"text": "done"}])
            # The iterator ends while the exception passes.
            with pytest.raises(ValueError, match=kind):
                async for event in Agent(model, tools=[wait]).stream("Go."):
                    if event["type"] == kind:
                        raise ValueError(kind)

    asyncio.run(main())
    assert ended in ([], ["call.started"])
