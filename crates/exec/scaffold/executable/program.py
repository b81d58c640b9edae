#!/usr/bin/env python3
from toolpost_author import main, tool


@tool(tags=["text"], examples=[{"name": "Ada", "times": 2}])
def greet(name: str, times: int = 1) -> str:
    """Greet a person, once or several times."""
    return " ".join([f"Hello, {name}."] * times)


if __name__ == "__main__":
    main()
