"""Tool programs: the executable protocol, one-shot and resident.

TOOLPOST_AUTHOR=typescript runs the same table with the programs of the TypeScript package.
"""

import http.server
import json
import os
import pathlib
import pty
import signal
import subprocess
import sys
import threading

import author
import pytest

TYPESCRIPT = os.environ.get("TOOLPOST_AUTHOR") == "typescript"
DATA = (
    pathlib.Path(__file__).parents[3] / "typescript" / "test" / "programs"
    if TYPESCRIPT
    else pathlib.Path(__file__).parent / "data"
)
PROGRAM, DEMO = (DATA / (name + (".js" if TYPESCRIPT else ".py")) for name in ("program", "demo"))
RUNTIME = "node" if TYPESCRIPT else sys.executable
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(pathlib.Path(author.__file__).parents[1])}


def run(*words, stdin=None, cwd=None, program=PROGRAM):
    """The exit code, the lines of standard output as JSON, and stderr."""
    command = [RUNTIME, str(program), *words]
    given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, cwd=cwd, **given)
    return done.returncode, done.stdout, done.stderr


def answer(*words, **options):
    code, out, _ = run(*words, **options)
    return code, json.loads(out)


def lines(*words, **options):
    code, out, _ = run(*words, **options)
    return code, [json.loads(line) for line in out.splitlines()]


def test_discovery():
    code, found = answer("--discover")
    assert code == 0 and (found["name"], found["version"]) == ("program", "1.2.3")
    assert (found["protocol"], found["resident"]) == ("0.1+toolpost.1", True)
    greet = found["tools"][0]
    assert greet == {
        "name": "greet",
        "summary": "Greet a person.",
        "streaming": False,
        "session_mode": False,
        "description": "Greet a person.\n\nMore about it.",
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Name of the person."},
                "times": {
                    "type": "integer",
                    "description": "Number of greetings.",
                    "minimum": 1,
                    "maximum": 10,
                    "default": 1,
                },
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        "output_schema": {"type": "string"},
        "tags": ["text"],
        "annotations": {"read_only": True},
        "examples": [{"name": "Ada"}],
    }
    modes = {tool["name"]: (tool["streaming"], tool["session_mode"]) for tool in found["tools"]}
    assert modes["count"] == (True, False) and modes["guess"] == (False, True)
    assert found["resources"] == [
        {"tags": [], "uri_pattern": "notes://{user}", "summary": "A note.", "mime_types": ["text/plain"]}
    ]
    arguments = {"text": "", "style": ""}
    assert found["prompts"] == [{"name": "review", "summary": "Review a text.", "arguments": arguments, "tags": []}]
    assert answer("--tools")[1]["tools"][0] == {"name": "greet", "summary": "Greet a person."}
    assert answer("--resources")[1] == {"resources": found["resources"]}
    assert answer("greet", "--prompts")[1] == {"prompts": found["prompts"]}
    manifest = answer("greet", "--manifest")[1]
    assert manifest["schema"] == greet["schema"] and manifest["description"] == greet["description"]
    assert run("--version")[1] == "program 1.2.3\n"


def test_help():
    for words in ([], ["--help"], ["-h"]):
        code, text, _ = run(*words)
        assert code == 0 and "A program of every kind" in text and "greet       Greet a person." in text
    code, text, _ = run("greet", "--help")
    assert code == 0 and "--times INTEGER  Number of greetings. [at least 1; at most 10; default 1]" in text


