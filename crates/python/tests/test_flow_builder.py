"""Plans that Python builds."""

from __future__ import annotations

import doctest
import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import toolpost.flow
from toolpost import Flow, Ref, Step, Toolbox, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="rows")
def load(topic: str, limit: int = 3) -> list[dict[str, Any]]:
    """List rows."""
    return [{"name": f"{topic} {number}", "class": number} for number in range(limit)]


def fail() -> None:
    """Fail."""
    raise KeyError("lost")


def report() -> Flow:
    rows = Step("rows", tool=load, args={"topic": Ref("input.topic")})
    size = Step("size", tool=add, args={"a": Ref("row")["class"], "b": 10}, when=Ref("row")["class"] > 0)
    each = Step(
        "each",
        map=rows.output[: Ref("input.top")],
        item="row",
        steps=[size],
        output=f"{Ref('row').name}: {size.output}",
    )
    return Flow(
        "report",
        [rows, each],
        input={"topic": str, "top": {"type": "integer", "default": 2}},
        output={"lines": each.output, "first": each.output[0]},
        description="Lines about a topic.",
        max_parallel=2,
    )


def test_a_plan_has_the_members_of_a_file() -> None:
    file = Flow.from_yaml("""
kind: flow
name: report
description: Lines about a topic.
input: { topic: { type: string }, top: { type: integer, default: 2 } }
max_parallel: 2
steps:
  - { id: rows, tool: rows, with: { topic: "${{ input.topic }}" } }
  - id: each
    map: "${{ steps.rows.output[:input.top] }}"
    as: row
    steps:
      - { id: size, tool: add, with: { a: "${{ row[\\"class\\"] }}", b: 10 }, when: "${{ (row[\\"class\\"] > 0) }}" }
    output: "${{ row.name }}: ${{ steps.size.output }}"
output: { lines: "${{ steps.each.output }}", first: "${{ steps.each.output[0] }}" }
""")
    flow = report()
    assert flow.data == file.data
    assert flow.hash == file.hash
    assert Flow.from_yaml(json.dumps(flow.data)).hash == flow.hash


def test_it_runs() -> None:
    result = report().run_sync(Toolbox(add, load), {"topic": "river"})
    assert result.output == {"lines": ["river 0: ", "river 1: 11"], "first": "river 0: "}


def test_every_option_of_a_step_is_a_member_of_the_file() -> None:
    inner, other = Step("inner", tool="add"), Step("other", tool="add")
    until = datetime(2030, 1, 31, 8, tzinfo=timezone.utc)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (
            {"code": "1", "language": "bash", "variables": {"x": other.output}},
            {"code": "1", "language": "bash", "variables": {"x": "${{ steps.other.output }}"}},
        ),
        ({"command": ["ls", "-l"]}, {"command": ["ls", "-l"]}),
        (
            {"command": [Ref("input.program")], "evaluate": True},
            {"command": ["${{ input.program }}"], "evaluate": True},
        ),
        ({"wait": 1.5}, {"wait": "1500ms"}),
        ({"wait": until}, {"wait": "2030-01-31T08:00:00+00:00"}),
        ({"wait": Ref("input.time")}, {"wait": "${{ input.time }}"}),
        ({"signal": "paid"}, {"signal": "paid"}),
        ({"approve": "Pay?", "timeout": timedelta(hours=1)}, {"approve": "Pay?", "timeout": "3600s"}),
        *(
            ({kind: [inner, other]}, {kind: [inner._members, other._members]})
            for kind in ("parallel", "sequential", "pipeline", "race")
        ),
        (
            {"steps": [inner], "until": Ref("previous") > 3, "max_iterations": 5},
            {"steps": [inner._members], "loop": {"until": "${{ (previous > 3) }}", "max": 5}},
        ),
        (
            {"map": [1, Ref("input.n")], "steps": [inner], "failure": {"quorum": 1}, "max_parallel": 2, "item": "it"},
            {
                "map": [1, "${{ input.n }}"],
                "steps": [inner._members],
                "failure": {"quorum": 1},
                "max_parallel": 2,
                "as": "it",
            },
        ),
        ({"flow": Flow("sub", [inner]), "args": {"n": 1}}, {"flow": Flow("sub", [inner]).data, "with": {"n": 1}}),
        ({"tool": "add", "needs": inner}, {"tool": "add", "needs": ["inner"]}),
        ({"tool": "add", "needs": [inner, "other"]}, {"tool": "add", "needs": ["inner", "other"]}),
        (
            {"tool": "add", "retry": 2, "heartbeat": 5, "priority": "high", "pool": "gpu"},
            {"tool": "add", "retry": 2, "heartbeat": "5s", "priority": "high", "pool": "gpu"},
        ),
        (
            {"tool": "add", "limit": {"concurrency": 1}, "cache": "1h", "on_error": "continue"},
            {"tool": "add", "limit": {"concurrency": 1}, "cache": "3600s", "on_error": "continue"},
        ),
        (
            {"tool": "add", "cache": {"ttl": "1h", "files": ["a"]}},
            {"tool": "add", "cache": {"ttl": "1h", "files": ["a"]}},
        ),
        (
            {"tool": "add", "on_error": [inner], "compensate": [other]},
            {"tool": "add", "on_error": [inner._members], "compensate": [other._members]},
        ),
    ]
    tried: set[str] = set()
    for options, members in cases:
        assert Step("a", **options)._members == {"id": "a", **members}
        tried |= options.keys()
    names = set(Step.__init__.__kwdefaults__ or ())
    assert names - tried == {"when", "output"}, "options without a case; `report` has these two"


