#!/usr/bin/env python3
"""A tool program: `--discover` lists its tools, `--manifest` describes one, and a JSON object calls it."""

import json
import random
import sys

ROLL = {
    "name": "roll",
    "summary": "Roll dice.",
    "schema": {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1, "description": "How many dice."},
            "seed": {"type": "integer", "description": "The same seed gives the same numbers."},
        },
    },
}

if sys.argv[1:] == ["--discover"]:
    answer = {"name": "dice", "version": "1.0", "tools": [{**ROLL, "streaming": False}]}
elif sys.argv[1:] == ["roll", "--manifest"]:
    answer = ROLL
else:
    arguments = json.loads(sys.argv[2])
    generator = random.Random(arguments.get("seed"))
    answer = {"status": "success", "result": [generator.randint(1, 6) for _ in range(arguments["count"])]}
print(json.dumps(answer))
