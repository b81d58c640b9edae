"""The author half beside pydantic, toolable and the `toolpost` program.

`TOOLPOST_BIN` is the path of `toolpost`, `TOOLABLE_SRC` the directory that holds the package `toolable`.
"""

import dataclasses
import datetime
import decimal
import enum
import json
import os
import pathlib
import shutil
import subprocess
import sys
import uuid
from typing import Annotated, Any, Dict, FrozenSet, List, Literal, NewType, Optional, Set, Tuple, Union

import author
import pytest
from author import Param, encode, tool

try:
    from typing_extensions import TypedDict  # pydantic accepts no other before Python 3.12.
except ImportError:
    from typing import TypedDict

DATA = pathlib.Path(__file__).parent / "data"


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Tree:
    point: Optional[Point]
    children: List["Tree"] = dataclasses.field(default_factory=list)


class Movie(TypedDict):
    title: str
    year: int


LEAVES = [
    *(None, True, False, 0, 1, -3, 7, 1.5, 3.0, "", "a", "abc", "abcdef", "red", "1"),
    *("2026-01-31", "2026-01-31T09:30:00Z", "936da01f-9abd-4d9d-80c7-02af85c822a8", "1.50"),
]
OBJECTS = [{}, {"x": 1}, {"x": 1, "y": 2}, {"x": "1"}, {"y": 1}, {"title": "M", "year": 1}, {"title": "M"}]
TREES = [{"point": None}, {"point": {"x": 1}, "children": [{"point": {}}]}, {"point": {"x": 1}, "children": []}]
LISTS = [[], [1], [1, 2], [1, 1], [1, "a"], ["a"], ["a", "b", "c", "d"], [[1]], [None], [{"x": 1}], [{"x": "a"}]]
MAPS = [{"a": 1}, {"a": "b"}, {"a": None}, {"red": 1}, {"a": [1]}]
SAMPLES = [*LEAVES, *OBJECTS, *TREES, *LISTS, *MAPS]

HINTS = [
    *(str, int, float, bool, None, Any, list, dict, Color, Point, Tree, Movie),
    *(List[int], List[Any], List[List[int]], List[Point], Set[str], FrozenSet[int], Tuple[int, str], Tuple[int, ...]),
    *(Dict[str, int], Dict[str, Any], Dict[str, List[int]], Dict[Color, int]),
    *(Literal["a", "red"], Literal[1, "a", None], NewType("Id", int)),
    *(Optional[int], Optional[Point], Optional[Color], Optional[Literal["a"]], Optional[List[int]]),
    *(Union[int, str], Union[int, None, List[str]], Union[Point, Movie], Union[Color, int], Union[bool, List[Point]]),
    *(datetime.datetime, datetime.date, uuid.UUID, pathlib.Path, bytes),
]
#: Constraints of ours beside pydantic's.
CONSTRAINED = [
    (int, {"ge": 1, "le": 5}),
    (float, {"gt": 0, "lt": 2}),
    (int, {"multiple_of": 7}),
    (str, {"min_length": 1, "max_length": 3}),
    (str, {"pattern": "^a"}),
    (List[int], {"min_length": 1, "max_length": 2}),
    (Dict[str, int], {"max_length": 1}),
    (Optional[int], {"ge": 1}),
]


def with_hint(hint):
    def f(a):
        "Do it."

    f.__annotations__ = {"a": hint}
    return tool(f)


def schema_of(one):
    schema = one.spec()["input_schema"]
    return {**schema["properties"]["a"], "$defs": schema.get("$defs", {})}


def accepted(schema):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema)
    return [jsonschema.Draft202012Validator(schema).is_valid(sample) for sample in SAMPLES]


def differing(ours, theirs):
    return [sample for sample, one, other in zip(SAMPLES, ours, theirs) if one != other]


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_schemas_accept_the_same_values_as_pydantic(hint):
    pydantic = pytest.importorskip("pydantic")
    theirs = pydantic.TypeAdapter(hint).json_schema()
    # pydantic ignores undeclared keys of a class, which a tool rejects.
    classes = [theirs, *theirs.get("$defs", {}).values()]
    known = {key for one in classes for key in one.get("properties", ())}
    differ = differing(accepted(schema_of(with_hint(hint))), accepted(theirs))
    assert [one for one in differ if not known or not has_other_keys(one, known)] == []


