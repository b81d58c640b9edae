#!/usr/bin/env python3
"""Tests of {{name}}: `python3 test_{{name}}.py`. They need no network."""

import json
import pathlib
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parent / "{{name}}"


def run(*words):
    """The exit code and the output, as JSON if it is JSON."""
    done = subprocess.run([sys.executable, str(PROGRAM), *words], capture_output=True, text=True, timeout=60)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, done.stdout


class Tools(unittest.TestCase):
    def test_examples(self):
        for tool in run("--discover")[1]["tools"]:
            for example in tool.get("examples", []):
                code, envelope = run(tool["name"], json.dumps(example))
                self.assertEqual((code, envelope["status"]), (0, "success"))

    def test_greet(self):
        expected = (0, {"status": "success", "result": {"result": "Hello, Ada. Hello, Ada."}})
        self.assertEqual(run("greet", '{"name": "Ada", "times": 2}'), expected)
        self.assertEqual(run("greet", "--name", "Ada", "--times", "2"), expected)

    def test_invalid_arguments(self):
        for words, code in [
            (["greet", "{}"], "MISSING_PARAM"),
            (["greet", '{"name": 7}'], "INVALID_INPUT"),
            (["greet", '{"name": "Ada", "tmies": 2}'], "INVALID_INPUT"),
        ]:
            status, envelope = run(*words)
            self.assertEqual((status, envelope["error"]["code"]), (1, code), words)


if __name__ == "__main__":
    unittest.main()
