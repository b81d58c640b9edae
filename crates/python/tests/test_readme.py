"""The first page and the guides for other libraries work as printed."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
MOVING = Path(__file__).parents[3] / "docs" / "moving" / "pydantic-ai.md"


@pytest.mark.parametrize(("page", "minimum"), [(README, 3), (MOVING, 1)])
def test_a_page_works_as_printed(page: Path, minimum: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    assert len(blocks) >= minimum
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
