"""What notebooks show of outcomes and artifacts. Private: the engine calls it.

Code in a sandbox is untrusted, so a notebook gets nothing of it as markup: text and tables are escaped, figures are PNG
images, and every size is bounded.
"""

from __future__ import annotations

import base64
import json
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolpost._engine import Artifact, Outcome

MAX_TEXT = 10_000
MAX_CELL = 200
MAX_ROWS = 20
MAX_COLUMNS = 20
MAX_FILES = 20
#: The figures of one outcome: their number, their bytes together, and the pixels of each.
MAX_FIGURES = 10
MAX_FIGURE_BYTES = 4 << 20
MAX_PIXELS = 25_000_000

# MathJax, which notebooks load, ignores these classes: LaTeX has links and macros of its own.
_START = '<div class="tex2jax_ignore mathjax_ignore">'


def outcome(outcome: Outcome) -> dict[str, Any]:
    """Return the forms of an outcome by media type: its output, its value, its figures and the names of its files."""
    shown = {"text/plain": repr(outcome)}
    texts = [_pre(outcome.stdout), _pre(outcome.stderr), _value(outcome.value)]
    if not outcome.ok:
        texts.insert(0, f"<p><strong>{escape(outcome.verdict.message)}</strong></p>")
    figures: list[str] = []
    files, left = [], MAX_FIGURE_BYTES
    for artifact in outcome.artifacts:
        figure = _png(artifact, left) if len(figures) < MAX_FIGURES else None
        if figure is None:
            files.append(artifact)
        else:
            figures.append(figure)
            left -= artifact.size
    if figures:
        shown["image/png"] = figures[0]
    images = [f'<img src="data:image/png;base64,{figure}">' for figure in figures]
    parts = list(filter(None, [*texts, *images, _files(files)]))
    # A single figure stays an image, so that a notebook can save it as one.
    if parts and parts != images[:1]:
        shown["text/html"] = f"{_START}{''.join(parts)}</div>"
    return shown


def artifact(artifact: Artifact) -> dict[str, Any]:
    """Return the forms of an artifact by media type: a figure, or the start of a text."""
    shown = {"text/plain": repr(artifact)}
    figure = _png(artifact, MAX_FIGURE_BYTES)
    if figure is not None:
        shown["image/png"] = figure
    elif artifact.media_type.startswith("text/") or artifact.media_type == "application/json":
        text = artifact.data[: 4 * MAX_TEXT].decode(errors="replace")
        shown["text/html"] = f"{_START}{_pre(text)}</div>"
    return shown


def _png(artifact: Artifact, limit: int) -> str | None:
    if artifact.media_type != "image/png" or artifact.size > limit:
        return None
    data = artifact.data
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    is_png = data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    return base64.b64encode(data).decode() if is_png and 0 < width * height <= MAX_PIXELS else None


def _pre(text: str) -> str:
    return f'<pre style="font-family: monospace">{escape(_shortened(text, MAX_TEXT))}</pre>' if text.strip() else ""


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}\n… {len(text) - limit:,} characters …\n{text[-limit // 2 :]}"


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return _pre(value)
    if isinstance(value, dict):
        if all(isinstance(value.get(name), list) for name in ("columns", "index", "data")):
            return _table(value)
        # Other values of libraries, such as arrays, have their text.
        if isinstance(value.get("type"), str) and isinstance(value.get("text"), str):
            return _pre(value["text"])
    return _pre(json.dumps(value, ensure_ascii=False))


def _table(frame: dict[str, Any]) -> str:
    """The first rows and columns of a data frame."""
    columns = frame["columns"]
    rows = [(key, row) for key, row in zip(frame["index"], frame["data"], strict=False) if isinstance(row, list)]
    head = "".join(f"<th>{_cell(column)}</th>" for column in ["", *columns[:MAX_COLUMNS]])
    body = "".join(
        f"<tr><th>{_cell(key)}</th>{''.join(f'<td>{_cell(cell)}</td>' for cell in row[:MAX_COLUMNS])}</tr>"
        for key, row in rows[:MAX_ROWS]
    )
    shape = frame.get("shape")
    count = shape[0] if isinstance(shape, list) and shape and isinstance(shape[0], int) else len(rows)
    is_whole = count <= MAX_ROWS and len(columns) <= MAX_COLUMNS
    size = "" if is_whole else f"<p>{count:,} rows × {len(columns):,} columns</p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{size}"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        value = round(value, 6)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return escape(text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]}…")


def _files(files: list[Artifact]) -> str:
    named = [f"{escape(file.name)} ({escape(file.media_type)}, {file.size:,} bytes)" for file in files[:MAX_FILES]]
    more = len(files) - len(named)
    return f"<p>{', '.join(named)}{f' and {more:,} more' if more else ''}</p>" if files else ""
