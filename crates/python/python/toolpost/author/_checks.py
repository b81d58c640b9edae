"""Checks and decoders of plain types."""

from __future__ import annotations

from ._errors import ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

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
    from ._encoding import encode

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
