"""Manifests of functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from toolpost.compat.toolable.decorators import ToolableTool

Manifest = dict[str, Any]


def extract_schema_from_function(fn: Callable[..., Any], input_model: Any = None) -> Manifest:
    """The JSON Schema of a function's arguments."""
    schema: Manifest = ToolableTool(fn, {"summary": fn.__name__, "input_model": input_model}).spec()["input_schema"]
    return schema


def generate_tool_manifest(fn: Callable[..., Any], meta: Manifest) -> Manifest:
    """The manifest of a tool."""
    manifest = {
        "name": fn.__name__,
        "summary": meta["summary"],
        "description": inspect.getdoc(fn) or "",
        "streaming": meta.get("streaming", False),
        "session_mode": meta.get("session_mode", False),
        "schema": extract_schema_from_function(fn, meta.get("input_model")),
    }
    return {**manifest, **{key: meta[key] for key in ("examples", "tags") if meta.get(key)}}


def generate_resource_manifest(fn: Callable[..., Any], meta: Manifest) -> Manifest:
    """The manifest of a resource."""
    lists = {key: meta.get(key, []) for key in ("mime_types", "tags")}
    return {"uri_pattern": meta["uri_pattern"], "summary": meta["summary"], **lists}


def generate_prompt_manifest(fn: Callable[..., Any], meta: Manifest) -> Manifest:
    """The manifest of a prompt."""
    keys = {key: meta[key] for key in ("summary", "arguments")}
    return {"name": fn.__name__, **keys, "tags": meta.get("tags", [])}
