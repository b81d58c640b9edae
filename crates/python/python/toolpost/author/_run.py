"""The executable protocol: one call per process."""

from __future__ import annotations

import sys

from ._errors import ToolError
from ._values import Output
from ._context import Ctx, _now
from ._checks import _CHECKS, _did_you_mean, _expected, _is_number, _json, _Problem, _quote, _type_name, _types
from ._tools import Tool, _UNITS
from ._program import (
    _COMMANDS,
    _envelope,
    _exit_code,
    _EXIT_HELP,
    _FAILED,
    _failure,
    _finished,
    _LongLine,
    _manifest,
    _MAX_INPUT,
    _MAX_LOG,
    _new_id,
    _object,
    _Program,
    _result,
    _rows,
    _status,
    _SUCCESS,
    _USAGE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from typing import Any

class _Run:
    """One call of a tool by the command line."""

    def __init__(self, program: _Program, called: Tool[..., Any]) -> None:
        self.program, self.wire, self.tool = program, program.wire, called
        self.spec = called.spec()
        self.schema = self.spec["input_schema"]
        self.properties: dict[str, Any] = self.schema["properties"]
        self.flags: dict[str, Any] = {}
        self.options: set[str] = set()
        self.sample_via: str | None = None

    def answer(self, words: list[str]) -> int:
        program = self.program
        command, text, error = self.parse(words)
        if command is not None:
            found = program.command(command)
            return _SUCCESS if found is None else found
        if "manifest" in self.options:
            return program.pretty(_manifest(self.spec))
        if "help" in self.options:
            return program.text(self.help())
        try:
            if error is not None:
                raise error
            arguments = self.arguments(text)
        except ToolError as usage:
            if "validate" in self.options:
                keys = ("code", "message", "suggestion")
                return self.invalid([{key: one for key, one in usage.to_dict().items() if key in keys}], _USAGE)
            raise
        if "validate" in self.options:
            return self.validate(arguments)
        return self.call(arguments)

    def parse(self, words: list[str]) -> tuple[list[str] | None, str | None, ToolError | None]:
        """Parses the words after the tool's name: a command of the program, the text of the arguments, an error."""
        text: str | None = None
        error: ToolError | None = None
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            following = words[at] if at < len(words) else None
            try:
                if word == "-h":
                    self.options.add("help")
                elif not word.startswith("--") or word == "--":
                    if word != "-" and word[:1] not in ("{", "@"):
                        raise ToolError.invalid_input(
                            f"`{word[:80]}` is neither a flag nor a JSON object",
                            suggestion="Write `--name value`, `'{\"name\": …}'`, `@FILE` or `-`.",
                        )
                    if text is not None:
                        raise ToolError.invalid_input(
                            "the arguments are given twice", suggestion="Give one JSON object, one `@FILE`, or `-`."
                        )
                    text = word
                elif self.find(word) is None and word in _COMMANDS:
                    return words[at - 1 :], None, None
                else:
                    at += self.flag(word, following)
            except ToolError as first:
                error = error or first
        if text is not None and self.flags and error is None:
            error = ToolError.invalid_input(
                "the arguments are given both as JSON and as flags", suggestion="Use one of them."
            )
        return None, text, error

    def find(self, word: str) -> str | None:
        """The parameter of a flag: `--max-items` is `max_items`."""
        name = word[2:].split("=", 1)[0]
        plain = name.replace("-", "_")
        return name if name in self.properties else plain if plain in self.properties else None

    def flag(self, word: str, following: str | None) -> int:
        """Reads a flag and returns how many following words it takes."""
        name, has_own, own = word[2:].partition("=")
        parameter = self.find(word)
        if parameter is not None:
            types = _types(self.properties[parameter], self.schema)
            if has_own:
                return self.give(parameter, own)
            if types == {"boolean"} and following not in ("true", "false"):
                return self.give(parameter, True)
            if following is not None and not (following.startswith("--") and self.find(following)):
                self.give(parameter, following)
                return 1
            if not types or "boolean" in types:
                return self.give(parameter, True)
            raise ToolError.invalid_input(f"`--{name}` needs a value", pointer=f"/{parameter}")
        if name in ("manifest", "help", "validate", "stream", "session") and not has_own:
            self.options.add(name)
            return 0
        if name == "sample-via":
            self.sample_via = own if has_own else following
            if not self.sample_via or not self.sample_via.startswith(("stdin", "http://", "https://")):
                raise ToolError.invalid_input("`--sample-via` needs `stdin` or a URL, such as http://127.0.0.1:8080/")
            return 0 if has_own else 1
        opposite = self.find("--" + name[3:]) if name.startswith("no-") and not has_own else None
        if opposite and "boolean" in _types(self.properties[opposite], self.schema):
            return self.give(opposite, False)
        takes = not has_own and following is not None and not following.startswith("--")
        if self.schema.get("additionalProperties", True) is not False:
            self.give(name.replace("-", "_"), own if has_own else following if takes else True)
            return int(takes)
        known = [known.replace("_", "-") for known in self.properties]
        hint = _did_you_mean(name, known)
        raise ToolError.invalid_input(
            f"`{self.tool.name}` has no flag `--{name}`",
            suggestion=hint.replace(" `", " `--") if hint else f"See `{self.tool.name} --help`.",
            flag=f"--{name}",
        )

    def give(self, name: str, value: Any) -> int:
        """Sets an argument from a text, or from a switch. An array grows with each."""
        schema = self.properties.get(name, {})
        types = _types(schema, self.schema)
        if isinstance(value, str):
            value = _typed(value, types)
            if "array" in types and not isinstance(value, list) and value is not None:
                value = [
                    _typed(value, _types(schema.get("items", {}), self.schema)) if isinstance(value, str) else value
                ]
        if name not in self.flags:
            self.flags[name] = value
        elif "array" in types and isinstance(self.flags[name], list) and isinstance(value, list):
            self.flags[name].extend(value)
        else:
            raise ToolError.invalid_input(
                f"`--{name.replace('_', '-')}` is given twice",
                suggestion="Give it once; only arrays take several values.",
                pointer=f"/{name}",
            )
        return 0

    def arguments(self, text: str | None) -> dict[str, Any]:
        if text is None:
            return self.flags
        if text.startswith("{"):
            return _object(text)
        try:
            if text == "-":
                data = self.wire.input.read(_MAX_INPUT + 1)
            else:
                with open(text[1:], "rb") as file:
                    data = file.read(_MAX_INPUT + 1)
        except OSError as error:
            raise ToolError.invalid_path(f"cannot read the file `{text[1:]}`: {error.strerror}") from None
        name = "standard input" if text == "-" else f"the file `{text[1:]}`"
        if len(data) > _MAX_INPUT:
            raise ToolError.invalid_input(
                f"{name} is larger than 16 MiB",
                suggestion="Write large data to a file and pass its path as an argument.",
            )
        try:
            return _object(data.decode())
        except UnicodeDecodeError as error:
            raise ToolError.invalid_input(f"cannot read {name} as text: {error}") from None

    def validate(self, arguments: dict[str, Any]) -> int:
        problems = self.tool.problems(arguments)
        if problems:
            return self.invalid([self.described(problem) for problem in problems], _FAILED)
        try:
            self.tool.decode(arguments)
            _Reserved(self.tool, arguments)
        except ToolError as error:
            return self.invalid([{"code": error.code, "message": error.message}], _FAILED)
        self.wire.line({"valid": True})
        return _SUCCESS

    def described(self, problem: _Problem) -> dict[str, Any]:
        kind, code = ("missing", "MISSING_PARAM") if problem.missing else ("invalid", "INVALID_INPUT")
        place, text = problem.at.split("/")[1:], str(problem)
        return {"type": kind, "loc": place, "msg": text, "code": code, "message": text}

    def invalid(self, errors: list[dict[str, Any]], code: int) -> int:
        self.wire.line({"valid": False, "errors": errors})
        return code

    def call(self, arguments: dict[str, Any]) -> int:
        import os

        call = _new_id()
        ctx: _OneShot | None = None
        started = _now()
        outcome: Output | ToolError
        try:
            mode = {"streaming": "stream", "session": "session"}.get(self.spec.get("mode", ""))
            if mode and mode not in self.options:
                raise ToolError.invalid_input(
                    f"This tool requires --{mode} flag", suggestion=f"Add --{mode} to the command"
                )
            values = self.tool.decode(arguments)
            reserved = _Reserved(self.tool, arguments)
            if reserved.working_dir is not None:
                os.chdir(reserved.working_dir)
            facts: dict[str, Any] = {"call": call, "dry_run": reserved.dry_run, "verbose": reserved.verbose}
            if reserved.working_dir is not None:
                facts["working_dir"] = reserved.working_dir
            limit = _timeout_of(self.spec, reserved.timeout)
            if limit is not None:
                facts["timeout_ms"] = limit * 1000
            ctx = _OneShot(self, facts)
            if reserved.dry_run and not self.spec.get("dry_run"):
                outcome = Output(reserved.plan)
            else:
                if self.tool.ctx_param is not None:
                    values[self.tool.ctx_param] = ctx
                with _Alarm(None if "session" in self.options else limit):
                    outcome = Output.of(_finished(self.tool.fn(**values)))
            envelope = _envelope(outcome)
        except KeyboardInterrupt:
            outcome = ToolError.cancelled("the call was interrupted")
            envelope = _envelope(outcome)
        except Exception as error:
            outcome = _failure(error, call)
            envelope = _envelope(outcome)
        if self.is_for_terminal:
            return self.show(outcome)
        if ctx is not None and ctx.is_verbose:
            details = {"duration_ms": round((_now() - started) * 1000, 3), "attempts": 1, "log": ctx.lines}
            envelope["details"] = details
        if isinstance(outcome, Output):
            for artifact in outcome.artifacts:
                assert ctx is not None
                ctx._artifact(artifact.to_dict())
            if "session" in self.options:
                self.wire.line({"type": "session_end", "status": "success"})
                if envelope.get("result") == {"result": None}:
                    del envelope["result"]
            if "stream" in self.options:
                envelope = {"type": "result", **envelope}
        self.wire.line(envelope)
        if isinstance(outcome, ToolError):
            return _exit_code(outcome)
        return _FAILED if _status(outcome) == "error" else _SUCCESS

    @property
    def is_for_terminal(self) -> bool:
        return self.wire.is_terminal and not self.options & {"stream", "session"} and self.sample_via is None

    def show(self, outcome: Output | ToolError) -> int:
        """Prints a result as text for a terminal."""
        if isinstance(outcome, ToolError):
            return self.program.reject(outcome)
        import json

        result = _result(outcome)
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, indent=2)
        text = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
        self.program.text(f"{text}\n" if result is not None else "")
        for error in outcome.partial.errors if outcome.partial else ():
            print(f"warning: {error.message}", file=sys.stderr)
        return _FAILED if _status(outcome) == "error" else _SUCCESS

    def help(self) -> str:
        required = self.schema.get("required", ())
        line = self.program.name if len(self.program.tools) == 1 else f"{self.program.name} {self.tool.name}"
        rows, usage = [], line
        for name, schema in self.properties.items():
            types = _types(schema, self.schema)
            flag = f"--{name.replace('_', '-')}"
            flag = (
                flag if types == {"boolean"} else f"{flag} {' or '.join(sorted(types - {'null'})).upper() or 'VALUE'}"
            )
            facts = ["required"] if name in required else []
            if "enum" in schema:
                facts.append(_expected(schema, self.schema))
            facts += [words.format(schema[keyword]) for keyword, (*_, words) in _CHECKS.items() if keyword in schema]
            if "default" in schema:
                facts.append(f"default {_json(schema['default'])}")
            usage += f" {flag}" if name in required else ""
            rows.append((flag, f"{schema.get('description', '')} [{'; '.join(facts)}]".replace(" []", "").strip()))
        usage += " [FLAGS]" if len(rows) > len(required) else ""
        options = [
            ("--stream", "print progress, log lines and files as JSON Lines"),
            ("--session", "answer the tool's questions, one JSON line each"),
            ("--sample-via stdin|URL", "where to send sampling requests"),
            ("--validate", "validate the arguments without a run"),
            ("--manifest", "print the tool's manifest as JSON"),
        ]
        text = f"{self.spec['description']}\n\nUsage: {usage}\n       {line} '{{JSON}}' | @FILE | -\n"
        return f"{text}{_rows('Parameters', rows)}{_rows('Options', options)}{_EXIT_HELP}"


