"""What llm_factory_toolkit 2.1.0 answers, as data for the tests of the catalog.

    python3 golden.py DIRECTORY           installs the library into DIRECTORY/venv and writes DIRECTORY/golden.json
    DIRECTORY/venv/bin/python golden.py --bench
                                       prints how long the library's own search takes, in microseconds

The library comes from the package index, with its own tests, whose catalogs and queries are recorded while they run.
Nothing of it is kept in this repository.
"""

import ast
import asyncio
import importlib
import io
import json
import logging
import pathlib
import subprocess
import sys
import tarfile
import time

VERSION = "2.1.0"
PACKAGE = f"llm-factory-toolkit=={VERSION}"
META = ["load_tools", "load_tool_group", "unload_tool_group", "unload_tools"]


# --- Set-up -----------------------------------------------------------------------------------------------------------


def set_up(directory: pathlib.Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    python = directory / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory / "venv")], check=True)
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", PACKAGE, "pytest", "pytest-asyncio"], check=True)
    archive = directory / f"llm_factory_toolkit-{VERSION}.tar.gz"
    if not archive.exists():
        subprocess.run(
            [*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", str(directory), PACKAGE], check=True
        )
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    tests = directory / f"llm_factory_toolkit-{VERSION}" / "tests"
    subprocess.run([str(python), __file__, "--generate", str(tests), str(directory / "golden.json")], check=True)


# --- A catalog of our own ---------------------------------------------------------------------------------------------


def parameters(**names: str) -> dict:
    properties = {name: {"type": kind, "description": f"The {name}."} for name, kind in names.items()}
    return {"type": "object", "properties": properties, "required": list(names)}


OFFICE = [
    ("find_contact", "Find a person in the address book.", "crm", "crm.contacts", ["person", "lookup"], parameters(name="string")),
    ("add_contact", "Add a person to the address book.", "crm", "crm.contacts", ["person"], parameters(name="string", mail="string")),
    ("move_deal", "Move a deal to another stage.", "crm", "crm.pipeline", ["deal", "sale"], parameters(deal="string", stage="string")),
    ("close_deal", "Close a deal.", "crm", "crm.pipeline", ["deal", "sale"], parameters(deal="string")),
    ("crm_summary", "Count people and deals.", "crm", None, ["report"], parameters()),
    ("send_letter", "Send a letter by post.", "mail", "mail", ["post"], parameters(to="string", text="string")),
    ("send_parcel", "Send a parcel by post.", "mail", "mail", ["post"], parameters(to="string", weight="number")),
    ("track_parcel", "See where a parcel is.", "mail", "mail.tracking", ["post"], parameters(number="string")),
    ("make_tea", "Boil water: «très chaud» ☕ 🍵.", "kitchen", None, [], parameters(cups="integer")),
    ("count_files", "Count the files of a directory.", None, None, [], parameters(directory="string")),
    (
        "plan_trip",
        "Plan a trip.",
        "travel",
        "travel",
        ["journey"],
        {
            "type": "object",
            "properties": {
                "stops": {
                    "type": "array",
                    "description": "Where to stop.",
                    "items": {
                        "type": "object",
                        "description": "One stop.",
                        "properties": {
                            "city": {"type": "string", "description": "The city.", "default": "Oslo"},
                            "description": {"type": "string", "description": "What to see."},
                        },
                    },
                },
                "nights": {"type": "integer", "description": "How many nights.", "default": 1},
            },
            "required": ["stops"],
        },
    ),
]


def office():
    from llm_factory_toolkit.tools import InMemoryToolCatalog, ToolFactory

    factory = ToolFactory()
    for name, description, category, group, tags, schema in OFFICE:
        factory.register_tool(
            function=lambda **_: "done", name=name, description=description, parameters=schema,
            category=category, group=group, tags=tags,
        )
    return factory, InMemoryToolCatalog(factory)


def tools_of(catalog) -> list:
    return [
        {
            "name": entry.name, "description": entry.description, "category": entry.category,
            "group": entry.group, "tags": list(entry.tags), "parameters": entry.parameters,
        }
        for entry in catalog.list_all()
    ]


# --- Meta-tools -------------------------------------------------------------------------------------------------------

BROWSE = [
    ("all", {}),
    ("page", {"limit": 3, "offset": 4}),
    ("last_page", {"limit": 4, "offset": 8}),
    ("past_the_end", {"limit": 4, "offset": 40}),
    ("nulls", {"query": None, "category": None, "group": None, "limit": 2}),
    ("empty_query", {"query": "", "limit": 2}),
    ("exact_name", {"query": "close_deal"}),
    ("one_word", {"query": "parcel"}),
    ("capitals", {"query": "PARCEL"}),
    ("plural", {"query": "parcels"}),
    ("two_words", {"query": "close deal"}),
    ("no_match", {"query": "submarine"}),
    ("category", {"category": "mail"}),
    ("category_capitals", {"category": "MAIL"}),
    ("category_unknown", {"category": "none such"}),
    ("group", {"group": "crm.contacts"}),
    ("group_prefix", {"group": "mail"}),
    ("group_with_category_fallback", {"group": "crm"}),
    ("group_is_no_part_of_a_word", {"group": "crm.con"}),
    ("query_in_category", {"query": "deal", "category": "crm"}),
    ("word_of_the_category_alone", {"query": "kitchen"}),
]

# A name, the session, and calls that are made one after another.
MEETINGS = [
    ("load", {}, [
        ("load_tools", {"tool_names": ["send_letter", "close_deal"]}),
        ("load_tools", {"tool_names": ["close_deal", "make_tea"]}),
        ("browse_toolkit", {"category": "mail"}),
    ]),
    ("load_invalid", {}, [("load_tools", {"tool_names": ["send_leter", "parcel", "zzz", "make_tea"]})]),
    ("load_nothing", {}, [("load_tools", {"tool_names": []})]),
    ("load_twice_in_one_call", {}, [("load_tools", {"tool_names": ["make_tea", "make_tea"]})]),
    ("load_core", {"core": ["make_tea"]}, [("load_tools", {"tool_names": ["make_tea", "load_tools"]})]),
    ("load_limit", {"max_tools": 7}, [("load_tools", {"tool_names": ["send_letter", "close_deal", "make_tea"]})]),
    ("load_group", {}, [
        ("load_tool_group", {"group": "crm"}),
        ("load_tool_group", {"group": "crm.pipeline"}),
        ("load_tool_group", {"group": "none"}),
    ]),
    ("load_group_limit", {"max_tools": 7}, [("load_tool_group", {"group": "crm"})]),
    ("unload", {"core": ["make_tea"]}, [
        ("load_tools", {"tool_names": ["send_letter", "close_deal"]}),
        ("unload_tools", {"tool_names": ["send_letter", "count_files", "make_tea", "browse_toolkit", "unload_tools"]}),
        ("unload_tools", {"tool_names": []}),
    ]),
    ("unload_group", {"core": ["close_deal"]}, [
        ("load_tools", {"tool_names": ["find_contact", "move_deal", "crm_summary"]}),
        ("unload_tool_group", {"group": "crm"}),
        ("unload_tool_group", {"group": "none"}),
    ]),
    ("budget", {"token_budget": 20000}, [
        ("browse_toolkit", {"category": "kitchen"}),
        ("load_tools", {"tool_names": ["send_letter", "plan_trip"]}),
        ("unload_tools", {"tool_names": ["send_letter"]}),
        ("load_tool_group", {"group": "mail"}),
        ("unload_tool_group", {"group": "mail"}),
    ]),
    ("find", {"find": '{"tool_names": ["send_parcel", "no_such_tool", 7], "reasoning": "it is heavy"}'}, [
        ("find_tools", {"intent": "get a heavy thing to my aunt"}),
    ]),
    ("find_none", {"find": '{"tool_names": [], "reasoning": "nothing fits"}'}, [("find_tools", {"intent": "dive"})]),
    ("find_garbage", {"find": "I would take send_parcel."}, [("find_tools", {"intent": "send a parcel"})]),
    ("find_failure", {"find": None}, [("find_tools", {"intent": "send a parcel"})]),
]


class SearchAgent:
    def __init__(self, answer):
        self.answer = answer

    async def generate(self, **_):
        if self.answer is None:
            raise RuntimeError("the line is down")
        return type("Result", (), {"content": self.answer})()


def meet(options: dict, calls: list) -> dict:
    from llm_factory_toolkit.tools import ToolSession, meta_tools

    factory, catalog = office()
    session = ToolSession(max_tools=options.get("max_tools", 50), token_budget=options.get("token_budget"))
    core = options.get("core", [])
    session.load([*core, "find_tools" if "find" in options else "browse_toolkit", *META])
    results = []
    for name, arguments in calls:
        function = getattr(meta_tools, name)
        given = {"tool_catalog": catalog, "tool_session": session}
        if name.startswith("unload"):
            given["core_tools"] = core
        if name == "unload_tools":
            del given["tool_catalog"]
        if name == "find_tools":
            answer = asyncio.run(function(**arguments, **given, _search_agent=SearchAgent(options["find"])))
        else:
            answer = function(**arguments, **given)
        results.append({"tool": name, "arguments": arguments, "body": json.loads(answer.content), "payload": answer.payload})
    return {"options": options, "calls": results, "session": session.to_dict()}


# --- Sessions ---------------------------------------------------------------------------------------------------------


def sessions() -> list:
    from llm_factory_toolkit.tools import ToolSession

    cases = []

    def case(name, options, steps):
        session = ToolSession(**options)
        done = []
        for verb, argument in steps:
            if verb == "load":
                result = session.load(list(argument), token_counts=argument)
            elif verb == "unload":
                session.unload(argument)
                result = None
            elif verb == "call":
                session.record_tool_call(argument)
                result = None
            else:
                session.reset_analytics()
                result = None
            done.append({"verb": verb, "argument": argument, "result": result, "budget": session.get_budget_usage()})
        analytics = session.get_analytics()
        again = ToolSession.from_dict(json.loads(json.dumps(session.to_dict())))
        cases.append({
            "case": name, "options": options, "steps": done, "saved": session.to_dict(),
            "read_again": again.to_dict(), "analytics": analytics,
        })

    case("new", {}, [])
    case("named", {"session_id": "s-1", "metadata": {"user": "ada", "n": 1}, "max_tools": 3, "auto_compact": False}, [])
    case("limit", {"max_tools": 2}, [("load", {"a": 1, "b": 2, "c": 3}), ("unload", ["a"]), ("load", {"c": 3})])
    case("budget", {"token_budget": 100}, [
        ("load", {"a": 40}), ("load", {"b": 35}), ("load", {"c": 26, "d": 0}), ("load", {"e": 15}),
        ("unload", ["a"]), ("load", {"c": 26}),
    ])
    case("no_budget_at_all", {"token_budget": 0}, [("load", {"a": 0}), ("load", {"b": 1})])
    case("analytics", {}, [
        ("load", {"a": 1, "b": 1, "c": 1}), ("call", "a"), ("call", "a"), ("call", "b"), ("unload", ["a", "z"]),
        ("load", {"a": 1}), ("call", "a"),
    ])
    case("reset", {}, [("load", {"a": 1}), ("call", "a"), ("reset", None), ("load", {"b": 1})])
    partial = [{}, {"active_tools": ["b", "a"]}, {"max_tools": 5, "token_budget": 9}]
    for number, data in enumerate(partial):
        cases.append({"case": f"partial_{number}", "data": data, "read_again": ToolSession.from_dict(data).to_dict()})
    return cases


# --- Dispatch ---------------------------------------------------------------------------------------------------------


def dispatch() -> list:
    from llm_factory_toolkit.tools import ToolFactory
    from llm_factory_toolkit.tools.models import ToolExecutionResult

    def fails(text: str):
        raise ValueError("broken inside")

    async def slow(text: str):
        await asyncio.sleep(30)

    text = parameters(text="string")
    factory = ToolFactory()
    for name, function, schema in [
        ("echo", lambda text: text, text),
        ("no_arguments", lambda: "nothing needed", parameters()),
        ("table", lambda text: {"text": text, "n": 1}, text),
        ("several", lambda text: [text, text], text),
        ("number", lambda text: 7, text),
        ("nothing", lambda text: None, text),
        ("apart", lambda text: ToolExecutionResult(content="for the model", payload={"for": text}), text),
        ("fails", fails, text),
        ("slow", slow, text),
        ("who", lambda user_id: f"you are {user_id}", parameters()),
    ]:
        factory.register_tool(function=function, name=name, description="A tool.", parameters=schema)
    ada = {"user_id": "ada"}
    rows = [
        ("text", "echo", '{"text": "hello"}', {}),
        ("object", "table", '{"text": "hello"}', {}),
        ("no_arguments_text", "no_arguments", "", {}),
        ("content_and_payload", "apart", '{"text": "hello"}', {}),
        ("list", "several", '{"text": "hello"}', {}),
        ("number", "number", '{"text": "hello"}', {}),
        ("nothing", "nothing", '{"text": "hello"}', {}),
        ("unknown", "ecco", '{"text": "hello"}', {}),
        ("not_json", "echo", '{"text": ', {}),
        ("not_an_object", "echo", '["hello"]', {}),
        ("wrong_type", "echo", '{"text": 7}', {}),
        ("missing", "echo", "{}", {}),
        ("raises", "fails", '{"text": "hello"}', {}),
        ("too_slow", "slow", '{"text": "hello"}', {"tool_timeout": 0.05}),
        ("injected", "who", "{}", {"tool_execution_context": ada}),
        ("injected_overridden", "who", '{"user_id": "bob"}', {"tool_execution_context": ada}),
        ("mock", "echo", '{"text": "hello"}', {"use_mock": True}),
    ]
    cases = []
    for name, tool, arguments, options in rows:
        answer = asyncio.run(factory.dispatch_tool(tool, arguments, **{key: dict(value) if isinstance(value, dict) else value for key, value in options.items()}))
        status, content = "success", answer.content
        try:
            body = json.loads(content)
            if answer.error is not None:
                status = body.get("status", "unexpected_type")
        except ValueError:
            pass
        cases.append({
            "case": name, "tool": tool, "arguments": arguments, "options": options, "status": status,
            "content": content if status == "success" else None, "payload": answer.payload,
        })
    return cases


# --- Their own tests --------------------------------------------------------------------------------------------------

RECORDED = [
    "test_relevance_score", "test_tool_catalog", "test_large_catalog_audit", "test_tool_groups",
    "test_browse_pagination", "test_scale_stress", "test_meta_tools", "test_lazy_catalog",
]


def recorded(tests: pathlib.Path) -> tuple[list, list]:
    """Every search that their tests make, and what it gives, while the tests run."""
    import pytest
    from llm_factory_toolkit.tools.catalog import InMemoryToolCatalog

    catalogs, searches, seen = [], [], set()
    plain = InMemoryToolCatalog.search

    def search(self, query=None, category=None, tags=None, group=None, limit=10, offset=0, min_score=0.0, include_params=False):
        found = plain(self, query=query, category=category, tags=tags, group=group, limit=limit, offset=offset,
                      min_score=min_score, include_params=include_params)
        # Without parameters, so that what is lazy stays so.
        tools = [
            {"name": e.name, "description": e.description, "category": e.category, "group": e.group, "tags": list(e.tags)}
            for e in self._entries.values()
        ]
        if tools not in catalogs:
            catalogs.append(tools)
        row = {
            "catalog": catalogs.index(tools), "query": query, "category": category, "tags": tags, "group": group,
            "limit": limit, "offset": offset, "min_score": min_score,
        }
        key = json.dumps(row)
        if key not in seen:
            seen.add(key)
            searches.append({**row, "names": [entry.name for entry in found], "total": self._last_search_total})
        return found

    InMemoryToolCatalog.search = search
    try:
        arguments = ["-q", "--no-header", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "asyncio_mode=auto"]
        pytest.main([*arguments, *(str(tests / f"{name}.py") for name in RECORDED)])
    finally:
        InMemoryToolCatalog.search = plain
    return catalogs, searches


def scenarios(tests: pathlib.Path) -> dict:
    """The catalog of their longest scenario, what its users ask for, and which tools the tests want to see."""
    from llm_factory_toolkit.tools import InMemoryToolCatalog, ToolFactory

    module = importlib.import_module("test_simulation_crm")
    factory = ToolFactory()
    for function, name, description, schema, category, tags in module.ALL_TOOLS:
        factory.register_tool(function=function, name=name, description=description, parameters=schema, category=category, tags=tags)
    catalog = InMemoryToolCatalog(factory)
    questions = []
    for node in ast.parse((tests / "test_simulation_crm.py").read_text()).body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or not node.name.startswith("test_"):
            continue
        prompts, wanted = [], []
        for part in ast.walk(node):
            if isinstance(part, ast.Dict):
                pairs = {key.value: value for key, value in zip(part.keys, part.values) if isinstance(key, ast.Constant)}
                if getattr(pairs.get("role"), "value", None) == "user" and isinstance(pairs.get("content"), ast.Constant):
                    prompts.append(pairs["content"].value)
            if isinstance(part, ast.Call) and getattr(part.func, "attr", None) == "is_active" and isinstance(part.args[0], ast.Constant):
                wanted.append(part.args[0].value)
        questions.extend({"query": prompt, "wanted": sorted(set(wanted))} for prompt in prompts if wanted)
    # Each tool sought by the words of its name, and by its tags.
    for entry in catalog.list_all():
        questions.append({"query": entry.name.replace("_", " "), "wanted": [entry.name]})
        questions.append({"query": " ".join(entry.tags), "wanted": [entry.name]})
        questions.append({"query": f"{entry.name.replace('_', ' ')}s", "wanted": [entry.name]})
    for question in questions:
        question["names"] = [entry.name for entry in catalog.search(query=question["query"], limit=10)]
    return {"tools": tools_of(catalog), "questions": questions}


def generate(tests: pathlib.Path, target: pathlib.Path) -> None:
    sys.path.insert(0, str(tests))
    logging.disable(logging.CRITICAL)
    factory, catalog = office()
    catalogs, searches = recorded(tests)
    golden = {
        "version": VERSION,
        "office": tools_of(catalog),
        "groups": {
            "list_groups": catalog.list_groups(),
            "list_categories": catalog.list_categories(),
            "tools_in_group": {name: catalog.get_tools_in_group(name) for name in ["crm", "crm.contacts", "mail", "crm.con", "none"]},
        },
        "definitions": {
            name: {"full": registration.definition, "compact": factory._compact_definition(registration.definition)}
            for name, registration in factory.registrations.items()
        },
        "savings": catalog.estimate_token_savings(),
        "browse": [{"case": name, **meet({}, [("browse_toolkit", arguments)])} for name, arguments in BROWSE],
        "meetings": [{"case": name, **meet(options, calls)} for name, options, calls in MEETINGS],
        "sessions": sessions(),
        "dispatch": dispatch(),
        "catalogs": catalogs,
        "searches": searches,
        "scenarios": scenarios(tests),
    }
    written = io.StringIO()
    json.dump(golden, written, indent=1)
    target.write_text(written.getvalue())


# --- Speed ------------------------------------------------------------------------------------------------------------

# The same catalogs and queries as in examples/search_cost.rs.
NOUNS = ["invoice", "customer", "parcel", "ticket", "report", "meeting", "order", "account", "document", "task"]
VERBS = ["create", "update", "delete", "find", "list", "send", "archive", "approve", "export", "count"]
QUERIES = [("one word", "invoice"), ("three words", "approve customer order"), ("no match", "submarine")]


def bench() -> None:
    from llm_factory_toolkit.tools import InMemoryToolCatalog, ToolFactory

    logging.disable(logging.CRITICAL)
    rows = {}
    for size in (500, 10_000):
        factory = ToolFactory()
        for number in range(size):
            verb, noun = VERBS[number % 10], NOUNS[number // 10 % 10]
            factory.register_tool(
                function=lambda **_: "done", name=f"{verb}_{noun}_{number}",
                description=f"{verb.capitalize()} the {noun} of department {number // 100}, with its history and notes.",
                parameters=parameters(id="string", note="string"), category=noun, group=f"office.{noun}", tags=[verb, noun],
            )
        begin = time.perf_counter()
        catalog = InMemoryToolCatalog(factory)
        rows[f"{size} build"] = (time.perf_counter() - begin) * 1e6
        for name, query in QUERIES:
            times = []
            for _ in range(12 if size > 1000 else 60):
                begin = time.perf_counter()
                catalog.search(query=query)
                times.append((time.perf_counter() - begin) * 1e6)
            rows[f"{size} {name}"] = sorted(times)[len(times) // 10]
    print(json.dumps(rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bench"]:
        bench()
    elif sys.argv[1:2] == ["--generate"]:
        generate(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
    elif len(sys.argv) == 2:
        set_up(pathlib.Path(sys.argv[1]).resolve())
    else:
        sys.exit(__doc__)
