"""Errors that a tool reports to its caller."""

from __future__ import annotations

from enum import Enum
from typing import Any

from toolpost import author
from toolpost.compat.toolable.response import Response


class ErrorCode(str, Enum):
    """The code of an error."""

    INVALID_INPUT = "INVALID_INPUT"
    MISSING_PARAM = "MISSING_PARAM"
    INVALID_PATH = "INVALID_PATH"
    NOT_FOUND = "NOT_FOUND"
    CONFLICT = "CONFLICT"
    PRECONDITION = "PRECONDITION"

    TIMEOUT = "TIMEOUT"
    PERMISSION = "PERMISSION"
    INTERNAL = "INTERNAL"
    DEPENDENCY = "DEPENDENCY"

    @property
    def recoverable(self) -> bool:
        """Whether the caller can fix the error by changing its request."""
        return author.ToolError(self.value, "").recoverable


class ToolError(author.ToolError):
    """The error of a tool call."""

    def __init__(
        self,
        code: str | ErrorCode,
        message: str,
        recoverable: bool | None = None,
        suggestion: str | None = None,
        context: dict[str, Any] | None = None,
    ) -> None:
        code = ErrorCode(code)
        super().__init__(code.value, message, suggestion=suggestion, **context or {})
        self.code: ErrorCode = code
        if recoverable is not None:
            self.recoverable = recoverable

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON."""
        return {**super().to_dict(), "code": self.code.value}

    def to_response(self) -> dict[str, Any]:
        """The envelope of the error."""
        return Response.error(self.code.value, self.message, self.recoverable, self.suggestion, self.context)
