"""Write tools in Python: a function, its types and its docstring are the whole definition.

>>> @tool(tags=["text"])
... def greet(name: str, times: int = 1) -> str:
...     \"\"\"Greet a person.
...
...     Args:
...         name: Name of the person.
...         times: Number of greetings.
...     \"\"\"
...     return " ".join([f"Hello, {name}."] * times)
>>> greet("Ada")
'Hello, Ada.'
>>> greet.spec()["input_schema"]["properties"]["times"]
{'type': 'integer', 'description': 'Number of greetings.', 'default': 1}

``main()`` at the end of a file turns it into a tool program, which speaks Toolpost's executable protocol.
The module has no dependencies and imports other modules on first use. Its sections: errors, values, context, types,
results, docstrings, tools, and the executable protocol.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from os import PathLike
    from typing import Any, BinaryIO, Concatenate, Generic, Literal, NoReturn, ParamSpec, TypeVar, overload

    _P = ParamSpec("_P")
    _Q = ParamSpec("_Q")
    _R = TypeVar("_R")
    _T = TypeVar("_T")

    class _Typed(Generic[_P, _R]): ...

    # `typing` has type parameters with defaults since 3.13; every type checker bundles `typing_extensions`.
    from typing_extensions import TypeVar as _TypeVar

    _C = _TypeVar("_C", default=Any)

    class _Generic(Generic[_C]): ...

else:
    # `typing` costs more than this whole module, so it is not imported at run time.
    _P = _R = _C = None

    def overload(function):
        return None

    class _Typed:
        def __class_getitem__(cls, parameters):
            return cls

    _Generic = _Typed


__all__ = [
    "Artifact",
    "Ctx",
    "Output",
    "Param",
    "Partial",
    "Prompt",
    "Resource",
    "Sample",
    "SpecError",
    "Tool",
    "ToolError",
    "encode",
    "main",
    "prompt",
    "resource",
    "tool",
]


# Errors

#: Codes that the caller can fix by changing its request.
_RECOVERABLE = {"INVALID_INPUT", "MISSING_PARAM", "INVALID_PATH", "NOT_FOUND", "CONFLICT", "PRECONDITION"}
_CODES = _RECOVERABLE | {"TIMEOUT", "PERMISSION", "INTERNAL", "DEPENDENCY", "OVERLOADED", "LIMIT", "CANCELLED"}


class ToolError(Exception):
    """The error of a tool call: a code, a message and a suggestion for the caller.

    Any other exception of a tool is an ``INTERNAL`` error, whose details the caller does not see.

    >>> error = ToolError.not_found("no city is named Osol", suggestion="Try Oslo.", city="Osol")
    >>> error.code, error.recoverable, error.context
    ('NOT_FOUND', True, {'city': 'Osol'})
    >>> print(error)
    NOT_FOUND: no city is named Osol. Try Oslo.

    ``retry`` advises a tool with ``retries``: ``"never"``, or seconds after which a retry may succeed. Without it, the
    code decides.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        suggestion: str | None = None,
        retry: float | Literal["never"] | None = None,
        **context: Any,
    ) -> None:
        if code not in _CODES:
            raise ValueError(f"`{code}` is not an error code; use one of {', '.join(sorted(_CODES))}")
        if retry is not None and retry != "never" and not (isinstance(retry, (int, float)) and retry >= 0):
            raise ValueError(f'`retry` must be "never" or a number of seconds, found {retry!r}')
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.recoverable = code in _RECOVERABLE
        self.suggestion = suggestion
        self.retry = retry
        #: Facts for programs, such as the JSON pointer of the invalid argument.
        self.context = context

    def __str__(self) -> str:
        text = f"{self.code}: {self.message}"
        if not self.suggestion:
            return text
        return f"{text} {self.suggestion}" if text[-1] in ".!?" else f"{text}. {self.suggestion}"

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON."""
        error: dict[str, Any] = {"code": self.code, "message": self.message, "recoverable": self.recoverable}
        if self.suggestion:
            error["suggestion"] = self.suggestion
        if self.retry == "never":
            error["retry"] = "never"
        elif self.retry is not None:
            seconds = float(self.retry)
            error["retry"] = {"after": {"secs": int(seconds), "nanos": int(seconds % 1 * 1e9)}}
        if self.context:
            error["context"] = encode(self.context)
        return error

    @classmethod
    def from_dict(cls, error: Mapping[str, Any]) -> ToolError:
        """The error of a JSON object. An unknown code becomes ``DEPENDENCY``."""
        code = error.get("code")
        found = cls(code if code in _CODES else "DEPENDENCY", str(error.get("message", "the call failed")))
        found.suggestion = error.get("suggestion")
        retry = error.get("retry")
        if isinstance(retry, dict):
            # The key is `after` or `not_started`: both advise the same wait.
            wait = next(iter(retry.values()), None)
            found.retry = wait.get("secs", 0) + wait.get("nanos", 0) / 1e9 if isinstance(wait, dict) else None
        elif retry == "never":
            found.retry = "never"
        found.context = dict(error.get("context") or {})
        return found

    @classmethod
    def invalid_input(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """An argument has the wrong type, format or value."""
        return cls("INVALID_INPUT", message, suggestion=suggestion, **context)

    @classmethod
    def missing_param(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """A required argument is missing."""
        return cls("MISSING_PARAM", message, suggestion=suggestion, **context)

    @classmethod
    def invalid_path(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """A path is missing, has the wrong type, or is outside the permitted directories."""
        return cls("INVALID_PATH", message, suggestion=suggestion, **context)

    @classmethod
    def not_found(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """The requested thing does not exist."""
        return cls("NOT_FOUND", message, suggestion=suggestion, **context)

    @classmethod
    def conflict(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """Another writer changed the same value."""
        return cls("CONFLICT", message, suggestion=suggestion, **context)

    @classmethod
    def precondition(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """A required step, setting or connection is missing."""
        return cls("PRECONDITION", message, suggestion=suggestion, **context)

    @classmethod
    def timeout(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """The operation timed out."""
        return cls("TIMEOUT", message, suggestion=suggestion, **context)

    @classmethod
    def permission(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """Policy, approval or the sandbox denies it."""
        return cls("PERMISSION", message, suggestion=suggestion, **context)

    @classmethod
    def internal(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """A defect in the tool."""
        return cls("INTERNAL", message, suggestion=suggestion, **context)

    @classmethod
    def dependency(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """A dependency of the tool failed."""
        return cls("DEPENDENCY", message, suggestion=suggestion, **context)

    @classmethod
    def overloaded(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """The queue is full."""
        return cls("OVERLOADED", message, suggestion=suggestion, **context)

    @classmethod
    def limit(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """A budget or a size limit is reached."""
        return cls("LIMIT", message, suggestion=suggestion, **context)

    @classmethod
    def cancelled(cls, message: str, *, suggestion: str | None = None, **context: Any) -> ToolError:
        """The caller cancelled the call."""
        return cls("CANCELLED", message, suggestion=suggestion, **context)


class SpecError(TypeError):
    """The definition of a tool is invalid. The message names the tool, the parameter and the fix."""


# Values

#: Keywords of `Param`, pydantic's `Field` and `annotated_types`, and those of JSON Schema.
_CONSTRAINTS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
}


class Param:
    """Description and constraints of a parameter: ``Annotated[int, Param("Number of days.", ge=1, le=14)]``.

    ``min_length`` and ``max_length`` count the characters of a string, the items of a list or the keys of a dict.
    """

    def __init__(
        self,
        description: str | None = None,
        *,
        ge: float | None = None,
        gt: float | None = None,
        le: float | None = None,
        lt: float | None = None,
        multiple_of: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        pattern: str | None = None,
        examples: Sequence[Any] | None = None,
    ) -> None:
        self.description = description
        self.ge, self.gt, self.le, self.lt = ge, gt, le, lt
        self.multiple_of = multiple_of
        self.min_length, self.max_length = min_length, max_length
        self.pattern = pattern
        self.examples = examples


class Artifact:
    """A file that a call creates: its name, and its bytes, text or path."""

    def __init__(self, name: str, data: bytes | str | PathLike[str], media_type: str | None = None) -> None:
        self.name = name
        if isinstance(data, (bytes, bytearray)):
            self.data = bytes(data)
        elif isinstance(data, str):
            self.data = data.encode()
        else:
            with open(data, "rb") as file:
                self.data = file.read()
        if media_type is None:
            import mimetypes

            media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        self.media_type = media_type

    def to_dict(self) -> dict[str, Any]:
        """The artifact as JSON, with its bytes in base64."""
        return {
            "name": self.name,
            "media_type": self.media_type,
            "size": len(self.data),
            "data": encode(self.data),
        }


class Partial:
    """The counts of a partial success: how many items succeeded, and the errors of the others."""

    def __init__(self, succeeded: int, errors: Sequence[ToolError]) -> None:
        self.succeeded = succeeded
        self.errors = list(errors)


class Output:
    """The output of a tool that needs more than one value. Most tools return a plain value instead.

    ``content`` has the blocks for a model: texts, or dicts such as those of :meth:`image`. Without content, the model
    gets the structured value.

    >>> Output({"rows": 3}, content=["Three rows."]).to_dict()
    {'content': [{'type': 'text', 'text': 'Three rows.'}], 'structured': {'rows': 3}}
    """

    def __init__(
        self,
        structured: Any = None,
        *,
        content: Sequence[str | dict[str, Any]] = (),
        artifacts: Sequence[Artifact] = (),
        partial: Partial | None = None,
    ) -> None:
        self.structured = structured
        self.content = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
        self.artifacts = list(artifacts)
        self.partial = partial

    @staticmethod
    def image(media_type: str, data: bytes) -> dict[str, Any]:
        """A content block with an image."""
        return {"type": "image", "media_type": media_type, "data": encode(data)}

    @staticmethod
    def of(value: Any) -> Output:
        """The output for a return value."""
        return value if isinstance(value, Output) else Output(value)

    def to_dict(self) -> dict[str, Any]:
        """The output as JSON."""
        output: dict[str, Any] = {}
        if self.content:
            output["content"] = self.content
        structured = encode(self.structured)
        if structured is not None:
            output["structured"] = structured
        if self.artifacts:
            output["artifacts"] = [artifact.to_dict() for artifact in self.artifacts]
        if self.partial:
            errors = [error.to_dict() for error in self.partial.errors]
            output["partial"] = {"succeeded": self.partial.succeeded, "errors": errors}
        return output


class Sample:
    """A completion of the caller's model: its text, and the token usage if known."""

    def __init__(self, content: str, usage: dict[str, Any] | None = None) -> None:
        self.content = content
        self.usage = usage

    def __str__(self) -> str:
        return self.content


# Context

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
        return _value_of(await self._await("nested", {"tool": tool, "arguments": encode(arguments or {})}))

    def call_sync(self, tool: str, arguments: Mapping[str, Any] | None = None) -> Any:
        """Like :meth:`call`, for a function that is not async."""
        return _value_of(self._wait("nested", {"tool": tool, "arguments": encode(arguments or {})}))

    def state(self, id: str) -> Any:
        """Opens a document for manual reads and changes. Tool programs have no document store."""
        raise ToolError.precondition("this host has no document store", suggestion="Run the tool through a toolbox.")


def _now() -> float:
    import time

    return time.monotonic()


def _question(message: str, answer: Any, name: str | None) -> tuple[dict[str, Any], Callable[[Any], Any]]:
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


# Types: JSON Schema and decoding


class _Problem:
    """A mismatch between a JSON value and its type."""

    def __init__(
        self, at: str, expected: str, found: str, *, missing: str | None = None, suggestion: str | None = None
    ) -> None:
        self.at, self.expected, self.found = at, expected, found
        self.missing, self.suggestion = missing, suggestion

    def __str__(self) -> str:
        if self.missing:
            return f"`{self.missing}` is missing: expected {self.expected}"
        return f"{self.at or 'the arguments'}: expected {self.expected}, found {self.found}"


class _Kind:
    """A compiled annotation.

    ``load(value, at, problems)`` returns the Python value of a JSON value, or reports problems. A plain kind returns
    every valid value unchanged.
    """

    __slots__ = ("is_plain", "load", "schema")

    def __init__(
        self, schema: dict[str, Any], load: Callable[[Any, str, list[_Problem]], Any], is_plain: bool = False
    ) -> None:
        self.schema, self.load, self.is_plain = schema, load, is_plain


class _Field:
    """A parameter of a function, or a field of a class."""

    __slots__ = ("default", "hint", "kind", "name", "required")

    def __init__(self, name: str, hint: Any, required: bool, default: Any = None) -> None:
        self.name, self.hint, self.required, self.default = name, hint, required, default
        self.kind: _Kind | None = None


_ANY = _Kind({}, lambda value, at, problems: value, True)
_DURATION = r"^-?P(\d+W)?(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?$"
_TIME = r"^\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})?$"
_DECIMAL = r"^[+-]?\d+(\.\d+)?([eE][+-]?\d+)?$"
_MAX_QUOTE = 80
_MAX_PROBLEMS = 16
_LISTS = {"list", "Sequence", "MutableSequence", "Iterable", "Collection"}
_SETS = {"set", "frozenset", "Set", "MutableSet"}
_DICTS = {"dict", "Mapping", "MutableMapping"}
_FORM_MODULES = {"builtins", "collections", "collections.abc", "typing", "typing_extensions"}


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _quote(value: Any) -> str:
    try:
        text = _json(encode(value))
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= _MAX_QUOTE else text[:_MAX_QUOTE] + "…"