def has_other_keys(sample, known):
    if isinstance(sample, dict):
        return not sample.keys() <= known or has_other_keys(list(sample.values()), known)
    return isinstance(sample, list) and any(has_other_keys(item, known) for item in sample)


@pytest.mark.parametrize("hint, limits", CONSTRAINED, ids=str)
def test_constraints_accept_the_same_values_as_pydantic(hint, limits):
    pydantic = pytest.importorskip("pydantic")
    theirs = accepted(pydantic.TypeAdapter(Annotated[hint, pydantic.Field(**limits)]).json_schema())
    assert differing(accepted(schema_of(with_hint(Annotated[hint, Param(**limits)]))), theirs) == []
    # pydantic's `Field` in our signature gives the same schema as `Param`.
    same = schema_of(with_hint(Annotated[hint, pydantic.Field(**limits)]))
    assert same == schema_of(with_hint(Annotated[hint, Param(**limits)]))


#: For pydantic, any text is a decimal number, a time and a duration.
OURS = [decimal.Decimal, datetime.time, datetime.timedelta]


@pytest.mark.parametrize(
    "hint", [*HINTS, *OURS, *(Annotated[hint, Param(**limits)] for hint, limits in CONSTRAINED)], ids=str
)
def test_decoding_accepts_the_values_that_the_schema_accepts(hint):
    one = with_hint(hint)
    has_format = any(word in json.dumps(one.spec()) for word in ('"format"', '"pattern": "^[+-]'))
    for sample, is_valid in zip(SAMPLES, accepted(schema_of(one))):
        try:
            again = encode(one.decode({"a": sample})["a"])
        except author.ToolError as error:
            assert error.code in ("INVALID_INPUT", "MISSING_PARAM")
            assert not is_valid or (has_format and isinstance(sample, str)), (sample, str(error))
        else:
            assert is_valid, sample
            assert one.decode({"a": again}) == one.decode({"a": sample})


def test_pydantic_types():
    pydantic = pytest.importorskip("pydantic")

    class City(pydantic.BaseModel):
        """A city."""

        name: str = pydantic.Field(min_length=1, description="Its name.")
        founded: Optional[datetime.date] = None

    class Trip(pydantic.BaseModel):
        stops: List[City]
        title: str = "Trip"

    @tool
    def plan(
        trip: Trip,
        url: Optional[pydantic.HttpUrl] = None,
        days: int = pydantic.Field(3, ge=1, description="Number of days."),
        even: Annotated[int, pydantic.AfterValidator(lambda value: value + value % 2)] = 2,
    ) -> City:
        "Plan a trip."
        return trip.stops[0]

    spec = plan.spec()["input_schema"]
    assert spec["properties"]["trip"] == {"$ref": "#/$defs/Trip"} and set(spec["$defs"]) == {"Trip", "City"}
    assert spec["properties"]["days"] == {
        "type": "integer",
        "minimum": 1,
        "description": "Number of days.",
        "default": 3,
    }
    assert spec["required"] == ["trip"] and "title" not in spec["$defs"]["City"]
    assert "title" in spec["$defs"]["Trip"]["properties"]
    values = plan.decode({"trip": {"stops": [{"name": "Oslo", "founded": "1048-01-01"}]}, "even": 3})
    assert values["days"] == 3 and values["even"] == 4 and values["trip"].stops[0].founded.year == 1048
    assert encode(plan(**values)) == {"name": "Oslo", "founded": "1048-01-01"}
    assert plan.spec()["output_schema"]["description"] == "A city."
    with pytest.raises(author.ToolError) as found:
        plan.decode({"trip": {"stops": [{"name": ""}, {}]}})
    assert found.value.context["pointers"] == ["/trip/stops/1/name", "/trip/stops/0/name"]
    with pytest.raises(author.ToolError):
        plan.decode({"trip": {"stops": []}, "days": 0})


