"""The first page works as printed."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import types
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_first_page_works_as_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.M | re.S)
    assert len(blocks) >= 3
    # Dataclasses look their module up.
    module = types.ModuleType("readme")
    monkeypatch.setitem(sys.modules, "readme", module)
    for block in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, README.name, "exec", dont_inherit=True), vars(module))
        expected = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.M)
        assert out.getvalue().splitlines() == expected
