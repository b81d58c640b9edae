"""Values that a tool returns or declares: parameters, outputs, artifacts, samples."""

from __future__ import annotations

from ._errors import ToolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Any

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
        from ._encoding import encode

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
        from ._encoding import encode

        return {"type": "image", "media_type": media_type, "data": encode(data)}

    @staticmethod
    def of(value: Any) -> Output:
        """The output for a return value."""
        return value if isinstance(value, Output) else Output(value)

    def to_dict(self) -> dict[str, Any]:
        """The output as JSON."""
        from ._encoding import encode

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
