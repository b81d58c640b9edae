#!/usr/bin/env python3
"""The tools of {{name}}: a program that any caller can ask what it offers, and call.

    ./{{name}} --help
    ./{{name}} greet --name Ada --times 2
    ./{{name}} greet '{"name": "Ada", "times": 2}'
    toolpost call ./{{name}} greet name=Ada

A tool is a function and an entry in TOOLS. It needs nothing but Python 3.
"""

import json
import sys


class ToolError(Exception):
    """What a caller is told: a code, a sentence, and what to do next."""

    # The codes that the caller can mend by asking for something else.
    RECOVERABLE = {"INVALID_INPUT", "MISSING_PARAM", "INVALID_PATH", "NOT_FOUND", "CONFLICT", "PRECONDITION"}

    def __init__(self, code, message, suggestion=None):
        super().__init__(message)
        self.code, self.suggestion = code, suggestion

    def envelope(self):
        error = {"code": self.code, "message": str(self), "recoverable": self.code in self.RECOVERABLE}
        if self.suggestion:
            error["suggestion"] = self.suggestion
        return {"status": "error", "error": error}


def greet(name, times):
    if times > 10:
        raise ToolError("INVALID_INPUT", f"`times`: expected at most 10, found {times}", "Greet less often.")
    return {"greeting": " ".join([f"Hello, {name}."] * times)}


TOOLS = {
    "greet": {
        "run": greet,
        "summary": "Greet somebody.",
        "description": "Greet somebody, once or several times.",
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "Whom."},
                "times": {"type": "integer", "description": "How often, from 1 to 10.", "default": 1},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        "examples": [{"name": "Ada", "times": 2}],
        "tags": ["text"],
    },
}

TYPES = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def summary(name, tool):
    return {"name": name, "summary": tool["summary"], "streaming": False, "session_mode": False}


def manifest(name, tool):
    keys = {key: tool[key] for key in ("description", "schema", "examples", "tags") if key in tool}
    return {**summary(name, tool), **keys}


def read_arguments(words, schema):
    """The arguments as one JSON object, or as `--name value`."""
    given = next((word for word in words if word.startswith("{")), None)
    if given is not None:
        try:
            return json.loads(given)
        except ValueError as error:
            raise ToolError("INVALID_INPUT", f"the arguments are not JSON: {error}") from error
    arguments, words = {}, list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise ToolError("INVALID_INPUT", f"expected an option, found `{word}`", "Write `--name value`.")
        name, has_value, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not has_value:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        if schema["properties"].get(name, {}).get("type") != "string":
            try:
                value = json.loads(value)
            except ValueError:
                pass
        arguments[name] = value
    return arguments


def check(arguments, schema):
    """The arguments with their defaults, if they fit the schema."""
    known = schema["properties"]
    for name, value in arguments.items():
        if name not in known:
            raise ToolError("INVALID_INPUT", f"`{name}` is not known: expected {', '.join(known)}")
        kind = known[name].get("type")
        fits = isinstance(value, TYPES.get(kind, object)) and not (kind != "boolean" and isinstance(value, bool))
        if not fits:
            raise ToolError("INVALID_INPUT", f"`{name}`: expected {kind}, found {json.dumps(value)}")
    for name in schema.get("required", []):
        if name not in arguments:
            raise ToolError("MISSING_PARAM", f"`{name}` is missing: {known[name].get('description', '')}")
    defaults = {name: entry["default"] for name, entry in known.items() if "default" in entry}
    return {**defaults, **arguments}


def call(name, words):
    if name not in TOOLS:
        raise ToolError("NOT_FOUND", f"Unknown command: {name}", f"There are: {', '.join(TOOLS)}.")
    tool = TOOLS[name]
    if "--manifest" in words:
        return manifest(name, tool)
    if "--help" in words:
        return f"{name}: {tool['description']}\n" + json.dumps(tool["schema"]["properties"], indent=2)
    for mode in ("--stream", "--session"):
        if mode in words:
            raise ToolError("INVALID_INPUT", f"`{name}` cannot be called with {mode}", f"Leave {mode} away.")
    if "--validate" in words:
        try:
            check(read_arguments([word for word in words if word != "--validate"], tool["schema"]), tool["schema"])
        except ToolError as error:
            return {"valid": False, "errors": [{"code": error.code, "message": str(error)}]}
        return {"valid": True}
    result = tool["run"](**check(read_arguments(words, tool["schema"]), tool["schema"]))
    return {"status": "success", "result": result if isinstance(result, dict) else {"result": result}}


def answer(words):
    tools = [summary(name, tool) for name, tool in TOOLS.items()]
    if not words or words == ["--help"]:
        return __doc__ + "\n" + "\n".join(f"  {tool['name']:16} {tool['summary']}" for tool in tools)
    if words[0] == "--discover":
        return {"name": "{{name}}", "version": "0.1.0", "tools": tools, "resources": [], "prompts": []}
    if words[0] == "--tools":
        return {"tools": [{"name": tool["name"], "summary": tool["summary"]} for tool in tools]}
    if words[0] in ("--resources", "--prompts"):
        return {words[0][2:]: []}
    try:
        return call(words[0], words[1:])
    except ToolError as error:
        return error.envelope()
    except Exception as error:  # A defect: the caller gets an answer all the same.
        return ToolError("INTERNAL", f"{type(error).__name__}: {error}").envelope()


def main():
    result = answer(sys.argv[1:])
    print(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False))
    return 1 if isinstance(result, dict) and result.get("status") == "error" else 0


if __name__ == "__main__":
    sys.exit(main())
