"""Plans of workflows in Python: the members of a file, with the same checks.

>>> from toolpost import Flow, Ref, Step, Toolbox, tool
>>> @tool
... def double(value: int) -> int:
...     "Double a number."
...     return value * 2
>>> each = Step("each", map=Ref("input.numbers"), steps=[Step("two", tool=double, args={"value": Ref("item")})])
>>> flow = Flow("doubles", [each], input={"numbers": list[int]}, output=each.output)
>>> flow.run_sync(Toolbox(double), {"numbers": [1, 2, 3]}).output
[2, 4, 6]

A text in a step is a template, as in a file: text of others belongs into the input of a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from toolpost import author

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from toolpost._engine import Flow

    _Duration = float | str | timedelta
    _Failure = Literal["fail_fast", "continue"] | Mapping[Literal["quorum"], int]


class Ref:
    """An expression in a plan. Members, items and comparisons of it are expressions; its text is a template.

    >>> rows = Step("rows", tool="search")
    >>> f"{rows.output.items[0].name} of {rows.output['class']}"
    '${{ steps.rows.output.items[0].name }} of ${{ steps.rows.output["class"] }}'
    """

    __slots__ = ("_expression",)
    __iter__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def __getattr__(self, name: str) -> Ref:
        if name.startswith("__"):
            raise AttributeError(name)
        return Ref(f"{self._expression}.{name}")

    def __getitem__(self, key: int | str | slice | Ref) -> Ref:
        if isinstance(key, slice):
            start, stop = ("" if end is None else _operand(end) for end in (key.start, key.stop))
            return Ref(f"{self._expression}[{start}:{stop}]")
        return Ref(f"{self._expression}[{_operand(key)}]")

    def __eq__(self, other: object) -> Ref:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: object) -> Ref:  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: object) -> Ref:
        return self._compared("<", other)

    def __le__(self, other: object) -> Ref:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Ref:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Ref:
        return self._compared(">=", other)

    def _compared(self, operator: str, other: object) -> Ref:
        return Ref(f"({self._expression} {operator} {_operand(other)})")

    def __bool__(self) -> bool:
        raise TypeError(f"`{self._expression}` has no value before the run; give the expression to a step as `when`")

    def __str__(self) -> str:
        return f"${{{{ {self._expression} }}}}"

    def __repr__(self) -> str:
        return f"Ref({self._expression!r})"


def _operand(value: object) -> str:
    if isinstance(value, Ref):
        return value._expression
    return json.dumps(author.encode(value), ensure_ascii=False)


class Step:
    """A step of a plan. Its first options say what it does: one of them is given.

    id: its name in expressions: letters, digits and ``_``.
    tool: calls a tool: its name, or its function. `args` has the arguments.
    code: runs code in the sandbox, in `language` (``python``), with `variables`.
    command: runs a program and its arguments, without a shell.
    wait: waits for seconds, or until a time.
    signal: waits for a signal of this name, whose value is the output.
    approve: asks a person.
    parallel, race: runs steps at once; a race ends with the first success.
    sequential, pipeline: runs steps one after another; those of a pipeline read the output before as ``previous``.
    map: runs `steps` for each item of a list, which they read as ``item``, or by the name `item`.
    until, max_iterations: repeats `steps` until an expression is true, at most so many times.
    flow: runs another plan, with the inputs `args`.

    needs: steps that end first, besides those that this one reads.
    when: an expression; if it is false, the step is skipped.
    retry: the number of attempts after the first, or a dict with `max`, `initial`, `maximum` and `on`.
    timeout: the seconds of one attempt of a call, of a block, or of a wait for a person or a signal.
    heartbeat: the longest time of a call without progress, in seconds.
    evaluate: lets values of steps and inputs run as code.
    priority, pool, limit, cache, failure, max_parallel: as in a file.
    output: the output of a block. Defaults to that of its last step.
    on_error: "continue" runs the steps that need this one even if it fails; steps run instead of it.
    compensate: steps that undo this one if the run fails later.
    """

    __slots__ = ("_members", "id")

    def __init__(
        self,
        id: str,
        *,
        tool: str | Callable[..., Any] | None = None,
        args: Mapping[str, Any] | None = None,
        code: str | None = None,
        language: str | None = None,
        variables: Mapping[str, Any] | None = None,
        command: Sequence[Any] | None = None,
        wait: _Duration | datetime | Ref | None = None,
        signal: str | None = None,
        approve: str | None = None,
        parallel: Sequence[Step] | None = None,
        sequential: Sequence[Step] | None = None,
        pipeline: Sequence[Step] | None = None,
        race: Sequence[Step] | None = None,
        map: Sequence[Any] | Ref | None = None,
        item: str | None = None,
        until: Ref | str | None = None,
        max_iterations: int | None = None,
        steps: Sequence[Step] | None = None,
        flow: Flow | str | None = None,
        needs: Step | str | Sequence[Step | str] = (),
        when: Ref | str | None = None,
        retry: int | Mapping[str, Any] | None = None,
        timeout: _Duration | None = None,
        heartbeat: _Duration | None = None,
        evaluate: bool | None = None,
        priority: Literal["background", "low", "normal", "high", "critical"] | None = None,
        pool: str | None = None,
        limit: Mapping[str, Any] | None = None,
        cache: _Duration | Mapping[str, Any] | None = None,
        failure: _Failure | None = None,
        max_parallel: int | None = None,
        output: Any = None,
        on_error: Literal["continue"] | Sequence[Step] | None = None,
        compensate: Sequence[Step] | None = None,
    ) -> None:
        self.id = id
        loop = {"until": until, "max": max_iterations}
        self._members = _members(
            id=id,
            tool=None if tool is None else _tool_name(tool),
            code=code,
            language=language,
            variables=variables,
            command=command,
            wait=wait if isinstance(wait, (Ref, str)) or hasattr(wait, "isoformat") else _duration(wait, "wait"),
            signal=signal,
            approve=approve,
            parallel=parallel,
            sequential=sequential,
            pipeline=pipeline,
            race=race,
            map=map,
            loop={key: value for key, value in loop.items() if value is not None} or None,
            steps=steps,
            flow=flow if flow is None or isinstance(flow, str) else flow.data,
            needs=[one.id if isinstance(one, Step) else one for one in _listed(needs)] or None,
            when=when,
            retry=retry,
            timeout=_duration(timeout, "timeout"),
            heartbeat=_duration(heartbeat, "heartbeat"),
            evaluate=evaluate,
            priority=priority,
            pool=pool,
            limit=limit,
            cache=cache if isinstance(cache, Mapping) else _duration(cache, "cache"),
            failure=failure,
            max_parallel=max_parallel,
            output=output,
            on_error=on_error,
            compensate=compensate,
            **{"with": args, "as": item},
        )

    @property
    def output(self) -> Ref:
        """The output, for later steps; null if the step was skipped or failed."""
        return Ref(f"steps.{self.id}.output")

    @property
    def status(self) -> Ref:
        """The status, for later steps: succeeded, failed, skipped, blocked or cancelled."""
        return Ref(f"steps.{self.id}.status")

    @property
    def error(self) -> Ref:
        """The `code` and `message` of a failure, for later steps."""
        return Ref(f"steps.{self.id}.error")

    def __repr__(self) -> str:
        return f"Step({self.id!r})"


def plan(
    name: str, steps: Sequence[Step], input: Mapping[str, Any] | None, timeout: Any, **members: Any
) -> dict[str, Any]:
    """Return the data of a plan. Private: `Flow` calls it."""
    inputs = {key: _schema(key, declared) for key, declared in (input or {}).items()}
    return _members(
        kind="flow",
        name=name,
        steps=list(steps),
        input=inputs or None,
        timeout=_duration(timeout, "timeout"),
        **members,
    )


def _members(**members: Any) -> dict[str, Any]:
    return {key: _data(value) for key, value in members.items() if value is not None}


def _data(value: Any) -> Any:
    """A value with references as the data of a plan."""
    if isinstance(value, Ref):
        return str(value)
    if isinstance(value, Step):
        return value._members
    if isinstance(value, Mapping):
        return {key: _data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_data(item) for item in value]
    return author.encode(value)


def _schema(name: str, declared: Any) -> dict[str, Any]:
    from toolpost._answers import answer_type

    schema = answer_type(declared)[0]
    # Among other inputs, its references still mean its own definitions.
    return {"$id": f"input:{name}", **schema} if "$defs" in schema else schema


def _tool_name(tool: str | Callable[..., Any]) -> str:
    if isinstance(tool, str):
        return tool
    return (tool if isinstance(tool, author.Tool) else author.tool(tool)).name


def _duration(value: Any, option: str) -> str | None:
    return None if value is None else author._duration(value, option)


def _listed(value: Step | str | Sequence[Step | str]) -> Sequence[Step | str]:
    return [value] if isinstance(value, (Step, str)) else value
