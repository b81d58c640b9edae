"""Tools, resources and prompts from functions."""

from __future__ import annotations

import sys

from ._errors import SpecError, ToolError
from ._values import Output
from ._context import Ctx
from ._checks import _checked, _decoded, _did_you_mean, _Field, _form, _is_union, _Problem, _types
from ._schema import _Compiler, _is_field_info, _json_default
from ._encoding import encode
from ._docstrings import _read_docstring
from ._typing import _P, _Q, _R, _T, _Typed, overload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Concatenate

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
        from ._run import _typed

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