def test_the_engine_accepts_what_the_options_make() -> None:
    step = Step(
        "a",
        tool=add,
        args={"a": 1, "b": 2},
        retry={"max": 1, "on": ["TIMEOUT"]},
        timeout=2,
        heartbeat=1.5,
        priority="low",
        limit={"rate": "10/m"},
        on_error=[Step("b", tool=add, args={"a": 0, "b": 0})],
        compensate=[Step("undo", tool=add, args={"a": Ref("output"), "b": 1})],
    )
    last = Step("last", needs=step, wait=0.001)
    flow = Flow("all", [step, last], timeout=10, failure="continue", tools=["builtin"], output=step.output)
    assert flow.check(Toolbox(add)) == []
    assert flow.run_sync(Toolbox(add)).output == 3
    assert (flow.data["timeout"], flow.data["failure"], flow.data["tools"]) == ("10s", "continue", ["builtin"])


def test_a_value_runs_as_code_by_consent_alone() -> None:
    def flow(evaluate: bool | None) -> Flow:
        step = Step("sum", code=str(Ref("input.code")), evaluate=evaluate)
        return Flow("evaluated", [step], input={"code": str}, output=step.output.value)

    @tool(name="run_code")
    def evaluate_code(code: str, language: str = "python") -> dict[str, Any]:
        """Evaluate an expression."""
        return {"exit_code": 0, "value": eval(code)}

    assert flow(True).run_sync(Toolbox(evaluate_code), {"code": "40 + 2"}).output == 42
    for evaluate in (False, None):
        with pytest.raises(ValueError, match="step `sum`: `code`: a value would run as code"):
            flow(evaluate)


def test_status_and_error_are_references() -> None:
    broken = Step("broken", tool=fail, on_error="continue")
    after = Step("after", tool=add, args={"a": 1, "b": 1}, needs=broken, when=broken.status == "failed")
    flow = Flow("states", [broken, after], output=[broken.error.code, after.output])
    assert flow.run_sync(Toolbox(add, fail)).output == ["INTERNAL", 2]


def test_inputs_are_types() -> None:
    @dataclass
    class Place:
        city: str
        zip: int = 0

    flow = Flow(
        "typed", [Step("a", wait=0.001)], input={"place": Place, "more": list[Place]}, output=Ref("input.place.city")
    )
    toolbox = Toolbox(add)
    assert flow.run_sync(toolbox, {"place": {"city": "Oslo"}, "more": [{"city": "Bergen"}]}).output == "Oslo"
    with pytest.raises(toolpost.ToolError, match="zip"):
        flow.run_sync(toolbox, {"place": {"city": "Oslo", "zip": "x"}, "more": []})


def test_a_reference_is_no_value_in_python() -> None:
    step = Step("a", tool="add")
    with pytest.raises(TypeError, match="has no value before the run"):
        assert step.output == 3
    with pytest.raises(TypeError):
        list(step.output)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        {step.output}
    with pytest.raises(AttributeError):
        _ = step.output.__fspath__
    assert repr(step.output != "x") == "Ref('(steps.a.output != \"x\")')"
    assert [str(step.output < 1), str(step.output <= 1), str(step.output >= step.output)] == [
        "${{ (steps.a.output < 1) }}",
        "${{ (steps.a.output <= 1) }}",
        "${{ (steps.a.output >= steps.a.output) }}",
    ]
    assert repr(step.output[1:][-1]) == "Ref('steps.a.output[1:][-1]')"


def test_defects_are_named() -> None:
    with pytest.raises(ValueError, match="step `a`: a step has one of tool"):
        Flow("none", [Step("a")])
    with pytest.raises(ValueError, match="`missing`"):
        Flow("unknown", [Step("a", tool="add", args={"a": Ref("steps.missing.output")})])
    with pytest.raises(TypeError, match="unexpected keyword argument 'tol'"):
        Step("a", tol="add")  # type: ignore[call-arg]
    with pytest.raises(toolpost.SpecError, match="`timeout='soon'` is not a duration"):
        Step("a", tool="add", timeout="soon")


def test_the_examples_run() -> None:
    assert doctest.testmod(toolpost.flow).failed == 0
