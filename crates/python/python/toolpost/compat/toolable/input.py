"""Input models. This module imports pydantic."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class ToolInput(BaseModel):
    """Base class of input models.

    These fields have a meaning if a model declares them: `working_dir`, `timeout` (1 to 600 seconds), `dry_run` and
    `verbose`.
    """

    model_config = ConfigDict(extra="forbid", validate_default=True)

    def context(self) -> dict[str, Any]:
        """Facts about the run. Toolable never calls it, and neither does Toolpost."""
        return {}

    def pre_validate(self) -> None:
        """Check what needs I/O. Runs after the model's own checks; raise `ToolError` for an invalid input."""

    def to_log_safe(self) -> dict[str, Any]:
        """The fields without secrets, for the plan of a dry run."""
        return self.model_dump()
