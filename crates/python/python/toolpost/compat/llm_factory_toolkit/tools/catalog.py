"""A searchable index of tools."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpost.compat.llm_factory_toolkit.tools.tool_factory import ToolFactory


def estimate_token_count(definition: dict[str, Any]) -> int:
    """The tokens of a definition, estimated as a quarter of the characters of its JSON."""
    return max(1, int(len(json.dumps(definition, separators=(",", ":"))) / 4 + 0.5))


@dataclass
class ToolCatalogEntry:
    """A tool of a catalog."""

    name: str
    description: str
    parameters: dict[str, Any] | None = None
    tags: list[str] = field(default_factory=list)
    category: str | None = None
    group: str | None = None
    token_count: int = 0

    def matches_query(self, query: str) -> bool:
        """Whether at least half of the words occur in the name, description or tags, or contain a word of these."""
        words = query.lower().split()
        text = f"{self.name} {self.description} {' '.join(self.tags)}".lower()
        missing = [word for word in words if word not in text]
        if 2 * len(missing) > len(words):
            stems = _stems(text)
            missing = [word for word in missing if not any(stem in word for stem in stems)]
        return bool(words) and 2 * len(missing) <= len(words)

    def relevance_score(self, query: str) -> float:
        """From 0 to 1. The name has weight 3, tags 2, description and category 1 each; the exact name is 1."""
        words, name = query.lower().split(), self.name.lower()
        if not words or " ".join(words) == name:
            return float(bool(words))
        stems, tags = _stems(name), [tag.lower() for tag in self.tags]
        description, category, total = self.description.lower(), (self.category or "").lower(), 0.0
        for word in words:
            total += 3 * (_share(word, name) or 0.3 * any(word in stem or stem in word for stem in stems))
            in_tags = word in tags or 0.6 * any(word in tag or tag in word for tag in tags)
            total += 2 * in_tags + _share(word, description) + _share(word, category)
        return min(1.0, total / (7 * len(words)))

    def in_group(self, group: str) -> bool:
        """Whether the group is this one or inside of it."""
        return self.group is not None and (self.group == group or self.group.startswith(f"{group}."))


def _stems(text: str) -> list[str]:
    return [stem for stem in text.replace("_", " ").replace("-", " ").split() if len(stem) >= 3]


def _share(word: str, text: str) -> float:
    return len(word) / len(text) if word in text else 0.0


class ToolCatalog(ABC):
    """A searchable catalog. Subclasses may read from a database."""

    @abstractmethod
    def search(
        self,
        query: str | None = None,
        category: str | None = None,
        tags: list[str] | None = None,
        group: str | None = None,
        limit: int = 10,
        offset: int = 0,
        min_score: float = 0.0,
        include_params: bool = False,
    ) -> list[ToolCatalogEntry]:
        """The entries that match all filters, by relevance if there is a query."""

    @abstractmethod
    def get_entry(self, tool_name: str) -> ToolCatalogEntry | None:
        """The entry of a tool."""

    @abstractmethod
    def has_entry(self, tool_name: str) -> bool:
        """Whether a tool exists."""

    @abstractmethod
    def list_categories(self) -> list[str]:
        """All categories, sorted."""

    @abstractmethod
    def list_groups(self) -> list[str]:
        """All groups, sorted."""

    @abstractmethod
    def get_tools_in_group(self, group: str) -> list[str]:
        """The names of the tools in a group and the groups inside of it, sorted."""

    @abstractmethod
    def list_all(self) -> list[ToolCatalogEntry]:
        """All entries."""

    def get_token_count(self, tool_name: str) -> int:
        """The estimated tokens of a definition; 0 for an unknown tool."""
        entry = self.get_entry(tool_name)
        return entry.token_count if entry else 0


class InMemoryToolCatalog(ToolCatalog):
    """The catalog of the tools that a factory has at this time."""

    def __init__(self, tool_factory: ToolFactory) -> None:
        self._factory = tool_factory
        self._last_search_total = 0
        self._entries: dict[str, ToolCatalogEntry] = {}
        for name, tool in tool_factory.registrations.items():
            function = tool.definition["function"]
            self._entries[name] = ToolCatalogEntry(
                name,
                function["description"],
                function.get("parameters"),
                list(tool.tags),
                tool.category,
                tool.group,
                estimate_token_count(tool.definition),
            )

    def add_metadata(
        self, name: str, *, category: str | None = None, tags: list[str] | None = None, group: str | None = None
    ) -> None:
        """Change the category, tags or group of an entry, which is created if it is missing."""
        entry = self._entries.setdefault(name, ToolCatalogEntry(name, ""))
        for key, value in {"category": category, "tags": tags, "group": group}.items():
            if value is not None:
                setattr(entry, key, value)

    def add_entry(self, entry: ToolCatalogEntry) -> None:
        """Add or replace an entry."""
        self._entries[entry.name] = entry

    def search(
        self,
        query: str | None = None,
        category: str | None = None,
        tags: list[str] | None = None,
        group: str | None = None,
        limit: int = 10,
        offset: int = 0,
        min_score: float = 0.0,
        include_params: bool = False,
    ) -> list[ToolCatalogEntry]:
        wanted = {tag.lower() for tag in tags or ()}

        def matches(entry: ToolCatalogEntry) -> bool:
            own = (entry.category or "").lower()
            # Models use the group as a category for tools without a group.
            in_group = not group or (entry.in_group(group) if entry.group else own == group.lower())
            return (
                in_group
                and (not category or own == category.lower())
                and (not wanted or not wanted.isdisjoint(tag.lower() for tag in entry.tags))
                and (not query or entry.matches_query(query))
            )

        found = list(filter(matches, self._entries.values()))
        if query:
            scores = {entry.name: entry.relevance_score(query) for entry in found}
            found = [entry for entry in found if scores[entry.name] >= min_score]
            found.sort(key=lambda entry: -scores[entry.name])
        self._last_search_total = len(found)
        return found[offset : offset + limit]

    def get_entry(self, tool_name: str) -> ToolCatalogEntry | None:
        return self._entries.get(tool_name)

    def has_entry(self, tool_name: str) -> bool:
        return tool_name in self._entries

    def list_categories(self) -> list[str]:
        return sorted({entry.category for entry in self._entries.values() if entry.category})

    def list_groups(self) -> list[str]:
        return sorted({entry.group for entry in self._entries.values() if entry.group})

    def get_tools_in_group(self, group: str) -> list[str]:
        return sorted(entry.name for entry in self._entries.values() if entry.in_group(group))

    def list_all(self) -> list[ToolCatalogEntry]:
        return list(self._entries.values())

    def estimate_token_savings(self) -> dict[str, dict[str, int]]:
        """The tokens that compact definitions save, by tool, and under `__total__`: `full`, `compact`, `saved`."""
        savings = {}
        names = self._factory.available_tool_names
        for name, full, short in zip(
            names, self._factory.get_tool_definitions(), self._factory.get_tool_definitions(compact=True), strict=True
        ):
            tokens = estimate_token_count(full), estimate_token_count(short)
            savings[name] = {"full": tokens[0], "compact": tokens[1], "saved": tokens[0] - tokens[1]}
        total = {key: sum(row[key] for row in savings.values()) for key in ("full", "compact", "saved")}
        return {**savings, "__total__": total}
