"""A tool with an enum and an error."""

from typing import Literal

from toolpost import Toolbox, ToolError, tool


@tool
def calculator(operation: Literal["add", "subtract", "multiply", "divide"], a: float, b: float) -> dict[str, float]:
    """Perform basic arithmetic operations.

    Args:
        operation: Arithmetic operation
        a: First number
        b: Second number
    """
    if operation == "divide" and b == 0:
        raise ToolError.invalid_input("Division by zero")
    operations = {
        "add": lambda: a + b,
        "subtract": lambda: a - b,
        "multiply": lambda: a * b,
        "divide": lambda: a / b,
    }
    return {"result": operations[operation]()}


toolbox = Toolbox(calculator)
print(toolbox.call_sync("calculator", {"operation": "divide", "a": 7, "b": 2}).value)
try:
    toolbox.call_sync("calculator", {"operation": "divide", "a": 7, "b": 0})
except ToolError as error:
    print(error.message)
