"""The executable protocol: commands and answers."""

from __future__ import annotations

import sys

from ._errors import SpecError, ToolError
from ._values import Output
from ._context import Ctx, _value_of
from ._checks import _did_you_mean, _json
from ._tools import Prompt, Resource, _summary, Tool, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, BinaryIO, NoReturn

_PROTOCOL = "0.1+toolpost.1"
_MAX_INPUT = 16 << 20
_MAX_LINE = 32 << 20
_MAX_LOG = 1000
_SUCCESS, _FAILED, _USAGE, _UNREACHABLE, _DENIED, _LIMIT, _INTERRUPTED = 0, 1, 2, 4, 5, 6, 130
_EXIT_CODES = {
    "TIMEOUT": _UNREACHABLE,
    "OVERLOADED": _UNREACHABLE,
    "DEPENDENCY": _UNREACHABLE,
    "PERMISSION": _DENIED,
    "LIMIT": _LIMIT,
    "CANCELLED": _INTERRUPTED,
}
_COMMANDS = ("--discover", "--tools", "--resources", "--prompts", "--resource", "--prompt")
_EXIT_HELP = """
Exit code:
  0    success, at least partial
  1    the tool failed, or the arguments are invalid
  2    invalid command line
  4    a dependency is unreachable or too slow
  5    permission denied
  6    a limit was reached
  130  cancelled
"""


def main(*sources: Any, name: str | None = None, version: str | None = None) -> NoReturn:
    """Runs the command line of a tool program, and exits.

    ``sources`` are tools, functions, modules, and instances of classes with tools. Without any, the program has all
    tools of ``__main__``. ``./program --help`` lists its commands.
    """
    try:
        code = _Program(sources, name, version).run(sys.argv[1:])
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BrokenPipeError:  # The reader is gone.
        code = _FAILED
    raise SystemExit(code)


def _tools_of(source: Any) -> Iterator[Tool[..., Any]]:
    """The tools of one source, in the order of their definition."""
    method = getattr(source, "__func__", None)
    if isinstance(source, Tool):
        yield source
    elif isinstance(method, Tool):  # `@classmethod` above `@tool`
        yield type(method)(method._definition, source.__self__)
    elif type(source).__name__ == "module":
        yield from dict.fromkeys(found for found in vars(source).values() if isinstance(found, Tool))
    elif callable(source) and hasattr(source, "__code__"):
        yield tool(source)
    else:
        cls: Any = source if isinstance(source, type) else type(source)
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        found = [getattr(source, name) for name in names if _holds_tool(cls, name)]
        if not found:
            raise SpecError(f"`{source!r}` has no tools; pass a tool, a function, a module or an object with tools")
        for one in found:
            yield from _tools_of(one)


def _holds_tool(cls: type, name: str) -> bool:
    found = next(vars(base)[name] for base in cls.__mro__ if name in vars(base))
    return isinstance(found, Tool) or isinstance(getattr(found, "__func__", None), Tool)


