"""The registry of tools. A toolbox of the engine checks, runs and records each call."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import toolpost
from toolpost import author
from toolpost.compat.llm_factory_toolkit.exceptions import ToolError
from toolpost.compat.llm_factory_toolkit.tools import builtins, meta_tools
from toolpost.compat.llm_factory_toolkit.tools._schema_gen import generate_schema_from_function
from toolpost.compat.llm_factory_toolkit.tools.base_tool import BaseTool, mocked
from toolpost.compat.llm_factory_toolkit.tools.catalog import ToolCatalog
from toolpost.compat.llm_factory_toolkit.tools.models import ToolExecutionResult
from toolpost.compat.llm_factory_toolkit.tools.runtime import ToolRuntime

logger = logging.getLogger(__name__)
ToolHandler = Callable[..., Any]
_STATUS = {"TIMEOUT": "timeout", "INVALID_INPUT": "argument_type_error", "MISSING_PARAM": "argument_type_error"}


@dataclass
class ToolRegistration:
    """A tool of a factory."""

    name: str
    executor: ToolHandler
    mock_executor: ToolHandler
    definition: dict[str, Any]
    category: str | None = None
    tags: list[str] = field(default_factory=list)
    group: str | None = None
    blocking: bool = False


@dataclass
class Scope:
    """What the calls of a run or of `dispatch_tool` share: the `context` of the engine."""

    runtime: ToolRuntime
    mock: bool = False
    plan: bool = False
    max_chars: int | None = None
    after: Callable[[str], None] = lambda name: None
    results: list[tuple[str, ToolExecutionResult]] = field(default_factory=list)


class EngineTool(author.Tool[..., Any]):
    """A registered tool for a toolbox of the engine."""

    def __init__(self, factory: ToolFactory, registration: ToolRegistration, compact: bool = False) -> None:
        self._factory, self._registration = factory, registration
        self.__doc__, self.fn = registration.definition["function"]["description"], self._run
        function = (_compacted(registration.definition) if compact else registration.definition)["function"]
        schema = function.get("parameters") or {"type": "object"}
        self._parameters = schema.get("properties", {})
        if "parameters" in function and not _takes_all(registration.executor):
            # Parameters outside of the schema are those of the application.
            schema = {"additionalProperties": False, **schema}
        self._spec = {
            "name": registration.name,
            "description": function["description"],
            "input_schema": schema,
            "policy": {"timeout": "never"},
        }

    @property
    def name(self) -> str:
        return self._registration.name

    @property
    def is_async(self) -> bool:
        return True

    @property
    def ctx_param(self) -> str:
        return "_ctx"

    @property
    def needs_decode(self) -> bool:
        return False

    @property
    def defaults(self) -> dict[str, Any]:
        return {}

    def spec(self) -> dict[str, Any]:
        return self._spec

    def decode(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments)

    def problems(self, arguments: dict[str, Any]) -> list[Any]:
        return []

    async def _run(self, _ctx: Any, **arguments: Any) -> author.Output:
        given = getattr(_ctx, "context", None)
        # A server or another agent may call the tool with a context of its own, or without one.
        context = given if isinstance(given, dict) else None
        scope = given if isinstance(given, Scope) else Scope(ToolRuntime(self._factory, base_context=context))
        if scope.plan:
            return author.Output(content=["planned"])
        tool, runtime = self._registration, scope.runtime
        handler = tool.mock_executor if scope.mock else tool.executor
        parameters = inspect.signature(handler).parameters
        injected = {"tool_runtime": runtime, "tool_call_depth": runtime.depth, **runtime.base_context}
        for key, value in injected.items():
            # An argument outside of an open schema cannot replace a value of the application.
            if (key in parameters or _takes_all(handler)) and key not in self._parameters:
                arguments[key] = value
        call = functools.partial(handler, **arguments)
        value = await asyncio.to_thread(call) if tool.blocking and not _is_async(handler) else call()
        result = _result(await value if inspect.isawaitable(value) else value)
        scope.results.append((tool.name, result))
        scope.after(tool.name)
        text, limit = result.content, scope.max_chars
        if limit is not None and len(text) > limit:
            note = f"[TRUNCATED: Output was {len(text):,} chars, limit is {limit:,}. Refine your query.]"
            text = f"{text[:limit]}\n\n{note}"
        if result.error is not None:
            raise author.ToolError.dependency(text)
        return author.Output(content=[text])


class ToolFactory:
    """The tools of an application: register functions and classes, then pass the factory to `LLMClient`."""

    def __init__(self) -> None:
        self._registry: dict[str, ToolRegistration] = {}
        self.tool_usage_counts: dict[str, int] = {}
        self._catalog: ToolCatalog | None = None
        self.toolbox = toolpost.Toolbox()
        """The engine's toolbox, which also serves the tools over MCP and has the records of `dispatch_tool`."""

    def set_catalog(self, catalog: ToolCatalog) -> None:
        """Set the catalog for the search tools."""
        self._catalog = catalog

    def get_catalog(self) -> ToolCatalog | None:
        """The catalog."""
        return self._catalog

    @property
    def tool_definitions(self) -> list[dict[str, Any]]:
        """The definitions in the order of registration."""
        return [tool.definition for tool in self._registry.values()]

    @property
    def tools(self) -> dict[str, ToolHandler]:
        """The functions by name."""
        return {name: tool.executor for name, tool in self._registry.items()}

    @property
    def mock_tool_handlers(self) -> dict[str, ToolHandler]:
        """The functions of mocked calls by name."""
        return {name: tool.mock_executor for name, tool in self._registry.items()}

    @property
    def available_tool_names(self) -> list[str]:
        """All names."""
        return list(self._registry)

    @property
    def registrations(self) -> dict[str, ToolRegistration]:
        """All tools by name."""
        return dict(self._registry)

    def list_groups(self) -> list[str]:
        """All groups, sorted."""
        return sorted({tool.group for tool in self._registry.values() if tool.group})

    def register_tool(
        self,
        function: ToolHandler,
        name: str,
        description: str,
        parameters: dict[str, Any] | None = None,
        mock_function: ToolHandler | None = None,
        category: str | None = None,
        tags: list[str] | None = None,
        group: str | None = None,
        exclude_params: list[str] | None = None,
        blocking: bool = False,
    ) -> None:
        """Register a function.

        parameters: the JSON Schema of the arguments; defaults to that of the annotations without `exclude_params`.
            Parameters of the function outside of it come from the context.
        mock_function: runs instead with `mock_tools`; defaults to the function's `mock_execute`.
        blocking: run a sync function on a thread instead of the event loop.
        """
        if parameters is None:
            try:
                found = generate_schema_from_function(function, exclude_params=exclude_params or ())
                parameters = found if found["properties"] else None
            except Exception as error:  # noqa: BLE001
                logger.warning("Tool '%s' has no parameters: its annotations have no JSON Schema: %s", name, error)
        definition: dict[str, Any] = {"name": name, "description": description}
        if parameters is not None:
            definition["parameters"] = parameters
        owner = getattr(function, "__self__", function)
        mock = mock_function or getattr(owner, "mock_execute", None) or (lambda **_: mocked(name))
        tool = ToolRegistration(
            name, function, mock, {"type": "function", "function": definition}, category, tags or [], group, blocking
        )
        if self.toolbox.remove(name):
            logger.warning("Tool '%s' is registered twice; the latter replaces the former.", name)
        try:
            self.toolbox.add(EngineTool(self, tool))
        except ValueError as error:
            self._registry.pop(name, None)
            raise ToolError(str(error)) from error
        self._registry[name] = tool
        self.tool_usage_counts[name] = 0

    def register_tool_class(
        self,
        tool_class: type,
        config: dict[str, Any] | None = None,
        name_override: str | None = None,
        description_override: str | None = None,
        parameters_override: dict[str, Any] | None = None,
        category_override: str | None = None,
        tags_override: list[str] | None = None,
        group_override: str | None = None,
        exclude_params: list[str] | None = None,
    ) -> None:
        """Register a class. `config` has the arguments of its `from_config`."""
        if not issubclass(tool_class, BaseTool):
            raise ToolError(f"{tool_class.__name__} is not a subclass of BaseTool.")
        name = name_override or getattr(tool_class, "NAME", None)
        description = description_override or getattr(tool_class, "DESCRIPTION", None)
        if not name or not description:
            raise ToolError(f"{tool_class.__name__} has no NAME or DESCRIPTION.")
        self.register_tool(
            _method(tool_class, "execute", config or {}),
            name,
            description,
            parameters_override or tool_class.PARAMETERS,
            _method(tool_class, "mock_execute", config or {}),
            category_override or tool_class.CATEGORY,
            tags_override or tool_class.TAGS,
            group_override or tool_class.GROUP,
            exclude_params,
            tool_class.BLOCKING,
        )

    def register_builtins(self, names: Sequence[str] | None = None) -> None:
        """Register `safe_math_evaluator` and `read_local_file`, or one of them."""
        for name in builtins.BUILTIN_TOOLS if names is None else names:
            if name in builtins.BUILTIN_TOOLS:
                self.register_tool(getattr(builtins, name), name, **builtins.BUILTIN_TOOLS[name])
            else:
                logger.warning("There is no built-in tool '%s'.", name)

    def register_meta_tools(self) -> None:
        """Register the tools that search, load and unload tools. Mocked runs call them as well."""
        for function in meta_tools.META_TOOLS:
            self._register_meta_tool(function)

    def register_find_tools(self) -> None:
        """Register `find_tools`, which asks another model."""
        self._register_meta_tool(meta_tools.find_tools)

    def _register_meta_tool(self, function: ToolHandler) -> None:
        name = function.__name__
        parameters = getattr(meta_tools, f"{name.upper()}_PARAMETERS")
        summary = inspect.getdoc(function) or ""
        self.register_tool(function, name, summary, parameters, function, "system", meta_tools.TAGS[name])

    def get_tool_definitions(
        self, filter_tool_names: Sequence[str] | None = None, compact: bool = False
    ) -> list[dict[str, Any]]:
        """The definitions of some tools, or all. Compact ones have no descriptions and defaults of parameters."""
        names = self._registry if filter_tool_names is None else set(filter_tool_names)
        if missing := set(names) - set(self._registry):
            logger.warning("These tools are not registered: %s", sorted(missing))
        found = [tool.definition for name, tool in self._registry.items() if name in names]
        return list(map(_compacted, found)) if compact else found

    _compact_definition = staticmethod(lambda definition: _compacted(definition))

    async def dispatch_tool(
        self,
        function_name: str,
        function_args_str: str,
        tool_execution_context: dict[str, Any] | None = None,
        use_mock: bool = False,
        runtime: ToolRuntime | None = None,
        tool_timeout: float | None = None,
    ) -> ToolExecutionResult:
        """Call a tool with JSON arguments. An error is a result with `error`."""
        if function_name not in self._registry:
            return _failure(f"Tool '{function_name}' not found.", "tool_not_found")
        about = f"for tool '{function_name}'"
        try:
            arguments = json.loads(function_args_str or "{}")
        except json.JSONDecodeError as error:
            return _failure(f"Failed to decode JSON arguments {about}: {error}", "argument_decode_error")
        if not isinstance(arguments, dict):
            return _failure(f"Expected JSON object for arguments {about}, got {arguments!r}", "argument_type_error")
        outer = runtime or ToolRuntime(self)
        base = {**outer.base_context, **(tool_execution_context or {})}
        depths = {"depth": outer.depth, "max_depth": outer.max_depth}
        scope = Scope(ToolRuntime(self, base_context=base, use_mock=use_mock, **depths), use_mock)
        options: Any = {"context": scope, **({} if tool_timeout is None else {"timeout": tool_timeout})}
        try:
            await self.toolbox.call(function_name, arguments, **options)
        except toolpost.ToolError as error:
            if not scope.results:
                message = f"Execution failed within tool '{function_name}': {error.__cause__ or error.message}"
                if error.code == "TIMEOUT":
                    message = f"Tool '{function_name}' timed out after {tool_timeout}s."
                return _failure(message, _STATUS.get(error.code, "execution_error"))
        return scope.results[-1][1]

    def increment_tool_usage(self, tool_name: str) -> None:
        """Count a call of a tool. Runs do it."""
        if tool_name in self.tool_usage_counts:
            self.tool_usage_counts[tool_name] += 1
        else:
            logger.warning("Tool '%s' is not registered, so its usage is not counted.", tool_name)

    def get_tool_usage_counts(self) -> dict[str, int]:
        """The counts of calls by tool."""
        return dict(self.tool_usage_counts)

    def reset_tool_usage_counts(self) -> None:
        """Set all counts to 0."""
        self.tool_usage_counts = dict.fromkeys(self.tool_usage_counts, 0)

    def get_and_reset_tool_usage_counts(self) -> dict[str, int]:
        """Return the counts, and set them to 0."""
        counts = self.get_tool_usage_counts()
        self.reset_tool_usage_counts()
        return counts


