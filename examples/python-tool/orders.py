"""A tool program: `--discover` lists its tools, `--manifest` describes one, and a JSON object calls it."""

import json
import sys

import requests

from client import orders

LIST_ORDERS = {
    "name": "list_orders",
    "summary": "List orders of the shop.",
    "schema": {
        "type": "object",
        "properties": {"status": {"enum": ["open", "paid"], "description": "Which orders."}},
        "required": ["status"],
    },
}


def list_orders(status):
    found = orders(status)
    return {"orders": found, "euros": sum(order["euros"] for order in found)}


if sys.argv[1:] == ["--discover"]:
    answer = {"name": "orders", "version": "1.0", "tools": [{**LIST_ORDERS, "streaming": False}]}
elif sys.argv[1:] == ["list_orders", "--manifest"]:
    answer = LIST_ORDERS
else:
    try:
        answer = {"status": "success", "result": list_orders(**json.loads(sys.argv[2]))}
    except requests.RequestException as error:
        answer = {"status": "error", "error": {"code": "DEPENDENCY", "message": str(error)}}
print(json.dumps(answer))
