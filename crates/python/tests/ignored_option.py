"""A plugin of pytest that ignores one option of the package, to show that a test notices it.

`IGNORED_OPTION=Agent.temperature pytest -p ignored_option …` ignores the option. `RECORDED_OPTIONS=FILE` instead writes
each option that a test uses, and the test, to a file.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import toolpost

PACKAGE = Path(str(toolpost.__file__)).parent
#: The dictionaries of options, and the functions that take them.
DICTIONARIES = {
    "CallOptions": ["Toolbox.call"],
    "RunOptions": ["Agent.run", "Agent.stream"],
}


@dataclass
class Function:
    """A public function with its options."""

    name: str
    module: str
    parameters: list[str] = field(default_factory=list)
    """The parameters by position, the receiver excluded."""
    options: list[str] = field(default_factory=list)


def functions() -> dict[str, Function]:
    """Return the public functions with options, by names such as `Agent` and `Toolbox.call`."""
    found: dict[str, Function] = {}
    dictionaries: dict[str, list[str]] = {}
    for file in ("_engine.pyi", "author.py"):
        for node in ast.parse((PACKAGE / file).read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                add(found, node.name, file, node, is_method=False)
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                fields = [
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                ]
                inherited = [
                    option
                    for base in node.bases
                    if isinstance(base, ast.Name)
                    for option in dictionaries.get(base.id, [])
                ]
                dictionaries[node.name] = inherited + fields
                for item in node.body:
                    if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                        is_static = any(getattr(mark, "id", "") == "staticmethod" for mark in item.decorator_list)
                        name = node.name if item.name in ("__init__", "__new__") else f"{node.name}.{item.name}"
                        add(found, name, file, item, is_method=not is_static)
    for dictionary, takers in DICTIONARIES.items():
        for taker in takers:
            for name in (taker, f"{taker}_sync"):
                if name in found or name.startswith("Toolbox.call"):
                    found.setdefault(name, Function(name, "_engine")).options += dictionaries[dictionary]
    return found


def add(
    found: dict[str, Function], name: str, file: str, node: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool
) -> None:
    last = name.rpartition(".")[2]
    if last.startswith("_"):
        return
    parameters = [argument.arg for argument in node.args.args][is_method:]
    optional = parameters[len(parameters) - len(node.args.defaults) :] if node.args.defaults else []
    options = optional + [argument.arg for argument in node.args.kwonlyargs]
    if options:
        found[name] = Function(name, file.partition(".")[0], parameters, options)


def options() -> Iterator[str]:
    """Return the options, such as `Agent.temperature`; those of `run_sync` are those of `run`."""
    for function in functions().values():
        for option in function.options:
            yield f"{function.name.removesuffix('_sync')}.{option}"


def watch(
    original: Callable[..., Any], function: Function, on_options: Callable[[str, dict[str, Any]], None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(*args: Any, **named: Any) -> Any:
        # The receiver of a method is the first argument.
        first = 1 if function.name.partition(".")[2] or getattr(original, "__name__", "") == "__init__" else 0
        if isinstance(original, staticmethod_type):
            first = 0
        fixed, given = list(args), dict(named)
        for name in reversed(function.parameters):
            place = first + function.parameters.index(name)
            if name in function.options and place == len(fixed) - 1:
                given[name] = fixed.pop()
        on_options(function.name.removesuffix("_sync"), given)
        return original(*fixed, **given)

    return watched


staticmethod_type = type(toolpost.Flow.resume)


class Proxy(type):
    """A class that constructs another one, whose own constructor cannot be replaced."""

    original: Any
    construct: Any

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return cls.construct(*args, **named)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.original)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.original, name)


def install(on_options: Callable[[str, dict[str, Any]], None]) -> None:
    """Call a function with the options of each call, which it may change."""
    engine = importlib.import_module("toolpost._engine")
    exports = importlib.import_module("toolpost._exports")
    modules = [importlib.import_module("toolpost.author")]
    try:
        modules.append(importlib.import_module("author"))
    except ImportError:
        pass
    for name, function in functions().items():
        owner, _, method = name.partition(".")
        for module in [engine] if function.module == "_engine" else modules:
            target = getattr(module, owner, None)
            if isinstance(target, Proxy):
                target = target.original
            if method:
                raw = getattr(target, method, None)
                if raw is None:
                    continue
                declared = target.__dict__.get(method)
                watched = watch(raw.__func__ if isinstance(declared, classmethod) else raw, function, on_options)
                wrap: Any = (
                    classmethod
                    if isinstance(declared, classmethod)
                    else staticmethod
                    if isinstance(declared, staticmethod)
                    else lambda f: f
                )
                setattr(target, method, wrap(watched))
                continue
            if isinstance(target, type) and module is not engine:
                target.__init__ = watch(target.__init__, function, on_options)  # type: ignore[misc]
                continue
            watched = watch(target, function, on_options)
            if isinstance(target, type):
                watched = Proxy(owner, (), {"original": target, "construct": staticmethod(watched)})  # type: ignore[assignment]
            setattr(module, owner, watched)
            for other in (exports, toolpost):
                if module in (engine, modules[0]) and hasattr(other, owner):
                    setattr(other, owner, watched)


def pytest_configure(config: Any) -> None:
    ignored, file = os.environ.get("IGNORED_OPTION"), os.environ.get("RECORDED_OPTIONS")
    if ignored:
        function, _, option = ignored.rpartition(".")

        def ignore(name: str, given: dict[str, Any]) -> None:
            if name == function:
                given.pop(option, None)

        install(ignore)
    elif file:

        def record(name: str, given: dict[str, Any]) -> None:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").split(" ")[0]
            with open(file, "a") as log:
                log.writelines(f"{name}.{option} {test}\n" for option in given)

        install(record)
