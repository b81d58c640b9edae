"""`toolpost.compat.llm_factory_toolkit`: the test suite of llm_factory_toolkit, and our own tests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Coroutine, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")

from pydantic import BaseModel

import toolpost
from toolpost import ScriptModel
from toolpost.compat.llm_factory_toolkit import (
    BaseTool,
    ConfigurationError,
    LLMClient,
    ProviderError,
    StreamChunk,
    ToolError,
    ToolExecutionResult,
    ToolFactory,
    ToolSession,
    UnsupportedFeatureError,
    UsageEvent,
)
from toolpost.compat.llm_factory_toolkit.tools import ToolRuntime

TABLE = Path(__file__).with_name("llm_factory_toolkit_expected.toml")
PACKAGE = Path(toolpost.__file__).parents[1]
RELEASE = "llm_factory_toolkit-2.1.0"
# The sources are named by the environment, or stored in the checkout from which the tests run.
STORED = [Path(directory, f".dev/llm_factory_toolkit/{RELEASE}") for directory in [Path.cwd(), *Path.cwd().parents]]
NAMED = os.environ.get("TOOLPOST_LLM_FACTORY_TOOLKIT")
SOURCE = Path(NAMED) if NAMED else next(filter(Path.is_dir, STORED), STORED[0])

# The names of the original lead to our modules. Modules that we do not have consist of classes without any method, so
# that the other tests of a file run. Limits of wall time become limits of processor time, for loaded machines.
CONFTEST = """
import importlib, os, pkgutil, sys, time, types
import toolpost.compat.llm_factory_toolkit as toolkit

names = {"llm_factory_toolkit": toolkit}
for info in pkgutil.walk_packages(toolkit.__path__, toolkit.__name__ + "."):
    names[info.name.removeprefix("toolpost.compat.")] = importlib.import_module(info.name)

class Absent:
    def __init__(self, *args, **kwargs):
        if "PYTEST_CURRENT_TEST" in os.environ:
            raise NotImplementedError("absent from toolpost.compat.llm_factory_toolkit")

providers = ["_base", "_registry", "_util", "anthropic", "claude_code", "gemini", "openai", "xai"]
for name in ["providers", *(f"providers.{part}" for part in providers), "adapters", "adapters.claude_agent_sdk"]:
    module = names[f"llm_factory_toolkit.{name}"] = types.ModuleType(f"llm_factory_toolkit.{name}")
    module.__path__, module.__getattr__ = [], lambda attribute: Absent
    owner, _, part = module.__name__.rpartition(".")
    setattr(names[owner], part, module)
names["llm_factory_toolkit.tools.catalog"].LazyCatalogEntry = Absent
for name in ["MODEL_CATALOG", "ModelInfo", "_PROVIDER_PREFIXES"]:
    setattr(names["llm_factory_toolkit.models"], name, Absent)
