"""Notifications during a call."""

from __future__ import annotations

import json
import sys
from typing import Any

from toolpost.compat.toolable._wire import caller
from toolpost.compat.toolable.streaming import report


class _Notify:
    """Sends notifications to the engine; without one, as JSON Lines to stderr."""

    def _emit(self, event: dict[str, Any]) -> None:
        ctx = caller()
        if ctx is not None:
            return report(ctx, {**event, "type": event["kind"]})
        print(json.dumps({"type": "notification", **event}), file=sys.stderr, flush=True)

    def progress(self, message: str, percent: int | None = None) -> None:
        """Report progress, `percent` from 0 to 100."""
        event: dict[str, Any] = {"kind": "progress", "message": message}
        self._emit(event if percent is None else {**event, "percent": percent})

    def log(self, message: str, level: str = "info") -> None:
        """Write a line to the caller's log."""
        self._emit({"kind": "log", "level": level, "message": message})

    def artifact(self, name: str, uri: str) -> None:
        """Announce a file."""
        self._emit({"kind": "artifact", "name": name, "uri": uri})


notify = _Notify()
