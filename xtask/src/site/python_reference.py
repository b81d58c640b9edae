"""Print docs/reference/python.md, from the stubs and docstrings of the Python package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "crates/python/python/toolpost"
#: Types of options that the signatures name.
OPTIONS = ["AgentOptions", "RunOptions", "CallOptions", "Callbacks"]

#: The maximum width of a signature on one line.
WIDTH = 90


def documentation(body: list[ast.stmt]) -> str:
    """Return the docstring without examples."""
    text = ast.get_docstring(ast.Module(body=body, type_ignores=[])) or ""
    text = "" if text.startswith(">>> ") else text.split("\n>>> ")[0].strip()
    # `Raises:` and its indented lines become items of a list.
    return re.sub(r"^    (\w+): ", r"- `\1`: ", text.replace("Raises:\n", "Raises:\n\n"), flags=re.M)


def example(body: list[ast.stmt]) -> str:
    """Return the lines of examples in the docstring."""
    text = ast.get_docstring(ast.Module(body=body, type_ignores=[])) or ""
    begin = text.find(">>> ")
    return text[begin:].strip() if begin >= 0 else ""


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, is_method: bool) -> str:
    """Return the signature without `self` and without types of type variables."""
    arguments = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(arguments, ast.FunctionDef)
    first = (arguments.args.posonlyargs or arguments.args.args)[:1]
    if is_method and first and first[0].arg in {"self", "cls"}:
        (arguments.args.posonlyargs or arguments.args.args).pop(0)
    text = ast.unparse(arguments.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and node.name not in {"__new__", "__init__"} else ""
    return f"({text.removeprefix('/, ').removeprefix('/')}){returns}"


def block(lines: list[str]) -> list[str]:
    """Return a block of signatures, the long ones with one parameter per line."""
    broken: list[str] = []
    for line in lines:
        if len(line) <= WIDTH:
            broken.append(line)
            continue
        begin = line.index("(") + 1
        depth, last, end = 1, begin, begin
        parts: list[str] = []
        for index in range(begin, len(line)):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(line[index], 0)
            if depth == 0:
                end = index
                parts.append(line[last:index].strip())
                break
            if depth == 1 and line[index] == ",":
                parts.append(line[last:index].strip())
                last = index + 1
        broken += [line[:begin], *(f"    {part}," for part in parts), line[end:]]
    return ["```text", *broken, "```", ""]


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    # Within code, `<` is a literal.
    return "`".join(part if index % 2 else part.replace("<", "&lt;") for index, part in enumerate(parts))


def has(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: str) -> bool:
    """Whether a function has a decorator."""
    return any(ast.unparse(found).split(".")[-1] == decorator for found in node.decorator_list)


def show_class(node: ast.ClassDef) -> list[str]:
    """Return the section of a class."""
    lines = [f"## {node.name}", ""]
    text = documentation(node.body)
    if text:
        lines += [text, ""]
    if example(node.body):
        lines += ["```text", example(node.body), "```", ""]
    fields: list[tuple[str, str, str]] = []
    methods: list[tuple[str, list[str], list[str]]] = []
    for index, member in enumerate(node.body):
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            after = node.body[index + 1] if index + 1 < len(node.body) else None
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            meaning = str(after.value.value) if is_text else ""  # type: ignore[union-attr]
            if not member.target.id.startswith("_"):
                fields.append((member.target.id, ast.unparse(member.annotation), meaning))
        elif isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            is_public = not member.name.startswith("_") or member.name in {"__new__", "__init__"}
            if not is_public or has(member, "setter"):
                continue
            meaning = documentation(member.body)
            if has(member, "property"):
                returns = ast.unparse(member.returns) if member.returns else ""
                fields.append((member.name, returns, meaning))
                continue
            name = node.name if member.name in {"__new__", "__init__"} else f"{node.name}.{member.name}"
            prefix = "async " if isinstance(member, ast.AsyncFunctionDef) else ""
            line = f"{prefix}{name}{signature(member, not has(member, 'staticmethod'))}"
            previous = methods[-1] if methods else None
            if previous is not None and previous[0] == name:
                previous[1].append(line)
            else:
                methods.append((name, [line], []))
            methods[-1][2].extend([meaning, ""] if meaning else [])
    if fields:
        lines += ["| attribute | type | meaning |", "|---|---|---|"]
        lines += [f"| `{name}` | {cell(f'`{kind}`')} | {cell(meaning)} |" for name, kind, meaning in fields]
        lines += [""]
    for name, signatures, texts in methods:
        title = f"{name}(…)" if name == node.name else name
        lines += [f"### {title}", "", *block(signatures), *texts]
    return lines


def show_function(name: str, nodes: list[ast.FunctionDef]) -> list[str]:
    """Return the section of a function with its overloads."""
    overloads = [node for node in nodes if has(node, "overload")] or nodes
    lines = [f"## {name}", "", *block([f"{name}{signature(node, False)}" for node in overloads])]
    texts = [documentation(node.body) for node in nodes]
    return lines + [part for text in texts if text for part in (text, "")]


def main() -> None:
    """Print the page."""
    names: list[str] = []
    for node in ast.parse((PACKAGE / "_exports.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
    found: dict[str, list[ast.stmt]] = {}
    authoring = sorted(path.relative_to(PACKAGE).as_posix() for path in (PACKAGE / "author").glob("_[a-z]*.py"))
    for module in ["_engine.pyi", "agent.py", *authoring, "flow.py"]:
        for node in ast.parse((PACKAGE / module).read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in [*names, *OPTIONS]:
                found.setdefault(node.name, []).append(node)
    missing = [name for name in names if name not in found]
    assert not missing, f"no definition of {missing}"
    lines = [
        "# Python API",
        "",
        "<!-- Generated by `cargo xtask reference`. -->",
        "",
        "`import toolpost` has these names. An `Awaitable` is the result of `await`; the methods with `_sync` wait for it.",
        "[Python](../python.md) explains the package.",
        "",
    ]
    for name in [*names, *OPTIONS]:
        nodes = found[name]
        if isinstance(nodes[0], ast.ClassDef):
            lines += show_class(nodes[0])
        else:
            lines += show_function(name, [node for node in nodes if isinstance(node, ast.FunctionDef)])
    print("\n".join(lines).rstrip())


main()