def _type_name(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _wrong(value: Any, at: str, expected: str, problems: list[_Problem]) -> None:
    problems.append(_Problem(at, expected, f"{_type_name(value)} ({_quote(value)})"))


def _did_you_mean(found: str, known: Iterable[str]) -> str | None:
    import difflib

    near = difflib.get_close_matches(found, list(known), 3, 0.6)
    return f"Did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else None


def _types(schema: dict[str, Any], root: dict[str, Any]) -> set[str]:
    """The JSON types that a schema allows; empty if it allows any."""
    reference = schema.get("$ref", "")
    if reference:
        return _types(root.get("$defs", {}).get(reference.rsplit("/", 1)[1], {}), root)
    found = schema.get("type")
    if found:
        return {found} if isinstance(found, str) else set(found)
    options = [_types(option, root) for option in schema.get("anyOf", ()) or schema.get("oneOf", ())]
    if options:
        return set().union(*options) if all(options) else set()
    return {_type_name(value) for value in schema.get("enum", ())}


def _expected(schema: dict[str, Any], root: dict[str, Any]) -> str:
    if "enum" in schema:
        return f"one of {', '.join(value if isinstance(value, str) else _json(value) for value in schema['enum'])}"
    return " or ".join(sorted(_types(schema, root))) or "a value"


def _checked(kind: _Kind, value: Any, sensitive: Sequence[str] = ()) -> tuple[Any, list[_Problem]]:
    """The Python value of a JSON value, and its mismatches: missing values first, at most 16."""
    problems: list[_Problem] = []
    result = kind.load(value, "", problems)
    for problem in problems:
        place = problem.at.split("/")[1:2]
        if sensitive and not problem.missing and (not place or place[0] in sensitive):
            problem.found, problem.suggestion = "***", None
    problems.sort(key=lambda problem: not problem.missing)
    return result, problems[:_MAX_PROBLEMS]


def _decoded(kind: _Kind, value: Any, sensitive: Sequence[str] = ()) -> Any:
    """The Python value of a JSON value, or the error that names each mismatch."""
    result, problems = _checked(kind, value, sensitive)
    if not problems:
        return result
    first = problems[0]
    raise ToolError(
        "MISSING_PARAM" if first.missing else "INVALID_INPUT",
        "; ".join(map(str, problems)),
        suggestion=next((problem.suggestion for problem in problems if problem.suggestion), None),
        pointer=first.at,
        expected=first.expected,
        found=first.found,
        pointers=[problem.at for problem in problems],
    )


def _plain(schema: dict[str, Any], accepts: Callable[[Any], bool]) -> _Kind:
    expected = _expected(schema, {})

    def load(value: Any, at: str, problems: list[_Problem]) -> Any:
        if not accepts(value):
            _wrong(value, at, expected, problems)
        return value

    return _Kind(schema, load, True)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _integer(value: Any, at: str, problems: list[_Problem]) -> Any:
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    _wrong(value, at, "integer", problems)


#: JSON Schema and check of each plain type.
_PLAIN: dict[Any, _Kind] = {
    str: _plain({"type": "string"}, lambda value: isinstance(value, str)),
    bool: _plain({"type": "boolean"}, lambda value: isinstance(value, bool)),
    int: _Kind({"type": "integer"}, _integer, True),
    float: _plain({"type": "number"}, _is_number),
    type(None): _plain({"type": "null"}, lambda value: value is None),
    None: _plain({"type": "null"}, lambda value: value is None),
    object: _ANY,
    list: _plain({"type": "array"}, lambda value: isinstance(value, list)),
    dict: _plain({"type": "object"}, lambda value: isinstance(value, dict)),
}


def _text(cls: Any, schema: dict[str, Any], expected: str, parse: Callable[[Any, str], Any]) -> _Kind:
    """A type that is a string in JSON. ``parse(cls, text)`` raises ValueError for an invalid text."""

    def load(value: Any, at: str, problems: list[_Problem]) -> Any:
        if not isinstance(value, str) and not ("number" in schema["type"] and _is_number(value)):
            return _wrong(value, at, expected, problems)
        try:
            return parse(cls, str(value))
        except (ValueError, ArithmeticError):
            return _wrong(value, at, expected, problems)

    return _Kind({"type": "string", **schema}, load)


def _iso(cls: Any, text: str) -> Any:
    import re

    # Before Python 3.11, `fromisoformat` accepts neither `Z` nor every number of fractional digits.
    text = re.sub(r"[zZ]$", "+00:00", text)
    text = re.sub(r"\.(\d+)", lambda found: "." + found.group(1)[:6].ljust(6, "0"), text)
    if cls.__name__ == "datetime" and not re.search(r"^\d{4}-\d\d-\d\d[Tt ].*[+-]\d\d:\d\d$", text):
        raise ValueError(text)
    return cls.fromisoformat(text)


def _matched_time(cls: Any, text: str) -> Any:
    import re

    if not re.match(_TIME, text):
        raise ValueError(text)
    return _iso(cls, text)


def _date(cls: Any, text: str) -> Any:
    if len(text) != 10:
        raise ValueError(text)
    return cls.fromisoformat(text)


def _timedelta(cls: Any, text: str) -> Any:
    import re

    if not re.match(_DURATION, text) or not text[-1].isalpha() or text[-1] in "PT":
        raise ValueError(text)
    units = {"W": "weeks", "D": "days", "H": "hours", "M": "minutes", "S": "seconds"}
    parts = {units[unit]: float(number) for number, unit in re.findall(r"([\d.]+)([WDHMS])", text)}
    return -cls(**parts) if text.startswith("-") else cls(**parts)


def _path(cls: Any, text: str) -> Any:
    if not text or "\0" in text:
        raise ValueError(text)
    return cls(text)


def _bytes(cls: Any, text: str) -> Any:
    import base64

    return cls(base64.b64decode(text, validate=True))


def _construct(cls: Any, text: str) -> Any:
    return cls(text)


#: Schema, expectation and parser of types that are strings in JSON, by name, so that their modules are not imported.
_TEXTS: dict[str, tuple[dict[str, Any], str, Callable[[Any, str], Any]]] = {
    "datetime.datetime": ({"type": "string", "format": "date-time"}, "text in the format `date-time`", _iso),
    "datetime.date": ({"type": "string", "format": "date"}, "text in the format `date`", _date),
    "datetime.time": ({"type": "string", "pattern": _TIME}, "a time such as 14:30:00", _matched_time),
    "datetime.timedelta": (
        {"type": "string", "pattern": _DURATION},
        "an ISO 8601 duration such as PT1H30M",
        _timedelta,
    ),
    "uuid.UUID": ({"type": "string", "format": "uuid"}, "text in the format `uuid`", _construct),
    "decimal.Decimal": (
        {"type": ["number", "string"], "pattern": _DECIMAL},
        "a decimal number",
        _construct,
    ),
    "bytes": ({"type": "string", "format": "base64"}, "text in the format `base64`", _bytes),
    "bytearray": ({"type": "string", "format": "base64"}, "text in the format `base64`", _bytes),
    "PurePath": ({"type": "string", "format": "file"}, "a path", _path),
}


def _qualified(cls: Any) -> str:
    """The name of a class in `_TEXTS`."""
    module, name = cls.__module__, cls.__qualname__
    if module.split(".")[0] == "pathlib":
        return "PurePath"
    return name if module == "builtins" else f"{module}.{name}"


def _form(hint: Any) -> str:
    """The name of a special form such as `Union`, or of a class of the standard library."""
    name = getattr(hint, "_name", None) or getattr(hint, "__name__", "") or ""
    return str(name) if getattr(hint, "__module__", "") in _FORM_MODULES else ""


def _is_union(hint: Any) -> bool:
    return type(hint).__name__ == "UnionType" or _form(getattr(hint, "__origin__", None)) == "Union"


def _matches(pattern: str, text: str) -> bool:
    import re

    return re.search(pattern, text) is not None


#: Applicability, check and expectation of each constraint.
_CHECKS: dict[str, tuple[Callable[[Any], bool], Callable[[Any, Any], bool], str]] = {
    "minimum": (_is_number, lambda value, limit: value >= limit, "at least {}"),
    "exclusiveMinimum": (_is_number, lambda value, limit: value > limit, "more than {}"),
    "maximum": (_is_number, lambda value, limit: value <= limit, "at most {}"),
    "exclusiveMaximum": (_is_number, lambda value, limit: value < limit, "less than {}"),
    "multipleOf": (_is_number, lambda value, step: value % step == 0, "a multiple of {}"),
    "minLength": (lambda value: isinstance(value, str), lambda value, n: len(value) >= n, "at least {} characters"),
    "maxLength": (lambda value: isinstance(value, str), lambda value, n: len(value) <= n, "at most {} characters"),
    "minItems": (lambda value: isinstance(value, list), lambda value, n: len(value) >= n, "at least {} items"),
    "maxItems": (lambda value: isinstance(value, list), lambda value, n: len(value) <= n, "at most {} items"),
    "minProperties": (lambda value: isinstance(value, dict), lambda value, n: len(value) >= n, "at least {} keys"),
    "maxProperties": (lambda value: isinstance(value, dict), lambda value, n: len(value) <= n, "at most {} keys"),
    "pattern": (
        lambda value: isinstance(value, str),
        lambda value, pattern: _matches(pattern, value),
        "text that matches {}",
    ),
}


class _Compiler:
    """Compiles the annotations of one definition. Classes with fields become ``$defs``."""

    def __init__(self, where: str, scopes: Sequence[Mapping[str, Any]], is_output: bool = False) -> None:
        self.where = where
        self.scopes = list(scopes)
        self.is_output = is_output
        self.definitions: dict[str, Any] = {}
        self.classes: dict[Any, _Kind] = {}

    def document(self, kind: _Kind) -> dict[str, Any]:
        """The schema of a kind as it stands alone, with its ``$defs``."""
        schema, definitions = dict(kind.schema), dict(self.definitions)
        name = str(schema.get("$ref", "")).rsplit("/", 1)[-1]
        if name:
            schema = {"title": name, **definitions[name]}
            if f'"#/$defs/{name}"' not in _json(definitions):
                del definitions[name]
        if definitions:
            schema["$defs"] = definitions
        return schema

    def fail(self, hint: Any, reason: str, fix: str) -> SpecError:
        shown = hint if isinstance(hint, str) else getattr(hint, "__qualname__", None) or repr(hint)
        return SpecError(f"{self.where} has the annotation `{shown}`, {reason}; {fix}")

    def resolve(self, text: str) -> Any:
        import builtins
        from collections import ChainMap

        try:
            return eval(text, {}, ChainMap(*map(dict, self.scopes), dict(vars(builtins))))
        except Exception as error:
            reason = f"which cannot be resolved: {type(error).__name__}: {error}"
            raise self.fail(text, reason, "import its names at module level, outside `if TYPE_CHECKING`") from None

    def compile(self, hint: Any) -> _Kind:
        """The kind of an annotation."""
        if isinstance(hint, str):
            return self.compile(self.resolve(hint))
        if type(hint).__name__ == "ForwardRef":
            return self.compile(self.resolve(hint.__forward_arg__))
        if hasattr(hint, "__metadata__"):
            return self.annotated(hint)
        try:
            known = self.classes.get(hint) or _PLAIN.get(hint)
        except TypeError:
            raise self.fail(hint, "which is no type", "annotate it with a type") from None
        if known is not None:
            return known
        if hasattr(hint, "__supertype__"):
            return self.compile(hint.__supertype__)
        if _form(hint) == "Any":
            return _ANY
        if type(hint).__name__ == "TypeAliasType":
            return self.named(hint, lambda: self.compile(hint.__value__))
        if type(hint).__name__ == "TypeVar":
            return self.union(hint.__constraints__ or (hint.__bound__ or object,))
        origin, args = getattr(hint, "__origin__", None), getattr(hint, "__args__", None) or ()
        if _is_union(hint):
            return self.union(args)
        if origin is not None:
            return self.generic(hint, origin, args)
        if isinstance(hint, type):
            return self.class_(hint)
        raise self.fail(hint, "which has no JSON form", "use a dataclass, a TypedDict or a JSON type")

    def annotated(self, hint: Any) -> _Kind:
        if any(hasattr(item, "__get_pydantic_core_schema__") for item in hint.__metadata__):
            return self.pydantic(hint)
        inner = self.compile(hint.__origin__)
        kinds = _types(inner.schema, {"$defs": self.definitions})
        keywords: dict[str, Any] = {}
        items = list(hint.__metadata__)
        while items:
            item = items.pop(0)
            if isinstance(item, str):
                keywords.setdefault("description", item)
                continue
            items.extend(getattr(item, "metadata", None) or ())  # pydantic's `Field`
            if isinstance(getattr(item, "description", None), str):
                keywords["description"] = item.description
            if getattr(item, "examples", None):
                keywords["examples"] = [encode(example) for example in item.examples]
            for name, keyword in _CONSTRAINTS.items():
                limit = getattr(item, name, None)
                if limit is None or callable(limit) or (name == "min_length" and limit == 0):
                    continue
                if keyword.endswith("Length") and "array" in kinds:
                    keyword = keyword.replace("Length", "Items")
                elif keyword.endswith("Length") and "object" in kinds:
                    keyword = keyword.replace("Length", "Properties")
                keywords[keyword] = encode(getattr(limit, "pattern", limit))
        checks = [(*_CHECKS[keyword], limit) for keyword, limit in keywords.items() if keyword in _CHECKS]
        schema = {**inner.schema, **keywords}
        if not checks:
            return _Kind(schema, inner.load, inner.is_plain)

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            before = len(problems)
            result = inner.load(value, at, problems)
            if len(problems) == before:
                for applies, holds, expected, limit in checks:
                    if applies(value) and not holds(value, limit):
                        problems.append(_Problem(at, expected.format(limit), _quote(value)))
            return result

        return _Kind(schema, load, inner.is_plain)

    def union(self, options: Iterable[Any]) -> _Kind:
        kinds = [self.compile(option) for option in options]
        if len(kinds) == 1:
            return kinds[0]
        others = [kind for kind in kinds if kind.schema != {"type": "null"}]
        if len(others) == 1:
            schema = _nullable(others[0].schema)
        elif any(not kind.schema for kind in kinds):
            schema = {}
        else:
            schema = {"anyOf": [kind.schema for kind in kinds]}
        root = {"$defs": self.definitions}

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            nearest: list[_Problem] = []
            for kind in kinds:
                found: list[_Problem] = []
                result = kind.load(value, at, found)
                if not found:
                    return result
                # An option that fails inside, or by a constraint, is nearer than one of another type.
                if _type_name(value) in _types(kind.schema, root) and not nearest:
                    nearest = found
            if nearest:
                problems.extend(nearest)
            else:
                _wrong(value, at, " or ".join(_expected(kind.schema, root) for kind in kinds), problems)

        return _Kind(schema, load, all(kind.is_plain for kind in kinds))

    def generic(self, hint: Any, origin: Any, args: Sequence[Any]) -> _Kind:
        form = _form(origin)
        args = tuple(object if type(arg).__name__ == "TypeVar" and form != "Literal" else arg for arg in args)
        if form == "Literal":
            return self.choice([(encode(value), value) for value in args], all(_is_json(value) for value in args))
        if form in ("Final", "Required", "NotRequired", "ReadOnly", "ClassVar"):
            return self.compile(args[0])
        if form == "tuple" and (not args or args[-1] is not Ellipsis):
            return self.tuple_(args) if args else self.items(object, tuple)
        if form in _LISTS or form in _SETS or form == "tuple":
            build = {"tuple": tuple, "frozenset": frozenset}.get(form, set if form in _SETS else list)
            return self.items(args[0] if args else object, build)
        if form in _DICTS:
            return self.mapping(*(args or (str, object)))
        parameters = getattr(origin, "__parameters__", None)
        if isinstance(origin, type) and parameters:
            return self.class_(origin, dict(zip(parameters, args)))
        raise self.fail(hint, "which has no JSON form", "use list, set, tuple, dict, a dataclass or a JSON type")

    def items(self, hint: Any, build: Callable[[Any], Any]) -> _Kind:
        item = self.compile(hint)
        schema: dict[str, Any] = {"type": "array"}
        if item.schema:
            schema["items"] = item.schema
        if build in (set, frozenset):
            schema["uniqueItems"] = True

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if not isinstance(value, list):
                return _wrong(value, at, "array", problems)
            before = len(problems)
            result: list[Any] = [item.load(one, f"{at}/{index}", problems) for index, one in enumerate(value)]
            if len(problems) > before:
                return None
            try:
                built = build(result)
            except TypeError as error:
                raise self.fail(hint, f"whose values are not hashable ({error})", "use a list") from None
            if len(built) < len(result):
                problems.append(_Problem(at, "unique items", _quote(value)))
            return built

        return _Kind(schema, load, build is list and item.is_plain)

    def tuple_(self, args: Sequence[Any]) -> _Kind:
        kinds = [self.compile(arg) for arg in args if arg != ()]
        schema = {
            "type": "array",
            "prefixItems": [kind.schema for kind in kinds],
            "minItems": len(kinds),
            "maxItems": len(kinds),
        }

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if not isinstance(value, list):
                return _wrong(value, at, "array", problems)
            if len(value) != len(kinds):
                problems.append(_Problem(at, f"{len(kinds)} items", _quote(value)))
                return None
            return tuple(kind.load(value[index], f"{at}/{index}", problems) for index, kind in enumerate(kinds))

        return _Kind(schema, load)

    def mapping(self, key_hint: Any, value_hint: Any) -> _Kind:
        key, item = self.compile(key_hint), self.compile(value_hint)
        schema: dict[str, Any] = {"type": "object"}
        if item.schema:
            schema["additionalProperties"] = item.schema
        read = key.load
        if key.schema == {"type": "integer"}:
            schema["propertyNames"] = {"pattern": r"^-?\d+$"}
            read = _text(int, {"type": "string"}, "an integer as key", _construct).load
        elif key.schema and key.schema.get("type") != "string":
            raise self.fail(key_hint, "which cannot be a key in JSON", "use str, int or an enum of strings as key")
        elif len(key.schema) > 1:
            schema["propertyNames"] = key.schema

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if not isinstance(value, dict):
                return _wrong(value, at, "object", problems)
            return {
                read(name, f"{at}/{_escape(name)}", problems): item.load(one, f"{at}/{_escape(name)}", problems)
                for name, one in value.items()
            }

        return _Kind(schema, load, key.is_plain and item.is_plain and "propertyNames" not in schema)

    def choice(self, pairs: Sequence[tuple[Any, Any]], is_plain: bool) -> _Kind:
        """One of several JSON values, each with its Python value."""
        values = [value for value, _ in pairs]
        names = sorted({_type_name(value) for value in values})
        schema = {"type": names[0] if len(names) == 1 else names, "enum": values}
        expected = _expected(schema, {})
        found_by = {(type(value), value): result for value, result in pairs}

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if isinstance(value, (list, dict)) or (type(value), value) not in found_by:
                hint = _did_you_mean(value, map(str, values)) if isinstance(value, str) else None
                problems.append(_Problem(at, expected, _quote(value), suggestion=hint))
                return None
            return found_by[type(value), value]

        return _Kind(schema, load, is_plain)

    def class_(self, cls: Any, arguments: Mapping[Any, Any] | None = None) -> _Kind:
        name = _qualified(cls)
        if name in _TEXTS:
            schema, expected, parse = _TEXTS[name]
            return _text(cls, schema, expected, parse)
        if name == "toolpost.Outcome" and self.is_output:
            return _PLAIN[dict]
        if hasattr(cls, "__get_pydantic_core_schema__"):
            return self.pydantic(cls)
        if any(_qualified(base) == "enum.Enum" for base in cls.__mro__):
            return self.choice([(_enum_value(member), member) for member in cls], False)
        if cls in (set, frozenset, tuple):
            return self.items(object, cls)
        fields = _fields_of(cls, self.is_output)
        if fields is None:
            fix = "make it a dataclass, a TypedDict, a NamedTuple or a pydantic model"
            raise self.fail(cls, "which has no JSON form", fix)
        key = (cls, tuple(arguments.values())) if arguments else cls
        if key in self.classes:
            return self.classes[key]

        def build() -> _Kind:
            inner = self.scopes
            modules = [vars(sys.modules[base.__module__]) for base in cls.__mro__ if base.__module__ in sys.modules]
            self.scopes = [{cls.__name__: cls}, *modules, *inner]
            where, self.where = self.where, f"a field of `{cls.__qualname__}` in {self.where}"
            try:
                text, descriptions = _read_docstring(_class_doc(cls))
                for field in fields if arguments else ():
                    hint = self.resolve(field.hint) if isinstance(field.hint, str) else field.hint
                    field.hint = _substituted(hint, arguments or {})
                return self.object(fields, descriptions, text, cls if not issubclass(cls, dict) else None)
            finally:
                self.scopes, self.where = inner, where

        return self.named(key, build)

    def named(self, key: Any, build: Callable[[], _Kind]) -> _Kind:
        """The kind of a class or alias in ``$defs``, which may refer to itself."""
        base = (key[0] if isinstance(key, tuple) else key).__name__
        name, number = base, 1
        while name in self.definitions:
            number += 1
            name = f"{base}{number}"
        self.definitions[name] = {}
        kind = _Kind({"$ref": f"#/$defs/{name}"}, lambda *given: built.load(*given), True)
        self.classes[key] = kind
        built = build()
        self.definitions[name] = built.schema
        kind.load, kind.is_plain = built.load, built.is_plain
        return kind

    def object(
        self,
        fields: Sequence[_Field],
        descriptions: Mapping[str, str],
        text: str = "",
        build: Callable[..., Any] | None = None,
        rest: _Kind | None = None,
    ) -> _Kind:
        """An object with fields; ``rest`` is the kind of undeclared fields."""
        properties: dict[str, Any] = {}
        kinds: dict[str, _Kind] = {}
        for field in fields:
            kind = kinds[field.name] = field.kind or self.compile(field.hint)
            schema = dict(kind.schema)
            if field.name in descriptions:
                schema.setdefault("description", descriptions[field.name])
            default = _json_default(field.default)
            if not field.required and default is not None:
                schema["default"] = default
            properties[field.name] = schema
        document: dict[str, Any] = {"type": "object"}
        if text:
            document["description"] = text
        document["properties"] = properties
        required = [field.name for field in fields if field.required]
        if required:
            document["required"] = required
        if rest is not None and rest.schema:
            document["additionalProperties"] = rest.schema
        elif rest is None and not self.is_output:
            document["additionalProperties"] = False
        filled = [field for field in fields if _is_field_info(field.default)]

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            if not isinstance(value, dict):
                return _wrong(value, at, "object", problems)
            before = len(problems)
            result = {}
            for name, one in value.items():
                known = kinds.get(name, rest)
                if known is not None:
                    result[name] = known.load(one, f"{at}/{_escape(name)}", problems)
                else:
                    expected = f"only the properties {', '.join(kinds)}" if kinds else "no properties"
                    hint = _did_you_mean(name, kinds)
                    problem = _Problem(f"{at}/{_escape(name)}", expected, f"`{name[:_MAX_QUOTE]}`", suggestion=hint)
                    problems.append(problem)
            for name in required:
                if name not in value:
                    about = properties[name].get("description", "a value").rstrip(".")
                    problems.append(_Problem(f"{at}/{_escape(name)}", about, "nothing", missing=name))
            if len(problems) > before:
                return None
            for field in filled:
                if field.name not in result and not field.required:
                    result[field.name] = field.default.get_default(call_default_factory=True)
            if build is None:
                return result
            try:
                return build(**result)
            except (ValueError, AssertionError) as error:
                problems.append(_Problem(at, f"a valid {document.get('title', 'value')} ({error})", _quote(value)))

        is_plain = build is None and not filled and all(kind.is_plain for kind in kinds.values())
        return _Kind(document, load, is_plain and (rest is None or rest.is_plain))

    def pydantic(self, hint: Any) -> _Kind:
        """A type that pydantic knows. It is imported, since the annotation is from it."""
        import pydantic

        adapter: Any = pydantic.TypeAdapter(hint)
        mode = "serialization" if self.is_output else "validation"
        schema = _without_titles(adapter.json_schema(mode=mode, ref_template="#/$defs/{model}"))
        for name, definition in schema.pop("$defs", {}).items():
            if self.definitions.setdefault(name, definition) != definition:
                raise self.fail(hint, f"which defines a second type `{name}`", "rename one of the two")

        def load(value: Any, at: str, problems: list[_Problem]) -> Any:
            try:
                return adapter.validate_python(value)
            except pydantic.ValidationError as error:
                for one in error.errors(include_url=False):
                    place = at + "".join(f"/{_escape(str(step))}" for step in one["loc"])
                    missing = str(one["loc"][-1]) if one["type"] == "missing" else None
                    problems.append(_Problem(place, one["msg"], _quote(_or_text(one["input"])), missing=missing))

        if isinstance(hint, type) and "properties" in schema:
            return self.named(hint, lambda: _Kind(schema, load))
        return _Kind(schema, load)


def _escape(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _is_json(value: Any) -> bool:
    return value is None or type(value) in (str, int, float, bool)


def _or_text(value: Any) -> Any:
    try:
        return encode(value)
    except ToolError:
        return str(value)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("type")
    if not schema or (isinstance(found, list) and "null" in found):
        return schema
    if not found:
        return {"anyOf": [schema, {"type": "null"}]}
    nullable = {**schema, "type": [*([found] if isinstance(found, str) else found), "null"]}
    if "enum" in schema:
        nullable["enum"] = [*schema["enum"], None]
    return nullable


def _without_titles(schema: Any) -> Any:
    """A schema of pydantic without the titles that repeat names."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {}
    for key, value in schema.items():
        if key in ("properties", "$defs", "patternProperties"):
            tidy[key] = {name: _without_titles(item) for name, item in value.items()}
        elif key in ("default", "enum", "const", "examples"):
            tidy[key] = value
        elif key != "title":
            tidy[key] = _without_titles(value)
    return tidy


def _substituted(hint: Any, arguments: Mapping[Any, Any]) -> Any:
    """A hint with the arguments of its generic class."""
    if type(hint).__name__ == "TypeVar":
        return arguments.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(arguments.get(one, one) for one in parameters)] if parameters else hint


def _is_field_info(default: Any) -> bool:
    return type(default).__name__ == "FieldInfo" and hasattr(default, "get_default")


def _json_default(default: Any) -> Any:
    """A default as JSON; None if it has no JSON form, or if JSON lacks a value for it."""
    if _is_field_info(default):
        default = None if default.is_required() else default.get_default()
    try:
        return encode(default)
    except ToolError:
        return None


def _class_doc(cls: Any) -> str:
    """The docstring that the author of a class wrote."""
    text = cls.__dict__.get("__doc__")
    # A dataclass and a NamedTuple without a docstring have their signature, a dataclass of Python 3.15 an object.
    return text if isinstance(text, str) and not text.startswith(f"{cls.__name__}(") else ""


def _fields_of(cls: Any, is_output: bool) -> list[_Field] | None:
    """The fields of a dataclass, a NamedTuple or a TypedDict; None for another class."""
    if hasattr(cls, "__dataclass_fields__"):
        missing = sys.modules["dataclasses"].MISSING
        fields = []
        for field in cls.__dataclass_fields__.values():
            is_init_only = field._field_type.name == "_FIELD_INITVAR"
            if field._field_type.name == "_FIELD_CLASSVAR" or (is_init_only if is_output else not field.init):
                continue
            hint = getattr(field.type, "type", field.type) if is_init_only else field.type
            default = field.default if field.default_factory is missing else field.default_factory()
            is_required = is_output or default is missing
            fields.append(_Field(field.name, hint, is_required, None if default is missing else default))
        return fields
    annotations: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        annotations.update(getattr(base, "__annotations__", None) or {})
    if tuple in cls.__mro__ and hasattr(cls, "_fields"):
        defaults = cls._field_defaults
        return [
            _Field(name, annotations.get(name, object), is_output or name not in defaults, defaults.get(name))
            for name in cls._fields
        ]
    if dict in cls.__mro__ and hasattr(cls, "__total__"):
        optional = getattr(cls, "__optional_keys__", () if cls.__total__ else set(annotations))
        fields = []
        for name, hint in annotations.items():
            text = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", "")
            form = _form(getattr(hint, "__origin__", None)) or text.split("[")[0].rsplit(".", 1)[-1]
            required = {"Required": True, "NotRequired": False}.get(form, name not in optional)
            fields.append(_Field(name, hint, required))
        return fields
    return None


# Results


def _enum_value(member: Any) -> Any:
    return member.value if _is_json(member.value) else member.name


def _utc_offset(value: Any) -> str:
    # RFC 3339 needs an offset: a time without a zone is local.
    return str((value if value.tzinfo else value.astimezone()).isoformat())


def _iso_duration(value: Any) -> str:
    sign, value = ("-", -value) if value.days < 0 else ("", value)
    fraction = f".{value.microseconds:06}".rstrip("0") if value.microseconds else ""
    days = f"{value.days}D" if value.days else ""
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    time = (
        f"{hours}H" * bool(hours) + f"{minutes}M" * bool(minutes) + f"{seconds}{fraction}S" * bool(seconds or fraction)
    )
    return f"{sign}P{days}T{time}" if time else f"{sign}P{days or 'T0S'}"


def _base64(value: Any) -> str:
    import base64

    return base64.b64encode(value).decode()


def _outcome(outcome: Any) -> dict[str, Any]:
    """The members of the tool `run_code`. A table or an array has its text, without its data."""
    value = outcome.value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = {key: value[key] for key in ("type", "shape", "text", "size") if key in value}
    return {
        "exit_code": outcome.exit_code,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "value": _wide_integers(value),
        "artifacts": [{"name": one.name, "media_type": one.media_type, "size": one.size} for one in outcome.artifacts],
        "verdict": {"kind": outcome.verdict.kind, "message": outcome.verdict.message},
    }


def _wide_integers(value: Any) -> Any:
    """A JSON value with its integers beyond 64 bits as their type and text."""
    if type(value) is int and not -(2**63) <= value < 2**64:
        return {"type": "int", "text": str(value)}
    if isinstance(value, list):
        return [_wide_integers(item) for item in value]
    return {key: _wide_integers(item) for key, item in value.items()} if isinstance(value, dict) else value


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "toolpost.Outcome": _outcome,
    "enum.Enum": lambda value: encode(_enum_value(value)),
    "datetime.datetime": _utc_offset,
    "datetime.date": lambda value: value.isoformat(),
    "datetime.time": lambda value: value.isoformat(),
    "datetime.timedelta": _iso_duration,
    "uuid.UUID": str,
    "decimal.Decimal": str,
    "PurePath": str,
    "bytes": _base64,
    "bytearray": _base64,
    "str": str,
    "int": int,
    "float": lambda value: encode(float(value)),
}


def encode(value: Any) -> Any:
    """The JSON form of a value.

    It accepts the types that parameters may have: JSON types, dataclasses, enums, sets, dates, paths and so on.
    ``ToolError`` with ``INTERNAL`` is raised for any other value.

    >>> import datetime
    >>> encode({"day": datetime.date(2026, 1, 31), "tags": {"a"}})
    {'day': '2026-01-31', 'tags': ['a']}
    """
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return value
    if kind is float:
        return value if value - value == 0 else None  # JSON has neither NaN nor infinity.
    if kind is list or kind is tuple:
        return [encode(item) for item in value]
    if kind is dict:
        return {_encode_key(key): encode(item) for key, item in value.items()}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if hasattr(value, "__dataclass_fields__"):
        return {name: encode(getattr(value, name)) for name in value.__dataclass_fields__ if hasattr(value, name)}
    if tuple in kind.__mro__ and hasattr(value, "_fields"):
        return {name: encode(getattr(value, name)) for name in value._fields}
    for base in kind.__mro__:
        writer = _WRITERS.get(_qualified(base))
        if writer is not None:
            return writer(value)
    if isinstance(value, (set, frozenset)):
        items = [encode(item) for item in value]
        return sorted(items, key=lambda item: (_type_name(item), str(item))) if items else items
    if hasattr(kind, "keys") and hasattr(kind, "__getitem__"):
        return {_encode_key(key): encode(value[key]) for key in value.keys()}
    if hasattr(kind, "__iter__") and hasattr(kind, "__len__"):
        return [encode(item) for item in value]
    if hasattr(kind, "__get_pydantic_core_schema__"):
        return sys.modules["pydantic"].TypeAdapter(kind).dump_python(value, mode="json")
    raise ToolError.internal(f"JSON cannot represent a value of the type `{kind.__qualname__}`")


def _encode_key(key: Any) -> str:
    value = encode(key)
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, int, float)):
        return _json(value)
    raise ToolError.internal(f"JSON cannot represent a key of the type `{type(key).__qualname__}`")


# Docstrings

_SECTIONS = r"(?i)(args|arguments|parameters|params|keyword args|keyword arguments|other parameters|attributes):?$"


def _clean(text: str) -> list[str]:
    """The lines of a docstring without their common indentation."""
    lines = text.expandtabs().splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
    return [line.strip() if index == 0 else line[margin:].rstrip() for index, line in enumerate(lines)]


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description and the descriptions of parameters, in Google, NumPy or Sphinx style.

    >>> _read_docstring("Add.\\n\\nArgs:\\n    a (int): First.\\n        Term.\\n    b: Second.")
    ('Add.', {'a': 'First. Term.', 'b': 'Second.'})
    >>> _read_docstring("Add.\\n\\nParameters\\n----------\\na, b : int\\n    Terms.\\n\\nReturns\\n-------\\nint")
    ('Add.\\n\\nReturns\\n-------\\nint', {'a': 'Terms.', 'b': 'Terms.'})
    >>> _read_docstring("Add.\\n\\n:param int a: First.\\n:type b: int\\n:param b: Second\\n    term.")
    ('Add.', {'a': 'First.', 'b': 'Second term.'})
    """
    if not text:
        return "", {}
    import re

    lines = _clean(text)
    kept: list[str] = []
    found: dict[str, str] = {}
    names: list[str] = []

    def begin(pattern: str, line: str) -> bool:
        entry = re.match(pattern, line)
        if entry:
            names[:] = [name.strip().lstrip("*") for name in entry.group(1).split(",")]
            found.update(dict.fromkeys(names, entry.group(2).strip()))
        return entry is not None

    def extend(line: str) -> None:
        for name in names:
            found[name] = f"{found[name]} {line.strip()}".strip()

    style, entry_indent, index = "", 0, 0
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1] if index + 1 < len(lines) else ""
        indent = len(line) - len(line.lstrip())
        index += 1
        is_ruled = bool(re.match(r"-{3,}$", following)) and not indent
        if style == "numpy" and not is_ruled:
            if not line or indent:
                extend(line)
            else:
                begin(r"([\w*, ]+?)(?: *:.*)?()$", line)
            continue
        if style == "google" and (not line or indent):
            entry_indent = entry_indent or indent
            if not (line and indent <= entry_indent and begin(r"\s*([\w*]+)\s*(?:\(.*?\))?\s*:(.*)", line)):
                extend(line)
            continue
        if style == "sphinx" and line and indent:
            extend(line)
            continue
        style, entry_indent, names[:] = "", 0, []
        if re.match(_SECTIONS, line) and (is_ruled or (line.endswith(":") and following.startswith(" "))):
            style = "numpy" if is_ruled else "google"
            index += is_ruled
        elif begin(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:\S+\s+)*?([\w*]+)\s*:(.*)", line):
            style = "sphinx"
        elif re.match(r":(?:type|rtype)\b.*:", line):
            style = "sphinx"
        else:
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), {name: text for name, text in found.items() if text}


