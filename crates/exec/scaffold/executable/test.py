#!/usr/bin/env python3
"""Tests of {{name}}: `python3 test_{{name}}.py`. They need no network."""

import json
import pathlib
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parent / "{{name}}"


def run(*words):
    """The exit status and what was printed, as JSON where it is."""
    done = subprocess.run([sys.executable, str(PROGRAM), *words], capture_output=True, text=True, timeout=60)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, done.stdout


class Tools(unittest.TestCase):
    def test_what_is_offered(self):
        status, offer = run("--discover")
        self.assertEqual((status, offer["name"], [tool["name"] for tool in offer["tools"]]), (0, "{{name}}", ["greet"]))
        self.assertEqual(run("--tools"), (0, {"tools": [{"name": "greet", "summary": "Greet somebody."}]}))
        self.assertEqual(run("--resources"), (0, {"resources": []}))
        self.assertEqual(run("--prompts"), (0, {"prompts": []}))

    def test_every_tool_has_a_manifest_and_its_examples_work(self):
        for tool in run("--discover")[1]["tools"]:
            manifest = run(tool["name"], "--manifest")[1]
            self.assertEqual(manifest["schema"]["type"], "object")
            for example in manifest.get("examples", []):
                status, envelope = run(tool["name"], json.dumps(example))
                self.assertEqual((status, envelope["status"]), (0, "success"))

    def test_arguments_are_json_or_options(self):
        expected = (0, {"status": "success", "result": {"greeting": "Hello, Ada. Hello, Ada."}})
        self.assertEqual(run("greet", '{"name": "Ada", "times": 2}'), expected)
        self.assertEqual(run("greet", "--name", "Ada", "--times", "2"), expected)
        self.assertEqual(run("greet", "--name=7")[1]["result"]["greeting"], "Hello, 7.")

    def test_wrong_arguments_are_errors(self):
        for words, code in [
            (["nothing"], "NOT_FOUND"),
            (["greet"], "MISSING_PARAM"),
            (["greet", '{"name": 7}'], "INVALID_INPUT"),
            (["greet", '{"name": "Ada", "tmies": 2}'], "INVALID_INPUT"),
            (["greet", '{"name": "Ada", "times": 99}'], "INVALID_INPUT"),
            (["greet", "{"], "INVALID_INPUT"),
        ]:
            status, envelope = run(*words)
            self.assertEqual((status, envelope["error"]["code"]), (1, code), words)
        self.assertEqual(run("greet", "--validate", '{"name": "Ada"}'), (0, {"valid": True}))
        self.assertFalse(run("greet", "--validate", "{}")[1]["valid"])

    def test_help_is_for_people(self):
        self.assertIn("greet", run("--help")[1])
        self.assertIn("How often", run("greet", "--help")[1])


if __name__ == "__main__":
    unittest.main()
