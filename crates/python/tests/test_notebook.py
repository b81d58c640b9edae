"""What notebooks show of code in a sandbox: nothing of it is markup, and every size is bounded."""

from __future__ import annotations

import base64
import itertools
import json
import struct
import zlib
from html.parser import HTMLParser
from typing import Any

import pytest

from toolpost import Sandbox

HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>&quot;$\\href{javascript:alert(1)}{x}$"


def png(width: int = 1, height: int = 1, size: int = 0) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    image = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"tEXt", bytes(size))
    return b"\x89PNG\r\n\x1a\n" + image + chunk(b"IEND", b"")


class Markup(HTMLParser):
    """The elements, attributes and text of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.attributes: set[tuple[str, str | None]] = set()
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes.update(attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(code: str, files: dict[str, Any] | None = None) -> dict[str, Any]:
    return Sandbox().run_sync(code, files=files)._repr_mimebundle_(include=None, exclude=None)


def test_everything_hostile_is_text() -> None:
    frame = {"type": "DataFrame", "shape": [1, 1], "text": HOSTILE, "columns": [HOSTILE], "index": [HOSTILE]}
    code = f"""
import sys
text = {HOSTILE!r}
print(text)
print(text, file=sys.stderr)
for name in ("a.html", "b.svg", "c.png", text.replace("/", "") + ".csv"):
    open(name, "w").write(text)
print("::result " + {json.dumps({**frame, "data": [[HOSTILE]]})!r})
"""
    bundle = shown(code)
    assert set(bundle) == {"text/plain", "text/html"}
    found = Markup(bundle["text/html"])
    assert set(found.elements) == {"div", "pre", "table", "thead", "tbody", "tr", "th", "td", "p"}
    assert found.attributes == {("class", "tex2jax_ignore mathjax_ignore"), ("style", "font-family: monospace")}
    assert found.texts.count(HOSTILE) == 3 and found.texts.count(f"{HOSTILE}\n") == 1
    assert f"a.html (text/html, {len(HOSTILE)} bytes)" in found.texts[-1]


def test_a_table_of_any_form_is_shown() -> None:
    frame = {"type": "DataFrame", "shape": [1, 1], "text": "x", "columns": ["a"], "index": [0], "data": [[1]]}
    values: list[Any] = [None, 1, HOSTILE, [None], [1], [[]], [{}], [[{HOSTILE: HOSTILE}]], [[[]]], [HOSTILE]]
    with Sandbox().session() as session:
        for member, value in itertools.product(frame, values):
            outcome = session.run_sync(repr({**frame, member: value}))
            elements = Markup(outcome._repr_mimebundle_()["text/html"]).elements
            assert elements[1] in ("table", "pre") and not {"img", "script"} & set(elements)


def test_sizes_are_bounded() -> None:
    assert len(shown("print('x' * 10**6)")["text/html"]) < 12_000
    code = """
row = [1] * 500
frame = {"type": "DataFrame", "text": "", "shape": [10**6, 500], "columns": row, "index": [1] * 100}
frame | {"data": [["<" * 5000, *row[1:]]] + [row] * 99}
"""
    found = Markup(shown(code)["text/html"])
    assert found.elements.count("tr") == 21 and found.elements.count("td") == 400
    assert "1,000,000 rows × 500 columns" in found.texts and max(map(len, found.texts)) == 201
    files = Markup(shown("for n in range(50): open(str(n), 'w')\nNone")["text/html"]).texts[-1]
    assert files.endswith("and 30 more") and files.count("(") == 20


def test_figures_are_images() -> None:
    one = shown("import os; os.rename('in', 'a.png')", {"in": png()})
    assert set(one) == {"text/plain", "image/png"} and base64.b64decode(one["image/png"]) == png()
    several = shown("import os; print('x'); [os.rename(n, n + '.png') for n in 'ab']\nNone", {"a": png(), "b": png(2)})
    assert several["image/png"] == one["image/png"] and several["text/html"].count("<img ") == 2
    many = shown("for n in range(12): open(f'{n}.png', 'wb').write(open('in', 'rb').read())\nNone", {"in": png()})
    assert many["text/html"].count("<img ") == 10 and many["text/html"].count("(image/png") == 2


@pytest.mark.parametrize("data", [png(100_000, 100_000), png(0, 5), png()[:16], b"", png(size=5 << 20)])
def test_other_files_are_no_figures(data: bytes) -> None:
    bundle = shown("import os; os.rename('in', 'a.png')", {"in": data})
    assert "image/png" not in bundle and "<img" not in bundle["text/html"] and "a.png (image/png" in bundle["text/html"]


def test_an_artifact_is_a_figure_or_a_text() -> None:
    code = (
        "import os; os.rename('in', 'a.png'); open('b.html', 'w').write('<b>'); open('c.bin', 'wb').write(b'<b>')\nNone"
    )
    bundles = [one._repr_mimebundle_() for one in Sandbox().run_sync(code, files={"in": png()}).artifacts]
    assert [set(bundle) - {"text/plain"} for bundle in bundles] == [{"image/png"}, {"text/html"}, set()]
    assert "&lt;b&gt;" in bundles[1]["text/html"]


def test_a_failure_has_its_message_and_its_traceback() -> None:
    texts = Markup(shown("1/0")["text/html"]).texts
    assert texts[0] == "the program exited with status 1" and "ZeroDivisionError" in texts[1]