def _typed(text: str, types: set[str]) -> Any:
    """The JSON value of a flag's text. A text of the wrong type stays a string, so that the check reports it."""
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    fits = not types or _type_name(value) in types or (_is_number(value) and "number" in types)
    return value if fits and not isinstance(value, str) else text


class _Reserved:
    """Reserved arguments, which control how a tool runs. They apply if the tool declares them."""

    def __init__(self, called: Tool[..., Any], arguments: dict[str, Any]) -> None:
        import os

        properties = called.spec()["input_schema"]["properties"]
        defaults = called.defaults

        def given(name: str) -> Any:
            return arguments.get(name, defaults.get(name)) if name in properties else None

        self.plan = {"dry_run": True, "would_execute": {**defaults, **arguments}}
        self.dry_run, self.verbose = given("dry_run") is True, given("verbose") is True
        self.timeout, directory = given("timeout"), given("working_dir")
        self.working_dir: str | None = os.path.abspath(directory) if isinstance(directory, str) else None
        if self.working_dir is not None and not os.path.isdir(self.working_dir):
            raise ToolError.invalid_path(
                f"/working_dir: `{directory}` is not a directory",
                suggestion="Name an existing directory.",
                pointer="/working_dir",
            )
        if self.timeout is not None and not (_is_number(self.timeout) and 1 <= self.timeout <= 600):
            raise ToolError.invalid_input(
                f"/timeout: expected seconds from 1 to 600, found {_quote(self.timeout)}", pointer="/timeout"
            )


