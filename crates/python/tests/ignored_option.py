"""A plugin of pytest that ignores one option of the package, to show that a test notices it.

`IGNORED_OPTION=Agent.temperature pytest -p ignored_option …` runs tests as if `Agent` ignored its `temperature`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import toolpost

PACKAGE = Path(str(toolpost.__file__)).parent
#: The functions that take dictionaries of options.
TAKERS = {
    "AgentOptions": ["Agent"],
    "CallOptions": ["Toolbox.call", "Toolbox.call_sync"],
    "RunOptions": ["Agent.run", "Agent.run_sync", "Agent.stream"],
}


@dataclass
class Function:
    """A public function with options."""

    module: str
    receivers: int
    """1 for methods, whose first argument is the receiver."""
    parameters: list[str]
    """The parameters by position."""
    options: list[str]


def functions() -> dict[str, Function]:
    """Return the public functions with options, by names such as `Agent` and `Toolbox.call`."""
    found: dict[str, Function] = {}
    fields: dict[str, list[str]] = {}
    modules = sorted(path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / "author").glob("_[a-z]*.py"))
    for module in ["_engine.pyi", *modules]:
        for node in ast.parse((PACKAGE / module).read_text()).body:
            if isinstance(node, ast.FunctionDef):
                add(found, module, node.name, node)
            elif isinstance(node, ast.ClassDef):
                names = [
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                ]
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                fields[node.name] = names + [name for base in bases for name in fields.get(base, [])]
                for item in node.body:
                    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                        is_constructor = item.name in ("__init__", "__new__")
                        add(found, module, node.name if is_constructor else f"{node.name}.{item.name}", item, node.name)
    for dictionary, takers in TAKERS.items():
        for name in takers:
            function = found.setdefault(name, Function("_engine.pyi", 1, [], []))
            function.options = function.options + fields[dictionary]
    return found


def add(
    found: dict[str, Function],
    module: str,
    name: str,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    owner: str | None = None,
) -> None:
    is_static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in node.decorator_list)
    receivers = int(owner is not None and not is_static)
    parameters = [argument.arg for argument in node.args.args][receivers:]
    options = parameters[len(parameters) - len(node.args.defaults) :] if node.args.defaults else []
    options += [argument.arg for argument in node.args.kwonlyargs]
    if options and not any(part.startswith("_") for part in name.split(".")):
        found[name] = Function(module, receivers, parameters, options)


def options() -> Iterator[str]:
    """Return the options, such as `Agent.temperature`; those of `run_sync` are those of `run`."""
    for name, function in functions().items():
        for option in function.options:
            yield f"{name.removesuffix('_sync')}.{option}"


def without(original: Callable[..., Any], option: str, parameters: list[str], receivers: int) -> Callable[..., Any]:
    """Return a function that drops an option."""

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        if option in parameters:
            place = receivers + parameters.index(option)
            named.update(zip(parameters[place - receivers :], args[place:]))
            args = args[:place]
        named.pop(option, None)
        return original(*args, **named)

    return call


class Constructor(type):
    """A class that constructs another one, whose own constructor cannot be replaced."""

    original: Any
    construct: Any

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return cls.construct(*args, **named)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)


def ignore(name: str, option: str) -> None:
    """Make a function and its form with `_sync` ignore an option."""
    found = functions()
    for form in (name, f"{name}_sync"):
        if form not in found:
            continue
        function = found[form]
        owner, _, method = form.partition(".")
        # The tests of the author half import it as a module of its own, too.
        for module in ["toolpost._engine"] if function.module == "_engine.pyi" else ["toolpost.author", "author"]:
            target = getattr(importlib.import_module(module), owner)
            if method:
                declared = target.__dict__[method]
                original = declared.__func__ if isinstance(declared, classmethod | staticmethod) else declared
                changed = without(original, option, function.parameters, function.receivers)
                kind = type(declared) if isinstance(declared, classmethod | staticmethod) else None
                setattr(target, method, kind(changed) if kind else changed)
            elif function.module != "_engine.pyi" and isinstance(target, type):
                constructor: Callable[..., Any] = getattr(target, "__init__")  # noqa: B009
                setattr(target, "__init__", without(constructor, option, function.parameters, 1))  # noqa: B010
            else:
                changed = without(target, option, function.parameters, 0)
                if isinstance(target, type):
                    members = {"original": target, "construct": staticmethod(changed)}
                    changed = Constructor(owner, (), members)
                for place in (
                    ["toolpost"] * (module != "author") + ["toolpost._exports"] * (module != "author") + [module]
                ):
                    if hasattr(importlib.import_module(place), owner):
                        setattr(importlib.import_module(place), owner, changed)


def pytest_configure() -> None:
    if ignored := os.environ.get("IGNORED_OPTION"):
        function, _, option = ignored.rpartition(".")
        ignore(function, option)
