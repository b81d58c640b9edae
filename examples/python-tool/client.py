"""The client of the shop's API."""

import os

import requests

API = "http://127.0.0.1:17610"


def orders(status):
    """Orders of one status."""
    # In the sandbox the variable is a placeholder; the egress proxy puts the key into the request.
    key = {"Authorization": f"Bearer {os.environ['ORDERS_KEY']}"}
    answer = requests.get(f"{API}/orders", headers=key, timeout=10)
    answer.raise_for_status()
    return [order for order in answer.json() if order["status"] == status]