# Tools

_MAX_TOOL_NAME = 64
_MAX_FRAMES = 16
_VAR_ARGS, _VAR_KEYWORDS, _GENERATORS, _COROUTINE = 0x04, 0x08, 0x20 | 0x200, 0x80
_CHOICES = {
    "approval": ("allow", "ask", "deny"),
    "placement": ("inline", "blocking", "worker"),
    "mode": ("unary", "streaming", "session"),
    "task": ("when_slow", "at_once", "only", "never"),
}
_POLICIES = {"approval", "placement", "concurrency", "memory", "output_limit"}
_RETRY = {"initial": "100ms", "maximum": "2s", "on": ["DEPENDENCY", "TIMEOUT", "OVERLOADED"]}
_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


class _Described:
    """An annotation with metadata, as ``Annotated`` makes it."""

    def __init__(self, origin: Any, *metadata: Any) -> None:
        self.__origin__, self.__metadata__ = origin, metadata


class _Definition:
    """A function and its options, compiled on first use. A tool and its forms bound to instances share it."""

    def __init__(self, function: Any, options: dict[str, Any], scopes: Sequence[Mapping[str, Any]]) -> None:
        self.descriptor: Any = function if isinstance(function, (staticmethod, classmethod)) else None
        self.function: Any = function.__func__ if self.descriptor else function
        self.options, self.scopes = options, scopes
        self.sensitive = options.get("sensitive", ())
        #: A model chooses tools, but a user or an application chooses resources and prompts.
        self.needs_description = True
        self.owner: Any = None
        self.name = str(options.get("name") or getattr(self.function, "__name__", ""))
        #: The function below decorators, which has the parameters.
        self.plain: Any = self.function
        while hasattr(self.plain, "__wrapped__"):
            self.plain = self.plain.__wrapped__
        code = getattr(self.plain, "__code__", None)
        if code is None:
            raise SpecError(f"`{self.function!r}` is not a function; wrap it in one with annotations")
        own = getattr(self.function, "__code__", code)
        self.is_async = bool((code.co_flags | own.co_flags) & _COROUTINE)
        self.check(code)
        self.is_compiled = False
        self.ctx_param: str | None = None

    def check(self, code: Any) -> None:
        """Rejects the signatures that no tool can have."""
        name = self.name
        if not (name[:1].isalpha() and name.isascii() and name.replace("-", "_").isidentifier()):
            raise SpecError(
                f"`{name}` is not a tool name; start with a letter, use letters, digits, `_` and `-`, and see `title`"
            )
        if len(name) > _MAX_TOOL_NAME:
            raise SpecError(f"`{name}` is not a tool name; use at most {_MAX_TOOL_NAME} characters")
        if code.co_flags & _VAR_ARGS:
            star = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
            raise SpecError(f"`{name}` has the parameter `*{star}`, which has no name in JSON; declare a list")
        if code.co_posonlyargcount:
            only = code.co_varnames[code.co_posonlyargcount - 1]
            raise SpecError(f"`{name}` has the positional-only parameter `{only}`; remove the `/`")
        if code.co_flags & _GENERATORS:
            raise SpecError(f"`{name}` is a generator; return a list, and report progress with `ctx.progress`")

    def fields(self) -> tuple[list[_Field], Any]:
        """The parameters without ``self``, and the annotation of ``**kwargs``; None without one."""
        code, annotations = self.plain.__code__, getattr(self.plain, "__annotations__", {})
        positional = code.co_varnames[: code.co_argcount]
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        defaults = dict(zip(reversed(positional), reversed(self.plain.__defaults__ or ())))
        defaults.update(self.plain.__kwdefaults__ or {})
        is_method = self.owner is not None and not isinstance(self.descriptor, staticmethod)
        fields: list[_Field] = []
        for name in names[is_method:]:
            default: Any = defaults.get(name)
            required = default.is_required() if _is_field_info(default) else name not in defaults
            fields.append(_Field(name, annotations.get(name, object), required, default))
        rest = annotations.get(code.co_varnames[len(names)], object) if code.co_flags & _VAR_KEYWORDS else None
        return fields, rest

    def compile(self) -> None:
        """Derives the spec and the checks of arguments."""
        if self.is_compiled:
            return
        try:
            self.derive()
        except (SpecError, ToolError):
            raise
        except Exception as error:
            raise SpecError(f"the types of `{self.name}` have no schema: {type(error).__name__}: {error}") from error

    def derive(self) -> None:
        owner = {self.owner.__name__: self.owner} if self.owner is not None else {}
        scopes = [_closure(self.plain), owner, *self.scopes, self.plain.__globals__]
        text, descriptions = _read_docstring(getattr(self.function, "__doc__", None) or "")
        description = (self.options.get("description") or text).strip()
        if not description:
            if self.needs_description:
                raise SpecError(f"the tool `{self.name}` has no description; add a docstring that says when to call it")
            description = self.name
        compiler = _Compiler("", scopes)
        fields, rest_hint = self.fields()
        arguments: list[_Field] = []
        for field in fields:
            compiler.where = f"the parameter `{field.name}` of `{self.name}`"
            if isinstance(field.hint, str):
                field.hint = compiler.resolve(field.hint)
            if _is_ctx(field.hint):
                self.ctx_param = field.name
                continue
            if _is_field_info(field.default):
                field.hint = _Described(field.hint, field.default)
            field.kind = compiler.compile(field.hint)
            arguments.append(field)
        compiler.where = f"the parameters `**` of `{self.name}`"
        rest = None if rest_hint is None else compiler.compile(rest_hint)
        self.arguments = compiler.object(arguments, descriptions, rest=rest)
        self.defaults = {field.name: _json_default(field.default) for field in arguments if not field.required}
        input_schema = compiler.document(self.arguments)
        unknown = [name for name in self.sensitive if name not in input_schema["properties"]]
        if unknown:
            raise SpecError(f"`{unknown[0]}` in `sensitive` is not a parameter of `{self.name}`; remove it")
        spec: dict[str, Any] = {"name": self.name, "description": description, "input_schema": input_schema}
        output_schema = self.output_schema(scopes)
        if output_schema is not None:
            spec["output_schema"] = output_schema
        # The options of `@resource` are members of its own definition.
        others = ("name", "description", "uri_template", "mime_types")
        spec.update((key, value) for key, value in self.options.items() if key not in others)
        self.spec, self.is_compiled = spec, True

    def output_schema(self, scopes: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        compiler = _Compiler(f"the result of `{self.name}`", scopes, is_output=True)
        hint = getattr(self.plain, "__annotations__", {}).get("return")
        hint = compiler.resolve(hint) if isinstance(hint, str) else hint
        if hint is None or hint is Output or _form(hint) in ("NoReturn", "Never"):
            return None
        schema = compiler.document(compiler.compile(hint))
        return schema if schema and schema.get("type") != "null" else None


def _closure(function: Any) -> dict[str, Any]:
    names = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # The variable has no value yet.
            continue
    return names


def _is_ctx(hint: Any) -> bool:
    """Whether a parameter receives the context: its type is `Ctx` or `Ctx | None`."""
    options = hint.__args__ if _is_union(hint) else (hint,)
    return any(isinstance(option, type) and issubclass(option, Ctx) for option in options)


def _local_scopes(function: Any) -> list[dict[str, Any]]:
    """The names around a function whose annotations are text, so that they can name local classes."""
    function = getattr(function, "__func__", function)
    annotations = getattr(function, "__annotations__", None) or {}
    texts = [hint for hint in annotations.values() if isinstance(hint, str)]
    enclosing = getattr(function, "__qualname__", "").split(".")[:-1]
    scopes: list[dict[str, Any]] = []
    frame = sys._getframe(2) if texts and enclosing else None
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if frame.f_code.co_name in enclosing and frame.f_globals.get("__name__") == function.__module__:
            names = frame.f_locals.items()
            # Only classes, and values that an annotation names, stay alive with the tool.
            scopes.append(
                {key: one for key, one in names if isinstance(one, type) or any(key in text for text in texts)}
            )
        frame = frame.f_back
    return scopes


def _duration(value: Any, option: str) -> str:
    """A duration as text: `10s`, `250ms`. Numbers are seconds."""
    import re

    if isinstance(value, str):
        parts = re.findall(r"([\d.]+)(us|ms|s|m|h|d)", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise SpecError(
                f"`{option}={value!r}` is not a duration; write seconds, or a text such as '250ms' or '1m30s'"
            )
        micros = round(sum(float(number) * _UNITS[unit] for number, unit in parts))
    else:
        micros = round(float(value.total_seconds() if hasattr(value, "total_seconds") else value) * 1_000_000)
    unit = next(unit for unit in ("s", "ms", "us") if micros % _UNITS[unit] == 0)
    return f"{micros // _UNITS[unit]}{unit}"


def _rate(value: str) -> dict[str, Any]:
    calls, _, per = value.partition("/")
    if not calls.isdigit() or calls == "0" or not per:
        raise SpecError(f"`rate={value!r}` is not a rate; write calls and a period, such as '10/s' or '5/30s'")
    return {"calls": int(calls), "per": _duration(per if per[0].isdigit() else f"1{per}", "rate")}


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a decorator as members of a spec."""
    options = {key: value for key, value in given.items() if value not in (None, False, (), "")}
    policy: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    annotations = {}
    for key, value in options.items():
        if key in ("read_only", "destructive", "idempotent", "open_world"):
            annotations[key] = True
        elif key == "timeout":
            policy[key] = "never" if value == "never" else {"after": _duration(value, key)}
        elif key == "cache":
            policy[key] = _duration(value, key)
        elif key == "retries":
            policy["retry"] = {"attempts": value, **_RETRY}
        elif key == "rate":
            policy[key] = _rate(value)
        elif key == "examples":
            spec[key] = [_example(example) for example in value]
        elif key in ("tags", "sensitive"):
            spec[key] = [value] if isinstance(value, str) else list(value)
        elif value not in _CHOICES.get(key, (value,)):
            raise SpecError(f"`{key}={value!r}` is unknown; use one of {', '.join(_CHOICES[key])}")
        else:
            (policy if key in _POLICIES else spec)[key] = encode(value)
    if type(given.get("retries")) is int and given["retries"] == 0:
        policy["retry"] = {"attempts": 0, **_RETRY}
    if "cache" in policy and "idempotent" not in annotations:
        raise SpecError("only an idempotent tool can be cached; add `idempotent=True`, or remove `cache`")
    spec.update({key: value for key, value in (("annotations", annotations), ("policy", policy)) if value})
    return spec


def _example(example: Mapping[str, Any]) -> dict[str, Any]:
    is_pair = "args" in example and set(example) <= {"args", "output"}
    return dict(encode(example)) if is_pair else {"args": encode(example)}


class Tool(_Typed[_P, _R]):
    """A function as a tool. It is called like the function; :func:`tool` creates it.

    In a class, it is a method: accessed through an instance, it is a tool bound to that instance.
    """

    def __init__(self, definition: _Definition, receiver: Any = None) -> None:
        self._definition = definition
        self._receiver = receiver
        if receiver is not None and definition.owner is None:  # `@classmethod` above `@tool`
            definition.owner = receiver if isinstance(receiver, type) else type(receiver)
        function: Any = definition.function
        self.fn: Callable[..., Any] = function if receiver is None else function.__get__(receiver)
        self.__module__ = getattr(function, "__module__", None) or ""
        self.__name__ = getattr(function, "__name__", definition.name)
        self.__qualname__ = getattr(function, "__qualname__", definition.name)
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = self.fn

    def __set_name__(self, owner: type, name: str) -> None:
        self._definition.owner = owner

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> Tool[_P, _R]: ...
        @overload
        def __get__(
            self: Tool[Concatenate[_T, _Q], _R], instance: _T, owner: type[_T] | None = None
        ) -> Tool[_Q, _R]: ...
        def __get__(self, instance: Any, owner: Any = None) -> Any: ...
        def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...

    else:

        def __get__(self, instance, owner=None):
            descriptor = self._definition.descriptor
            if isinstance(descriptor, staticmethod) or self._receiver is not None:
                return self
            receiver = owner if isinstance(descriptor, classmethod) else instance
            return self if receiver is None else type(self)(self._definition, receiver)

        def __call__(self, *args, **kwargs):
            return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name}>"

    def __reduce__(self) -> Any:
        # Other processes import the tool by its name, as they do with functions.
        return self.__qualname__ if self._receiver is None else (getattr, (self._receiver, self.__name__))

    @property
    def name(self) -> str:
        """The tool's name."""
        return self._definition.name

    @property
    def is_async(self) -> bool:
        """Whether the function is async."""
        return self._definition.is_async

    @property
    def ctx_param(self) -> str | None:
        """The name of the parameter that receives the :class:`Ctx`; None without one."""
        self._definition.compile()
        return self._definition.ctx_param

    @property
    def needs_decode(self) -> bool:
        """Whether :meth:`decode` changes arguments. If not, valid arguments are passed as they are."""
        self._definition.compile()
        return not self._definition.arguments.is_plain

    def problems(self, arguments: dict[str, Any]) -> list[_Problem]:
        """The mismatches between JSON arguments and the types."""
        self._definition.compile()
        return _checked(self._definition.arguments, arguments, self._definition.sensitive)[1]

    @property
    def defaults(self) -> dict[str, Any]:
        """The JSON defaults of the parameters."""
        self._definition.compile()
        return self._definition.defaults

    def spec(self) -> dict[str, Any]:
        """The definition as the JSON form of Rust's ``ToolSpec``. It is shared: do not change it.

        ``SpecError`` is raised if the definition is invalid.
        """
        self._definition.compile()
        return self._definition.spec

    def decode(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Checks JSON arguments and returns them as Python values, ready for ``fn(**values)``.

        ``ToolError`` with ``MISSING_PARAM`` or ``INVALID_INPUT`` names each invalid parameter.

        >>> import datetime
        >>> @tool
        ... def remind(day: datetime.date) -> None:
        ...     "Set a reminder."
        >>> remind.decode({"day": "2026-01-31"})
        {'day': datetime.date(2026, 1, 31)}
        """
        self._definition.compile()
        decoded: dict[str, Any] = _decoded(self._definition.arguments, arguments, self._definition.sensitive)
        return decoded


class Resource(Tool[_P, _R]):
    """A function that reads a resource. Its parameters are those of its URI template."""

    def resource_spec(self) -> dict[str, Any]:
        """The definition as the JSON form of Rust's ``ResourceSpec``."""
        import re

        spec, options = self.spec(), self._definition.options
        pattern = str(options["uri_template"])
        unknown = re.search(r"\{.*?\}", re.sub(r"\{[A-Za-z_]\w*\}", "", pattern))
        if unknown:
            raise SpecError(f"`{unknown[0]}` in `{pattern}` is not a parameter; write each one as `{{name}}`")
        names = set(_template(pattern).groupindex)
        for name in spec["input_schema"].get("required", ()):
            if name not in names:
                raise SpecError(f"`{pattern}` lacks the parameter `{{{name}}}` of `{self.name}`; add it")
        for name in names - set(spec["input_schema"]["properties"]):
            raise SpecError(f"`{{{name}}}` in `{pattern}` is not a parameter of `{self.name}`; declare it")
        resource: dict[str, Any] = {
            "uri_pattern": pattern,
            "summary": _summary(spec),
            "mime_types": options.get("mime_types", []),
        }
        if options.get("name"):
            resource["name"] = self.name
        if spec.get("tags"):
            resource["tags"] = spec["tags"]
        return resource

    def match(self, uri: str) -> dict[str, Any] | None:
        """The arguments in a URI, typed by the schema; None if the template does not match."""
        found = _template(str(self._definition.options["uri_template"])).fullmatch(uri)
        if found is None:
            return None
        schema = self.spec()["input_schema"]
        typed = {name: _types(one, schema) for name, one in schema["properties"].items()}
        return {name: _typed(text, typed.get(name, set())) for name, text in found.groupdict().items()}


class Prompt(Tool[_P, _R]):
    """A function that renders a prompt."""

    def prompt_spec(self) -> dict[str, Any]:
        """The definition as the JSON form of Rust's ``PromptSpec``."""
        spec = self.spec()
        required = spec["input_schema"].get("required", ())
        arguments = []
        for name, schema in spec["input_schema"]["properties"].items():
            argument = {"name": name, "description": schema.get("description", "")}
            arguments.append(argument if name in required else {**argument, "optional": True})
        prompt: dict[str, Any] = {"name": self.name, "summary": _summary(spec), "arguments": arguments}
        if spec.get("tags"):
            prompt["tags"] = spec["tags"]
        return prompt


def _summary(spec: Mapping[str, Any]) -> str:
    return str(spec.get("summary") or spec["description"]).split("\n", 1)[0]


def _template(pattern: str) -> Any:
    """The regular expression of a URI template, in which ``{name}`` matches all characters but ``/``."""
    import re

    parts = re.split(r"\{([A-Za-z_]\w*)\}", pattern)
    groups = [f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(parts)]
    return re.compile("".join(groups))


@overload
def tool(function: Callable[_P, _R], /) -> Tool[_P, _R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    category: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    examples: Sequence[Mapping[str, Any]] = (),
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
    timeout: Any = None,
    retries: int | None = None,
    concurrency: int | None = None,
    rate: str | None = None,
    cache: Any = None,
    approval: str | None = None,
    placement: str | None = None,
    memory: int | None = None,
    output_limit: int | None = None,
    mode: str | None = None,
    task: str | None = None,
    dry_run: bool = False,
    sensitive: Sequence[str] = (),
    meta: Mapping[str, Any] | None = None,
) -> Callable[[Callable[_P, _R]], Tool[_P, _R]]: ...
def tool(function: Any = None, /, **options: Any) -> Any:
    """Turns a function into a :class:`Tool`: ``@tool``, or ``@tool(name=…)`` with options.

    Text options: ``name``, ``title``, ``description``, ``category``, ``group`` such as ``crm.contacts``, ``tags``,
    ``examples`` (arguments, or ``{"args": …, "output": …}``), ``meta``.
    Effects: ``read_only``, ``destructive``, ``idempotent``, ``open_world``.
    Policy: ``timeout`` and ``cache`` in seconds or as text such as ``"1m30s"`` (``timeout="never"`` disables it),
    ``retries``, ``concurrency``, ``rate`` such as ``"10/s"``, ``approval`` (``allow``, ``ask``, ``deny``),
    ``placement`` (``inline``, ``blocking``, ``worker``), ``memory`` in bytes, ``output_limit`` in bytes.
    Calls: ``mode`` (``unary``, ``streaming``, ``session``), ``task`` (``when_slow``, ``at_once``, ``only``, ``never``),
    ``dry_run`` if the function checks ``ctx.is_dry_run``, ``sensitive`` names of arguments that records mask.
    """
    return _decorate(Tool, function, options)


def resource(
    uri_template: str,
    *,
    name: str | None = None,
    description: str | None = None,
    mime_types: Sequence[str] = (),
    tags: Sequence[str] = (),
) -> Callable[[Callable[_P, _R]], Resource[_P, _R]]:
    """Turns a function into a :class:`Resource`: ``@resource("notes://{user}/{page}")``.

    >>> @resource("notes://{user}", mime_types=["text/plain"])
    ... def notes(user: str) -> str:
    ...     "Notes of a user."
    ...     return f"Notes of {user}."
    >>> notes.match("notes://ada")
    {'user': 'ada'}
    """
    options = {"name": name, "description": description, "mime_types": list(mime_types), "tags": tags}
    decorate: Any = _decorate(Resource, None, {"uri_template": uri_template, **options})
    return decorate  # type: ignore[no-any-return]


@overload
def prompt(function: Callable[_P, _R], /) -> Prompt[_P, _R]: ...
@overload
def prompt(
    *, name: str | None = None, description: str | None = None, tags: Sequence[str] = ()
) -> Callable[[Callable[_P, _R]], Prompt[_P, _R]]: ...
def prompt(function: Any = None, /, **options: Any) -> Any:
    """Turns a function into a :class:`Prompt`: ``@prompt``, or ``@prompt(name=…, description=…, tags=…)``."""
    return _decorate(Prompt, function, options)


_TOOL_OPTIONS = set(
    "name title description category group tags examples read_only destructive idempotent open_world timeout retries "
    "concurrency rate cache approval placement memory output_limit mode task dry_run sensitive meta".split()
)


def _decorate(kind: type[Any], function: Any, options: dict[str, Any]) -> Any:
    known = {Tool: _TOOL_OPTIONS, Prompt: {"name", "description", "tags"}}.get(kind)
    unknown = [key for key in options if known is not None and key not in known]
    if unknown:
        hint = _did_you_mean(unknown[0], known or ()) or "See `help(toolpost.tool)`."
        raise SpecError(f"`{unknown[0]}` is not an option of `@{kind.__name__.lower()}`. {hint}")
    if isinstance(function, str):
        raise SpecError(f"`@{kind.__name__.lower()}` got the text `{function}`; write `name={function!r}`")
    members = _options(options)

    def decorate(function: Any) -> Any:
        definition = _Definition(function, members, _local_scopes(function))
        definition.needs_description = kind is Tool
        return kind(definition)

    return decorate if function is None else decorate(function)


# The executable protocol: commands

_PROTOCOL = "0.1+toolpost.1"
_MAX_INPUT = 16 << 20
_MAX_LINE = 32 << 20
_MAX_LOG = 1000
_SUCCESS, _FAILED, _USAGE, _UNREACHABLE, _DENIED, _LIMIT, _INTERRUPTED = 0, 1, 2, 4, 5, 6, 130
_EXIT_CODES = {
    "TIMEOUT": _UNREACHABLE,
    "OVERLOADED": _UNREACHABLE,
    "DEPENDENCY": _UNREACHABLE,
    "PERMISSION": _DENIED,
    "LIMIT": _LIMIT,
    "CANCELLED": _INTERRUPTED,
}
_COMMANDS = ("--discover", "--tools", "--resources", "--prompts", "--resource", "--prompt")
_EXIT_HELP = """
Exit code:
  0    success, at least partial
  1    the tool failed, or the arguments are invalid
  2    invalid command line
  4    a dependency is unreachable or too slow
  5    permission denied
  6    a limit was reached
  130  cancelled
"""


def main(*sources: Any, name: str | None = None, version: str | None = None) -> NoReturn:
    """Runs the command line of a tool program, and exits.

    ``sources`` are tools, functions, modules, and instances of classes with tools. Without any, the program has all
    tools of ``__main__``. ``./program --help`` lists its commands.
    """
    try:
        code = _Program(sources, name, version).run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:  # The reader is gone.
        code = _FAILED
    raise SystemExit(code)


def _tools_of(source: Any) -> Iterator[Tool[..., Any]]:
    """The tools of one source, in the order of their definition."""
    method = getattr(source, "__func__", None)
    if isinstance(source, Tool):
        yield source
    elif isinstance(method, Tool):  # `@classmethod` above `@tool`
        yield type(method)(method._definition, source.__self__)
    elif type(source).__name__ == "module":
        yield from dict.fromkeys(found for found in vars(source).values() if isinstance(found, Tool))
    elif callable(source) and hasattr(source, "__code__"):
        yield tool(source)
    else:
        cls: Any = source if isinstance(source, type) else type(source)
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        found = [getattr(source, name) for name in names if _holds_tool(cls, name)]
        if not found:
            raise SpecError(f"`{source!r}` has no tools; pass a tool, a function, a module or an object with tools")
        for one in found:
            yield from _tools_of(one)


def _holds_tool(cls: type, name: str) -> bool:
    found = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
    return isinstance(found, Tool) or isinstance(getattr(found, "__func__", None), Tool)


class _Program:
    """The tools, resources and prompts of a program, and the answers to its command line."""

    def __init__(self, sources: Sequence[Any], name: str | None, version: str | None) -> None:
        module = sys.modules["__main__"]
        default = sys.argv[0].replace("\\", "/").rsplit("/", 1)[-1]
        self.name = name or (default[:-3] if default.endswith(".py") else default) or "tool"
        self.version = version or str(getattr(module, "__version__", "0.1.0"))
        self.about = (module.__doc__ or "").strip()
        self.tools: dict[str, Tool[..., Any]] = {}
        self.resources: list[Resource[..., Any]] = []
        self.prompts: dict[str, Prompt[..., Any]] = {}
        for source in sources or (module,):
            for one in _tools_of(source):
                if isinstance(one, Resource):
                    self.resources.append(one)
                    continue
                table: Any = self.prompts if isinstance(one, Prompt) else self.tools
                if one.name in table:
                    raise SpecError(f"two tools are named `{one.name}`; rename one with `@tool(name=…)`")
                table[one.name] = one

    def run(self, words: list[str]) -> int:
        """Answers a command line and returns the exit code."""
        self.wire = _Wire()
        try:
            return self.answer(words)
        except SpecError as error:
            return self.reject(ToolError.precondition(str(error)))
        except ToolError as error:
            return self.reject(error, _USAGE)

    def answer(self, words: list[str]) -> int:
        words = self.without_command_object(words)
        if not words or words in (["--help"], ["-h"]):
            return self.text(self.help())
        if words == ["--version"]:
            return self.text(f"{self.name} {self.version}\n")
        if words == ["--resident"]:
            return _Resident(self).serve()
        found = self.command(words)
        if found is not None:
            return found
        only = next(iter(self.tools.values())) if len(self.tools) == 1 else None
        if words[0] in self.tools:
            return _Run(self, self.tools[words[0]]).answer(words[1:])
        if only is not None:
            return _Run(self, only).answer(words)
        for start in range(1, len(words)):
            found = self.command(words[start:])
            if found is not None:
                return found
        hint = _did_you_mean(words[0], self.tools) or "See `--tools` for the available tools."
        raise ToolError.not_found(f"Unknown command: {words[0][:80]}", suggestion=hint)

    def without_command_object(self, words: list[str]) -> list[str]:
        """The words of dialect 0.2, ``{"command": …, "params": …}``, as those of dialect 0.1."""
        if not words or not words[0].startswith("{"):
            return words
        try:
            given = _object(words[0])
        except ToolError:
            return words
        if set(given) == {"command", "params"} and given["command"] in self.tools:
            return [given["command"], _json(given["params"]), *words[1:]]
        return words

    def command(self, words: list[str]) -> int | None:
        """Answers a command of the program at the start of these words."""
        command = words[0]
        if command == "--discover":
            return self.pretty(self.discovery())
        if command == "--tools":
            specs = [one.spec() for one in self.tools.values()]
            return self.pretty({"tools": [{"name": spec["name"], "summary": _summary(spec)} for spec in specs]})
        if command in ("--resources", "--prompts"):
            return self.pretty({command[2:]: self.discovery()[command[2:]]})
        if command == "--resource":
            if len(words) < 2:
                raise ToolError.missing_param("`--resource` needs a URI: `--resource URI`")
            return self.value(lambda: self.read(words[1]))
        if command == "--prompt":
            if len(words) < 2:
                raise ToolError.missing_param("`--prompt` needs a name: `--prompt NAME '{…}'`")
            arguments = _object(words[2] if len(words) > 2 else "")
            return self.value(lambda: self.render(words[1], arguments))
        return None

    def discovery(self) -> dict[str, Any]:
        """The program's manifest."""
        return {
            "name": self.name,
            "version": self.version,
            "protocol": _PROTOCOL,
            "resident": True,
            "tools": [_entry(one.spec()) for one in self.tools.values()],
            "resources": [{"tags": [], **one.resource_spec()} for one in self.resources],
            "prompts": [_prompt_entry(one.prompt_spec()) for one in self.prompts.values()],
        }

    def read(self, uri: str) -> Any:
        """The value of a resource."""
        for one in self.resources:
            values = one.match(uri)
            if values is not None:
                return _result(_finished(one.fn(**one.decode(values))))
        raise ToolError.not_found(f"unknown resource `{uri[:200]}`")

    def render(self, name: str, arguments: dict[str, Any]) -> Any:
        """The value of a prompt."""
        if name not in self.prompts:
            raise ToolError.not_found(f"unknown prompt `{name[:80]}`", suggestion=_did_you_mean(name, self.prompts))
        one = self.prompts[name]
        return _result(_finished(one.fn(**one.decode(arguments))))

    def nested(self, name: str, arguments: dict[str, Any], ctx: Ctx) -> dict[str, Any]:
        """The output of a tool of this program that another one calls."""
        called = self.tools[name]
        values = called.decode(arguments)
        if called.ctx_param is not None:
            values[called.ctx_param] = ctx
        return Output.of(_finished(called.fn(**values))).to_dict()

    def text(self, text: str) -> int:
        self.wire.write(text.encode())
        return _SUCCESS

    def pretty(self, value: Any) -> int:
        import json

        return self.text(json.dumps(value, ensure_ascii=False, indent=2) + "\n")

    def value(self, get: Callable[[], Any]) -> int:
        try:
            self.wire.line(get())
            return _SUCCESS
        except Exception as error:
            return self.reject(_failure(error, _new_id()))

    def reject(self, error: ToolError, code: int | None = None) -> int:
        """Writes an error: an envelope, or a message on stderr for a terminal."""
        if self.wire.is_terminal:
            print(f"error: {error.message}", file=sys.stderr)
            if error.suggestion:
                print(f"hint: {error.suggestion}", file=sys.stderr)
        else:
            self.wire.line(_envelope(error))
        return _exit_code(error) if code is None else code

    def help(self) -> str:
        rows = [(spec["name"], _summary(spec)) for spec in (one.spec() for one in self.tools.values())]
        commands = [
            ("--discover", "print tools, resources and prompts as JSON"),
            ("--tools", "list the tools as JSON"),
            ("--resources", "list the resources as JSON"),
            ("--prompts", "list the prompts as JSON"),
            ("--resource URI", "read a resource"),
            ("--prompt NAME '{…}'", "render a prompt"),
            ("--resident", "serve many calls over one process"),
            ("--version", "print the version"),
        ]
        about = f"{self.about}\n\n" if self.about else ""
        usage = f"Usage: {self.name} TOOL [--FLAG VALUE]… | '{{JSON}}' | @FILE | -\n       {self.name} TOOL --help\n"
        return f"{about}{usage}{_rows('Tools', rows)}{_rows('Commands', commands)}{_EXIT_HELP}"


def _entry(spec: dict[str, Any]) -> dict[str, Any]:
    """A tool in the answer to ``--discover``."""
    summary, mode = _summary(spec), spec.get("mode")
    entry = {
        "name": spec["name"],
        "summary": summary,
        "streaming": mode == "streaming",
        "session_mode": mode == "session",
    }
    if spec["description"] != summary:
        entry["description"] = spec["description"]
    entry["schema"] = spec["input_schema"]
    for key in ("title", "output_schema", "tags", "category", "group", "annotations", "policy", "sensitive"):
        if key in spec:
            entry[key] = spec[key]
    if "examples" in spec:
        entry["examples"] = [example["args"] for example in spec["examples"]]
    return entry


def _manifest(spec: dict[str, Any]) -> dict[str, Any]:
    """The answer to ``TOOL --manifest``."""
    keys = ("name", "summary", "streaming", "session_mode", "schema", "examples", "tags", "output_schema")
    entry = _entry(spec)
    return {**{key: entry[key] for key in keys if key in entry}, "description": spec["description"]}


def _prompt_entry(spec: dict[str, Any]) -> dict[str, Any]:
    arguments = {argument["name"]: argument["description"] for argument in spec["arguments"]}
    return {"name": spec["name"], "summary": spec["summary"], "arguments": arguments, "tags": spec.get("tags", [])}


def _rows(title: str, rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    width = min(28, max(len(left) for left, _ in rows))
    return f"\n{title}:\n" + "".join(f"  {left:<{width}}  {right}".rstrip() + "\n" for left, right in rows)


def _object(text: str) -> dict[str, Any]:
    """Parses a JSON object; an empty text is an empty object."""
    import json

    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError.invalid_input(
            f"the arguments are not valid JSON: {error}",
            suggestion='Give one JSON object, such as \'{"name": "value"}\', or flags, such as --name value.',
        ) from None
    if not isinstance(value, dict):
        raise ToolError.invalid_input("the arguments are not a JSON object; expected `{…}`")
    return value


def _new_id() -> str:
    """A call id: 48 bits of milliseconds since 1970 and 80 random bits, in Crockford's base 32."""
    import os
    import time

    bits = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[(bits >> shift) & 31] for shift in range(125, -1, -5))


def _failure(error: BaseException, call: str) -> ToolError:
    """The error that the caller sees. Stderr explains an internal error to the program's author."""
    if isinstance(error, ToolError) and error.code != "INTERNAL":
        return error
    if type(error).__name__ == "CancelledError":
        return ToolError.cancelled("the caller cancelled the call")
    import traceback

    causes: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(causes) < 16:
        causes.append(f"  caused by: {type(cause).__name__}: {cause}".replace("\n", "\n    "))
        cause = cause.__cause__ or cause.__context__
    message = error.message if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
    lines = [*traceback.format_exception(type(error), error, error.__traceback__)]
    lines += [f"error: call {call}: {message}".replace("\n", "\n    "), "\n", *(f"{text}\n" for text in causes)]
    print("".join(lines), end="", file=sys.stderr, flush=True)
    return ToolError.internal(f"the tool failed internally; see the record of call {call}", call=call)


def _exit_code(error: ToolError) -> int:
    is_program_failure = error.code == "DEPENDENCY" and {"exit_code", "signal"} & set(error.context)
    return _FAILED if is_program_failure else _EXIT_CODES.get(error.code, _FAILED)


def _wire_error(error: ToolError) -> dict[str, Any]:
    """An error with a code of dialect 0.1."""
    wire = error.to_dict()
    wire["code"] = {"OVERLOADED": "DEPENDENCY", "LIMIT": "DEPENDENCY", "CANCELLED": "TIMEOUT"}.get(
        error.code, error.code
    )
    return wire


def _result(value: Any) -> Any:
    """The structured value of an output, or its text."""
    return _value_of(Output.of(value).to_dict())


def _envelope(outcome: Output | ToolError) -> dict[str, Any]:
    """An outcome as dialect 0.1 writes it."""
    if isinstance(outcome, ToolError):
        return {"status": "error", "error": _wire_error(outcome)}
    result = _result(outcome)
    envelope: dict[str, Any] = {"status": _status(outcome)}
    envelope["result"] = result if isinstance(result, dict) else {"result": result}
    if outcome.partial:
        succeeded, errors = outcome.partial.succeeded, outcome.partial.errors
        envelope["summary"] = {
            "total": succeeded + len(errors),
            "succeeded": succeeded,
            "failed": len(errors),
            "recoverable_failures": sum(error.recoverable for error in errors),
        }
        envelope["errors"] = [
            {key: _wire_error(error)[key] for key in ("code", "message", "recoverable")} for error in errors
        ]
    return envelope


def _status(output: Output) -> str:
    if not output.partial or not output.partial.errors:
        return "success"
    return "partial" if output.partial.succeeded else "error"


def _finished(result: Any) -> Any:
    """The value of a function that may be async."""
    if not hasattr(result, "__await__"):
        return result
    import asyncio

    async def wait() -> Any:
        return await result

    return asyncio.run(wait())


class _Wire:
    """Standard output and input, reserved for the protocol.

    Prints of a tool go to stderr, and its reads find an empty file, so that neither can corrupt a line.
    """

    def __init__(self) -> None:
        import io
        import os
        import threading

        sys.stdout.flush()
        self.is_terminal = sys.stdout.isatty()
        self.output: BinaryIO = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        try:
            self.input: BinaryIO = os.fdopen(os.dup(0), "rb")
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
        except OSError:
            self.input = io.BytesIO()
        self.lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self.lock:
            self.output.write(data)
            self.output.flush()

    def line(self, value: Any) -> None:
        self.write((_json(value) + "\n").encode())

    def next_line(self) -> bytes | None:
        """The next line that is not empty; None at the end of the input. A long line is an error."""
        while True:
            line = self.input.readline(_MAX_LINE + 1)
            if not line:
                return None
            if len(line) > _MAX_LINE and not line.endswith(b"\n"):
                start = line[:256]
                while line and not line.endswith(b"\n"):
                    line = self.input.readline(_MAX_LINE)
                raise _LongLine(start)
            if line.strip():
                return line


class _LongLine(Exception):
    """A line above 32 MiB, of which only the start is known."""


# The executable protocol: one call per process


class _Run:
    """One call of a tool by the command line."""

    def __init__(self, program: _Program, called: Tool[..., Any]) -> None:
        self.program, self.wire, self.tool = program, program.wire, called
        self.spec = called.spec()
        self.schema = self.spec["input_schema"]
        self.properties: dict[str, Any] = self.schema["properties"]
        self.flags: dict[str, Any] = {}
        self.options: set[str] = set()
        self.sample_via: str | None = None

    def answer(self, words: list[str]) -> int:
        program = self.program
        command, text, error = self.parse(words)
        if command is not None:
            found = program.command(command)
            return _SUCCESS if found is None else found
        if "manifest" in self.options:
            return program.pretty(_manifest(self.spec))
        if "help" in self.options:
            return program.text(self.help())
        try:
            if error is not None:
                raise error
            arguments = self.arguments(text)
        except ToolError as usage:
            if "validate" in self.options:
                keys = ("code", "message", "suggestion")
                return self.invalid([{key: one for key, one in usage.to_dict().items() if key in keys}], _USAGE)
            raise
        if "validate" in self.options:
            return self.validate(arguments)
        return self.call(arguments)

    def parse(self, words: list[str]) -> tuple[list[str] | None, str | None, ToolError | None]:
        """Parses the words after the tool's name: a command of the program, the text of the arguments, an error."""
        text: str | None = None
        error: ToolError | None = None
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            following = words[at] if at < len(words) else None
            try:
                if word == "-h":
                    self.options.add("help")
                elif not word.startswith("--") or word == "--":
                    if word != "-" and word[:1] not in ("{", "@"):
                        raise ToolError.invalid_input(
                            f"`{word[:80]}` is neither a flag nor a JSON object",
                            suggestion="Write `--name value`, `'{\"name\": …}'`, `@FILE` or `-`.",
                        )
                    if text is not None:
                        raise ToolError.invalid_input(
                            "the arguments are given twice", suggestion="Give one JSON object, one `@FILE`, or `-`."
                        )
                    text = word
                elif self.find(word) is None and word in _COMMANDS:
                    return words[at - 1 :], None, None
                else:
                    at += self.flag(word, following)
            except ToolError as first:
                error = error or first
        if text is not None and self.flags and error is None:
            error = ToolError.invalid_input(
                "the arguments are given both as JSON and as flags", suggestion="Use one of them."
            )
        return None, text, error

    def find(self, word: str) -> str | None:
        """The parameter of a flag: `--max-items` is `max_items`."""
        name = word[2:].split("=", 1)[0]
        plain = name.replace("-", "_")
        return name if name in self.properties else plain if plain in self.properties else None

    def flag(self, word: str, following: str | None) -> int:
        """Reads a flag and returns how many following words it takes."""
        name, has_own, own = word[2:].partition("=")
        parameter = self.find(word)
        if parameter is not None:
            types = _types(self.properties[parameter], self.schema)
            if has_own:
                return self.give(parameter, own)
            if types == {"boolean"} and following not in ("true", "false"):
                return self.give(parameter, True)
            if following is not None and not (following.startswith("--") and self.find(following)):
                self.give(parameter, following)
                return 1
            if not types or "boolean" in types:
                return self.give(parameter, True)
            raise ToolError.invalid_input(f"`--{name}` needs a value", pointer=f"/{parameter}")
        if name in ("manifest", "help", "validate", "stream", "session") and not has_own:
            self.options.add(name)
            return 0
        if name == "sample-via":
            self.sample_via = own if has_own else following
            if not self.sample_via or not self.sample_via.startswith(("stdin", "http://", "https://")):
                raise ToolError.invalid_input("`--sample-via` needs `stdin` or a URL, such as http://127.0.0.1:8080/")
            return 0 if has_own else 1
        opposite = self.find("--" + name[3:]) if name.startswith("no-") and not has_own else None
        if opposite and "boolean" in _types(self.properties[opposite], self.schema):
            return self.give(opposite, False)
        takes = not has_own and following is not None and not following.startswith("--")
        if self.schema.get("additionalProperties", True) is not False:
            self.give(name.replace("-", "_"), own if has_own else following if takes else True)
            return int(takes)
        known = [known.replace("_", "-") for known in self.properties]
        hint = _did_you_mean(name, known)
        raise ToolError.invalid_input(
            f"`{self.tool.name}` has no flag `--{name}`",
            suggestion=hint.replace(" `", " `--") if hint else f"See `{self.tool.name} --help`.",
            flag=f"--{name}",
        )

    def give(self, name: str, value: Any) -> int:
        """Sets an argument from a text, or from a switch. An array grows with each."""
        schema = self.properties.get(name, {})
        types = _types(schema, self.schema)
        if isinstance(value, str):
            value = _typed(value, types)
            if "array" in types and not isinstance(value, list) and value is not None:
                value = [
                    _typed(value, _types(schema.get("items", {}), self.schema)) if isinstance(value, str) else value
                ]
        if name not in self.flags:
            self.flags[name] = value
        elif "array" in types and isinstance(self.flags[name], list) and isinstance(value, list):
            self.flags[name].extend(value)
        else:
            raise ToolError.invalid_input(
                f"`--{name.replace('_', '-')}` is given twice",
                suggestion="Give it once; only arrays take several values.",
                pointer=f"/{name}",
            )
        return 0

    def arguments(self, text: str | None) -> dict[str, Any]:
        if text is None:
            return self.flags
        if text.startswith("{"):
            return _object(text)
        try:
            if text == "-":
                data = self.wire.input.read(_MAX_INPUT + 1)
            else:
                with open(text[1:], "rb") as file:
                    data = file.read(_MAX_INPUT + 1)
        except OSError as error:
            raise ToolError.invalid_path(f"cannot read the file `{text[1:]}`: {error.strerror}") from None
        name = "standard input" if text == "-" else f"the file `{text[1:]}`"
        if len(data) > _MAX_INPUT:
            raise ToolError.invalid_input(
                f"{name} is larger than 16 MiB",
                suggestion="Write large data to a file and pass its path as an argument.",
            )
        try:
            return _object(data.decode())
        except UnicodeDecodeError as error:
            raise ToolError.invalid_input(f"cannot read {name} as text: {error}") from None

    def validate(self, arguments: dict[str, Any]) -> int:
        problems = self.tool.problems(arguments)
        if problems:
            return self.invalid([self.described(problem) for problem in problems], _FAILED)
        try:
            self.tool.decode(arguments)
            _Reserved(self.tool, arguments)
        except ToolError as error:
            return self.invalid([{"code": error.code, "message": error.message}], _FAILED)
        self.wire.line({"valid": True})
        return _SUCCESS

    def described(self, problem: _Problem) -> dict[str, Any]:
        kind, code = ("missing", "MISSING_PARAM") if problem.missing else ("invalid", "INVALID_INPUT")
        place, text = problem.at.split("/")[1:], str(problem)
        return {"type": kind, "loc": place, "msg": text, "code": code, "message": text}

    def invalid(self, errors: list[dict[str, Any]], code: int) -> int:
        self.wire.line({"valid": False, "errors": errors})
        return code

    def call(self, arguments: dict[str, Any]) -> int:
        import os

        call = _new_id()
        ctx: _OneShot | None = None
        started = _now()
        outcome: Output | ToolError
        try:
            mode = {"streaming": "stream", "session": "session"}.get(self.spec.get("mode", ""))
            if mode and mode not in self.options:
                raise ToolError.invalid_input(
                    f"This tool requires --{mode} flag", suggestion=f"Add --{mode} to the command"
                )
            values = self.tool.decode(arguments)
            reserved = _Reserved(self.tool, arguments)
            if reserved.working_dir is not None:
                os.chdir(reserved.working_dir)
            facts: dict[str, Any] = {"call": call, "dry_run": reserved.dry_run, "verbose": reserved.verbose}
            if reserved.working_dir is not None:
                facts["working_dir"] = reserved.working_dir
            limit = _timeout_of(self.spec, reserved.timeout)
            if limit is not None:
                facts["timeout_ms"] = limit * 1000
            ctx = _OneShot(self, facts)
            if reserved.dry_run and not self.spec.get("dry_run"):
                outcome = Output(reserved.plan)
            else:
                if self.tool.ctx_param is not None:
                    values[self.tool.ctx_param] = ctx
                with _Alarm(None if "session" in self.options else limit):
                    outcome = Output.of(_finished(self.tool.fn(**values)))
            envelope = _envelope(outcome)
        except KeyboardInterrupt:
            outcome = ToolError.cancelled("the call was interrupted")
            envelope = _envelope(outcome)
        except Exception as error:
            outcome = _failure(error, call)
            envelope = _envelope(outcome)
        if self.is_for_terminal:
            return self.show(outcome)
        if ctx is not None and ctx.is_verbose:
            details = {"duration_ms": round((_now() - started) * 1000, 3), "attempts": 1, "log": ctx.lines}
            envelope["details"] = details
        if isinstance(outcome, Output):
            for artifact in outcome.artifacts:
                assert ctx is not None
                ctx._artifact(artifact.to_dict())
            if "session" in self.options:
                self.wire.line({"type": "session_end", "status": "success"})
                if envelope.get("result") == {"result": None}:
                    del envelope["result"]
            if "stream" in self.options:
                envelope = {"type": "result", **envelope}
        self.wire.line(envelope)
        if isinstance(outcome, ToolError):
            return _exit_code(outcome)
        return _FAILED if _status(outcome) == "error" else _SUCCESS

    @property
    def is_for_terminal(self) -> bool:
        return self.wire.is_terminal and not self.options & {"stream", "session"} and self.sample_via is None

    def show(self, outcome: Output | ToolError) -> int:
        """Prints a result as text for a terminal."""
        if isinstance(outcome, ToolError):
            return self.program.reject(outcome)
        import json

        result = _result(outcome)
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=2)
        text = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
        self.program.text(f"{text}\n" if result is not None else "")
        for error in outcome.partial.errors if outcome.partial else ():
            print(f"warning: {error.message}", file=sys.stderr)
        return _FAILED if _status(outcome) == "error" else _SUCCESS

    def help(self) -> str:
        required = self.schema.get("required", ())
        line = self.program.name if len(self.program.tools) == 1 else f"{self.program.name} {self.tool.name}"
        rows, usage = [], line
        for name, schema in self.properties.items():
            types = _types(schema, self.schema)
            flag = f"--{name.replace('_', '-')}"
            flag = (
                flag if types == {"boolean"} else f"{flag} {' or '.join(sorted(types - {'null'})).upper() or 'VALUE'}"
            )
            facts = ["required"] if name in required else []
            if "enum" in schema:
                facts.append(_expected(schema, self.schema))
            facts += [words.format(schema[keyword]) for keyword, (*_, words) in _CHECKS.items() if keyword in schema]
            if "default" in schema:
                facts.append(f"default {_json(schema['default'])}")
            usage += f" {flag}" if name in required else ""
            rows.append((flag, f"{schema.get('description', '')} [{'; '.join(facts)}]".replace(" []", "").strip()))
        usage += " [FLAGS]" if len(rows) > len(required) else ""
        options = [
            ("--stream", "print progress, log lines and files as JSON Lines"),
            ("--session", "answer the tool's questions, one JSON line each"),
            ("--sample-via stdin|URL", "where to send sampling requests"),
            ("--validate", "validate the arguments without a run"),
            ("--manifest", "print the tool's manifest as JSON"),
        ]
        text = f"{self.spec['description']}\n\nUsage: {usage}\n       {line} '{{JSON}}' | @FILE | -\n"
        return f"{text}{_rows('Parameters', rows)}{_rows('Options', options)}{_EXIT_HELP}"


def _typed(text: str, types: set[str]) -> Any:
    """The JSON value of a flag's text. A text of the wrong type stays a string, so that the check reports it."""
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    fits = not types or _type_name(value) in types or (_is_number(value) and "number" in types)
    return value if fits and not isinstance(value, str) else text


class _Reserved:
    """Reserved arguments, which control how a tool runs. They apply if the tool declares them."""

    def __init__(self, called: Tool[..., Any], arguments: dict[str, Any]) -> None:
        import os

        properties = called.spec()["input_schema"]["properties"]
        defaults = called.defaults

        def given(name: str) -> Any:
            return arguments.get(name, defaults.get(name)) if name in properties else None

        self.plan = {"dry_run": True, "would_execute": {**defaults, **arguments}}
        self.dry_run, self.verbose = given("dry_run") is True, given("verbose") is True
        self.timeout, directory = given("timeout"), given("working_dir")
        self.working_dir: str | None = os.path.abspath(directory) if isinstance(directory, str) else None
        if self.working_dir is not None and not os.path.isdir(self.working_dir):
            raise ToolError.invalid_path(
                f"/working_dir: `{directory}` is not a directory",
                suggestion="Name an existing directory.",
                pointer="/working_dir",
            )
        if self.timeout is not None and not (_is_number(self.timeout) and 1 <= self.timeout <= 600):
            raise ToolError.invalid_input(
                f"/timeout: expected seconds from 1 to 600, found {_quote(self.timeout)}", pointer="/timeout"
            )


def _timeout_of(spec: dict[str, Any], *others: float | None) -> float | None:
    """The timeout of a call in seconds: that of the policy, 60 s by default, or a shorter one."""
    import re

    declared = spec.get("policy", {}).get("timeout", {"after": "60s"})
    limits = [other for other in others if other is not None]
    if isinstance(declared, dict):
        parts = re.findall(r"([\d.]+)([a-z]+)", declared["after"])
        limits.append(sum(float(number) * _UNITS[unit] for number, unit in parts) / 1_000_000)
    return min(limits, default=None)


class _Alarm:
    """Ends a block on the main thread with ``TIMEOUT``, on systems with interval timers."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        if self.seconds is None:
            return
        import signal

        if not hasattr(signal, "setitimer"):
            self.seconds = None
            return

        def ring(number: int, frame: Any) -> None:
            raise ToolError.timeout(f"the call timed out after {self.seconds:g} s")

        self.before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *error: Any) -> None:
        if self.seconds is not None:
            import signal

            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self.before)


def _in_thread(function: Callable[..., Any], *given: Any) -> Future[Any]:
    """Runs a function that waits for the caller on a thread, so that an async tool goes on meanwhile."""
    import threading
    from concurrent.futures import Future

    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*given))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class _OneShot(Ctx):
    """The context of a one-shot call: streams, notifications, sessions, sampling."""

    def __init__(self, run: _Run, facts: Mapping[str, Any]) -> None:
        import threading

        super().__init__(facts)
        self.run, self.wire = run, run.wire
        self.lines: list[dict[str, Any]] = []
        self.has_begun, self.has_ended = False, False
        self.turn = threading.Lock()

    def _notify(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "log":
            level = {"trace": "debug", "warn": "warning"}.get(body["level"], body["level"])
            body = {"level": level, "message": body["message"]}
            if self.is_verbose and len(self.lines) < _MAX_LOG:
                self.lines.append(body)
        if self.run.is_for_terminal:
            percent = f" {body['percent']:.0f} %" if "percent" in body else ""
            start = "created " if kind == "artifact" else f"{body['level']}: " if kind == "log" else "… "
            print(f"{start}{body.get('message', body.get('name'))}{percent}", file=sys.stderr, flush=True)
        elif "stream" in self.run.options:
            self.wire.line({"type": kind, **body})
        else:
            print(_json({"type": "notification", "kind": kind, **body}), file=sys.stderr, flush=True)

    def _request(self, verb: str, body: dict[str, Any]) -> Future[Any]:
        verbs = {"ask": self._ask, "sample": self._sample, "artifact": self._artifact}
        if verb == "nested" and body["tool"] in self.run.program.tools:
            return _in_thread(self.run.program.nested, body["tool"], body["arguments"], self)
        if verb not in verbs:
            return super()._request(verb, body)
        return _in_thread(verbs[verb], *body.values())

    def _artifact(self, artifact: dict[str, Any]) -> None:
        if artifact["size"] > _MAX_INPUT:
            raise ToolError.limit(
                f"the artifact `{artifact['name']}` has {artifact['size']} bytes; a line holds 16 MiB",
                suggestion="Write large files to the working directory and return their path.",
            )
        uri = f"data:{artifact['media_type']};base64,{artifact['data']}"
        self._notify("artifact", {"name": artifact["name"], "uri": uri})

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if "session" not in self.run.options:
            raise ToolError.precondition(
                "the tool asks a question, but no session is open", suggestion="Add --session to the command."
            )
        with self.turn:
            begin = {"type": "awaiting_input"} if self.has_begun else {"type": "session_start"}
            schema = {"schema": question["schema"]} if "schema" in question else {}
            self.has_begun = True
            self.wire.line({**begin, "message": question["message"], "prompt": "> ", **schema})
            line = self._line("session")
        if line is None:
            # The end of the input declines one question, so that the tool can finish.
            if self.has_ended:
                raise ToolError.cancelled("the session ended")
            self.has_ended = True
            return {"answer": "declined"}
        try:
            value = _object(line.decode())
        except (ToolError, UnicodeDecodeError):
            raise ToolError.invalid_input(
                "the session line is not a JSON object",
                suggestion='Write one JSON object per line, such as {"value": "yes"}.',
            ) from None
        if value.get("action") == "quit":
            return {"answer": "declined"}
        if len(value) == 1 and question.get("schema", {}).get("type") != "object":
            key = next(iter(value))
            if key in ("value", "answer", "input", "text", "response"):
                return {"answer": "given", "value": value[key]}
        return {"answer": "given", "value": value}

    def _line(self, kind: str) -> bytes | None:
        try:
            return self.wire.next_line()
        except _LongLine:
            raise ToolError.invalid_input(f"the {kind} line is longer than 32 MiB") from None

    def _sample(self, request: dict[str, Any]) -> dict[str, Any]:
        import json
        import os

        address = self.run.sample_via
        if address is None:
            raise ToolError.precondition(
                "the tool needs a model, but sampling is not enabled",
                suggestion="Add `--sample-via stdin` or `--sample-via http://…` to the command.",
            )
        line = {"type": "sample_request", "id": os.urandom(4).hex(), **request}
        if address != "stdin":
            return _post(address, _json(line).encode())
        with self.turn:
            self.wire.line(line)
            while True:
                answer = self._line("sampling")
                if answer is None:
                    raise ToolError.dependency("the input ended before the sampling response")
                try:
                    value: dict[str, Any] = json.loads(answer)
                except ValueError:
                    continue
                if isinstance(value, dict) and (value.get("type"), value.get("id")) == ("sample_response", line["id"]):
                    return value


def _post(address: str, body: bytes) -> dict[str, Any]:
    """Posts a sampling request to the URL of ``--sample-via``."""
    import json
    import os
    import urllib.parse
    import urllib.request

    host = urllib.parse.urlsplit(address).hostname or ""
    is_local = host == "localhost" or host.startswith("127.") or host == "::1"
    if os.environ.get("TOOLPOST_NO_NETWORK") and not is_local:
        raise ToolError.permission(
            f"TOOLPOST_NO_NETWORK blocks the connection to `{host}` (`--sample-via`)",
            suggestion="Unset TOOLPOST_NO_NETWORK, or use `--sample-via stdin`.",
        )
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            value: dict[str, Any] = json.loads(answer.read(_MAX_INPUT))
            return {"content": value["content"], "usage": value.get("usage")}
    except OSError as error:
        raise ToolError.dependency(f"sampling via {host} failed: {error}") from None
    except (ValueError, LookupError, TypeError):
        raise ToolError.dependency('the completion is not `{"content": …}`') from None


# The executable protocol: resident mode

_MAX_REQUESTS = 4096
_GRACE_S = 1.0


class _Resident:
    """Many calls over one process, each line an object with the version `v` and the `id` of its call."""

    def __init__(self, program: _Program) -> None:
        import threading
        from queue import SimpleQueue

        self.program, self.wire = program, program.wire
        self.lock = threading.Lock()
        self.running: dict[int, _ResidentCtx] = {}
        self.questions: dict[tuple[int, int], Future[Any]] = {}
        self.last_question = 0
        self.jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.idle = 0
        self.loop: Any = None

    def send(self, id: int, kind: str, body: dict[str, Any]) -> None:
        line = (_json({"v": 1, "id": id, "type": kind, **body}) + "\n").encode()
        if len(line) > _MAX_LINE:
            error = ToolError.limit(
                f"the answer has {len(line)} bytes of JSON; a line holds 32 MiB",
                suggestion="Write large results to a file and return its path.",
            )
            line = (_json({"v": 1, "id": id, "type": "result", "error": error.to_dict()}) + "\n").encode()
        self.wire.write(line)

    def problem(self, id: Any, message: str) -> None:
        """Rejects an invalid line: the request that it names, or the line alone."""
        error = ToolError.invalid_input(
            message, suggestion="Write one JSON object per line, with `v`, `id` and `type`."
        ).to_dict()
        if isinstance(id, int) and id > 0 and id not in self.running:
            self.send(id, "result", {"error": error})
        else:
            self.send(0, "problem", {"error": error})

    def serve(self) -> int:
        """Serves until the end of the input."""
        import time

        program = self.program
        self.send(0, "hello", {"name": program.name, "version": program.version, "protocol": _PROTOCOL})
        while True:
            try:
                line = self.wire.next_line()
            except _LongLine as long:
                import re

                found = re.search(rb'"id": *(\d+)', long.args[0])
                self.problem(int(found.group(1)) if found else None, "the line is longer than 32 MiB")
                continue
            if line is None:
                break
            self.take(line)
        for ctx in list(self.running.values()):
            ctx.cancel()
        end = _now() + _GRACE_S
        while self.running and _now() < end:
            time.sleep(0.005)
        return _SUCCESS

    def take(self, line: bytes) -> None:
        import json

        try:
            frame = json.loads(line)
        except (ValueError, RecursionError) as error:
            return self.problem(None, f"the line is not a frame: {error}")
        id = frame.get("id") if isinstance(frame, dict) else None
        if type(id) is not int or id < 0:
            return self.problem(None, "the line is not a frame: it has no `id`")
        if frame.get("v") != 1:
            return self.problem(id, f"unknown frame version {_quote(frame.get('v'))}; expected version 1")
        kind = frame.get("type")
        if kind == "answer":
            with self.lock:
                question = self.questions.pop((id, frame.get("request", 0)), None)
            # An answer without a pending question is late; so is one to a cancelled question.
            if question is None or not question.set_running_or_notify_cancel():
                return
            if "error" in frame:
                question.set_exception(ToolError.from_dict(frame["error"]))
            else:
                question.set_result(frame.get("ok"))
        elif kind == "cancel":
            ctx = self.running.get(id)
            if ctx is not None:
                ctx.cancel()
        elif kind in ("call", "read", "render"):
            self.enter(id, frame)
        elif kind == "list":
            try:
                self.send(id, "listed", {"ok": self.program.discovery()})
            except SpecError as error:
                self.send(id, "listed", {"error": ToolError.precondition(str(error)).to_dict()})
        else:
            self.problem(id, f"unknown frame type {_quote(kind)}")

    def enter(self, id: int, frame: dict[str, Any]) -> None:
        """Starts a request: an async tool on the event loop, any other on a thread."""
        if id == 0 or id in self.running:
            return self.problem(0, f"the id {id} is 0 or belongs to a running request")
        ctx = _ResidentCtx(self, id, frame)
        if len(self.running) >= _MAX_REQUESTS:
            return ctx.finish(ToolError.overloaded(f"{_MAX_REQUESTS} requests are already running"))
        self.running[id] = ctx
        called = self.program.tools.get(frame.get("tool", "")) if frame["type"] == "call" else None
        if called is not None and called.is_async:
            loop = self.event_loop()
            loop.call_soon_threadsafe(ctx.start, loop, called)
            return
        with self.lock:
            is_idle = self.idle > 0
            self.idle -= is_idle
        if not is_idle:
            import threading

            threading.Thread(target=self.work, daemon=True).start()
        self.jobs.put(ctx.run)

    def work(self) -> None:
        while True:
            self.jobs.get()()
            with self.lock:
                self.idle += 1

    def event_loop(self) -> Any:
        if self.loop is None:
            import asyncio
            import threading

            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.loop.run_forever, daemon=True).start()
        return self.loop


class _ResidentCtx(Ctx):
    """One request in resident mode, and the context of its call."""

    def __init__(self, resident: _Resident, number: int, frame: dict[str, Any]) -> None:
        if not frame.get("call"):
            frame["call"] = _new_id()
        super().__init__(frame)
        self.resident, self.number, self.frame = resident, number, frame
        self.task: Any = None

    def _notify(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "progress":
            body["attempt"] = self.attempt
        self.resident.send(self.number, kind, body)

    def _request(self, verb: str, body: dict[str, Any]) -> Future[Any]:
        if verb == "nested" and body["tool"] in self.resident.program.tools:
            return _in_thread(self.resident.program.nested, body["tool"], body["arguments"], self)
        if verb not in (self._facts.get("serves") or ()):
            return super()._request(verb, body)
        if self._cancelled:
            raise ToolError.cancelled("the caller cancelled the call")
        from concurrent.futures import Future

        resident = self.resident
        answer: Future[Any] = Future()
        with resident.lock:
            resident.last_question += 1
            request = resident.last_question
            resident.questions[self.number, request] = answer
        resident.send(self.number, verb, {"request": request, **body})
        return answer

    def cancel(self) -> None:
        """Cancels the request: an async tool at its next await, any other when it checks `is_cancelled`."""
        self._cancelled = True
        for question in self.take_questions():
            if question.set_running_or_notify_cancel():
                question.set_exception(ToolError.cancelled("the caller cancelled the call"))
        if self.task is not None:
            self.resident.loop.call_soon_threadsafe(self.task.cancel)

    def take_questions(self) -> list[Future[Any]]:
        """Removes the pending questions of this request."""
        resident = self.resident
        with resident.lock:
            keys = [key for key in resident.questions if key[0] == self.number]
            return [resident.questions.pop(key) for key in keys]

    def finish(self, outcome: Any) -> None:
        """Answers the request. The id is free before the caller sees the answer."""
        kind = "result" if self.frame["type"] == "call" else "value"
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            body = {"ok": Output.of(outcome).to_dict() if kind == "result" else outcome}
        except BaseException as error:
            body = {"error": _failure(error, self.id).to_dict()}
        self.take_questions()
        self.resident.running.pop(self.number, None)
        try:
            self.resident.send(self.number, kind, body)
        except OSError:  # The reader is gone; the end of the input ends the process.
            pass

    def run(self) -> None:
        """Runs the request on this thread."""
        try:
            self.finish(self.execute())
        except BaseException as error:
            self.finish(error)

    def execute(self) -> Any:
        program, frame = self.resident.program, self.frame
        arguments = frame.get("arguments") or {}
        if frame["type"] == "read":
            return program.read(str(frame.get("uri")))
        if frame["type"] == "render":
            return program.render(str(frame.get("prompt")), arguments)
        name = str(frame.get("tool"))
        called = program.tools.get(name)
        if called is None:
            raise ToolError.not_found(f"unknown tool `{name[:80]}`", suggestion=_did_you_mean(name, program.tools))
        result = self.begin(called)
        return result if isinstance(result, Output) else _finished(called.fn(**result))

    def begin(self, called: Tool[..., Any]) -> Any:
        """The values of a call, or its output if the function does not run."""
        spec, arguments = called.spec(), self.frame.get("arguments") or {}
        values = called.decode(arguments)
        reserved = _Reserved(called, arguments)
        if self.frame.get("validate"):
            return Output({"valid": True})
        if reserved.dry_run and not spec.get("dry_run"):
            return Output(reserved.plan)
        if self.frame.get("dry_run") and not spec.get("dry_run"):
            return Output({"dry_run": True, "would_execute": {"tool": called.name, "arguments": arguments}})
        self._facts = {**self.frame, "verbose": self.is_verbose or reserved.verbose}
        if reserved.dry_run or reserved.working_dir is not None:
            self._facts.update(dry_run=reserved.dry_run, working_dir=reserved.working_dir)
        limit = _timeout_of(spec, reserved.timeout, self.remaining)
        self._deadline = None if limit is None else _now() + limit
        if called.ctx_param is not None:
            values[called.ctx_param] = self
        return values

    def start(self, loop: Any, called: Tool[..., Any]) -> None:
        """Runs an async tool as a task of the event loop."""

        async def run() -> Any:
            result = self.begin(called)
            if isinstance(result, Output):
                return result
            remaining = self.remaining
            expired: list[bool] = []

            def expire() -> None:
                expired.append(True)
                self.task.cancel()

            timer = loop.call_later(remaining, expire) if remaining else None
            try:
                awaited = called.fn(**result)
                return await awaited if hasattr(awaited, "__await__") else awaited
            except BaseException:
                if not expired:
                    raise
                raise ToolError.timeout(f"`{called.name}` timed out after {remaining:.1f} s") from None
            finally:
                if timer is not None:
                    timer.cancel()

        def done(task: Any) -> None:
            error = ToolError.cancelled("the caller cancelled the call") if task.cancelled() else task.exception()
            self.finish(task.result() if error is None else error)

        self.task = loop.create_task(run())
        self.task.add_done_callback(done)
        if self._cancelled:
            self.task.cancel()
