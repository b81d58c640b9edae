// The same with the AI SDK: `node ai_sdk.mjs URL AGENTS`.
import { generateText, stepCountIs, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { z } from "zod";

// Its warnings would be a part of the figures.
globalThis.AI_SDK_LOG_WARNINGS = false;

const [url, agents] = [process.argv[2], Number(process.argv[3])];
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "key" });
const add = tool({
  description: "Add two numbers.",
  inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
  execute: async ({ a, b }) => a + b,
});

async function run() {
  const { text } = await generateText({
    model: anthropic("claude-x"),
    tools: { add },
    stopWhen: stepCountIs(30),
    prompt: "What is 2 + 3?",
  });
  if (text !== "done") throw new Error(`another answer was expected: ${text}`);
}

await run();
const [before, begun] = [process.cpuUsage(), performance.now()];
await Promise.all(Array.from({ length: agents }, run));
const [wall, used] = [performance.now() - begun, process.cpuUsage(before)];
const iterations = agents * 11;
console.log(
  JSON.stringify({
    cpu_ms: (used.user + used.system) / 1000 / iterations,
    per_second: (iterations / wall) * 1000,
    mib: process.resourceUsage().maxRSS / 1024,
  }),
);