def test_calls():
    hello = {"status": "success", "result": {"result": "Hello, Ada. Hello, Ada."}}
    assert answer("greet", '{"name": "Ada", "times": 2}') == (0, hello)
    assert answer("greet", "--name", "Ada", "--times=2") == (0, hello)
    assert answer("greet", "-", stdin='{"name": "Ada", "times": 2}') == (0, hello)
    assert answer("add", "--a=1", "--b=2.5") == (0, {"status": "success", "result": {"result": 3.5}})
    moved = {"status": "success", "result": {"x": 6, "y": 0}}
    assert answer("move", "--point", '{"x": 1}', "--by", "2", "--by", "3") == (0, moved)
    assert answer("move", '{"point": {"x": 1}, "by": [5]}') == (0, moved)
    assert answer("facts", "--a", "1", "--b=2")[1]["result"]["rest"] == {"a": 1, "b": 2}
    # The flag of a string parameter stays text, even if it looks like a number or a command.
    assert answer("greet", "--name", "7")[1]["result"]["result"] == "Hello, 7."
    assert answer("greet", "--name", "--discover")[1]["result"]["result"] == "Hello, --discover."


def test_arguments_from_a_file(tmp_path):
    (tmp_path / "arguments.json").write_text('{"name": "Ada"}')
    assert answer("greet", "@arguments.json", cwd=tmp_path)[1]["result"]["result"] == "Hello, Ada."
    assert answer("greet", "@missing.json", cwd=tmp_path)[1]["error"]["code"] == "INVALID_PATH"


def test_dialect_0_2():
    assert answer('{"command": "greet", "params": {"name": "Ada"}}')[1]["result"]["result"] == "Hello, Ada."