def test_annotated_types():
    types = pytest.importorskip("annotated_types")
    hint = Annotated[int, types.Interval(ge=1, lt=5)]
    assert schema_of(with_hint(hint)) == {"type": "integer", "minimum": 1, "exclusiveMaximum": 5, "$defs": {}}
    assert schema_of(with_hint(Annotated[str, types.Len(1, 3)]))["maxLength"] == 3


@pytest.fixture
def program(tmp_path):
    """A copy of the test program with the library beside it, as `toolpost init tool --exec` lays them out."""
    path = tmp_path / "program.py"
    shutil.copy(DATA / "program.py", path)
    shutil.copytree(pathlib.Path(author.__file__).parent, tmp_path / "author")
    path.chmod(0o755)
    return path


@pytest.fixture
def toolable(monkeypatch):
    source = os.environ.get("TOOLABLE_SRC")
    if not source:
        pytest.skip("TOOLABLE_SRC is not set")
    monkeypatch.syspath_prepend(source)
    return pytest.importorskip("toolable.registry")


def test_the_registry_of_toolable_calls_a_program(program, toolable):
    registry = toolable.ToolRegistry([program])
    assert registry.discover()["greet"] == "Greet a person."
    assert registry.schema("greet")["schema"]["required"] == ["name"]
    assert registry.call("greet", {"name": "Ada"}) == {"status": "success", "result": {"result": "Hello, Ada."}}
    assert registry.call("greet", {})["error"]["code"] == "MISSING_PARAM"
    assert registry.call("fail", {"code": "CONFLICT"})["error"]["recoverable"] is True
    assert registry.fetch_resource("notes://ada") == "Note of ada."
    assert registry.render_prompt("review", {"text": "x"}) == "Review in a short style: x"


@pytest.fixture
def toolpost(tmp_path):
    """Runs the `toolpost` program with a state of its own."""
    binary = os.environ.get("TOOLPOST_BIN")
    if not binary:
        pytest.skip("TOOLPOST_BIN is not set")
    home = tmp_path / "home"
    home.mkdir()
    names = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    environment = {**os.environ, "TOOLPOST_HOME": str(home), **{name: str(home / name) for name in names}}

    def run(*words, stdin=""):
        command = [binary, *words]
        return subprocess.run(
            command, capture_output=True, text=True, input=stdin, env=environment, cwd=tmp_path, timeout=120
        )

    return run


#: Programs of the other dialects: the same tools without our extensions.
ORIGINAL = """#!/usr/bin/env python3
import json, subprocess, sys
words = sys.argv[1:]
if words == ["--tools"] and "{version}" == "0.2.0":
    sys.exit(1)
if "{version}" == "0.2.0" and words[0] not in ("--discover", "--tools") and words[1:] != ["--manifest"]:
    assert list(json.loads(words[0])) == ["command", "params"], words
done = subprocess.run([sys.executable, __file__.replace("{name}", "program"), *words], stdout=subprocess.PIPE)
out = done.stdout
if words == ["--discover"]:
    found = json.loads(out)
    del found["protocol"], found["resident"]
    found["version"] = "{version}"
    keys = ("name", "summary", "streaming", "session_mode")
    found["tools"] = [{{key: one[key] for key in keys}} for one in found["tools"]]
    out = json.dumps(found).encode()
sys.stdout.buffer.write(out)
sys.exit(done.returncode)
"""


@pytest.mark.parametrize("version", ["", "0.1.0", "0.2.0"], ids=["extended", "0.1", "0.2"])
def test_toolpost_calls_a_program(program, toolpost, version):
    path = program
    if version:
        path = program.with_name("other.py")
        path.write_text(ORIGINAL.format(version=version, name="other"))
        path.chmod(0o755)
    name = f"./{path.name}"
    listed = toolpost("tools", name)
    assert "greet       Greet a person." in listed.stdout, listed
    done = toolpost("call", name, "move", 'point={"x":1}', "by=[2,3]", "--json")
    assert json.loads(done.stdout) == {"status": "success", "result": {"x": 6, "y": 0}}, done
    done = toolpost("call", name, "add", "a=1", "b=2")
    assert done.stdout == "3\n" and "adding" in done.stderr, done
    done = toolpost("call", name, "greet", "times=99", "name=Ada", "--json")
    error = json.loads(done.stdout or done.stderr)["error"]
    assert error["code"] == "INVALID_INPUT" and error["context"]["pointer"] == "/times", done
    if version != "0.2.0":
        assert toolpost("call", name, "count", "to=2").stdout == "2\n"
    if not version:
        done = toolpost("call", name, "fail")
        assert "ValueError: outer secret" in done.stderr and "KeyError: 'inner secret'" in done.stderr, done


