#!/usr/bin/env python3
"""A program with two tools, for agents and people: `mathtools.py add --a 1 --b 2`."""

from toolpost.author import main, tool


@tool
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers and return the sum."""
    return {"sum": a + b}


@tool
def multiply(a: int, b: int) -> dict[str, int]:
    """Multiply two numbers and return the product."""
    return {"product": a * b}


if __name__ == "__main__":
    main(add, multiply, name="mathtools", version="1.0.0")
