"""A small API of orders on this machine, which answers only with the right key. It stands for a real service."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ORDERS = [
    {"id": 1, "city": "Oslo", "status": "open", "euros": 120},
    {"id": 2, "city": "Bergen", "status": "paid", "euros": 80},
    {"id": 3, "city": "Oslo", "status": "open", "euros": 45},
]


class Orders(BaseHTTPRequestHandler):
    def do_GET(self):
        is_known = self.headers["Authorization"] == "Bearer " + os.environ["ORDERS_KEY"]
        body = json.dumps(ORDERS if is_known else {"error": "wrong key"}).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders).serve_forever()