@pytest.mark.parametrize(
    "words, code, error",
    [
        (["nothing"], 2, "NOT_FOUND"),
        (["greet"], 1, "MISSING_PARAM"),
        (["greet", '{"name": 7}'], 1, "INVALID_INPUT"),
        (["greet", '{"name": "Ada", "times": 99}'], 1, "INVALID_INPUT"),
        (["greet", "{"], 2, "INVALID_INPUT"),
        (["greet", "[]"], 2, "INVALID_INPUT"),
        (["greet", "-"], 1, "MISSING_PARAM"),
        (["greet", "--nmae", "Ada"], 2, "INVALID_INPUT"),
        (["greet", "--name"], 2, "INVALID_INPUT"),
        (["greet", "--name", "a", "--name", "b"], 2, "INVALID_INPUT"),
        (["greet", "--name", "a", "{}"], 2, "INVALID_INPUT"),
        (["greet", "Ada"], 2, "INVALID_INPUT"),
        (["sample", "--sample-via", "ftp://x"], 2, "INVALID_INPUT"),
        (["count", '{"to": 1}'], 1, "INVALID_INPUT"),
        (["guess"], 1, "INVALID_INPUT"),
        (["sample"], 1, "PRECONDITION"),
        (["ask"], 1, "PRECONDITION"),
        (["--resource", "notes://nobody"], 1, "NOT_FOUND"),
        (["--resource", "other://ada"], 1, "NOT_FOUND"),
        (["--prompt", "review", "{}"], 1, "MISSING_PARAM"),
        (["--prompt", "other"], 1, "NOT_FOUND"),
        (["--resource"], 2, "MISSING_PARAM"),
        (["fail", "--code", "CONFLICT"], 1, "CONFLICT"),
        (["fail", "--code", "PERMISSION"], 5, "PERMISSION"),
        (["fail", "--code", "DEPENDENCY"], 4, "DEPENDENCY"),
        (["fail", "--code", "OVERLOADED"], 4, "DEPENDENCY"),
        (["fail", "--code", "LIMIT"], 6, "DEPENDENCY"),
        (["fail", "--code", "CANCELLED"], 130, "TIMEOUT"),
        (["nap", "--seconds", "5"], 4, "TIMEOUT"),
        (["doze", "--seconds", "5"], 4, "TIMEOUT"),
        (["here", "--working-dir", "/no/such"], 1, "INVALID_PATH"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_have_codes_and_exit_codes(words, code, error):
    found, envelope = answer(*words)
    assert (found, envelope["status"], envelope["error"]["code"]) == (code, "error", error)


def test_errors_name_the_parameter():
    error = answer("greet", '{"name": "Ada", "tmies": 2}')[1]["error"]
    assert error["message"] == "/tmies: expected only the properties name, times, found `tmies`"
    assert error["suggestion"] == "Did you mean `times`?" and error["context"]["pointer"] == "/tmies"
    error = answer("greet", "--nmae", "Ada")[1]["error"]
    assert (error["message"], error["suggestion"]) == ("`greet` has no flag `--nmae`", "Did you mean `--name`?")
    assert answer("gret")[1]["error"]["suggestion"] == "Did you mean `greet`?"


def test_an_internal_error_is_explained_on_stderr_only():
    code, out, err = run("fail")
    error = json.loads(out)["error"]
    assert code == 1 and error["code"] == "INTERNAL" and "secret" not in out
    call = error["context"]["call"]
    outer, inner = ("RangeError", "TypeError: ") if TYPESCRIPT else ("ValueError", "KeyError: '")
    assert f"error: call {call}: {outer}: outer secret\n  caused by: {inner}inner secret" in err


def test_validation():
    assert answer("greet", "--validate", '{"name": "Ada"}') == (0, {"valid": True})
    code, found = answer("greet", "--validate", "{}")
    assert code == 1 and not found["valid"]
    error = found["errors"][0]
    assert (error["type"], error["loc"], error["code"]) == ("missing", ["name"], "MISSING_PARAM")
    assert answer("greet", "--validate", "{")[0] == 2


def test_stray_output_and_input_are_not_part_of_the_protocol():
    code, out, err = run("greet", "--name", "Ada")
    assert code == 0 and len(out.splitlines()) == 1
    assert "a stray print" in err and "a stray write" in err
    assert answer("read_input", stdin="lines of the protocol")[1]["result"]["result"] == ""


def test_streams_and_notifications():
    code, found = lines("add", "--stream", '{"a": 1, "b": 2}')
    assert code == 0 and found == [
        {"type": "progress", "message": "adding", "percent": 50},
        {"type": "log", "level": "warning", "message": "slow"},
        {"type": "result", "status": "success", "result": {"result": 3}},
    ]
    _, out, err = run("add", '{"a": 1, "b": 2}')
    notices = [json.loads(line) for line in err.splitlines()]
    assert notices[0] == {"type": "notification", "kind": "progress", "message": "adding", "percent": 50}
    assert len(out.splitlines()) == 1
    code, found = lines("count", "--stream", '{"to": 2}')
    assert [line["type"] for line in found] == ["progress", "progress", "artifact", "result"]
    assert found[2] == {"type": "artifact", "name": "log.txt", "uri": "data:text/plain;base64,ZG9uZQ=="}
    code, found = lines("fail", "--stream", "--code", "CONFLICT")
    assert code == 1 and "type" not in found[-1]


def test_sessions():
    code, found = lines("guess", "--session", stdin='{"value": 3}\n\n{"action": "quit"}\n')
    assert code == 0 and found == [
        {"type": "session_start", "message": "First?", "prompt": "> ", "schema": {"type": "integer"}},
        {"type": "awaiting_input", "message": "Second?", "prompt": "> "},
        {"type": "session_end", "status": "success"},
        {"status": "success", "result": {"result": "3 None"}},
    ]
    # The end of the input declines one question; a second one ends the session.
    assert lines("guess", "--session", stdin='{"value": 3}\n')[0] == 0
    assert lines("guess", "--session", stdin="")[1][-1]["error"]["code"] == "TIMEOUT"
    assert lines("guess", "--session", stdin='{"value": "x"}\n')[1][-1]["error"]["code"] == "INVALID_INPUT"
    assert lines("guess", "--session", stdin="no json\n")[1][-1]["error"]["code"] == "INVALID_INPUT"


def test_sampling_over_lines():
    command = [RUNTIME, str(PROGRAM), "sample", "--sample-via", "stdin"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        request = json.loads(process.stdout.readline())
        assert request.pop("id") and request == {
            "type": "sample_request",
            "prompt": "Why?",
            "max_tokens": 1000,
            "system": "short",
        }
        process.kill()


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"content": f"{asked['prompt']} Because."}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_sampling_over_http():
    with http.server.HTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        assert answer("sample", "--sample-via", url)[1]["result"]["result"] == "Why? Because."
        server.shutdown()
    assert answer("sample", f"--sample-via={url}")[1]["error"]["code"] == "DEPENDENCY"


def test_partial_results():
    code, found = answer("rows", "--good", "2", "--bad", "1")
    assert code == 0 and found["status"] == "partial"
    assert found["summary"] == {"total": 3, "succeeded": 2, "failed": 1, "recoverable_failures": 1}
    assert found["errors"] == [{"code": "NOT_FOUND", "message": "row 0", "recoverable": True}]
    assert answer("rows", "--good", "0", "--bad", "1")[0] == 1
    assert answer("rows", "--good", "1", "--bad", "0")[1]["status"] == "success"


def test_reserved_arguments(tmp_path):
    found = answer("here", "--working-dir", str(tmp_path), "--verbose")[1]
    assert found["result"]["result"] == str(tmp_path.resolve())
    assert found["details"]["log"] == [{"level": "info", "message": "looking"}]
    found = answer("here", "--dry-run")[1]["result"]
    assert found == {"dry_run": True, "would_execute": {"working_dir": ".", "dry_run": True, "verbose": False}}


def test_resources_and_prompts():
    assert answer("--resource", "notes://ada") == (0, "Note of ada.")
    assert answer("--prompt", "review", '{"text": "x"}') == (0, "Review in a short style: x")


def test_a_terminal_gets_text():
    def shown(*words):
        parent, child = pty.openpty()
        done = subprocess.run(
            [RUNTIME, str(PROGRAM), *words], stdout=child, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
        )
        os.write(child, b"")
        out = os.read(parent, 65536).decode().replace("\r\n", "\n") if done.returncode == 0 else ""
        os.close(parent)
        os.close(child)
        return out, done.stderr

    out, err = shown("add", "--a=1", "--b=2")
    assert out == "3\n" and err == "… adding 50 %\nwarning: slow\n"
    assert shown("greet")[1] == "error: `name` is missing: expected Name of the person\n"


def test_interrupts_exit_130():
    with subprocess.Popen(
        [RUNTIME, str(PROGRAM), "wait"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stderr.readline() == b"waiting\n"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)
        assert process.returncode == 130 and json.loads(out)["error"]["code"] == "TIMEOUT"


@pytest.mark.skipif(TYPESCRIPT, reason="a definition in TypeScript is checked where it is made, before `main`")
def test_invalid_programs_name_the_defect(tmp_path):
    program = tmp_path / "broken.py"
    program.write_text("from author import main, tool\n@tool\ndef f(a: 'Missing'):\n    'Do it.'\nmain(f)\n")
    code, out, _ = run("--discover", program=program)
    error = json.loads(out)["error"]
    assert code == 1 and error["message"].startswith("the parameter `a` of `f` has the annotation `Missing`")
    program.write_text(
        "from author import main\ndef f(a: int = 1) -> int:\n    'Do it.'\n    return a\nmain(f, name='x')\n"
    )
    # The only tool of a program needs no name.
    assert answer("--a", "2", program=program)[1]["result"]["result"] == 2
    program.write_text("from author import main, tool\nf = tool(lambda: 1)\nmain(f)\n")
    assert run(program=program)[0] == 1


class Resident:
    """A process in resident mode."""

    def __enter__(self):
        self.process = subprocess.Popen(
            [RUNTIME, str(PROGRAM), "--resident"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()

    def send(self, id, kind, **body):
        self.write(json.dumps({"v": 1, "id": id, "type": kind, **body}))

    def write(self, line):
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def next(self):
        return json.loads(self.process.stdout.readline())

    def call(self, id, tool, arguments=None, **facts):
        self.send(id, "call", tool=tool, arguments=arguments, **facts)
        return self.next()


@pytest.fixture
def resident():
    with Resident() as process:
        hello = process.next()
        assert hello == {
            "v": 1,
            "id": 0,
            "type": "hello",
            "name": "program",
            "version": "1.2.3",
            "protocol": "0.1+toolpost.1",
        }
        yield process


def test_resident_calls(resident):
    assert resident.call(1, "greet", {"name": "Ada"}) == {
        "v": 1,
        "id": 1,
        "type": "result",
        "ok": {"structured": "Hello, Ada."},
    }
    assert resident.call(2, "add", {"a": 1, "b": 2})["type"] == "progress"
    assert resident.next() == {"v": 1, "id": 2, "type": "log", "level": "warn", "message": "slow"}
    assert resident.next()["ok"] == {"structured": 3}
    assert resident.call(3, "greet", {})["error"]["code"] == "MISSING_PARAM"
    assert resident.call(4, "gret")["error"]["suggestion"] == "Did you mean `greet`?"
    error = resident.call(5, "fail")["error"]
    assert error["code"] == "INTERNAL" and "secret" not in str(error)
    assert resident.call(6, "fail", {"code": "LIMIT"})["error"] == {
        "code": "LIMIT",
        "message": "it failed",
        "recoverable": False,
        "suggestion": "Do not call it.",
        "context": {"fact": 1},
    }
    assert resident.call(7, "rows", {"good": 1, "bad": 1})["ok"]["partial"]["succeeded"] == 1
    given = {"call": "01m8gz8p1jjsetpn201mgbz19s", "caller": {"front": "agent"}, "metadata": {"a": 1}}
    found = resident.call(8, "facts", {"x": 1}, **given)["ok"]["structured"]
    assert found == {"id": given["call"], "front": "agent", "metadata": {"a": 1}, "rest": {"x": 1}}
    assert resident.call(9, "doze", {"seconds": 5})["error"]["code"] == "TIMEOUT"
    assert resident.call(10, "doze", {"seconds": 0}, deadline_ms=1000)["ok"] == {"structured": 0}
    assert resident.call(11, "here", {"dry_run": True})["ok"]["structured"]["dry_run"] is True
    assert resident.call(12, "greet", {"name": "Ada"}, validate=True)["ok"] == {"structured": {"valid": True}}


def test_resident_requests(resident):
    resident.send(1, "list")
    listed = resident.next()
    assert listed["type"] == "listed" and len(listed["ok"]["tools"]) == 15
    resident.send(2, "read", uri="notes://ada")
    assert resident.next() == {"v": 1, "id": 2, "type": "value", "ok": "Note of ada."}
    resident.send(3, "read", uri="notes://nobody")
    assert resident.next()["error"]["code"] == "NOT_FOUND"
    resident.send(4, "render", prompt="review", arguments={"text": "x"})
    assert resident.next()["ok"] == "Review in a short style: x"


def test_resident_questions(resident):
    resident.send(1, "call", tool="ask", serves=["ask", "sample"])
    requests = sorted((resident.next() for _ in range(2)), key=lambda frame: frame["type"])
    assert requests[0]["question"] == {"message": "Sure?", "kind": "input", "schema": {"type": "boolean"}}
    assert requests[1]["prompt"] == {"prompt": "Why?", "max_tokens": 5}
    resident.send(1, "answer", request=requests[1]["request"], ok={"content": "Because."})
    resident.send(1, "answer", request=requests[0]["request"], ok={"answer": "given", "value": True})
    assert resident.next()["ok"] == {"structured": "True Because."}
    frame = resident.call(2, "guess", serves=["ask"])
    resident.send(2, "answer", request=frame["request"], error={"code": "TIMEOUT", "message": "nobody answers"})
    assert resident.next()["error"]["message"] == "nobody answers"
    assert resident.call(3, "guess")["error"]["code"] == "PRECONDITION"


def test_resident_cancellation_and_concurrency(resident):
    resident.send(1, "call", tool="wait")
    resident.send(2, "call", tool="doze", arguments={"seconds": 0.1})
    resident.send(3, "call", tool="guess", serves=["ask"])
    assert resident.next()["type"] == "ask"
    assert resident.call(4, "move", {"point": {"x": 1}})["ok"] == {"structured": {"x": 1, "y": 0}}
    resident.send(3, "cancel")
    assert resident.next()["error"]["code"] == "CANCELLED"
    assert resident.next()["id"] == 2
    resident.send(1, "cancel")
    assert resident.next()["error"]["message"] == "as requested"
    resident.send(1, "cancel")
    resident.send(5, "call", tool="ask", serves=["ask", "sample"])
    assert {resident.next()["type"] for _ in range(2)} == {"ask", "sample"}
    resident.send(5, "cancel")
    assert resident.next()["error"]["code"] == "CANCELLED"
    # Late answers are ignored.
    for request in range(1, 5):
        resident.send(5, "answer", request=request, ok={"answer": "given", "value": True})
    assert resident.call(6, "move", {"point": {"x": 1}})["ok"] == {"structured": {"x": 1, "y": 0}}


def test_resident_invalid_lines(resident):
    for line, id, message in [
        ("no json", 0, "the line is not a frame"),
        ("[]", 0, "the line is not a frame: it has no `id`"),
        ('{"v": 2, "id": 7, "type": "list"}', 7, "unknown frame version 2; expected version 1"),
        ('{"v": 1, "id": 7, "type": "dance"}', 7, 'unknown frame type "dance"'),
        ('{"v": 1, "id": 0, "type": "call", "tool": "greet"}', 0, "the id 0 is 0 or belongs to a running request"),
    ]:
        resident.write(line)
        frame = resident.next()
        assert frame["id"] == id and frame["error"]["message"].startswith(message), line
    resident.write("")
    assert resident.call(1, "move", {"point": {"x": 1}})["id"] == 1


def test_resident_end_of_input(resident):
    resident.send(1, "call", tool="wait")
    assert resident.process.stderr.readline() == b"waiting\n"
    out, _ = resident.process.communicate(timeout=10)
    assert json.loads(out)["error"]["message"] == "as requested" and resident.process.returncode == 0


#: The table that the Rust half of the protocol is tested with.
ARGV = pathlib.Path(__file__).parents[2] / "exec" / "tests" / "data" / "argv.json"
#: Rows that differ on purpose, each with the reason.
DIFFERENT = {
    "what the tool itself does not take": "a program has no `pre_validate`",
    "a dry run asks pre_validate": "a program has no `pre_validate`",
    "prompts go nowhere else": "the language has TLS, so an https:// URL is accepted",
    "discovery": "the row has the schema of a Rust type",
    "the manifest": "`digest` is optional, and only Rust computes it",
}


def fits(expected, found):
    """Whether a value is as expected: "*" is any text, "#" any number, and "..." allows more keys."""
    if expected == "*" and isinstance(found, str) or expected == "#" and isinstance(found, (int, float)):
        return True
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = expected.keys() - {"..."}
        has_all = all(key in found and fits(expected[key], found[key]) for key in keys)
        return has_all and ("..." in expected or keys == found.keys())
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(fits, expected, found))
    return expected == found and isinstance(expected, bool) == isinstance(found, bool)


def values(text):
    """JSON Lines, or one indented value."""
    try:
        return [json.loads(text)] if text else []
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("row", json.loads(ARGV.read_text()), ids=lambda row: row["name"])
def test_command_lines_are_answered_as_in_rust(row):
    if row["name"] in DIFFERENT:
        pytest.skip(DIFFERENT[row["name"]])
    words = ["single", *row["argv"]] if row.get("single") else row["argv"]
    code, out, err = run(*words, program=DEMO, stdin=row.get("stdin", ""))
    assert fits(row["stdout"], values(out)), out
    assert code == row["exit"]
    if row.get("stderr", ["*"]) != ["*"]:
        assert fits(row["stderr"], values(err)), err
