"""The context of a call."""

from __future__ import annotations

from ._errors import ToolError
from ._values import Artifact, Sample
from ._typing import _C, _Generic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from os import PathLike
    from typing import Any

_LEVELS = {"trace": "trace", "debug": "debug", "info": "info", "warn": "warn", "warning": "warn", "error": "error"}
_VERBS = {
    "ask": "answer questions",
    "sample": "sample from a model",
    "artifact": "accept artifacts during a call",
    "nested": "call other tools",
}


class Ctx(_Generic[_C]):
    """The context of a call. A parameter with this annotation receives it, whatever its name.

    ``Ctx[Deps]`` has the object of the application, such as dependencies, as ``context``.

    ``progress`` and ``log`` return immediately. ``ask``, ``sample``, ``artifact`` and ``call`` wait for the caller;
    each has a form with ``_sync`` for functions that are not async. If the caller lacks the capability, they raise
    ``PRECONDITION``.

    ``Ctx()`` is a context without a caller, for tests; ``Ctx(context=…)`` has an object.

    >>> ctx = Ctx()
    >>> ctx.progress("half", 50)
    >>> ctx.is_cancelled
    False
    """

    def __init__(self, facts: Mapping[str, Any] | None = None, *, attempt: int = 1, context: _C | None = None) -> None:
        self._facts: Mapping[str, Any] = facts or {}
        self._context = context
        self._attempt = attempt
        self._cancelled = False
        left = [self._facts[key] for key in ("deadline_ms", "timeout_ms") if self._facts.get(key) is not None]
        self._deadline = _now() + min(left) / 1000 if left else None

    def _notify(self, kind: str, body: dict[str, Any]) -> None:
        """Forwards progress or a log line. A subclass with a caller overrides it."""

    def _request(self, verb: str, body: dict[str, Any]) -> Future[Any]:
        """Sends a request to the caller. A subclass with a caller overrides it."""
        raise ToolError.precondition(
            f"this caller cannot {_VERBS[verb]}", suggestion="Use a front that can, or pass the value as an argument."
        )

    def _wait(self, verb: str, body: dict[str, Any]) -> Any:
        return self._request(verb, body).result()

    async def _await(self, verb: str, body: dict[str, Any]) -> Any:
        import asyncio

        return await asyncio.wrap_future(self._request(verb, body))

    @property
    def id(self) -> str:
        """The call's id."""
        return str(self._facts.get("call", ""))

    @property
    def context(self) -> _C:
        """The ``context`` of the application for the call, the run or the server; no model and no record has it."""
        return self._context  # type: ignore[return-value]

    @property
    def depth(self) -> int:
        """Nesting depth of the call."""
        return int(self._facts.get("depth", 0))

    @property
    def caller(self) -> dict[str, Any]:
        """The caller: its ``front``, such as ``cli`` or ``agent``, and its ``identity`` if known."""
        return dict(self._facts.get("caller") or {"front": "exec"})

    @property
    def scope(self) -> dict[str, Any] | None:
        """The run or conversation of the call: its ``id`` and ``owner``."""
        return self._facts.get("scope")

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1."""
        return self._attempt

    @property
    def remaining(self) -> float | None:
        """Seconds to the deadline; None without a deadline."""
        return None if self._deadline is None else max(0.0, self._deadline - _now())

    @property
    def is_cancelled(self) -> bool:
        """Whether the call is cancelled. Blocking code checks this periodically."""
        return self._cancelled

    @property
    def idempotency_key(self) -> str | None:
        """Calls with the same key have one external effect."""
        return self._facts.get("idempotency_key")

    @property
    def is_verbose(self) -> bool:
        """Whether the caller asks for detailed output."""
        return bool(self._facts.get("verbose"))

    @property
    def is_dry_run(self) -> bool:
        """Whether this is a dry run: report the plan, change nothing. Only tools with ``dry_run=True`` see it."""
        return bool(self._facts.get("dry_run"))

    @property
    def working_dir(self) -> str | None:
        """The working directory."""
        return self._facts.get("working_dir")

    @property
    def level(self) -> str | None:
        """The sandbox level that the caller requests."""
        return self._facts.get("level")

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts that the caller attached."""
        return dict(self._facts.get("metadata") or {})

    def progress(self, message: str, percent: float | None = None) -> None:
        """Reports progress, ``percent`` from 0 to 100. Returns immediately."""
        body: dict[str, Any] = {"message": message}
        if percent is not None:
            body["percent"] = percent
        self._notify("progress", body)

    def log(self, level: str, message: str) -> None:
        """Writes a line to the caller's log. Returns immediately."""
        if level not in _LEVELS:
            raise ValueError(f"`{level}` is not a log level; use one of {', '.join(_LEVELS)}")
        self._notify("log", {"level": _LEVELS[level], "message": message})

    def debug(self, message: str) -> None:
        """Writes a line with debugging details to the caller's log."""
        self.log("debug", message)

    def info(self, message: str) -> None:
        """Writes a line for users to the caller's log."""
        self.log("info", message)

    def warning(self, message: str) -> None:
        """Writes a possible problem to the caller's log."""
        self.log("warn", message)

    def error(self, message: str) -> None:
        """Writes an error to the caller's log."""
        self.log("error", message)

    async def ask(self, message: str, answer: Any = None, *, name: str | None = None) -> Any:
        """Asks the user behind the caller and returns the answer; None if the user declines.

        ``answer`` is the type of the answer or its JSON Schema; without it, the answer is any text.
        """
        question, read = _question(message, answer, name)
        return read(await self._await("ask", {"question": question}))

    def ask_sync(self, message: str, answer: Any = None, *, name: str | None = None) -> Any:
        """Like :meth:`ask`, for a function that is not async."""
        question, read = _question(message, answer, name)
        return read(self._wait("ask", {"question": question}))

    async def sample(
        self,
        prompt: str,
        *,
        system: str | None = None,
        max_tokens: int = 1000,
        temperature: float | None = None,
        stop_sequences: Sequence[str] = (),
    ) -> Sample:
        """Requests a completion from the caller's model."""
        body = _sample_body(prompt, system, max_tokens, temperature, stop_sequences)
        return _sample(await self._await("sample", body))

    def sample_sync(
        self,
        prompt: str,
        *,
        system: str | None = None,
        max_tokens: int = 1000,
        temperature: float | None = None,
        stop_sequences: Sequence[str] = (),
    ) -> Sample:
        """Like :meth:`sample`, for a function that is not async."""
        body = _sample_body(prompt, system, max_tokens, temperature, stop_sequences)
        return _sample(self._wait("sample", body))

    async def artifact(self, name: str, data: bytes | str | PathLike[str], media_type: str | None = None) -> None:
        """Delivers a file, as bytes, text or a path, to the caller and waits for its acceptance."""
        await self._await("artifact", {"artifact": Artifact(name, data, media_type).to_dict()})

    def artifact_sync(self, name: str, data: bytes | str | PathLike[str], media_type: str | None = None) -> None:
        """Like :meth:`artifact`, for a function that is not async."""
        self._wait("artifact", {"artifact": Artifact(name, data, media_type).to_dict()})

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Calls another tool and returns its structured value, or else its text."""
        from ._encoding import encode

        return _value_of(await self._await("nested", {"tool": tool, "arguments": encode(arguments or {})}))

    def call_sync(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Like :meth:`call`, for a function that is not async."""
        from ._encoding import encode

        return _value_of(self._wait("nested", {"tool": tool, "arguments": encode(arguments or {})}))

    def state(self, id: str) -> Any:
        """Opens a document for manual reads and changes. Tool programs have no document store."""
        raise ToolError.precondition("this host has no document store", suggestion="Run the tool through a toolbox.")


