"""Values of code, generated: each arrives equal, or as its type and the text of `repr`, from every way to run code."""

from __future__ import annotations

import datetime
import decimal
import fractions
import random
from collections import Counter
from typing import Any

import pytest

from toolpost import Outcome, Sandbox, Toolbox, tool

START = "import datetime, decimal, fractions\nfrom collections import Counter\n"
SCALARS = ["None", "True", "0", "-1", "2**53 + 1", "2**63", "-2**63 - 1", "2**64", "2**100", "0.1", "-0.0", "5e-324"]
SCALARS += ["1e300", "''", "'é\\n\\0\\u2028'", "'\\U0001f600'"]
TEXTS = ["float('nan')", "float('-inf')", "{7}", "frozenset({1})", "b'a\\0'", "1 + 2j", "range(3)", "...", "len"]
TEXTS += ["'\\ud800'", "decimal.Decimal('1.10')", "fractions.Fraction(1, 3)", "datetime.date(2024, 1, 2)"]
TEXTS += ["datetime.timedelta(1)", "{1: 'a', '1': 'b'}", "{None: 1}", "{(1,): {2}}"]
NAMES = ["a", "type", "text", "é", "", "__proto__", "1"]


def generated(source: random.Random, depth: int) -> str:
    """The source of a value."""
    kind = source.randrange(6 if depth else 3)
    if kind == 0:
        return source.choice(TEXTS)
    if kind < 3:
        return source.choice([*SCALARS, repr(source.getrandbits(source.randrange(1, 130)) - 2**40), repr(source.random())])
    parts = [generated(source, depth - 1) for _ in range(source.randrange(4))]
    if kind == 3:
        return f"[{', '.join(parts)}]"
    if kind == 4:
        return f"({''.join(f'{part}, ' for part in parts)})"
    names = source.sample(NAMES, len(parts))
    return f"{{{', '.join(f'{name!r}: {part}' for name, part in zip(names, parts, strict=True))}}}"


def expected(value: Any) -> Any:
    """The value that must arrive."""
    if value is None or type(value) in (bool, int):
        return value
    if (type(value) is float and value - value == 0) or (type(value) is str and "\ud800" not in value):
        return value
    if type(value) in (list, tuple):
        return [expected(item) for item in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {name: expected(item) for name, item in value.items()}
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"type": name, "text": repr(value)}


def test_generated_values_arrive_equal_or_as_text() -> None:
    source = random.Random(20260101)
    sandbox = Sandbox()
    with sandbox.session() as session, sandbox.pool() as pool:
        for round_number in range(60):
            code = f"[{', '.join(generated(source, 3) for _ in range(10))}]"
            names = {"datetime": datetime, "decimal": decimal, "fractions": fractions, "Counter": Counter}
            # Texts differ for `1` and `1.0`, and for `0.0` and `-0.0`.
            wanted = repr(expected(eval(code, names)))
            outcomes = {"session": session.run_sync(START + code)}
            if round_number % 10 == 0:
                outcomes["single"] = sandbox.run_sync(START + code)
                outcomes["pool"] = pool.run_sync(START + code)
            for way, outcome in outcomes.items():
                assert outcome.ok, outcome.stderr
                assert repr(outcome.value) == wanted, (way, code)


@pytest.mark.parametrize(
    ("language", "code", "value"),
    [
        ("python", "2**100", 2**100),
        ("javascript", "[2n**70n, 2**60, 0.1]", [2**70, 2**60, 0.1]),
        ("javascript", "new Map([[1, 2]])", {"type": "Map", "text": "Map(1) { 1 => 2 }"}),
        ("bash", "echo '::result [18446744073709551616]'", [2**64]),
    ],
)
def test_integers_keep_their_digits(language: str, code: str, value: Any) -> None:
    outcome = Sandbox().run_sync(code, language)
    assert outcome.value == value == outcome.to_dict()["value"]


def test_a_tool_returns_an_integer_of_any_size() -> None:
    @tool
    async def python(code: str) -> Outcome:
        """Run Python code."""
        return await Sandbox().run(code)

    value = Toolbox(python).call_sync("python", {"code": "{'n': [2**100, 1]}"}).value
    assert value["value"] == {"n": [2**100, 1]}
