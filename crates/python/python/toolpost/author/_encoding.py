"""Python values as JSON."""

from __future__ import annotations

import sys

from ._errors import ToolError
from ._checks import _json, _qualified, _type_name
from ._schema import _is_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
