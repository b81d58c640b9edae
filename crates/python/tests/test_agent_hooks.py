"""Functions that take part in runs: system prompts, checks of answers, nested runs, context, retry advice."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import pydantic
import pytest

from toolpost import Agent, Ctx, RecordingModel, RunError, RunResult, ScriptModel, Toolbox, ToolError, tool


@dataclass
class Deps:
    city: str


class Flight(pydantic.BaseModel):
    origin: str


class NoFlight(pydantic.BaseModel):
    reason: str


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"calls": [{"tool": name, "args": args}], "usage": {"input": 10, "output": 5}}


def say(text: str) -> dict[str, Any]:
    return {"text": text, "usage": {"input": 10, "output": 5}}


@tool
async def home(ctx: Ctx[Deps]) -> str:
    """Return the city of the user."""
    return ctx.context.city


def test_tools_get_the_context_which_no_schema_has() -> None:
    assert Toolbox(home).specs[0]["input_schema"]["properties"] == {}
    agent = Agent(ScriptModel([call("home"), "ok"]), tools=[home])
    assert agent.run_sync("Where?", context=Deps("Oslo")).messages[2]["text"] == "Oslo"
    assert Toolbox(home).call_sync("home", context=Deps("Bergen")).value == "Bergen"
    assert asyncio.run(home(Ctx(context=Deps("Moss")))) == "Moss"
    assert Ctx().context is None


# System prompts


def system(ctx: Ctx[Deps]) -> str:
    return f"The user is in {ctx.context.city}."


async def system_later(ctx: Ctx[Deps]) -> str:
    await asyncio.sleep(0)
    return system(ctx)


def prompts(file: Path) -> list[Any]:
    return [json.loads(line)["request"].get("system") for line in file.read_text().splitlines() if "request" in line]


@pytest.mark.parametrize("function", [system, system_later])
def test_a_function_writes_the_system_prompt_of_each_run(function: Any, tmp_path: Path) -> None:
    model = RecordingModel(ScriptModel(["a", "b", "c", "d"]), tmp_path / "recording")
    agent = Agent(model, system=function)
    first = agent.run_sync("Hi", context=Deps("Oslo"))
    agent.run_sync("Hi", context=Deps("Bergen"), conversation=first)

    async def streams() -> None:
        await agent.run("Hi", context=Deps("Moss"))
        async for _ in agent.stream("Hi", context=Deps("Halden")):
            pass

    asyncio.run(streams())
    cities = ["Oslo", "Bergen", "Moss", "Halden"]
    assert prompts(tmp_path / "recording") == [f"The user is in {city}." for city in cities]


def test_a_nested_agent_gets_the_context_for_its_system_prompt(tmp_path: Path) -> None:
    model = RecordingModel(ScriptModel(["Rain."]), tmp_path / "recording")
    inner = Agent(model, system=system, name="weather", description="Ask.")
    outer = Agent(ScriptModel([call("weather", prompt="Rain?"), "Yes."]), tools=[inner])
    outer.run_sync("Rain?", context=Deps("Oslo"))
    assert prompts(tmp_path / "recording") == ["The user is in Oslo."]


def test_an_exception_of_a_system_prompt_reaches_the_caller() -> None:
    agent = Agent(ScriptModel(["a"]), system=system)
    with pytest.raises(AttributeError, match="city"):
        agent.run_sync("Hi")
    with pytest.raises(TypeError, match="`system` must be a function"):
        Agent(ScriptModel(["a"]), system=7)  # type: ignore[call-overload]


# Checks of answers


def check(ctx: Ctx[Deps], answer: Flight | NoFlight) -> Flight | NoFlight:
    if isinstance(answer, Flight) and answer.origin != ctx.context.city:
        raise ToolError.invalid_input(f"the origin is not {ctx.context.city}", suggestion="Use the user's city.")
    return answer


async def check_later(ctx: Ctx[Deps], answer: Flight | NoFlight) -> Flight | NoFlight:
    await asyncio.sleep(0)
    return check(ctx, answer)


@pytest.mark.parametrize("function", [check, check_later])
def test_the_model_corrects_an_answer_that_a_check_rejects(function: Any) -> None:
    turns = ['{"origin": "Rome"}', '{"origin": "Oslo"}']
    agent = Agent[Flight | NoFlight](ScriptModel(turns), answer=Flight | NoFlight, validate=function)
    result = agent.run_sync("Find a flight.", context=Deps("Oslo"))
    assert result.answer == Flight(origin="Oslo")
    assert "the origin is not Oslo. Use the user's city." in result.messages[2]["text"]

    async def awaited() -> RunResult[Flight | NoFlight]:
        return await agent.with_model(ScriptModel(turns)).run("Find a flight.", context=Deps("Oslo"))

    assert asyncio.run(awaited()).answer == Flight(origin="Oslo")
    other = agent.with_model(ScriptModel(['{"reason": "full"}']))
    assert other.run_sync("Find a flight.", context=Deps("Oslo")).answer == NoFlight(reason="full")


class Nothing(pydantic.BaseModel):
    """A union member without fields."""


def test_a_member_without_fields_does_not_match_an_invalid_answer_of_another_member() -> None:
    turns = ['{"orgin": "Oslo"}', '{"origin": "Oslo"}']
    result = Agent[Flight | Nothing](ScriptModel(turns), answer=Flight | Nothing).run_sync("Hi")
    assert (result.answer, result.record["iterations"]) == (Flight(origin="Oslo"), 2)
    assert Agent(ScriptModel(["{}"]), answer=Flight | Nothing).run_sync("Hi").answer == Nothing()


def test_a_check_changes_the_answer_or_keeps_it() -> None:
    def shout(ctx: Ctx[Any], answer: Flight) -> Flight:
        return Flight(origin=answer.origin.upper())

    def keep(ctx: Ctx[Any], answer: Flight) -> Any:
        return None

    turns = ['{"origin": "Oslo"}']
    changed = Agent(ScriptModel(turns), answer=Flight, validate=shout).run_sync("Hi")
    assert (changed.answer.origin, changed.text) == ("OSLO", turns[0])
    assert Agent(ScriptModel(turns), answer=Flight, validate=keep).run_sync("Hi").answer.origin == "Oslo"


def test_a_check_of_text() -> None:
    def brief(ctx: Ctx[Any], answer: str) -> str:
        if len(answer) > 5:
            raise ValueError("it has more than 5 characters")
        return answer.upper()

    for answer in (None, str):
        result = Agent(ScriptModel(["too long", "short"]), answer=answer, validate=brief).run_sync("Hi")
        assert (result.answer, len(result.messages)) == ("SHORT", 4)
        assert "it has more than 5 characters" in result.messages[2]["text"]
    assert Agent(ScriptModel(["plain"]), answer=str).run_sync("Hi").answer == "plain"


def test_the_model_corrects_an_answer_a_limited_number_of_times() -> None:
    def reject(ctx: Ctx[Any], answer: str) -> str:
        raise ToolError.invalid_input("no")

    for limit in (0, 3):
        agent = Agent(ScriptModel(["a"] * 5), validate=reject, max_repairs=limit)
        with pytest.raises(RunError) as caught:
            agent.run_sync("Hi")
        assert caught.value.stop_reason == "answer_schema"
        assert caught.value.result.record["iterations"] == limit + 1


def test_a_defect_of_a_check_reaches_the_caller() -> None:
    def defect(ctx: Ctx[Any], answer: str) -> str:
        raise KeyError("city")

    with pytest.raises(KeyError, match="city"):
        Agent(ScriptModel(["a", "b"]), validate=defect).run_sync("Hi")
    with pytest.raises(TypeError, match="`validate` must be a function"):
        Agent(ScriptModel(["a"]), validate="x")  # type: ignore[call-overload]


def test_type_checkers_know_the_type_of_an_answer() -> None:
    assert_type(Agent(ScriptModel(["a"])).run_sync("Hi").answer, str)
    flight = ['{"origin": "Oslo"}']
    assert_type(Agent(ScriptModel(flight), answer=Flight).run_sync("Hi").answer, Flight)
    assert_type(Agent(ScriptModel(["[]"]), answer=list[Flight]).run_sync("Hi").answer, list[Flight])
    union = Agent[Flight | Nothing](ScriptModel(flight), answer=Flight | Nothing)
    assert_type(union.run_sync("Hi").answer, Flight | Nothing)
    assert_type(Agent(ScriptModel(["7"]), answer={"type": "integer"}).run_sync("Hi").answer, Any)
    assert_type(Ctx(context=Deps("Oslo")).context, Deps)


# Nested runs


def nested(inner: Agent[Any], **options: Any) -> Any:
    @tool
    async def extract(ctx: Ctx[Deps]) -> str:
        """Extract."""
        result = await inner.run(f"Page of {ctx.context.city}", parent=ctx, **options)
        return result.text

    @tool
    def extract_sync(ctx: Ctx[Deps]) -> str:
        """Extract."""
        return inner.run_sync(f"Page of {ctx.context.city}", parent=ctx, **options).text

    return [extract, extract_sync]


@pytest.mark.parametrize("name", ["extract", "extract_sync"])
def test_a_run_inside_a_tool_spends_from_the_limits_of_its_caller(name: str) -> None:
    inner = Agent(ScriptModel([call("home"), say("inner")]), tools=[home])
    outer = Agent(ScriptModel([call(name), say("done")]), tools=nested(inner))

    result = asyncio.run(_run(outer))
    assert result.usage["input_tokens"] == 40
    assert [child["response"] for child in result.record["children"]] == ["inner"]
    inner = Agent(ScriptModel([call("home"), say("inner")]), tools=[home])
    outer = Agent(ScriptModel([call(name), say("done")]), tools=nested(inner), max_tokens=40)
    with pytest.raises(RunError) as caught:
        outer.run_sync("Hi", context=Deps("Oslo"))
    assert caught.value.stop_reason == "max_tokens"


def test_the_caller_of_a_tool_approves_the_calls_of_its_run() -> None:
    @tool(approval="ask")
    def delete() -> str:
        """Delete."""
        return "deleted"

    asked: list[str] = []

    def approve(name: str, arguments: dict[str, Any]) -> bool:
        asked.append(name)
        return True

    inner = Agent(ScriptModel([call("delete"), "inner"]), tools=[delete], approve="deny")
    outer = Agent(ScriptModel([call("extract"), "done"]), tools=nested(inner), approve=approve)
    asyncio.run(_run(outer))
    assert asked == ["delete"]


async def _run(agent: Agent[Any], **options: Any) -> Any:
    return await agent.run("Hi", context=Deps("Oslo"), **options)


def test_a_parent_is_the_context_of_a_running_tool() -> None:
    agent = Agent(ScriptModel(["a"]))
    with pytest.raises(TypeError, match="`parent` must be the Ctx of a running tool"):
        agent.run_sync("Hi", parent=Ctx())
    outer = Agent(ScriptModel([call("extract"), "done"]), tools=nested(agent, user="ada"))
    result = asyncio.run(_run(outer))
    assert result.messages[2]["is_error"]
    assert Agent(ScriptModel(["a"])).run_sync("Hi", parent=None).text == "a"  # type: ignore[arg-type]


def test_another_model_leaves_the_agent_unchanged() -> None:
    agent = Agent(ScriptModel(["first"]), tools=[home], name="one", description="One.")
    other = agent.with_model(ScriptModel([call("home"), "second"]))
    assert other.run_sync("Hi", context=Deps("Oslo")).messages[2]["text"] == "Oslo"
    assert (other.name, other.description, agent.run_sync("Hi").text) == ("one", "One.", "first")


def test_the_error_of_a_missing_api_key_has_its_fix_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ValueError, match="no API key: set ANTHROPIC_API_KEY") as caught:
        Agent("anthropic/claude-sonnet-5-5")
    assert str(caught.value).count("ANTHROPIC_API_KEY") == 1


# Advice for retries


def failing(code: str, retry: Any) -> tuple[int, ToolError]:
    attempts = 0

    @tool(retries=2, idempotent=True)
    def fail() -> None:
        """Fail."""
        nonlocal attempts
        attempts += 1
        raise ToolError(code, "no", retry=retry)

    with pytest.raises(ToolError) as caught:
        Toolbox(fail).call_sync("fail")
    return attempts, caught.value


@pytest.mark.parametrize(
    ("code", "retry", "attempts"),
    [("DEPENDENCY", None, 3), ("DEPENDENCY", "never", 1), ("INVALID_INPUT", None, 1), ("INVALID_INPUT", 0.01, 3)],
)
def test_an_error_advises_retries(code: str, retry: Any, attempts: int) -> None:
    assert failing(code, retry)[0] == attempts


def test_advice_is_part_of_the_error_as_json() -> None:
    for retry in (None, "never", 0, 1.5):
        error = ToolError.dependency("no", retry=retry)
        assert ToolError.from_dict(error.to_dict()).retry == retry
    assert ToolError.dependency("no", retry=1.5).to_dict()["retry"] == {"after_ms": 1500}
    for advice in ({"after_ms": 1500}, {"not_started": {"secs": 1, "nanos": 500_000_000}}):
        assert ToolError.from_dict({"code": "DEPENDENCY", "message": "no", "retry": advice}).retry == 1.5
    assert "context" not in ToolError.dependency("no", retry="never").to_dict()
    with pytest.raises(ValueError, match="`retry` must be"):
        ToolError.dependency("no", retry="later")