sys.modules.update(names)
time.perf_counter = time.process_time
"""


@pytest.mark.skipif(
    not (SOURCE / "tests").is_dir(),
    reason=f"neither TOOLPOST_LLM_FACTORY_TOOLKIT nor .dev/llm_factory_toolkit has the sources of {RELEASE}",
)
def test_the_suite_of_the_original_fails_only_where_the_table_says(tmp_path: Path) -> None:
    pytest.importorskip("pytest_asyncio")
    shutil.copytree(SOURCE / "tests", tmp_path / "tests")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nmarkers = integration: calls a provider\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml", "tests"]
    ours = re.compile("_API_KEY$|^PYTEST_")
    env = {name: value for name, value in os.environ.items() if not ours.search(name)}
    env["PYTHONPATH"] = str(PACKAGE)
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    cases = list(xml.etree.ElementTree.parse(tmp_path / "report.xml").iter("testcase"))
    names = [f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}" for case in cases]
    not_passed = {name for name, case in zip(names, cases, strict=True) if len(case)}
    table = tomllib.loads(TABLE.read_text())
    assert len(cases) == table.pop("tests")
    # A group is a whole file of which no test passes.
    groups = {file: group["tests"] for file, group in table.pop("groups").items()}
    assert groups == {file: count for file, count in Counter(map(_file, names)).items() if file in groups}
    assert [name for name in names if _file(name) in groups and name not in not_passed] == []
    single = {name for name in not_passed if _file(name) not in groups}
    expected = {f"{file}.{test}" for file, tests in table.items() for test in tests}
    assert single - expected == set(), "new failures; fix them:\n" + run.stdout[-20_000:]
    assert expected - single == set(), f"these tests pass now; remove them from {TABLE.name}"


def _file(name: str) -> str:
    return name.partition(".")[0]


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def asks(text: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": "You are helpful."}, {"role": "user", "content": text}]


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"calls": [{"tool": tool, "args": args}], "usage": {"input": 10, "output": 5}}


def get_weather(location: str) -> ToolExecutionResult:
    """Get weather for a location."""
    data = {"temp": 20, "condition": "sunny", "location": location}
    return ToolExecutionResult(content=f"{data['temp']}C and {data['condition']} in {location}", payload=data)


LOCATION = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}


def weather_factory() -> ToolFactory:
    factory = ToolFactory()
    factory.register_tool(
        function=get_weather,
        name="get_weather",
        description="Gets current weather for a location",
        parameters=LOCATION,
        category="data",
        tags=["weather", "api"],
        group="api.weather",
    )
    return factory


def test_a_documented_program_runs_with_one_import_changed() -> None:
    model = ScriptModel([call("get_weather", location="London"), "It is {{ last.text }}."])
    client = LLMClient(model=model, tool_factory=weather_factory())
    result = run(client.generate(input=asks("What's the weather in London?"), use_tools=["get_weather"]))
    assert result.content == "It is 20C and sunny in London."
    content, payloads = result
    assert payloads == [
        {
            "tool_name": "get_weather",
            "metadata": {},
            "payload": {"temp": 20, "condition": "sunny", "location": "London"},
        }
    ]
    [message] = result.tool_messages
    assert (message["role"], message["content"]) == ("tool", "20C and sunny in London")
    assert [item["role"] for item in result.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert result.usage == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert client.tool_factory.get_tool_usage_counts() == {"get_weather": 1}


def test_the_transcript_is_the_input_of_the_next_run() -> None:
    seen: list[Any] = []

    def answer(messages: list[dict[str, Any]]) -> Any:
        seen.append(messages)
        return call("get_weather", location="Oslo") if len(seen) == 1 else "Sunny."

    client = LLMClient(model=ScriptModel(answer), tool_factory=weather_factory())
    first = run(client.generate(input=asks("Oslo?")))
    again = [*first.messages, {"role": "user", "content": "Sure?"}]
    second = run(client.generate(input=again))
    assert [message["role"] for message in seen[-1]][-5:] == ["user", "assistant", "tool", "assistant", "user"]
    assert seen[-1][-4]["calls"][0]["args"] == {"location": "Oslo"}
    assert second.messages == [*again, {"role": "assistant", "content": "Sunny."}]


def test_a_response_format_is_a_value_of_the_model() -> None:
    class WeatherInfo(BaseModel):
        city: str
        temperature: float

    model = ScriptModel(['{"city": "Paris", "temperature": "warm"}', '{"city": "Paris", "temperature": 21.5}'])
    client = LLMClient(model=model)
    result = run(client.generate(input=asks("Weather in Paris?"), response_format=WeatherInfo))
    assert result.content == WeatherInfo(city="Paris", temperature=21.5)
    client = LLMClient(model=ScriptModel(['{"a": 1}']))
    result = run(client.generate(input=asks("JSON."), response_format={"type": "json_object"}))
    assert json.loads(result.content) == {"a": 1}


def test_intents_are_planned_reviewed_and_executed() -> None:
    factory, ran = ToolFactory(), list[str]()

    def weather(location: str) -> ToolExecutionResult:
        ran.append(location)
        return get_weather(location)

    factory.register_tool(weather, "get_weather", "Get the weather.", LOCATION)
    client = LLMClient(model=ScriptModel([call("get_weather", location="Rome")]), tool_factory=factory)
    messages = asks("Rome?")
    intent = run(client.generate_tool_intent(input=messages, use_tools=["get_weather"]))
    [planned] = intent.tool_calls
    assert (planned.name, planned.arguments) == ("get_weather", {"location": "Rome"})
    assert ran == []
    results = run(client.execute_tool_intents(intent))
    assert ran == ["Rome"]
    assert results == [
        {
            "role": "tool",
            "tool_call_id": planned.id,
            "name": "get_weather",
            "content": "20C and sunny in Rome",
        }
    ]
    follow_up = [*messages, *intent.raw_assistant_message, *results]
    result = run(client.generate(input=follow_up, model=ScriptModel(["Sunny."])))
    assert (result.content, result.messages) == ("Sunny.", [*follow_up, {"role": "assistant", "content": "Sunny."}])
    [mocked] = run(client.execute_tool_intents(intent, mock_tools=True))
    assert mocked["content"] == "Mocked execution for tool 'get_weather'."


def test_an_intent_without_calls_is_an_answer() -> None:
    intent = run(LLMClient(model=ScriptModel(["No need."])).generate_tool_intent(input=asks("Hi")))
    assert (intent.content, intent.tool_calls) == ("No need.", None)


def test_a_stream_yields_chunks_and_ends_with_the_usage() -> None:
    async def read() -> list[StreamChunk]:
        model = ScriptModel([call("get_weather", location="Bern"), "It is sunny."])
        client = LLMClient(model=model, tool_factory=weather_factory())
        return [chunk async for chunk in await client.generate(input=asks("Bern?"), stream=True)]  # type: ignore[union-attr]

    chunks = run(read())
    assert "".join(chunk.content for chunk in chunks) == "It is sunny."
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def test_the_context_reaches_functions_and_no_model_replaces_it() -> None:
    seen: list[Any] = []

    def process_order(order_id: str, user_id: str) -> str:
        seen.append((order_id, user_id))
        return "done"

    factory = ToolFactory()
    parameters = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
    factory.register_tool(process_order, "process_order", "Process an order.", parameters)
    model = ScriptModel(
        [call("process_order", order_id="7", user_id="mallory"), call("process_order", order_id="7"), "ok"]
    )
    client = LLMClient(model=model, tool_factory=factory)
    result = run(client.generate(input=asks("Order 7"), tool_execution_context={"user_id": "alice"}))
    assert result.tool_messages[0]["content"].startswith("INVALID_INPUT: /user_id")
    factory.register_tool(lambda **values: seen.append(values["user_id"]) or "", "any", "Take all.", parameters)
    run(factory.dispatch_tool("any", '{"order_id": "7", "user_id": "mallory"}', {"user_id": "alice"}))
    wrong = run(factory.dispatch_tool("process_order", '{"order_id": 7}', {"user_id": "alice"}))
    assert seen == [("7", "alice"), "alice"]
    assert "expected string" in wrong.error and json.loads(wrong.content)["status"] == "argument_type_error"


def test_nested_calls_inherit_and_extend_the_context() -> None:
    async def outer(tool_runtime: Any) -> ToolExecutionResult:
        return await tool_runtime.call_tool("inner", arguments={}, context={"b": 2})  # type: ignore[no-any-return]

    factory = ToolFactory()
    factory.register_tool(outer, "outer", "Call the other.", {"type": "object", "properties": {}})
    factory.register_tool(lambda a, b, tool_call_depth: [a, b, tool_call_depth], "inner", "List.")
    assert run(factory.dispatch_tool("outer", "{}", {"a": 1})).payload == [1, 2, 1]
    runtime = ToolRuntime(factory, base_context={"a": 1})
    assert run(factory.dispatch_tool("inner", "{}", {"b": 3}, runtime=runtime)).payload == [1, 3, 0]


def test_mocked_tools_do_not_run() -> None:
    class Delete(BaseTool):
        NAME = "delete"
        DESCRIPTION = "Delete all."

        def execute(self, **kwargs: Any) -> ToolExecutionResult:
            raise AssertionError

    factory = ToolFactory()
    factory.register_tool_class(Delete)
    client = LLMClient(model=ScriptModel([call("delete"), "{{ last.text }}"]), tool_factory=factory)
    result = run(client.generate(input=asks("Delete."), mock_tools=True))
    assert result.content == "Mocked execution for tool 'delete'."


def test_a_run_ends_at_the_limit_of_requests_with_a_warning() -> None:
    model = ScriptModel(lambda messages: {"text": "so far", **call("get_weather", location=str(len(messages)))})
    client = LLMClient(model=model, tool_factory=weather_factory())
    result = run(client.generate(input=asks("Loop"), max_tool_iterations=2))
    assert result.content.startswith("so far\n\n[Warning: Max tool iterations (2) reached.")
    assert len(result.payloads) == 2
    model = ScriptModel(lambda messages: call("get_weather", location="Oslo"))
    result = run(client.generate(input=asks("Loop"), model=model))
    assert result.content.startswith("[Warning: Loop terminated.") and len(result.payloads) < 25


def test_long_outputs_are_truncated_for_the_model_only() -> None:
    factory = ToolFactory()
    factory.register_tool(lambda: "x" * 50, "long", "Return a long text.")
    client = LLMClient(model=ScriptModel([call("long"), "ok"]), tool_factory=factory)
    result = run(client.generate(input=asks("Go"), max_tool_output_chars=10))
    assert result.tool_messages[0]["content"].startswith("x" * 10 + "\n\n[TRUNCATED: Output was 50 chars")
    assert result.payloads[0]["payload"] == "x" * 50


def test_usage_events_have_calls_prices_and_metadata() -> None:
    events: list[UsageEvent] = []
    client = LLMClient(
        model=ScriptModel([call("get_weather", location="Oslo"), "ok"]),
        tool_factory=weather_factory(),
        on_usage=events.append,
        usage_metadata={"org": "acme"},
        pricing={"input_cost_per_1m": 1_000_000, "output_cost_per_1m": 2_000_000},
    )
    result = run(client.generate(input=asks("Oslo?"), usage_metadata={"user": "ada"}))
    assert [(event.iteration, event.cost_usd, event.tool_calls) for event in events] == [
        (1, 20.0, ["get_weather"]),
        (2, 0.0, []),
    ]
    assert events[0].metadata == {"org": "acme", "user": "ada"}
    assert result.cost_usd == 20.0


def test_a_model_finds_and_loads_the_tools_that_it_does_not_see() -> None:
    factory = weather_factory()
    factory.register_tool(lambda: "called", "call_human", "Call a human.")
    turns = [
        call("get_weather", location="Oslo"),
        call("browse_toolkit", query="weather"),
        call("load_tools", tool_names=["get_weather"]),
        call("get_weather", location="Oslo"),
        call("unload_tools", tool_names=["get_weather", "call_human"]),
        call("get_weather", location="Oslo"),
        "done",
    ]
    client = LLMClient(
        model=ScriptModel(turns), tool_factory=factory, core_tools=["call_human"], dynamic_tool_loading=True
    )
    session = client._build_dynamic_session()
    result = run(client.generate(input=asks("Weather?"), tool_session=session))
    hidden, browsed, loaded, called, unloaded, again = (message["content"] for message in result.tool_messages)
    assert "NOT_FOUND" in hidden and "NOT_FOUND" in again and called == "20C and sunny in Oslo"
    assert json.loads(unloaded)["refused_protected"] == ["call_human"]
    assert json.loads(browsed)["results"][0]["name"] == "get_weather"
    assert json.loads(loaded)["loaded"] == ["get_weather"]
    restored = ToolSession.from_dict(json.loads(json.dumps(session.to_dict())))
    assert restored.is_active("call_human") and restored.get_analytics()["calls"]["get_weather"] == 1


def test_another_model_searches_the_catalog() -> None:
    search = ScriptModel(['{"tool_names": ["get_weather", "invented"], "reasoning": "weather"}'])
    turns = [call("find_tools", intent="weather"), "{{ last.text }}"]
    client = LLMClient(model=ScriptModel(turns), tool_factory=weather_factory(), dynamic_tool_loading=search)
    found = json.loads(run(client.generate(input=asks("Weather?"))).content)
    assert [result["name"] for result in found["results"]] == ["get_weather"]


def test_tools_run_at_once_only_on_request() -> None:
    running = peak = 0

    async def work(n: int) -> str:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.02)
        running -= 1
        return str(n)

    factory = ToolFactory()
    factory.register_tool(work, "work", "Work.")
    for options, expected in [
        ({}, 1),
        ({"parallel_tools": True}, 4),
        ({"parallel_tools": True, "max_concurrent_tools": 2}, 2),
    ]:
        peak = 0
        turn = {"calls": [{"tool": "work", "args": {"n": n}} for n in range(4)]}
        client = LLMClient(model=ScriptModel([turn, "ok"]), tool_factory=factory)
        run(client.generate(input=asks("Work"), **options))  # type: ignore[arg-type]
        assert peak == expected


def test_options_without_a_counterpart_are_errors() -> None:
    client = LLMClient(model=ScriptModel(["x"]))
    for options in [{"web_search": {"size": 1}}, {"file_search": ["a"]}, {"top_k": 3}]:
        with pytest.raises(UnsupportedFeatureError, match=next(iter(options))):
            run(client.generate(input=asks("Hi"), **options))
    with pytest.raises(ConfigurationError, match="unknown provider"):
        run(LLMClient(model="claude-code/x").generate(input=asks("Hi")))
    with pytest.raises(ProviderError):
        run(LLMClient(model=ScriptModel([{"stop": "refusal"}])).generate(input=asks("Hi")))


def test_an_invalid_definition_is_not_registered() -> None:
    factory = weather_factory()
    for name, parameters in [("get weather", LOCATION), ("get_weather", {"type": "string"})]:
        with pytest.raises(ToolError, match="is invalid"):
            factory.register_tool(get_weather, name, "Get the weather.", parameters)
    assert factory.available_tool_names == []


def test_errors_of_tools_are_results() -> None:
    def fail() -> str:
        raise RuntimeError("secret")

    factory = ToolFactory()
    factory.register_tool(fail, "fail", "Fail.")
    factory.register_tool(lambda: ToolExecutionResult(content="no rows", error="empty"), "empty", "Find nothing.")
    result = run(factory.dispatch_tool("fail", "{}"))
    assert "secret" in result.error and json.loads(result.content)["status"] == "execution_error"
    assert run(factory.dispatch_tool("empty", "{}")).error == "empty"
    turns = iter([call("fail"), call("empty"), "ok"])
    seen: list[dict[str, Any]] = []

    def play(messages: list[dict[str, Any]]) -> Any:
        seen[:] = [message for message in messages if message["role"] == "tool"]
        return next(turns)

    run(LLMClient(model=ScriptModel(play), tool_factory=factory).generate(input=asks("Go")))
    assert [message["is_error"] for message in seen] == [True, True]
    assert "secret" not in seen[0]["text"] and "no rows" in seen[1]["text"]


def test_builtin_tools_are_those_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text('{"a": 1}')
    factory = ToolFactory()
    factory.register_builtins()
    evaluated = run(factory.dispatch_tool("safe_math_evaluator", '{"expression": "2 * (3 + 4)"}'))
    assert (evaluated.content, evaluated.payload) == ("14", 14.0)
    read = run(factory.dispatch_tool("read_local_file", '{"file_path": "a.json", "format": "json"}'))
    assert read.payload == {"a": 1}
    outside = run(factory.dispatch_tool("read_local_file", '{"file_path": "/etc/hostname"}'))
    assert "File read error" in outside.error


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """The requests to a provider at `openai-compatible/m`, which answers `ok`."""
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            requests.append({**body, "authorization": self.headers["authorization"]})
            choice = {"index": 0, "delta": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OPENAI_COMPATIBLE_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    yield requests
    server.shutdown()
    server.server_close()


def test_a_request_has_the_options_and_the_definitions(requests: list[dict[str, Any]]) -> None:
    described = {"type": "object", "properties": {"to": {"type": "string", "description": "The recipient."}}}
    factory = ToolFactory()
    for name in ("call_human", "send_email"):
        factory.register_tool(lambda **_: "sent", name, "Send a message.", described)
    client = LLMClient(
        "openai-compatible/m", tool_factory=factory, core_tools=["call_human"], dynamic_tool_loading=True
    )

    def definitions(session: ToolSession, **options: Any) -> dict[str, Any]:
        result = run(client.generate(input=asks("Hi"), tool_session=session, **options))
        assert result.content == "ok"
        return {tool["function"]["name"]: tool["function"]["parameters"] for tool in requests[-1]["tools"]}

    session = ToolSession(active_tools={"call_human", "send_email"}, token_budget=100)
    compact = {"type": "object", "properties": {"to": {"type": "string"}}}
    assert definitions(session) == {"call_human": described, "send_email": described}
    assert definitions(session, compact_tools=True) == {"call_human": described, "send_email": compact}
    session._token_counts = {"send_email": 80}
    assert definitions(session) == {"call_human": described, "send_email": compact}
    session.auto_compact = False
    assert definitions(session, temperature=0.5, reasoning_effort="low")["send_email"] == described
    assert (requests[-1]["temperature"], requests[-1]["reasoning_effort"]) == (0.5, "low")
    assert "temperature" not in requests[0]


def test_a_client_has_its_own_access(requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    url = os.environ["OPENAI_COMPATIBLE_BASE_URL"]
    monkeypatch.setenv("OPENAI_COMPATIBLE_BASE_URL", "http://127.0.0.1:1/v1")
    client = LLMClient("openai-compatible/m", "s3cret", base_url=url, timeout=5, max_retries=0)
    assert run(client.generate(input=asks("Hi"), max_output_tokens=7)).content == "ok"
    assert requests[0]["authorization"] == "Bearer s3cret"
    assert 7 in (requests[0].get("max_tokens"), requests[0].get("max_completion_tokens"))
    with pytest.raises(ProviderError, match="web_search"):
        run(client.generate(input=asks("Hi"), web_search=True))


def test_the_model_sees_the_chosen_tools(requests: list[dict[str, Any]]) -> None:
    client = LLMClient("openai-compatible/m", tool_factory=weather_factory())
    client.register_tool(lambda: "sent", "send_email")
    for use_tools, expected in [([], ["get_weather", "send_email"]), (["send_email"], ["send_email"]), (None, [])]:
        run(client.generate(input=asks("Hi"), use_tools=use_tools))
        assert [tool["function"]["name"] for tool in requests[-1].get("tools", ())] == expected


def test_a_tool_has_the_time_of_the_run() -> None:
    factory = ToolFactory()
    factory.register_tool(lambda: asyncio.sleep(60), "sleep", "Sleep.")
    client = LLMClient(model=ScriptModel([call("sleep"), "{{ last.text }}"]), tool_factory=factory)
    assert "TIMEOUT" in run(client.generate(input=asks("Sleep"), tool_timeout=0.05)).content
