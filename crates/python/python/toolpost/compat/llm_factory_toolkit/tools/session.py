"""Which tools a model sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

WARNING_THRESHOLD = 0.75
"""The part of the token budget from which definitions become compact."""
ERROR_THRESHOLD = 0.90
"""The part of the token budget from which it counts as exceeded."""


@dataclass
class ToolSession:
    """The tools that a model sees, up to a number and a budget of tokens. `to_dict` stores it between turns."""

    active_tools: set[str] = field(default_factory=set)
    max_tools: int = 50
    session_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    token_budget: int | None = None
    _token_counts: dict[str, int] = field(default_factory=dict)
    auto_compact: bool = True
    """Whether newly loaded definitions become compact at 75 % of the budget."""
    _analytics_loads: dict[str, int] = field(default_factory=dict)
    _analytics_unloads: dict[str, int] = field(default_factory=dict)
    _analytics_calls: dict[str, int] = field(default_factory=dict)

    def load(self, names: Iterable[str], token_counts: Mapping[str, int] | None = None) -> list[str]:
        """Show tools, and return the names of those that exceed `max_tools` or the budget."""
        rejected = []
        for name in names:
            cost = (token_counts or {}).get(name, 0)
            if name in self.active_tools:
                continue
            over = self.token_budget is not None and cost > 0 and self.tokens_used + cost > self.token_budget
            if over or len(self.active_tools) >= self.max_tools:
                rejected.append(name)
                continue
            self.active_tools.add(name)
            _count(self._analytics_loads, name)
            if cost > 0:
                self._token_counts[name] = cost
        return rejected

    def unload(self, names: Iterable[str]) -> None:
        """Hide tools."""
        for name in names:
            if name in self.active_tools:
                _count(self._analytics_unloads, name)
            self.active_tools.discard(name)
            self._token_counts.pop(name, None)

    def list_active(self) -> list[str]:
        """The names of the visible tools, sorted."""
        return sorted(self.active_tools)

    def is_active(self, name: str) -> bool:
        """Whether a tool is visible."""
        return name in self.active_tools

    def record_tool_call(self, name: str) -> None:
        """Count a call. Runs do it."""
        _count(self._analytics_calls, name)

    def get_analytics(self) -> dict[str, Any]:
        """The counts of loads, unloads and calls by tool."""
        return {
            "loads": dict(self._analytics_loads),
            "unloads": dict(self._analytics_unloads),
            "calls": dict(self._analytics_calls),
            "most_loaded": Counter(self._analytics_loads).most_common(),
            "most_called": Counter(self._analytics_calls).most_common(),
            "never_called": sorted(set(self._analytics_loads) - set(self._analytics_calls)),
        }

    def reset_analytics(self) -> None:
        """Set all counts to 0."""
        for counts in (self._analytics_loads, self._analytics_unloads, self._analytics_calls):
            counts.clear()

    @property
    def tokens_used(self) -> int:
        """The estimated tokens of the visible definitions."""
        return sum(self._token_counts.get(name, 0) for name in self.active_tools)

    @property
    def tokens_remaining(self) -> int | None:
        """The tokens left; None without a budget."""
        return None if self.token_budget is None else max(0, self.token_budget - self.tokens_used)

    def get_budget_usage(self) -> dict[str, Any]:
        """The state of the budget."""
        part = round(self.tokens_used / self.token_budget, 4) if self.token_budget else 0.0
        return {
            "tokens_used": self.tokens_used,
            "token_budget": self.token_budget,
            "tokens_remaining": self.tokens_remaining,
            "utilisation": part,
            "warning": part >= WARNING_THRESHOLD,
            "budget_exceeded": part >= ERROR_THRESHOLD,
            "active_tool_count": len(self.active_tools),
        }

    def to_dict(self) -> dict[str, Any]:
        """The session as JSON."""
        fields = {name: value.copy() if isinstance(value, dict) else value for name, value in vars(self).items()}
        return {**fields, "active_tools": self.list_active()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The session of a dict of `to_dict`."""
        fields: dict[str, Any] = {
            name: dict(value) if isinstance(value, dict) else value for name, value in data.items()
        }
        return cls(**{**fields, "active_tools": set(data.get("active_tools", ()))})


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