def _takes_all(handler: ToolHandler) -> bool:
    parameters = inspect.signature(handler).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _is_async(handler: ToolHandler) -> bool:
    return inspect.iscoroutinefunction(handler)


def _method(cls: type, name: str, config: dict[str, Any]) -> ToolHandler:
    """A method of a class as a function, on a new instance in each call."""
    method = getattr(cls, name)
    if inspect.ismethod(method):
        return method
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(**arguments: Any) -> Any:
        return getattr(cls.from_config(**config), name)(**arguments)  # type: ignore[attr-defined]

    call.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return call


def _result(value: Any) -> ToolExecutionResult:
    if isinstance(value, ToolExecutionResult):
        return value
    return ToolExecutionResult(
        content=value if isinstance(value, str) else json.dumps(author.encode(value)), payload=value
    )


def _failure(message: str, status: str) -> ToolExecutionResult:
    return ToolExecutionResult(content=json.dumps({"error": message, "status": status}), error=message)


def _compacted(definition: dict[str, Any]) -> dict[str, Any]:
    definition = copy.deepcopy(definition)

    def strip(schema: Any) -> None:
        if isinstance(schema, dict):
            properties = schema.get("properties")
            for part in [*(properties.values() if isinstance(properties, dict) else ()), schema.get("items")]:
                if isinstance(part, dict):
                    part.pop("description", None)
                    part.pop("default", None)
                    strip(part)

    strip(definition["function"].get("parameters"))
    return definition
