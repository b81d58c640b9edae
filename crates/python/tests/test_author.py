"""Tools: schemas, decoding, encoding, descriptions, methods."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import datetime
import decimal
import doctest
import enum
import functools
import json
import pathlib
import subprocess
import sys
import types
import uuid
from typing import Annotated, Any, Dict, Generic, List, Literal, NamedTuple, Optional, TypedDict, TypeVar, Union

import author
import pytest
from author import Ctx, Output, Param, Partial, SpecError, ToolError, encode, prompt, resource, tool

ITEM = TypeVar("ITEM")
TABLE = json.loads((pathlib.Path(__file__).parent / "schemas.json").read_text())


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Tree:
    point: Point
    children: List[Tree] = dataclasses.field(default_factory=list)


class Pair(NamedTuple):
    key: str
    value: float


class Movie(TypedDict):
    title: str
    when: datetime.date


def with_hint(hint: Any) -> Any:
    """A tool with one parameter of a type."""

    def f(a):
        "Do it."

    f.__annotations__ = {"a": hint}
    return tool(f)


def error(call: Any, *arguments: Any) -> ToolError:
    with pytest.raises(ToolError) as found:
        call(*arguments)
    return found.value


def test_doctests():
    assert doctest.testmod(author).attempted > 10
    assert doctest.testmod(author).failed == 0


@pytest.mark.parametrize("is_text", [False, True], ids=["types", "text"])
@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"])
def test_specs(case, is_text):
    """Each spec is the same if the annotations are text, as `from __future__ import annotations` makes them."""
    names: Dict[str, Any] = {name: getattr(author, name) for name in author.__all__}
    module = types.ModuleType("table")
    sys.modules["table"] = module
    vars(module).update(names)
    flags = annotations.compiler_flag if is_text else 0
    for source in ("\n".join(TABLE["prelude"]), case["source"]):
        exec(compile(source, "table", "exec", flags, dont_inherit=True), vars(module))
    spec = tool(module.f).spec()
    assert spec == {"name": "f", "description": "Do it.", **case["spec"]}
    assert json.loads(json.dumps(spec)) == spec


VALUES = [
    (int, 3, 3),
    (int, 3.0, 3),
    (float, 3, 3),
    (str, "a", "a"),
    (Any, [1, {"a": None}], [1, {"a": None}]),
    (Optional[int], None, None),
    (List[int], [1, 2], [1, 2]),
    (set, ["a"], {"a"}),
    (List[Point], [{"x": 1}], [Point(1)]),
    (Dict[int, Color], {"1": "red"}, {1: Color.RED}),
    (Literal["a", 1], 1, 1),
    (Color, "blue", Color.BLUE),
    (Point, {"x": 1, "y": 2}, Point(1, 2)),
    (Tree, {"point": {"x": 1}, "children": [{"point": {"x": 2}}]}, Tree(Point(1), [Tree(Point(2))])),
    (Pair, {"key": "a", "value": 1.5}, Pair("a", 1.5)),
    (Movie, {"title": "M", "when": "2026-01-31"}, {"title": "M", "when": datetime.date(2026, 1, 31)}),
    (Union[Point, Color, None], "red", Color.RED),
    (Union[Point, Color, None], {"x": 1}, Point(1)),
    (Union[int, datetime.date], "2026-01-31", datetime.date(2026, 1, 31)),
    (datetime.datetime, "2026-01-31T09:30:00Z", datetime.datetime(2026, 1, 31, 9, 30, tzinfo=datetime.timezone.utc)),
    (
        datetime.datetime,
        "2026-01-31T09:30:00.5+01:00",
        datetime.datetime(2026, 1, 31, 9, 30, 0, 500000, datetime.timezone(datetime.timedelta(hours=1))),
    ),
    (datetime.time, "09:30", datetime.time(9, 30)),
    (datetime.timedelta, "P1DT2H0.5S", datetime.timedelta(1, 7200, 500000)),
    (datetime.timedelta, "-PT90M", -datetime.timedelta(minutes=90)),
    (datetime.timedelta, "P2W", datetime.timedelta(14)),
    (uuid.UUID, "936da01f-9abd-4d9d-80c7-02af85c822a8", uuid.UUID("936da01f-9abd-4d9d-80c7-02af85c822a8")),
    (pathlib.Path, "a/b", pathlib.Path("a/b")),
    (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
    (decimal.Decimal, 1.1, decimal.Decimal("1.1")),
    (bytes, base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
]


@pytest.mark.parametrize("hint, value, expected", VALUES, ids=lambda value: str(value)[:40])
def test_decode_and_encode_are_inverse(hint, value, expected):
    one = with_hint(hint)
    decoded = one.decode({"a": value})["a"]
    assert decoded == expected and type(decoded) is type(expected)
    again = encode(decoded)
    json.dumps(again)
    assert one.decode({"a": again})["a"] == expected


WRONG = [
    (int, "3", '/a: expected integer, found string ("3")'),
    (int, True, "/a: expected integer, found boolean (true)"),
    (int, 1.5, "/a: expected integer, found number (1.5)"),
    (float, True, "/a: expected number, found boolean (true)"),
    (str, None, "/a: expected string, found null (null)"),
    (List[int], [1, "b"], '/a/1: expected integer, found string ("b")'),
    (Dict[str, int], {"x/y": "b"}, '/a/x~1y: expected integer, found string ("b")'),
    (Optional[int], "b", '/a: expected integer or null, found string ("b")'),
    (Color, "bleu", '/a: expected one of red, blue, found "bleu"'),
    (Literal[1], True, "/a: expected one of 1, found true"),
    (Point, {"x": 1, "z": 2}, "/a/z: expected only the properties x, y, found `z`"),
    (Union[int, Point], {"x": "b"}, '/a/x: expected integer, found string ("b")'),
    (datetime.datetime, "2026-01-31T09:30:00", "/a: expected text in the format `date-time`"),
    (datetime.date, "31 January", "/a: expected text in the format `date`"),
    (datetime.time, "25:00", "/a: expected a time such as 14:30:00"),
    (datetime.timedelta, "P", "/a: expected an ISO 8601 duration such as PT1H30M"),
    (datetime.timedelta, "90 min", "/a: expected an ISO 8601 duration such as PT1H30M"),
    (uuid.UUID, "936da01f", "/a: expected text in the format `uuid`"),
    (pathlib.Path, "", "/a: expected a path"),
    (decimal.Decimal, "one", "/a: expected a decimal number"),
    (bytes, "*", "/a: expected text in the format `base64`"),
    (set, ["a", "a"], "/a: expected unique items"),
    (Annotated[int, Param(ge=1)], 0, "/a: expected at least 1, found 0"),
    (Annotated[str, Param(max_length=2)], "abc", '/a: expected at most 2 characters, found "abc"'),
    (Annotated[List[int], Param(min_length=1)], [], "/a: expected at least 1 items, found []"),
    (Annotated[str, Param(pattern="^a")], "b", '/a: expected text that matches ^a, found "b"'),
]


@pytest.mark.parametrize("hint, value, message", WRONG, ids=lambda value: str(value)[:40])
def test_invalid_arguments_name_place_expectation_and_value(hint, value, message):
    found = error(with_hint(hint).decode, {"a": value})
    assert found.code == "INVALID_INPUT" and found.message.startswith(message)
    assert found.context["pointer"].startswith("/a")


def test_missing_and_misspelled_parameters():
    @tool
    def forecast(city: Annotated[str, "City name."], days: int = 1) -> str:
        "Forecast the weather."
        return city * days

    found = error(forecast.decode, {"dayz": 2})
    assert found.code == "MISSING_PARAM"
    assert (
        found.message
        == "`city` is missing: expected City name; /dayz: expected only the properties city, days, found `dayz`"
    )
    assert found.suggestion == "Did you mean `days`?"
    assert found.context["pointers"] == ["/city", "/dayz"]
    assert error(forecast.decode, ["Oslo"]).message == 'the arguments: expected object, found array (["Oslo"])'


def test_sensitive_values_are_not_quoted():
    @tool(sensitive=["key"])
    def login(key: str) -> None:
        "Log in."

    assert "hunter" not in str(error(login.decode, {"key": ["hunter2"]}))
    assert "hunter" not in str(error(login.decode, ["hunter2"]))


def test_deep_values_are_invalid_arguments():
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert error(with_hint(int).decode, {"a": deep}).code == "INVALID_INPUT"


def test_a_validation_of_a_class_is_an_invalid_argument():
    @dataclasses.dataclass
    class Even:
        number: int

        def __post_init__(self):
            if self.number % 2:
                raise ValueError("number is odd")

    assert "number is odd" in error(with_hint(Even).decode, {"a": {"number": 1}}).message


def test_plain_arguments_need_no_decoding():
    for hint in (int, str, Any, List[int], Dict[str, float], Optional[bool], Literal["a"], Annotated[int, Param(ge=1)]):
        assert not with_hint(hint).needs_decode, hint
    for hint in (Point, Color, set, datetime.date, List[bytes], Movie, Dict[str, Color]):
        assert with_hint(hint).needs_decode, hint


def test_results():
    assert encode(float("nan")) is None and encode(float("inf")) is None
    assert encode({2: "a", True: "b", None: "c", Color.RED: "d"}) == {"2": "a", "true": "b", "null": "c", "red": "d"}
    assert encode({3, 1, 2}) == [1, 2, 3] and encode(range(3)) == [0, 1, 2]
    assert encode(types.MappingProxyType({"a": (1, b"x")})) == {"a": [1, "eA=="]}
    naive = encode(datetime.datetime(2026, 1, 31, 9, 30))
    assert datetime.datetime.fromisoformat(naive).tzinfo is not None
    assert encode(datetime.timedelta(days=1, seconds=5400)) == "P1DT1H30M"
    assert encode(datetime.timedelta(0)) == "PT0S" and encode(-datetime.timedelta(seconds=1.5)) == "-PT1.5S"
    assert encode(enum.IntEnum("Level", "LOW HIGH").HIGH) == 2
    found = error(encode, [object()])
    assert (found.code, found.message) == ("INTERNAL", "JSON cannot represent a value of the type `object`")
    output = Output({"a": 1}, partial=Partial(2, [ToolError.not_found("row 3")]))
    assert output.to_dict()["partial"]["errors"][0]["code"] == "NOT_FOUND"


def test_a_tool_is_its_function():
    @tool(name="other-name", title="Adder")
    def add(a: int, b: int = 2) -> int:
        "Add."
        return a + b

    assert add(1) == 3 and add(1, b=1) == 2
    assert (add.name, add.__name__, add.__doc__, add.is_async) == ("other-name", "add", "Add.", False)
    assert add.__wrapped__ is add.fn and repr(add) == "<tool other-name>"
    assert add.spec() is add.spec()

    @tool
    async def later(a: int) -> int:
        "Add later."
        return a

    assert later.is_async and asyncio.run(later(1)) == 1


def test_decorated_functions_keep_their_signature():
    @tool
    @functools.lru_cache(maxsize=None)
    def cached(a: int) -> int:
        "Cache."
        return a

    assert cached.spec()["input_schema"]["required"] == ["a"] and cached(1) == 1


class Account:
    def __init__(self, owner: str):
        self.owner = owner

    @tool
    def deposit(self, amount: int, ctx: Ctx) -> str:
        "Deposit an amount."
        return f"{self.owner} {amount}"

    @tool
    @classmethod
    def open(cls, owner: str) -> str:
        "Open an account."
        return f"{cls.__name__} {owner}"

    @classmethod
    @tool
    def close(cls, owner: str) -> str:
        "Close an account."
        return f"{cls.__name__} {owner}"

    @tool
    @staticmethod
    def rate(days: int) -> int:
        "Rate of interest."
        return days

    @tool
    def copy_of(self, other: Optional[Account] = None) -> None:
        "Annotated with its own class."


def test_methods():
    ada, bob = Account("ada"), Account("bob")
    assert ada.deposit(1, Ctx()) == "ada 1" and bob.deposit(1, Ctx()) == "bob 1"
    assert ada.deposit.fn(amount=2, ctx=Ctx()) == "ada 2"
    assert list(ada.deposit.spec()["input_schema"]["properties"]) == ["amount"]
    assert ada.deposit.ctx_param == "ctx" and Account.deposit.ctx_param == "ctx"
    assert Account.open("eve") == ada.open("eve") == "Account eve"
    assert list(Account.open.spec()["input_schema"]["properties"]) == ["owner"]
    assert ada.rate(3) == 3 and list(ada.rate.spec()["input_schema"]["properties"]) == ["days"]
    with pytest.raises(SpecError, match="`Account`, which has no JSON form; make it a dataclass"):
        ada.copy_of.spec()
    found = {one.name for one in author._tools_of(ada)}
    assert found == {"deposit", "open", "close", "rate", "copy_of"}
    closed = next(one for one in author._tools_of(ada) if one.name == "close")
    assert closed.fn(owner="eve") == "Account eve"
    assert list(closed.spec()["input_schema"]["properties"]) == ["owner"]


def test_options():
    @tool(
        title="T",
        category="c",
        group="g.h",
        tags=["t"],
        examples=[{"a": 1}, {"args": {"a": 2}, "output": 3}],
        read_only=True,
        idempotent=True,
        timeout=1.5,
        retries=3,
        concurrency=2,
        rate="5/30s",
        cache="5m",
        approval="ask",
        output_limit=1000,
        mode="streaming",
        task="never",
        dry_run=True,
        sensitive=["a"],
        meta={"k": 1},
    )
    def f(a: int) -> None:
        "Do it."

    assert {key: value for key, value in f.spec().items() if key != "input_schema"} == {
        "name": "f",
        "description": "Do it.",
        "title": "T",
        "category": "c",
        "group": "g.h",
        "tags": ["t"],
        "examples": [{"args": {"a": 1}}, {"args": {"a": 2}, "output": 3}],
        "annotations": {"read_only": True, "idempotent": True},
        "policy": {
            "timeout": {"after": "1500ms"},
            "retry": {
                "attempts": 3,
                "initial": "100ms",
                "maximum": "2s",
                "on": ["DEPENDENCY", "TIMEOUT", "OVERLOADED"],
            },
            "concurrency": 2,
            "rate": {"calls": 5, "per": "30s"},
            "cache": "300s",
            "approval": "ask",
            "output_limit": 1000,
        },
        "mode": "streaming",
        "task": "never",
        "dry_run": True,
        "sensitive": ["a"],
        "meta": {"k": 1},
    }
    assert tool(timeout="never", retries=0)(f.fn).spec()["policy"]["timeout"] == "never"
    assert tool(retries=0)(f.fn).spec()["policy"]["retry"]["attempts"] == 0
    assert tool(f.fn).spec().keys() == {"name", "description", "input_schema"}


def variadic(*rest: int) -> None:
    "Do it."


def positional(a, /) -> None:
    "Do it."


def generator(a: int):
    "Do it."
    yield a


def undocumented(a: int) -> None: ...


def unresolved(a: Missing) -> None:  # noqa: F821
    "Do it."


def unknown_type(a: socketserver.TCPServer) -> None:  # noqa: F821
    "Do it."


def unknown_result() -> types.ModuleType:
    "Do it."


def bad_key(a: Dict[float, int]) -> None:
    "Do it."


@pytest.mark.parametrize(
    "function, message",
    [
        (variadic, "`variadic` has the parameter `*rest`, which has no name in JSON; declare a list"),
        (positional, "`positional` has the positional-only parameter `a`; remove the `/`"),
        (generator, "`generator` is a generator; return a list"),
        (undocumented, "the tool `undocumented` has no description; add a docstring"),
        (
            unresolved,
            "the parameter `a` of `unresolved` has the annotation `Missing`, which cannot be resolved: NameError: "
            "name 'Missing' is not defined; import its names at module level, outside `if TYPE_CHECKING`",
        ),
        (unknown_type, "the parameter `a` of `unknown_type` has the annotation `socketserver.TCPServer`"),
        (unknown_result, "the result of `unknown_result` has the annotation `module`, which has no JSON form; make it"),
        (bad_key, "the parameter `a` of `bad_key` has the annotation `float`, which cannot be a key in JSON"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_invalid_definitions_name_function_parameter_and_fix(function, message):
    with pytest.raises(SpecError) as found:
        tool(function).spec()
    assert str(found.value).startswith(message)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"nmae": "x"}, "`nmae` is not an option of `@tool`. Did you mean `name`?"),
        ({"name": "1x"}, "`1x` is not a tool name; start with a letter"),
        ({"name": "x" * 65}, "use at most 64 characters"),
        ({"timeout": "soon"}, "`timeout='soon'` is not a duration; write seconds"),
        ({"rate": "often"}, "`rate='often'` is not a rate; write calls and a period"),
        ({"approval": "maybe"}, "`approval='maybe'` is unknown; use one of allow, ask, deny"),
        ({"cache": 5}, "only an idempotent tool can be cached"),
        ({"sensitive": ["b"]}, "`b` in `sensitive` is not a parameter of `f`; remove it"),
    ],
    ids=str,
)
def test_invalid_options(options, message):
    def f(a: int) -> None:
        "Do it."

    with pytest.raises(SpecError) as found:
        tool(**options)(f).spec()
    assert message in str(found.value)


def test_local_classes_in_text_annotations():
    @dataclasses.dataclass
    class Local:
        number: int

    @tool
    def f(a: Local, b: List[Local]) -> Local:
        "Do it."
        return a

    def define() -> Any:
        @tool
        def g(a: Color, options: List[Local]) -> None:
            "Do it."

        return g

    def caller() -> Any:
        Color = int  # noqa: F841 - A caller's names are not in the scope of a function.
        return define()

    assert caller().decode({"a": "red", "options": [{"number": 1}]}) == {"a": Color.RED, "options": [Local(1)]}
    assert f.decode({"a": {"number": 1}, "b": []}) == {"a": Local(1), "b": []}
    assert f.spec()["output_schema"]["title"] == "Local"


def test_a_docstring_that_is_no_text_is_no_description():
    """Python 3.15 derives that of a dataclass at its first use."""

    @dataclasses.dataclass
    class Local:
        number: int

    Local.__doc__ = object()  # type: ignore[assignment]

    @tool
    def f(a: Local) -> None:
        "Do it."

    assert "description" not in f.spec()["input_schema"]["$defs"]["Local"]


def test_resources_and_prompts():
    @resource("notes://{user}/{page}.md", mime_types=["text/plain"], tags=["n"])
    def note(user: str, page: int) -> str:
        "A note."
        return f"{user} {page}"

    assert note.resource_spec() == {
        "uri_pattern": "notes://{user}/{page}.md",
        "summary": "A note.",
        "mime_types": ["text/plain"],
        "tags": ["n"],
    }
    assert note.match("notes://ada/a.b.md") == {"user": "ada", "page": "a.b"}
    assert note.match("notes://ada/b/c.md") is None and note.match("notes://ada/bXmd") is None

    @prompt
    def review(text: str, style: str = "short") -> str:
        """Review a text.

        Args:
            text: The text.
        """
        return text

    assert review.prompt_spec() == {
        "name": "review",
        "summary": "Review a text.",
        "arguments": [
            {"name": "text", "description": "The text."},
            {"name": "style", "description": "", "optional": True},
        ],
    }
    with pytest.raises(SpecError, match="`n://{user}` lacks the parameter `{page}` of `note`; add it"):
        resource("n://{user}")(note.fn).resource_spec()
    with pytest.raises(SpecError, match="`{id}` in `n://{user}/{page}/{id}` is not a parameter"):
        resource("n://{user}/{page}/{id}")(note.fn).resource_spec()
    with pytest.raises(
        SpecError, match=r"`{page\*}` in `n://{user}/{page\*}` is not a parameter; write each one as `{na"
    ):
        resource("n://{user}/{page*}")(note.fn).resource_spec()


def test_resources_and_prompts_need_no_docstring():
    assert prompt(name="review")(lambda: "x").prompt_spec() == {"name": "review", "summary": "review", "arguments": []}
    spec = resource("notes://all", name="all")(lambda: "x").resource_spec()
    assert (spec["name"], spec["summary"]) == ("all", "all")
    with pytest.raises(SpecError, match="the tool `f` has no description"):
        tool(name="f")(lambda: "x").spec()
    with pytest.raises(SpecError, match="`@prompt` got the text `review`; write `name='review'`"):
        prompt("review")


def test_a_context_without_a_caller():
    ctx = Ctx({"call": "c1", "timeout_ms": 1000, "metadata": {"a": 1}})
    ctx.progress("half", 50)
    ctx.info("line")
    assert (ctx.id, ctx.attempt, ctx.is_cancelled, ctx.metadata) == ("c1", 1, False, {"a": 1})
    assert 0 < (ctx.remaining or 0) <= 1 and Ctx().remaining is None
    for call in (lambda: ctx.ask_sync("?"), lambda: ctx.sample_sync("?"), lambda: ctx.artifact_sync("a", b"")):
        assert error(call).code == "PRECONDITION"
    assert error(lambda: asyncio.run(ctx.call("other"))).message == "this caller cannot call other tools"
    with pytest.raises(ValueError, match="`loud` is not a log level; use one of"):
        ctx.log("loud", "line")


def test_errors():
    found = ToolError.dependency("no weather", suggestion="Try again.", status=503)
    assert str(found) == "DEPENDENCY: no weather. Try again."
    assert ToolError.from_dict(found.to_dict()).to_dict() == found.to_dict()
    assert ToolError.from_dict({"code": "NEW", "message": "m"}).code == "DEPENDENCY"
    with pytest.raises(ValueError, match="`WRONG` is not an error code"):
        ToolError("WRONG", "m")


def test_the_import_loads_no_heavy_module():
    code = (
        "import sys; before = set(sys.modules); import author; "
        "new = set(sys.modules) - before - {'__future__'}; "
        "print(*sorted(name for name in new if name.partition('.')[0] != 'author'))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=pathlib.Path(author.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


@dataclasses.dataclass
class Empty:
    x: int


@dataclasses.dataclass
class Set(Generic[ITEM]):
    x: ITEM


def test_classes_may_have_the_names_of_special_forms():
    @tool
    def take(a: Empty, b: Set[int]) -> int:
        """Take both."""
        return a.x + b.x

    assert take(**take.decode({"a": {"x": 1}, "b": {"x": 2}})) == 3
    assert "Set" in take.spec()["input_schema"]["$defs"]


def test_a_definition_may_have_its_own_summary():
    class Short(author.Tool):
        def spec(self):
            return {**super().spec(), "summary": "Short."}

    short = Short(tool(lambda_tool)._definition)
    assert author._entry(short.spec())["summary"] == "Short."
    assert author._entry(tool(lambda_tool).spec())["summary"] == "Return 1."


def lambda_tool() -> int:
    """Return 1.

    More about it.
    """
    return 1
