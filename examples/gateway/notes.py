"""An MCP server of one file: notes that last as long as the server. It needs nothing but Python."""

import json
import sys

NOTES = []
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "add", "description": "Add a note.", "inputSchema": TEXT},
    {"name": "list", "description": "List all notes.", "inputSchema": NOTHING},
    {"name": "clear", "description": "Remove all notes.", "inputSchema": NOTHING},
]


def call(name, arguments):
    if name == "add":
        NOTES.append(arguments["text"])
    elif name == "clear":
        NOTES.clear()
    return "\n".join(NOTES) or "no notes"


def answer(method, parameters):
    if method == "initialize":
        return {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "notes", "version": "1.0"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        text = call(parameters["name"], parameters.get("arguments", {}))
        return {"content": [{"type": "text", "text": text}]}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    result = answer(request["method"], request.get("params", {}))
    reply = {"result": result} if result is not None else {"error": {"code": -32601, "message": "no such method"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}), flush=True)
