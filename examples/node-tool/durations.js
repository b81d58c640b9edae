#!/usr/bin/env node
// A tool program: `--discover` lists its tools, `--manifest` describes one, and a JSON object calls it.
import ms from "ms";

const toMilliseconds = {
  name: "to_milliseconds",
  summary: "Convert a duration such as `2 days` to milliseconds.",
  schema: {
    type: "object",
    properties: { duration: { type: "string", description: "A number and a unit." } },
    required: ["duration"],
  },
};

const [command, argument] = process.argv.slice(2);
let answer = toMilliseconds;
if (command === "--discover") {
  answer = { name: "durations", version: "1.0", tools: [{ ...toMilliseconds, streaming: false }] };
} else if (argument !== "--manifest") {
  const { duration } = JSON.parse(argument);
  const milliseconds = ms(duration);
  const error = { code: "INVALID_INPUT", message: `\`${duration}\` is not a duration`, suggestion: "Write `2 days`." };
  answer = milliseconds === undefined ? { status: "error", error } : { status: "success", result: { milliseconds } };
}
console.log(JSON.stringify(answer));
