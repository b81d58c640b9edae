"""Envelopes: the JSON of a call's outcome."""

from __future__ import annotations

from typing import Any

from toolpost import author


class Response:
    """Builds envelopes."""

    @staticmethod
    def success(result: dict[str, Any]) -> dict[str, Any]:
        """The envelope of a result."""
        return {"status": "success", "result": result}

    @staticmethod
    def error(
        code: str,
        message: str,
        recoverable: bool = False,
        suggestion: str | None = None,
        context: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The envelope of an error."""
        error: dict[str, Any] = {"code": code, "message": message, "recoverable": recoverable}
        if suggestion:
            error["suggestion"] = suggestion
        if context:
            error["context"] = context
        return {"status": "error", "error": error}

    @staticmethod
    def partial(result: dict[str, Any], errors: list[dict[str, Any]], result_key: str | None = None) -> dict[str, Any]:
        """The envelope of a partial success. `result_key` names the list of successes; defaults to the first list."""
        lists = [value for value in result.values() if isinstance(value, list)]
        succeeded = len(result.get(result_key, []) if result_key else lists[0] if lists else [])
        summary = {
            "total": succeeded + len(errors),
            "succeeded": succeeded,
            "failed": len(errors),
            "recoverable_failures": sum(bool(error.get("recoverable")) for error in errors),
        }
        status = "success" if not errors else "partial" if succeeded else "error"
        envelope: dict[str, Any] = {"status": status, "result": result, "summary": summary}
        return {**envelope, "errors": errors} if errors else envelope


def output(value: Any) -> Any:
    """The output for a return value, which may be an envelope. A dict that only has a `status` is not an envelope."""
    if not isinstance(value, dict):
        return value
    status, keys = value.get("status"), set(value) - {"errors"}
    if status == "success" and set(value) == {"status", "result"}:
        return value["result"]
    if status == "error" and keys == {"status", "error"} and isinstance(value["error"], dict):
        raise author.ToolError.from_dict(value["error"])
    if status in ("success", "partial", "error") and keys == {"status", "result", "summary"}:
        errors = [author.ToolError.from_dict(error) for error in value.get("errors", ())]
        partial = author.Partial(value["summary"]["succeeded"], errors)
        return author.Output(value["result"], partial=partial)
    return value
