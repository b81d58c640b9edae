"""Descriptions of parameters in docstrings."""

from __future__ import annotations
_SECTIONS = r"(?i)(args|arguments|parameters|params|keyword args|keyword arguments|other parameters|attributes):?$"


def _clean(text: str) -> list[str]:
    """The lines of a docstring without their common indentation."""
    lines = text.expandtabs().splitlines()
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
    return [line.strip() if index == 0 else line[margin:].rstrip() for index, line in enumerate(lines)]


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description and the descriptions of parameters, in Google, NumPy or Sphinx style.

    >>> _read_docstring("Add.\\n\\nArgs:\\n    a (int): First.\\n        Term.\\n    b: Second.")
    ('Add.', {'a': 'First. Term.', 'b': 'Second.'})
    >>> _read_docstring("Add.\\n\\nParameters\\n----------\\na, b : int\\n    Terms.\\n\\nReturns\\n-------\\nint")
    ('Add.\\n\\nReturns\\n-------\\nint', {'a': 'Terms.', 'b': 'Terms.'})
    >>> _read_docstring("Add.\\n\\n:param int a: First.\\n:type b: int\\n:param b: Second\\n    term.")
    ('Add.', {'a': 'First.', 'b': 'Second term.'})
    """
    if not text:
        return "", {}
    import re

    lines = _clean(text)
    kept: list[str] = []
    found: dict[str, str] = {}
    names: list[str] = []

    def begin(pattern: str, line: str) -> bool:
        entry = re.match(pattern, line)
        if entry:
            names[:] = [name.strip().lstrip("*") for name in entry.group(1).split(",")]
            found.update(dict.fromkeys(names, entry.group(2).strip()))
        return entry is not None

    def extend(line: str) -> None:
        for name in names:
            found[name] = f"{found[name]} {line.strip()}".strip()

    style, entry_indent, index = "", 0, 0
    while index < len(lines):
        line = lines[index]
        following = lines[index + 1] if index + 1 < len(lines) else ""
        indent = len(line) - len(line.lstrip())
        index += 1
        is_ruled = bool(re.match(r"-{3,}$", following)) and not indent
        if style == "numpy" and not is_ruled:
            if not line or indent:
                extend(line)
            else:
                begin(r"([\w*, ]+?)(?: *:.*)?()$", line)
            continue
        if style == "google" and (not line or indent):
            entry_indent = entry_indent or indent
            if not (line and indent <= entry_indent and begin(r"\s*([\w*]+)\s*(?:\(.*?\))?\s*:(.*)", line)):
                extend(line)
            continue
        if style == "sphinx" and line and indent:
            extend(line)
            continue
        style, entry_indent, names[:] = "", 0, []
        if re.match(_SECTIONS, line) and (is_ruled or (line.endswith(":") and following.startswith(" "))):
            style = "numpy" if is_ruled else "google"
            index += is_ruled
        elif begin(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:\S+\s+)*?([\w*]+)\s*:(.*)", line):
            style = "sphinx"
        elif re.match(r":(?:type|rtype)\b.*:", line):
            style = "sphinx"
        else:
            kept.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), {name: text for name, text in found.items() if text}