class _Program:
    """The tools, resources and prompts of a program, and the answers to its command line."""

    def __init__(self, sources: Sequence[Any], name: str | None, version: str | None) -> None:
        module = sys.modules["__main__"]
        default = sys.argv[0].replace("\\", "/").rsplit("/", 1)[-1]
        self.name = name or (default[:-3] if default.endswith(".py") else default) or "tool"
        self.version = version or str(getattr(module, "__version__", "0.1.0"))
        self.about = (module.__doc__ or "").strip()
        self.tools: dict[str, Tool[..., Any]] = {}
        self.resources: list[Resource[..., Any]] = []
        self.prompts: dict[str, Prompt[..., Any]] = {}
        for source in sources or (module,):
            for one in _tools_of(source):
                if isinstance(one, Resource):
                    self.resources.append(one)
                    continue
                table: Any = self.prompts if isinstance(one, Prompt) else self.tools
                if one.name in table:
                    raise SpecError(f"two tools are named `{one.name}`; rename one with `@tool(name=…)`")
                table[one.name] = one

    def run(self, words: list[str]) -> int:
        """Answers a command line and returns the exit code."""
        self.wire = _Wire()
        try:
            return self.answer(words)
        except SpecError as error:
            return self.reject(ToolError.precondition(str(error)))
        except ToolError as error:
            return self.reject(error, _USAGE)

    def answer(self, words: list[str]) -> int:
        from ._resident import _Resident
        from ._run import _Run

        words = self.without_command_object(words)
        if not words or words in (["--help"], ["-h"]):
            return self.text(self.help())
        if words == ["--version"]:
            return self.text(f"{self.name} {self.version}\n")
        if words == ["--resident"]:
            return _Resident(self).serve()
        found = self.command(words)
        if found is not None:
            return found
        only = next(iter(self.tools.values())) if len(self.tools) == 1 else None
        if words[0] in self.tools:
            return _Run(self, self.tools[words[0]]).answer(words[1:])
        if only is not None:
            return _Run(self, only).answer(words)
        for start in range(1, len(words)):
            found = self.command(words[start:])
            if found is not None:
                return found
        hint = _did_you_mean(words[0], self.tools) or "See `--tools` for the available tools."
        raise ToolError.not_found(f"Unknown command: {words[0][:80]}", suggestion=hint)

    def without_command_object(self, words: list[str]) -> list[str]:
        """The words of dialect 0.2, ``{"command": …, "params": …}``, as those of dialect 0.1."""
        if not words or not words[0].startswith("{"):
            return words
        try:
            given = _object(words[0])
        except ToolError:
            return words
        if set(given) == {"command", "params"} and given["command"] in self.tools:
            return [given["command"], _json(given["params"]), *words[1:]]
        return words

    def command(self, words: list[str]) -> int | None:
        """Answers a command of the program at the start of these words."""
        command = words[0]
        if command == "--discover":
            return self.pretty(self.discovery())
        if command == "--tools":
            specs = [one.spec() for one in self.tools.values()]
            return self.pretty({"tools": [{"name": spec["name"], "summary": _summary(spec)} for spec in specs]})
        if command in ("--resources", "--prompts"):
            return self.pretty({command[2:]: self.discovery()[command[2:]]})
        if command == "--resource":
            if len(words) < 2:
                raise ToolError.missing_param("`--resource` needs a URI: `--resource URI`")
            return self.value(lambda: self.read(words[1]))
        if command == "--prompt":
            if len(words) < 2:
                raise ToolError.missing_param("`--prompt` needs a name: `--prompt NAME '{…}'`")
            arguments = _object(words[2] if len(words) > 2 else "")
            return self.value(lambda: self.render(words[1], arguments))
        return None

    def discovery(self) -> dict[str, Any]:
        """The program's manifest."""
        return {
            "name": self.name,
            "version": self.version,
            "protocol": _PROTOCOL,
            "resident": True,
            "tools": [_entry(one.spec()) for one in self.tools.values()],
            "resources": [{"tags": [], **one.resource_spec()} for one in self.resources],
            "prompts": [_prompt_entry(one.prompt_spec()) for one in self.prompts.values()],
        }

    def read(self, uri: str) -> Any:
        """The value of a resource."""
        for one in self.resources:
            values = one.match(uri)
            if values is not None:
                return _result(_finished(one.fn(**one.decode(values))))
        raise ToolError.not_found(f"unknown resource `{uri[:200]}`")

    def render(self, name: str, arguments: dict[str, Any]) -> Any:
        """The value of a prompt."""
        if name not in self.prompts:
            raise ToolError.not_found(f"unknown prompt `{name[:80]}`", suggestion=_did_you_mean(name, self.prompts))
        one = self.prompts[name]
        return _result(_finished(one.fn(**one.decode(arguments))))

    def nested(self, name: str, arguments: dict[str, Any], ctx: Ctx) -> dict[str, Any]:
        """The output of a tool of this program that another one calls."""
        called = self.tools[name]
        values = called.decode(arguments)
        if called.ctx_param is not None:
            values[called.ctx_param] = ctx
        return Output.of(_finished(called.fn(**values))).to_dict()

    def text(self, text: str) -> int:
        self.wire.write(text.encode())
        return _SUCCESS

    def pretty(self, value: Any) -> int:
        import json

        return self.text(json.dumps(value, ensure_ascii=False, indent=2) + "\n")

    def value(self, get: Callable[[], Any]) -> int:
        try:
            self.wire.line(get())
            return _SUCCESS
        except Exception as error:
            return self.reject(_failure(error, _new_id()))

    def reject(self, error: ToolError, code: int | None = None) -> int:
        """Writes an error: an envelope, or a message on stderr for a terminal."""
        if self.wire.is_terminal:
            print(f"error: {error.message}", file=sys.stderr)
            if error.suggestion:
                print(f"hint: {error.suggestion}", file=sys.stderr)
        else:
            self.wire.line(_envelope(error))
        return _exit_code(error) if code is None else code

    def help(self) -> str:
        rows = [(spec["name"], _summary(spec)) for spec in (one.spec() for one in self.tools.values())]
        commands = [
            ("--discover", "print tools, resources and prompts as JSON"),
            ("--tools", "list the tools as JSON"),
            ("--resources", "list the resources as JSON"),
            ("--prompts", "list the prompts as JSON"),
            ("--resource URI", "read a resource"),
            ("--prompt NAME '{…}'", "render a prompt"),
            ("--resident", "serve many calls over one process"),
            ("--version", "print the version"),
        ]
        about = f"{self.about}\n\n" if self.about else ""
        usage = f"Usage: {self.name} TOOL [--FLAG VALUE]… | '{{JSON}}' | @FILE | -\n       {self.name} TOOL --help\n"
        return f"{about}{usage}{_rows('Tools', rows)}{_rows('Commands', commands)}{_EXIT_HELP}"


