"""The first page works as printed."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_first_page_works_as_printed() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.M | re.S)
    assert len(blocks) >= 3
    names: dict[str, object] = {"__name__": "readme"}
    for block in blocks:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, README.name, "exec"), names)
        expected = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.M)
        assert out.getvalue().splitlines() == expected
