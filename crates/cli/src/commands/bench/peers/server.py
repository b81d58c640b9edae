"""An MCP server with the tool `add`: `server.py PEER PLACE`, where PLACE is `stdio` or a port on 127.0.0.1."""

import json
import sys

PEER, PLACE = sys.argv[1], sys.argv[2]


async def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return {"sum": a + b}


def fastmcp():
    from fastmcp import FastMCP

    server = FastMCP("calc")
    server.tool(add)
    if PLACE == "stdio":
        server.run(show_banner=False)
    else:
        quiet = {"show_banner": False, "log_level": "error", "uvicorn_config": {"access_log": False}}
        server.run(transport="http", host="127.0.0.1", port=int(PLACE), **quiet)


def toolpost():
    from toolpost import Toolbox

    Toolbox(add).serve_sync(http=None if PLACE == "stdio" else f"127.0.0.1:{PLACE}")


def lines():
    """Parse a line, add, print a line. It checks nothing: the lower limit of a server in Python."""
    for line in sys.stdin:
        message = json.loads(line)
        if message["method"] == "initialize":
            result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "lines", "version": "1"}
        elif message["method"] == "tools/call":
            numbers = message["params"]["arguments"]
            total = {"sum": numbers["a"] + numbers["b"]}
            result = {"content": [{"type": "text", "text": json.dumps(total)}], "structuredContent": total}
        else:
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}, separators=(",", ":")), flush=True)


globals()[PEER]()
