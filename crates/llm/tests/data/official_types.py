"""Holds request bodies against the types of the providers' own Python libraries, made strict.

Reads lines of {"wire": …, "body": …} and answers each with a line: "ok", or the first errors.

The types are dictionaries whose checks are lazy and whose unknown keys are ignored. Two changes before they are built make
them strict: iterables are lists, and every dictionary forbids what it does not name.
"""

import json
import sys
import typing

typing.Iterable = typing.List  # Before the libraries are imported: iterables are checked lazily, lists are not.

import typing_extensions  # noqa: E402
from pydantic import TypeAdapter, ValidationError  # noqa: E402

import anthropic.types  # noqa: E402,F401
import anthropic.types.beta  # noqa: E402,F401
import openai.types.chat  # noqa: E402,F401
import openai.types.responses  # noqa: E402,F401
from google.genai import types as gemini  # noqa: E402

for name, module in list(sys.modules.items()):
    if name.startswith(("anthropic.types", "openai.types")):
        for value in list(vars(module).values()):
            if isinstance(value, type) and typing_extensions.is_typeddict(value):
                value.__pydantic_config__ = {"extra": "forbid", "arbitrary_types_allowed": True}

from anthropic.types import message_create_params as messages  # noqa: E402
from anthropic.types.beta import beta_context_management_config_param as context_management  # noqa: E402
from openai.types.chat import completion_create_params as chat  # noqa: E402
from openai.types.responses import response_create_params as responses  # noqa: E402


def either(module, name):
    return {
        False: TypeAdapter(getattr(module, name + "NonStreaming")),
        True: TypeAdapter(getattr(module, name + "Streaming")),
    }


DICTIONARIES = {
    "messages": either(messages, "MessageCreateParams"),
    "responses": either(responses, "ResponseCreateParams"),
    "chat_completions": either(chat, "CompletionCreateParams"),
}
# The dialect of xAI differs from its model in hosted tools alone.
DICTIONARIES["xai_responses"] = DICTIONARIES["responses"]

GEMINI = {
    "contents": typing.List[gemini.Content],
    "systemInstruction": gemini.Content,
    "tools": typing.List[gemini.Tool],
    "toolConfig": gemini.ToolConfig,
    "safetySettings": typing.List[gemini.SafetySetting],
    "generationConfig": gemini.GenerationConfig,
    "cachedContent": str,
    "labels": typing.Dict[str, str],
    "serviceTier": str,
}
GEMINI = {name: TypeAdapter(kind) for name, kind in GEMINI.items()}


# What is still a beta feature of the provider stands among other types.
CONTEXT_MANAGEMENT = TypeAdapter(context_management.BetaContextManagementConfigParam)


def check(wire, body):
    if wire == "messages" and "context_management" in body:
        CONTEXT_MANAGEMENT.validate_python(body["context_management"])
        body = {name: value for name, value in body.items() if name != "context_management"}
    if wire == "xai_responses":
        # xAI runs code without being told in which container.
        for tool in body.get("tools", []):
            if tool["type"] == "code_interpreter":
                tool.setdefault("container", {"type": "auto"})
    if wire in DICTIONARIES:
        DICTIONARIES[wire][bool(body.get("stream"))].validate_python(body)
        return
    for name, value in body.items():
        if name not in GEMINI:
            raise ValueError(f"{name}: no member of a request")
        # As JSON, since the library's own bytes are base 64 there.
        GEMINI[name].validate_json(json.dumps(value))


for line in sys.stdin:
    case = json.loads(line)
    try:
        check(case["wire"], case["body"])
        answer = "ok"
    except ValidationError as error:
        wrong = [".".join(map(str, one["loc"])) + ": " + one["msg"] for one in error.errors()]
        # The branches of unions all complain; the deepest complaint is the one about the branch that was meant.
        wrong.sort(key=lambda text: -text.count("."))
        answer = "; ".join(wrong[:4])
    except ValueError as error:
        answer = str(error)
    print(json.dumps(answer), flush=True)