def _timeout_of(spec: dict[str, Any], *others: float | None) -> float | None:
    """The timeout of a call in seconds: that of the policy, 60 s by default, or a shorter one."""
    import re

    declared = spec.get("policy", {}).get("timeout", {"after": "60s"})
    limits = [other for other in others if other is not None]
    if isinstance(declared, dict):
        parts = re.findall(r"([\d.]+)([a-z]+)", declared["after"])
        limits.append(sum(float(number) * _UNITS[unit] for number, unit in parts) / 1_000_000)
    return min(limits, default=None)


class _Alarm:
    """Ends a block on the main thread with ``TIMEOUT``, on systems with interval timers."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        if self.seconds is None:
            return
        import signal

        if not hasattr(signal, "setitimer"):
            self.seconds = None
            return

        def ring(number: int, frame: Any) -> None:
            raise ToolError.timeout(f"the call timed out after {self.seconds:g} s")

        self.before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *error: Any) -> None:
        if self.seconds is not None:
            import signal

            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self.before)


def _in_thread(function: Callable[..., Any], *given: Any) -> Future[Any]:
    """Runs a function that waits for the caller on a thread, so that an async tool continues meanwhile."""
    import threading
    from concurrent.futures import Future

    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function(*given))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class _OneShot(Ctx):
    """The context of a one-shot call: streams, notifications, sessions, sampling."""

    def __init__(self, run: _Run, facts: Mapping[str, Any]) -> None:
        import threading

        super().__init__(facts)
        self.run, self.wire = run, run.wire
        self.lines: list[dict[str, Any]] = []
        self.has_begun, self.has_ended = False, False
        self.turn = threading.Lock()

    def _notify(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "log":
            level = {"trace": "debug", "warn": "warning"}.get(body["level"], body["level"])
            body = {"level": level, "message": body["message"]}
            if self.is_verbose and len(self.lines) < _MAX_LOG:
                self.lines.append(body)
        if self.run.is_for_terminal:
            percent = f" {body['percent']:.0f} %" if "percent" in body else ""
            start = "created " if kind == "artifact" else f"{body['level']}: " if kind == "log" else "… "
            print(f"{start}{body.get('message', body.get('name'))}{percent}", file=sys.stderr, flush=True)
        elif "stream" in self.run.options:
            self.wire.line({"type": kind, **body})
        else:
            print(_json({"type": "notification", "kind": kind, **body}), file=sys.stderr, flush=True)

    def _request(self, verb: str, body: dict[str, Any]) -> Future[Any]:
        verbs = {"ask": self._ask, "sample": self._sample, "artifact": self._artifact}
        if verb == "nested" and body["tool"] in self.run.program.tools:
            return _in_thread(self.run.program.nested, body["tool"], body["arguments"], self)
        if verb not in verbs:
            return super()._request(verb, body)
        return _in_thread(verbs[verb], *body.values())

    def _artifact(self, artifact: dict[str, Any]) -> None:
        if artifact["size"] > _MAX_INPUT:
            raise ToolError.limit(
                f"the artifact `{artifact['name']}` has {artifact['size']} bytes; a line holds 16 MiB",
                suggestion="Write large files to the working directory and return their path.",
            )
        uri = f"data:{artifact['media_type']};base64,{artifact['data']}"
        self._notify("artifact", {"name": artifact["name"], "uri": uri})

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if "session" not in self.run.options:
            raise ToolError.precondition(
                "the tool asks a question, but no session is open", suggestion="Add --session to the command."
            )
        with self.turn:
            begin = {"type": "awaiting_input"} if self.has_begun else {"type": "session_start"}
            schema = {"schema": question["schema"]} if "schema" in question else {}
            self.has_begun = True
            self.wire.line({**begin, "message": question["message"], "prompt": "> ", **schema})
            line = self._line("session")
        if line is None:
            # The end of the input declines one question, so that the tool can finish.
            if self.has_ended:
                raise ToolError.cancelled("the session ended")
            self.has_ended = True
            return {"answer": "declined"}
        try:
            value = _object(line.decode())
        except (ToolError, UnicodeDecodeError):
            raise ToolError.invalid_input(
                "the session line is not a JSON object",
                suggestion='Write one JSON object per line, such as {"value": "yes"}.',
            ) from None
        if value.get("action") == "quit":
            return {"answer": "declined"}
        if len(value) == 1 and question.get("schema", {}).get("type") != "object":
            key = next(iter(value))
            if key in ("value", "answer", "input", "text", "response"):
                return {"answer": "given", "value": value[key]}
        return {"answer": "given", "value": value}

    def _line(self, kind: str) -> bytes | None:
        try:
            return self.wire.next_line()
        except _LongLine:
            raise ToolError.invalid_input(f"the {kind} line is longer than 32 MiB") from None

    def _sample(self, request: dict[str, Any]) -> dict[str, Any]:
        import json
        import os

        address = self.run.sample_via
        if address is None:
            raise ToolError.precondition(
                "the tool needs a model, but sampling is not enabled",
                suggestion="Add `--sample-via stdin` or `--sample-via http://…` to the command.",
            )
        line = {"type": "sample_request", "id": os.urandom(4).hex(), **request}
        if address != "stdin":
            return _post(address, _json(line).encode())
        with self.turn:
            self.wire.line(line)
            while True:
                answer = self._line("sampling")
                if answer is None:
                    raise ToolError.dependency("the input ended before the sampling response")
                try:
                    value: dict[str, Any] = json.loads(answer)
                except ValueError:
                    continue
                if isinstance(value, dict) and (value.get("type"), value.get("id")) == ("sample_response", line["id"]):
                    return value


def _post(address: str, body: bytes) -> dict[str, Any]:
    """Posts a sampling request to the URL of ``--sample-via``."""
    import json
    import os
    import urllib.parse
    import urllib.request

    host = urllib.parse.urlsplit(address).hostname or ""
    is_local = host == "localhost" or host.startswith("127.") or host == "::1"
    if os.environ.get("TOOLPOST_NO_NETWORK") and not is_local:
        raise ToolError.permission(
            f"TOOLPOST_NO_NETWORK blocks the connection to `{host}` (`--sample-via`)",
            suggestion="Unset TOOLPOST_NO_NETWORK, or use `--sample-via stdin`.",
        )
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            value: dict[str, Any] = json.loads(answer.read(_MAX_INPUT))
            return {"content": value["content"], "usage": value.get("usage")}
    except OSError as error:
        raise ToolError.dependency(f"sampling via {host} failed: {error}") from None
    except (ValueError, LookupError, TypeError):
        raise ToolError.dependency('the completion is not `{"content": …}`') from None
