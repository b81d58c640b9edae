"""Errors of tools."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

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
        from ._encoding import encode

        error: dict[str, Any] = {"code": self.code, "message": self.message, "recoverable": self.recoverable}
        if self.suggestion:
            error["suggestion"] = self.suggestion
        if self.retry == "never":
            error["retry"] = "never"
        elif isinstance(self.retry, (int, float)):
            error["retry"] = {"after_ms": round(self.retry * 1000)}
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
            # The keys `after`, `not_started`, `after_ms` and `not_started_ms` all advise a wait.
            wait = next(iter(retry.values()), None)
            if isinstance(wait, dict):
                found.retry = wait.get("secs", 0) + wait.get("nanos", 0) / 1e9
            elif isinstance(wait, (int, float)):
                found.retry = wait / 1000
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
