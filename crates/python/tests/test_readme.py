"""The documents work as printed."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("page", "count"),
    [(README, 3), (DOCS / "moving/pydantic-ai.md", 1)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_programs_of_a_page_work_as_printed(page: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python[^\n]*\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    assert len(blocks) >= count
    monkeypatch.setenv("ANTHROPIC_API_KEY", "unused")
    # Dataclasses look their module up.
    module = types.ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)
    for block in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, page.name, "exec", dont_inherit=True), vars(module))
        expected = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.M)
        assert out.getvalue().splitlines() == expected
