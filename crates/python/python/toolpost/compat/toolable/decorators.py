"""Decorators: they turn functions into tools, resources and prompts of Toolpost."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from toolpost import author
from toolpost.compat.toolable import streaming
from toolpost.compat.toolable._wire import caller, context
from toolpost.compat.toolable.response import output
from toolpost.compat.toolable.session import finish as finish_session

if TYPE_CHECKING:
    from toolpost.compat.toolable.input import ToolInput

Meta = dict[str, Any]


def toolable(
    summary: str,
    input_model: type[ToolInput] | None = None,
    examples: list[dict[str, Any]] | None = None,
    tags: list[str] | None = None,
    streaming: bool = False,
    session_mode: bool = False,
) -> Callable[[Callable[..., Any]], ToolableTool]:
    """Turn a function into a tool."""

    def decorate(function: Callable[..., Any]) -> ToolableTool:
        return ToolableTool(
            function,
            {
                "summary": summary,
                "input_model": input_model,
                "examples": examples or [],
                "tags": tags or [],
                "streaming": streaming,
                "session_mode": session_mode,
                "fn": function,
            },
        )

    return decorate


def resource(
    uri_pattern: str, summary: str, mime_types: list[str] | None = None, tags: list[str] | None = None
) -> Callable[[Callable[..., Any]], author.Resource[..., Any]]:
    """Turn a function into a resource. Its parameters are those of the pattern."""

    def decorate(function: Callable[..., Any]) -> author.Resource[..., Any]:
        made: Any = author.resource(uri_pattern, description=summary, mime_types=mime_types or (), tags=tags or ())
        made = made(function)
        made._resource_meta = {
            "uri_pattern": uri_pattern,
            "summary": summary,
            "mime_types": mime_types or [],
            "tags": tags or [],
            "fn": function,
        }
        return made  # type: ignore[no-any-return]

    return decorate


def prompt(
    summary: str, arguments: dict[str, str], tags: list[str] | None = None
) -> Callable[[Callable[..., Any]], author.Prompt[..., Any]]:
    """Turn a function into a prompt. `arguments` are the descriptions of its parameters."""

    def decorate(function: Callable[..., Any]) -> author.Prompt[..., Any]:
        made: Any = author.prompt(description=summary, tags=tags or ())(function)
        made._prompt_meta = {"summary": summary, "arguments": arguments, "tags": tags or [], "fn": function}
        described = [{"name": name, "description": text} for name, text in arguments.items()]
        made.prompt_spec = lambda: {"name": made.name, "summary": summary, "arguments": described, "tags": tags or []}
        return made  # type: ignore[no-any-return]

    return decorate


def get_tool_meta(fn: Any) -> Meta | None:
    """The options of `@toolable`; None for any other object."""
    return getattr(fn, "_toolable_meta", None)


def get_resource_meta(fn: Any) -> Meta | None:
    """The options of `@resource`; None for any other object."""
    return getattr(fn, "_resource_meta", None)


def get_prompt_meta(fn: Any) -> Meta | None:
    """The options of `@prompt`; None for any other object."""
    return getattr(fn, "_prompt_meta", None)


class ToolableTool(author.Tool[..., Any]):
    """A tool of `@toolable`. It is called like its function."""

    def __init__(self, function: Callable[..., Any], meta: Meta, name: str | None = None) -> None:
        functools.update_wrapper(self, function)
        self._toolable_meta = meta
        self._function = function
        self._name = name or function.__name__
        self.fn = self._run

    @classmethod
    def of(cls, function: Callable[..., Any], name: str) -> ToolableTool:
        """The tool of a function under a name. A function without `@toolable` has its name as its summary."""
        if isinstance(function, ToolableTool):
            return cls(function._function, function._toolable_meta, name)
        return cls(function, {"summary": name.replace("_", " ")}, name)

    def __set_name__(self, owner: type, name: str) -> None:
        """Allows the decorator in a class. `__get__` binds the tool."""

    if not TYPE_CHECKING:

        def __get__(self, instance, owner=None):
            return self if instance is None else type(self)(MethodType(self._function, instance), self._toolable_meta)

        def __call__(self, *args, **kwargs):
            return self._function(*args, **kwargs)

        name = property(lambda self: self._name)
        is_async = property(lambda self: False)
        ctx_param = property(lambda self: "_ctx")
        needs_decode = property(lambda self: True)

    @property
    def defaults(self) -> Meta:
        """The defaults in the schema."""
        properties = self.spec()["input_schema"]["properties"].items()
        return {name: schema["default"] for name, schema in properties if "default" in schema}

    @property
    def _model(self) -> type[ToolInput] | None:
        return self._toolable_meta.get("input_model")

    @functools.cached_property
    def _signature(self) -> author.Tool[..., Any]:
        """The function's parameters, checked by Toolpost. It has neither the body nor the result of the function."""
        plain = inspect.unwrap(getattr(self._function, "__func__", self._function))
        code = plain.__code__
        code = code.replace(co_flags=code.co_flags & ~inspect.CO_GENERATOR)
        copy = FunctionType(code, plain.__globals__, self.name, plain.__defaults__, plain.__closure__)
        copy.__kwdefaults__, copy.__doc__ = plain.__kwdefaults__, plain.__doc__
        copy.__annotations__ = {key: hint for key, hint in plain.__annotations__.items() if key != "return"}
        made = author.tool(description=self.name)(copy)
        if isinstance(self._function, MethodType):
            # In a class, the first parameter is the instance.
            made = getattr(type("Owner", (), {self.name: made})(), self.name)
        return made

    @functools.cached_property
    def _spec(self) -> Meta:
        meta, model, doc = self._toolable_meta, self._model, inspect.getdoc(self._function)
        schema = model.model_json_schema() if model else self._signature.spec()["input_schema"]
        schema.setdefault("properties", {})
        summary = meta["summary"]
        spec = {
            "name": self.name,
            "description": f"{summary}\n\n{doc}" if doc and doc != summary else summary,
            "input_schema": schema,
        }
        if model:
            # The plan of a dry run is that of `to_log_safe`.
            spec["dry_run"] = True
        if meta.get("examples"):
            spec["examples"] = [{"args": author.encode(example)} for example in meta["examples"]]
        if meta.get("tags"):
            spec["tags"] = meta["tags"]
        if meta.get("streaming") or meta.get("session_mode"):
            spec["mode"] = "streaming" if meta.get("streaming") else "session"
        return spec

    def spec(self) -> Meta:
        """The definition as the JSON form of Rust's `ToolSpec`."""
        return self._spec

    def decode(self, arguments: Mapping[str, Any]) -> Meta:
        """Check JSON arguments, and return the values for `fn`."""
        if self._model is None:
            return self._signature.decode(arguments)
        from pydantic import ValidationError

        try:
            value = self._model(**arguments)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            pointers = ["".join(f"/{step}" for step in problem["loc"]) for problem in problems]
            raise author.ToolError.invalid_input(
                "; ".join(f"{at}: {problem['msg']}" for at, problem in zip(pointers, problems, strict=True)),
                pointer=pointers[0],
                pointers=pointers,
            ) from None
        value.pre_validate()
        return {"_input": value}

    def problems(self, arguments: dict[str, Any]) -> list[Any]:
        """No mismatches: `decode` reports them."""
        return []

    def _run(self, _ctx: author.Ctx | None = None, **values: Any) -> Any:
        """Run the function in a call, with decoded values."""
        meta, token = self._toolable_meta, context.set(_ctx)
        try:
            if self._model is None:
                result = self._function(**values)
            else:
                given = values["_input"]
                if getattr(given, "dry_run", False) or (_ctx is not None and _ctx.is_dry_run):
                    return {"dry_run": True, "would_execute": given.to_log_safe()}
                result = self._function(given)
            if meta.get("streaming"):
                result = streaming.finish(result, caller())
            elif meta.get("session_mode"):
                finish_session(result, caller())
                return None
            return output(result)
        finally:
            context.reset(token)