def _entry(spec: dict[str, Any]) -> dict[str, Any]:
    """A tool in the answer to ``--discover``."""
    summary, mode = _summary(spec), spec.get("mode")
    entry = {
        "name": spec["name"],
        "summary": summary,
        "streaming": mode == "streaming",
        "session_mode": mode == "session",
    }
    if spec["description"] != summary:
        entry["description"] = spec["description"]
    entry["schema"] = spec["input_schema"]
    for key in ("title", "output_schema", "tags", "category", "group", "annotations", "policy", "sensitive"):
        if key in spec:
            entry[key] = spec[key]
    if "examples" in spec:
        entry["examples"] = [example["args"] for example in spec["examples"]]
    return entry


def _manifest(spec: dict[str, Any]) -> dict[str, Any]:
    """The answer to ``TOOL --manifest``."""
    keys = ("name", "summary", "streaming", "session_mode", "schema", "examples", "tags", "output_schema")
    entry = _entry(spec)
    return {**{key: entry[key] for key in keys if key in entry}, "description": spec["description"]}


def _prompt_entry(spec: dict[str, Any]) -> dict[str, Any]:
    arguments = {argument["name"]: argument["description"] for argument in spec["arguments"]}
    return {"name": spec["name"], "summary": spec["summary"], "arguments": arguments, "tags": spec.get("tags", [])}


def _rows(title: str, rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    width = min(28, max(len(left) for left, _ in rows))
    return f"\n{title}:\n" + "".join(f"  {left:<{width}}  {right}".rstrip() + "\n" for left, right in rows)


def _object(text: str) -> dict[str, Any]:
    """Parses a JSON object; an empty text is an empty object."""
    import json

    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ToolError.invalid_input(
            f"the arguments are not valid JSON: {error}",
            suggestion='Give one JSON object, such as \'{"name": "value"}\', or flags, such as --name value.',
        ) from None
    if not isinstance(value, dict):
        raise ToolError.invalid_input("the arguments are not a JSON object; expected `{…}`")
    return value


def _new_id() -> str:
    """A call id: 48 bits of milliseconds since 1970 and 80 random bits, in Crockford's base 32."""
    import os
    import time

    bits = (int(time.time() * 1000) << 80) | int.from_bytes(os.urandom(10), "big")
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[(bits >> shift) & 31] for shift in range(125, -1, -5))


