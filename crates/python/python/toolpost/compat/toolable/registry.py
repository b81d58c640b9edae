"""Registries: the tools of other programs, which run in the sandbox."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import toolpost
from toolpost.compat.toolable.response import Response

_DISCOVERY_S = 5

# The answer is on standard output after every status but those of a program that cannot start. A missing module is
# the usual failure in a sandbox; stderr names it.
_DESCRIPTION = """
kind = "command"
v = 1
program = {program}

[grants]
level = {level}
readable = {readable}

[[tool]]
name = "program"
description = "Run the program."
args = ["{{words}}"]

[tool.parameters.words]
type = "array"
items = {{ type = "string" }}
allow_leading_dash = true
description = "The words of the command line."

[tool.output]
format = "text"

[[tool.exit]]
code = 1
stderr = "(?m)^ModuleNotFoundError"
means = "DEPENDENCY"

[[tool.exit]]
code = {statuses}
means = "success"
"""


class ToolRegistry:
    """The tools, resources and prompts of programs.

    A program runs in the sandbox at a level: `minimal`, `standard`, `strict` or `maximum`. A program that fails to
    load is a warning. For calls alone, `Toolbox.connect` of a path is faster: it starts the program once.
    """

    def __init__(self, tool_paths: list[Path | str], *, level: str = "standard") -> None:
        self.tools: dict[str, dict[str, Any]] = {}
        self.resources: dict[str, dict[str, Any]] = {}
        self.prompts: dict[str, dict[str, Any]] = {}
        self._level = level
        self._programs: dict[Path, _Program] = {}
        for path in map(Path, tool_paths):
            if path.exists():
                self._load(path)

    def _load(self, path: Path) -> None:
        try:
            program = self._programs[path] = _Program(path, self._level)
            manifest = json.loads(program.run("--discover", timeout=_DISCOVERY_S))
            for found, key, table in [
                ("tools", "name", self.tools),
                ("resources", "uri_pattern", self.resources),
                ("prompts", "name", self.prompts),
            ]:
                for entry in manifest.get(found, []):
                    if entry[key] in table:
                        other = table[entry[key]]["_path"]
                        warnings.warn(f"`{entry[key]}` of {path} replaces that of {other}; rename one", stacklevel=3)
                    table[entry[key]] = {**entry, "_path": path}
        except (toolpost.ToolError, ValueError, LookupError, TypeError, AttributeError) as error:
            warnings.warn(f"Failed to load tool from {path}: {error}", stacklevel=3)

    def discover(self) -> dict[str, str]:
        """The summaries of the tools, by name."""
        return {name: tool["summary"] for name, tool in self.tools.items()}

    def schema(self, name: str) -> dict[str, Any]:
        """The manifest of a tool, with the schema of its arguments."""
        if name not in self.tools:
            raise KeyError(f"Unknown tool: {name}")
        manifest: dict[str, Any] = json.loads(self._run(self.tools[name], name, "--manifest"))
        return manifest

    def call(self, name: str, params: dict[str, Any]) -> dict[str, Any]:
        """Call a tool, and return its envelope."""
        if name not in self.tools:
            return Response.error("NOT_FOUND", f"Unknown tool: {name}", recoverable=True)
        return self._answer(self.tools[name], name, json.dumps(params))  # type: ignore[no-any-return]

    def fetch_resource(self, uri: str) -> Any:
        """Read a resource."""
        for pattern, resource in self.resources.items():
            literals = re.split(r"\{\w+\}", pattern)
            if re.fullmatch("[^/]+".join(map(re.escape, literals)), uri):
                return self._answer(resource, "--resource", uri)
        return Response.error("NOT_FOUND", f"No resource matches: {uri}", recoverable=True)

    def render_prompt(self, name: str, args: dict[str, Any]) -> Any:
        """Render a prompt."""
        if name not in self.prompts:
            return Response.error("NOT_FOUND", f"Unknown prompt: {name}", recoverable=True)
        return self._answer(self.prompts[name], "--prompt", name, json.dumps(args))

    def _run(self, entry: dict[str, Any], *words: str) -> str:
        return self._programs[entry["_path"]].run(*words)

    def _answer(self, entry: dict[str, Any], *words: str) -> Any:
        try:
            text = self._run(entry, *words)
        except toolpost.ToolError as error:
            return {"status": "error", "error": error.to_dict()}
        try:
            return json.loads(text)
        except ValueError:
            return Response.error("INTERNAL", f"Invalid response: {text}")


class _Program:
    """A program as a command tool of the engine."""

    def __init__(self, path: Path, level: str) -> None:
        self._path = path = path.resolve()
        # The program may import this package, which an editable installation has outside of the interpreter.
        package = Path(toolpost.__file__).parents[1]
        self._words = [str(path)] if path.suffix == ".py" else []
        description = _DESCRIPTION.format(
            program=_toml(sys.executable if self._words else str(path)),
            level=_toml(level),
            readable=_toml([str(path.parent), str(package)]),
            statuses=list(range(1, 126)),
        )
        self._toolbox = toolpost.Toolbox()
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(description)
            file.flush()
            self._toolbox.connect_sync(file.name)

    def run(self, *words: str, timeout: float = 60) -> str:
        """Run the program with words, and return its standard output."""
        text = self._toolbox.call_sync("program", {"words": [*self._words, *words]}, timeout=timeout).text
        if not text.strip():
            raise toolpost.ToolError.dependency(
                f"`{self._path} {words[0]}` printed nothing", suggestion="Run it in a terminal to see its error."
            )
        return text


def _toml(value: Any) -> str:
    # JSON strings and lists are TOML too.
    return json.dumps(value, ensure_ascii=False)