def _now() -> float:
    import time

    return time.monotonic()


def _question(message: str, answer: Any, name: str | None) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    from ._checks import _decoded
    from ._schema import _Compiler

    question: dict[str, Any] = {"message": message, "kind": "input"}
    if name is not None:
        question["name"] = name
    kind = None
    if isinstance(answer, dict):
        question["schema"] = answer
    elif answer is not None:
        compiler = _Compiler("the answer of `ask`", ())
        kind = compiler.compile(answer)
        question["schema"] = compiler.document(kind)

    def read(reply: Any) -> Any:
        if not isinstance(reply, dict) or reply.get("answer") != "given":
            return None
        return reply.get("value") if kind is None else _decoded(kind, reply.get("value"))

    return question, read


def _sample_body(
    prompt: str, system: str | None, max_tokens: int, temperature: float | None, stop_sequences: Sequence[str]
) -> dict[str, Any]:
    options = {"system": system, "temperature": temperature, "stop_sequences": list(stop_sequences) or None}
    given = {key: value for key, value in options.items() if value is not None}
    return {"prompt": {"prompt": prompt, "max_tokens": max_tokens, **given}}


def _sample(reply: Any) -> Sample:
    return Sample(str(reply.get("content", "")), reply.get("usage"))


def _value_of(output: dict[str, Any]) -> Any:
    if "structured" in output or not output.get("content"):
        return output.get("structured")
    return "\n".join(block["text"] for block in output["content"] if "text" in block)
