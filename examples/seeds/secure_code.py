import asyncio
from src.domain.tools import ToolExecutionContext
from src.infrastructure.sandbox import ProcessSandbox

async def main():
    # Process-based sandbox
    process_sandbox = ProcessSandbox()
    await process_sandbox.initialize()

    result = await process_sandbox.execute_code(
        code="print('Hello from sandbox!')",
        language="python",
        context=ToolExecutionContext(security_level="standard")
    )

    print(f"Output: {result.stdout}")
    print(f"Execution time: {result.execution_time}s")

asyncio.run(main())
