"""A tool program with one tool. One of its sources is closed, and one is slow."""

import json
import sys
import time

NOTES = {
    "atlas": "flows through two countries",
    "diary": "was frozen in the winter of 1963",
    "archive": None,
    "gauge": "is 3 m deep at the bridge",
}
ASK_SOURCE = {
    "name": "ask_source",
    "summary": "Ask one source about a topic.",
    "schema": {
        "type": "object",
        "properties": {
            "source": {"enum": list(NOTES), "description": "The source."},
            "topic": {"type": "string", "description": "What to ask about."},
        },
        "required": ["source", "topic"],
    },
}


def ask_source(source, topic):
    if NOTES[source] is None:
        return {"status": "error", "error": {"code": "DEPENDENCY", "message": "the archive is closed"}}
    if source == "gauge":
        time.sleep(0.5)
    return {"status": "success", "result": {"source": source, "text": f"The {topic} {NOTES[source]}."}}


if sys.argv[1:] == ["--discover"]:
    answer = {"name": "sources", "version": "1.0", "tools": [{**ASK_SOURCE, "streaming": False}]}
elif sys.argv[1:] == ["ask_source", "--manifest"]:
    answer = ASK_SOURCE
else:
    answer = ask_source(**json.loads(sys.argv[2]))
print(json.dumps(answer))