def _failure(error: BaseException, call: str) -> ToolError:
    """The error that the caller sees. Stderr explains an internal error to the program's author."""
    if isinstance(error, ToolError) and error.code != "INTERNAL":
        return error
    if type(error).__name__ == "CancelledError":
        return ToolError.cancelled("the caller cancelled the call")
    import traceback

    causes: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(causes) < 16:
        causes.append(f"  caused by: {type(cause).__name__}: {cause}".replace("\n", "\n    "))
        cause = cause.__cause__ or cause.__context__
    message = error.message if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
    lines = [*traceback.format_exception(type(error), error, error.__traceback__)]
    lines += [f"error: call {call}: {message}".replace("\n", "\n    "), "\n", *(f"{text}\n" for text in causes)]
    print("".join(lines), end="", file=sys.stderr, flush=True)
    return ToolError.internal(f"the tool failed internally; see the record of call {call}", call=call)


def _exit_code(error: ToolError) -> int:
    is_program_failure = error.code == "DEPENDENCY" and {"exit_code", "signal"} & set(error.context)
    return _FAILED if is_program_failure else _EXIT_CODES.get(error.code, _FAILED)


def _wire_error(error: ToolError) -> dict[str, Any]:
    """An error with a code of dialect 0.1."""
    wire = error.to_dict()
    wire["code"] = {"OVERLOADED": "DEPENDENCY", "LIMIT": "DEPENDENCY", "CANCELLED": "TIMEOUT"}.get(
        error.code, error.code
    )
    return wire


def _result(value: Any) -> Any:
    """The structured value of an output, or its text."""
    return _value_of(Output.of(value).to_dict())


def _envelope(outcome: Output | ToolError) -> dict[str, Any]:
    """An outcome as dialect 0.1 writes it."""
    if isinstance(outcome, ToolError):
        return {"status": "error", "error": _wire_error(outcome)}
    result = _result(outcome)
    envelope: dict[str, Any] = {"status": _status(outcome)}
    envelope["result"] = result if isinstance(result, dict) else {"result": result}
    if outcome.partial:
        succeeded, errors = outcome.partial.succeeded, outcome.partial.errors
        envelope["summary"] = {
            "total": succeeded + len(errors),
            "succeeded": succeeded,
            "failed": len(errors),
            "recoverable_failures": sum(error.recoverable for error in errors),
        }
        envelope["errors"] = [
            {key: _wire_error(error)[key] for key in ("code", "message", "recoverable")} for error in errors
        ]
    return envelope


def _status(output: Output) -> str:
    if not output.partial or not output.partial.errors:
        return "success"
    return "partial" if output.partial.succeeded else "error"


def _finished(result: Any) -> Any:
    """The value of a function that may be async."""
    if not hasattr(result, "__await__"):
        return result
    import asyncio

    async def wait() -> Any:
        return await result

    return asyncio.run(wait())


class _Wire:
    """Standard output and input, reserved for the protocol.

    Prints of a tool go to stderr, and its reads find an empty file, so that neither can corrupt a line.
    """

    def __init__(self) -> None:
        import io
        import os
        import threading

        sys.stdout.flush()
        self.is_terminal = sys.stdout.isatty()
        self.output: BinaryIO = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        try:
            self.input: BinaryIO = os.fdopen(os.dup(0), "rb")
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
        except OSError:
            self.input = io.BytesIO()
        self.lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self.lock:
            self.output.write(data)
            self.output.flush()

    def line(self, value: Any) -> None:
        self.write((_json(value) + "\n").encode())

    def next_line(self) -> bytes | None:
        """The next line that is not empty; None at the end of the input. A long line is an error."""
        while True:
            line = self.input.readline(_MAX_LINE + 1)
            if not line:
                return None
            if len(line) > _MAX_LINE and not line.endswith(b"\n"):
                start = line[:256]
                while line and not line.endswith(b"\n"):
                    line = self.input.readline(_MAX_LINE)
                raise _LongLine(start)
            if line.strip():
                return line


class _LongLine(Exception):
    """A line above 32 MiB, of which only the start is known."""