def test_toolpost_serves_a_program_to_mcp_clients(program, toolpost):
    def request(number, method, **parameters):
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})

    client = {"name": "test", "version": "1"}
    lines = [
        request(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client),
        json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        request(2, "tools/list"),
        request(3, "tools/call", name="move", arguments={"point": {"x": 1}}),
        request(4, "tools/call", name="move", arguments={"point": {"x": "one"}}),
        request(5, "resources/read", uri="notes://ada"),
        request(6, "prompts/get", name="review", arguments={"text": "x"}),
    ]
    done = toolpost("serve", "./program.py", stdin="\n".join(lines) + "\n")
    answers = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        answers[answer.get("id")] = answer.get("result")
    assert answers[2]["tools"][0]["annotations"]["readOnlyHint"] is True, done
    assert answers[3]["structuredContent"] == {"x": 1, "y": 0} and not answers[3]["isError"]
    assert answers[4]["isError"] and "/point/x: expected integer" in answers[4]["content"][0]["text"]
    assert answers[5]["contents"][0]["text"] == "Note of ada."
    assert answers[6]["messages"][0]["content"]["text"] == "Review in a short style: x"


def test_toolpost_creates_a_program(toolpost, tmp_path):
    made = json.loads(toolpost("init", "tool", "--exec", "greet", "--json").stdout)
    if "toolpost_author.py" not in made["files"]:
        pytest.skip("this `toolpost` has the scaffold of an older version")
    assert len((tmp_path / "greet" / "greet").read_text().splitlines()) <= 12
    assert toolpost("call", "./greet/greet", "greet", "name=Ada").stdout == "Hello, Ada.\n"
    tested = subprocess.run([sys.executable, "test_greet.py"], cwd=tmp_path / "greet", capture_output=True, text=True)
    assert tested.returncode == 0, tested.stderr


#: A program of all signatures in the table, and of a tool with all options.
ALL = """#!/usr/bin/env python3
import json, pathlib
import author
from author import *

table = json.loads((pathlib.Path(__file__).parent / "schemas.json").read_text())
exec("\\n".join(table["prelude"]), globals())
tools = []
for index, case in enumerate(table["cases"]):
    exec(case["source"], globals())
    tools.append(tool(name=f"case_{index}")(f))


@tool(
    title="T", category="c", group="g.h", tags=["t"], examples=[{"a": 1}], read_only=True, destructive=True,
    idempotent=True, open_world=True, timeout=1.5, retries=3, concurrency=2, rate="5/30s", cache="5m",
    approval="ask", placement="worker", memory=1 << 30, output_limit=1000, task="never", sensitive=["a"],
    meta={"k": 1},
)
def options(a: int) -> None:
    "Do it."


main(*tools, options)
"""


def test_toolpost_accepts_every_spec(program, toolpost):
    path = program.with_name("all.py")
    path.write_text(ALL)
    path.chmod(0o755)
    shutil.copy(pathlib.Path(__file__).parent / "schemas.json", path.parent)
    done = toolpost("tools", "./all.py", "--json")
    assert done.returncode == 0, done
    found = {one["name"]: one for one in json.loads(done.stdout)["tools"]}
    cases = json.loads((path.parent / "schemas.json").read_text())["cases"]
    for index, case in enumerate(cases):
        schema = found[f"case_{index}"]["input_schema"]
        assert schema == case["spec"]["input_schema"], case["name"]
    assert found["options"]["policy"]["rate"] == {"calls": 5, "per": "30s"}, found["options"]
    assert all(found["options"]["annotations"].values())
    assert toolpost("call", "./all.py", "case_3", "a=1.5").returncode == 0, done
