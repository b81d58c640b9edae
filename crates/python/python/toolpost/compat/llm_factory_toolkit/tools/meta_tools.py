"""The tools with which a model finds and loads other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from toolpost.compat.llm_factory_toolkit.tools.catalog import ToolCatalog, ToolCatalogEntry
from toolpost.compat.llm_factory_toolkit.tools.models import ToolExecutionResult
from toolpost.compat.llm_factory_toolkit.tools.session import ToolSession

Entry = dict[str, Any]

_LOAD_HINT = "Load the tools that you need with load_tools, then call them; another search is not necessary."


def _error(reason: str, **body: Any) -> ToolExecutionResult:
    return ToolExecutionResult(content=json.dumps(body), error=reason)


def _no_catalog() -> ToolExecutionResult:
    return _error("No catalog configured", error="This run has no tool catalog.")


def _no_session() -> ToolExecutionResult:
    return _error("No session configured", error="This run has no tool session.")


def _answer(
    body: Entry, session: ToolSession | None, metadata: Entry, payload: list[Entry] | None = None
) -> ToolExecutionResult:
    if session is not None and session.token_budget is not None:
        budget = session.get_budget_usage()
        body |= {"budget": budget, "compact_mode": budget["warning"] and session.auto_compact}
    return ToolExecutionResult(
        content=json.dumps(body, indent=2), payload=body if payload is None else payload, metadata=metadata
    )


def _described(entry: ToolCatalogEntry, active: Iterable[str]) -> Entry:
    is_active = entry.name in active
    return {
        "name": entry.name,
        "description": entry.description,
        "category": entry.category,
        "group": entry.group,
        "tags": entry.tags,
        "active": is_active,
        "status": "loaded" if is_active else "available - call load_tools to activate",
    }


def browse_toolkit(
    query: str | None = None,
    category: str | None = None,
    group: str | None = None,
    limit: int = 10,
    offset: int = 0,
    *,
    tool_catalog: ToolCatalog | None = None,
    tool_session: ToolSession | None = None,
) -> ToolExecutionResult:
    """Search the tool catalog. Then call load_tools with the names of the tools that you need."""
    if tool_catalog is None:
        return _no_catalog()
    active = tool_session.active_tools if tool_session else set()
    results = []
    for entry in tool_catalog.search(query=query, category=category, group=group, limit=limit, offset=offset):
        tokens = {"estimated_tokens": entry.token_count} if entry.token_count > 0 else {}
        results.append({**_described(entry, active), **tokens})
    matched = getattr(tool_catalog, "_last_search_total", len(results))
    body: Entry = {
        "results": results,
        "total_found": len(results),
        "total_matched": matched,
        "available_categories": tool_catalog.list_categories(),
        "available_groups": tool_catalog.list_groups(),
    }
    if results:
        all_active = all(result["active"] for result in results)
        loaded = f"All {len(results)} tools of this search are already loaded: call them."
        body["hint"] = loaded if all_active else _LOAD_HINT
    filters = {"query": query, "category_filter": category, "group_filter": group, "offset": max(offset, 0)}
    body |= {key: value for key, value in filters.items() if value}
    if matched > offset + len(results):
        body["has_more"] = True
    metadata = {"query": query, "category": category, "group": group, "offset": offset}
    return _answer(body, tool_session, metadata, results)


def _similar(name: str, catalog: ToolCatalog) -> list[str]:
    """Up to three names that contain this one, are part of it, or share words with it."""

    def words(text: str) -> set[str]:
        return set(text.lower().replace("-", "_").split("_"))

    def score(other: str) -> int:
        contained = other.lower() in name.lower() or name.lower() in other.lower()
        return 3 * contained + 2 * len(words(name) & words(other))

    names = [entry.name for entry in catalog.list_all() if score(entry.name)]
    return sorted(names, key=score, reverse=True)[:3]


def _load(names: Iterable[str], catalog: ToolCatalog | None, session: ToolSession) -> Entry:
    new: list[str] = []
    active: list[str] = []
    invalid: list[Any] = []
    for name in names:
        if catalog and not catalog.has_entry(name):
            similar = _similar(name, catalog)
            invalid.append({"name": name, "did_you_mean": similar} if similar else name)
        else:
            (active if name in session.active_tools else new).append(name)
    failed = session.load(new, {name: catalog.get_token_count(name) for name in new} if catalog else None)
    return {
        "loaded": [name for name in new if name not in failed],
        "already_active": active,
        "invalid": invalid,
        "failed_limit": failed,
        "active_count": len(session.active_tools),
    }


def load_tools(
    tool_names: list[str], *, tool_catalog: ToolCatalog | None = None, tool_session: ToolSession | None = None
) -> ToolExecutionResult:
    """Load tools by their names, all that you need in one call. They stay loaded."""
    if tool_session is None:
        return _no_session()
    body = _load(tool_names, tool_catalog, tool_session)
    if body["loaded"] or body["already_active"]:
        body["hint"] = "The tools are active: call them."
    return _answer(body, tool_session, {"requested": tool_names})


def load_tool_group(
    group: str, *, tool_catalog: ToolCatalog | None = None, tool_session: ToolSession | None = None
) -> ToolExecutionResult:
    """Load all tools of a group and the groups inside of it, such as `crm` with `crm.contacts`."""
    if tool_session is None:
        return _no_session()
    if tool_catalog is None:
        return _no_catalog()
    names = [entry.name for entry in tool_catalog.search(group=group, limit=10_000)]
    body = {"group": group, **_load(names, tool_catalog, tool_session)}
    return _answer(body, tool_session, {"group": group, "requested": names})


def _unload(names: Iterable[str], session: ToolSession, core_tools: Iterable[str] | None) -> Entry:
    protected = {*META_TOOL_NAMES, *(core_tools or ())}
    body: Entry = {"unloaded": [], "not_active": [], "refused_protected": []}
    for name in names:
        kind = "not_active" if name not in session.active_tools else "unloaded"
        body["refused_protected" if name in protected else kind].append(name)
    session.unload(body["unloaded"])
    return {**body, "active_count": len(session.active_tools)}


def unload_tool_group(
    group: str,
    *,
    tool_catalog: ToolCatalog | None = None,
    tool_session: ToolSession | None = None,
    core_tools: list[str] | None = None,
) -> ToolExecutionResult:
    """Unload all tools of a group and the groups inside of it, except core tools."""
    if tool_session is None:
        return _no_session()
    if tool_catalog is None:
        return _no_catalog()
    names = tool_catalog.get_tools_in_group(group)
    body = {"group": group, **_unload(names, tool_session, core_tools)}
    return _answer(body, tool_session, {"group": group, "requested": names})


def unload_tools(
    tool_names: list[str], *, tool_session: ToolSession | None = None, core_tools: list[str] | None = None
) -> ToolExecutionResult:
    """Unload tools by their names to free tokens, except core tools."""
    if tool_session is None:
        return _no_session()
    return _answer(_unload(tool_names, tool_session, core_tools), tool_session, {"requested": tool_names})


async def find_tools(
    intent: str,
    *,
    tool_catalog: ToolCatalog | None = None,
    tool_session: ToolSession | None = None,
    _search_agent: Any = None,
) -> ToolExecutionResult:
    """Find tools by what you intend to do. Another model searches the catalog."""
    if _search_agent is None:
        return _error(
            "No search agent configured",
            error="Semantic search not configured: set `dynamic_tool_loading` of LLMClient to a model.",
        )
    if tool_catalog is None:
        return _no_catalog()
    active = tool_session.active_tools if tool_session else set()
    listed = _format_catalog_for_prompt(tool_catalog.list_all(), active)
    if not listed:
        hint = "All tools are already loaded: call them."
        body: Entry = {"results": [], "total_found": 0, "intent": intent, "hint": hint}
        return _answer(body, None, {"intent": intent}, [])
    prompt = f'Available tools:\n{listed}\n\nUser intent: "{intent}"'
    messages = [{"role": "system", "content": _FIND_TOOLS_SYSTEM}, {"role": "user", "content": prompt}]
    fallback = "Search with browse_toolkit instead."
    try:
        result = await _search_agent.generate(input=messages, response_format={"type": "json_object"}, use_tools=None)
    except Exception as error:  # noqa: BLE001
        return _error(str(error), error=f"The search model failed: {error}", hint=fallback)
    try:
        reply = json.loads(result.content)
        chosen = [name for name in reply.get("tool_names", []) if isinstance(name, str)]
        reasoning = reply.get("reasoning", "")
    except (ValueError, AttributeError, TypeError):
        raw = str(result.content)[:200]
        return _error(
            "Parse error",
            error="The reply of the search model is not a JSON object of the expected form.",
            raw_response=raw,
            hint=fallback,
        )
    entries = filter(None, map(tool_catalog.get_entry, chosen))
    results = [_described(entry, active) for entry in entries]
    none = "No matching tool: state another intent, or search with browse_toolkit."
    body = {
        "results": results,
        "total_found": len(results),
        "intent": intent,
        "reasoning": reasoning,
        "hint": _LOAD_HINT if results else none,
    }
    names = [result["name"] for result in results]
    return _answer(body, None, {"intent": intent, "tool_names": names}, results)


def _format_catalog_for_prompt(entries: Iterable[ToolCatalogEntry], active: Iterable[str]) -> str:
    lines = []
    for entry in entries:
        if entry.name not in active:
            category = f" | category: {entry.category}" if entry.category else ""
            tags = f" | tags: {', '.join(entry.tags)}" if entry.tags else ""
            lines.append(f"- {entry.name}: {entry.description}{category}{tags}")
    return "\n".join(lines)


_FIND_TOOLS_SYSTEM = (
    "Choose the fewest tools of the catalog that the intent needs, or none. "
    'Answer with a JSON object: {"tool_names": ["..."], "reasoning": "one sentence"}'
)


def _parameters(required: str | None = None, **properties: Entry) -> Entry:
    return {"type": "object", "properties": properties, "required": [required] if required else []}


def _text(description: str) -> Entry:
    return {"type": ["string", "null"], "description": f"{description}; null for all."}


_NAMES = {"type": "array", "items": {"type": "string"}, "description": "The names of tools."}
_GROUP = {"type": "string", "description": "A group, such as crm, with the groups inside of it."}

BROWSE_TOOLKIT_PARAMETERS = _parameters(
    query=_text("Words of the name, description or tags"),
    category=_text("A category"),
    group=_text("A group with the groups inside of it"),
    limit={"type": "integer", "description": "The maximum number of results.", "default": 10},
    offset={"type": "integer", "description": "The number of results to skip.", "default": 0},
)
LOAD_TOOLS_PARAMETERS = UNLOAD_TOOLS_PARAMETERS = _parameters("tool_names", tool_names=_NAMES)
LOAD_TOOL_GROUP_PARAMETERS = UNLOAD_TOOL_GROUP_PARAMETERS = _parameters("group", group=_GROUP)
FIND_TOOLS_PARAMETERS = _parameters("intent", intent={"type": "string", "description": "The task at hand."})

META_TOOLS: list[Callable[..., Any]] = [browse_toolkit, load_tools, load_tool_group, unload_tool_group, unload_tools]
META_TOOL_NAMES = _META_TOOL_NAMES = frozenset(tool.__name__ for tool in [*META_TOOLS, find_tools])
TAGS = {
    "browse_toolkit": ["meta", "discovery"],
    "load_tools": ["meta", "loading"],
    "load_tool_group": ["meta", "loading", "group"],
    "unload_tool_group": ["meta", "unloading", "group"],
    "unload_tools": ["meta", "unloading"],
    "find_tools": ["meta", "discovery", "semantic"],
}
