from src.domain.tools import BaseTool, tool, EnhancedToolSchema, ParameterSchema

@tool(name="calculator", description="Basic calculator")
class CalculatorTool(BaseTool):
    @property
    def schema(self) -> EnhancedToolSchema:
        return EnhancedToolSchema(
            name="calculator",
            description="Perform basic arithmetic operations",
            parameters=[
                ParameterSchema(
                    name="operation",
                    type="string",
                    description="Arithmetic operation",
                    enum=["add", "subtract", "multiply", "divide"],
                    required=True
                ),
                ParameterSchema(
                    name="a",
                    type="number",
                    description="First number",
                    required=True
                ),
                ParameterSchema(
                    name="b",
                    type="number",
                    description="Second number",
                    required=True
                )
            ]
        )

    async def execute(self, context, **kwargs):
        op = kwargs["operation"]
        a, b = kwargs["a"], kwargs["b"]

        operations = {
            "add": lambda x, y: x + y,
            "subtract": lambda x, y: x - y,
            "multiply": lambda x, y: x * y,
            "divide": lambda x, y: x / y if y != 0 else None
        }

        result = operations[op](a, b)

        return ToolResult(
            success=result is not None,
            data={"result": result},
            error="Division by zero" if result is None else None,
            execution_time=0,
            context=context
        )
