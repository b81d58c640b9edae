#!/usr/bin/env node
/** A program of every kind of tool, for the table of the executable protocol. */

import { setTimeout as sleep } from "node:timers/promises";
import { main, Output, prompt, resource, tool, ToolError } from "toolpost";
import { z } from "zod";

const point = z.object({ x: z.int(), y: z.int().default(0) });

const tools = [
  tool({
    name: "greet",
    description: "Greet a person.\n\nMore about it.",
    tags: ["text"],
    examples: [{ name: "Ada" }],
    readOnly: true,
    input: {
      type: "object",
      properties: {
        name: { type: "string", description: "Name of the person." },
        times: { type: "integer", description: "Number of greetings.", minimum: 1, maximum: 10, default: 1 },
      },
      required: ["name"],
    },
    output: { type: "string" },
    run: ({ name, times }) => {
      console.log("a stray print");
      process.stdout.write("a stray write\n");
      return new Array(times).fill(`Hello, ${name}.`).join(" ");
    },
  }),
  tool({
    name: "add",
    description: "Add two numbers.",
    input: z.object({ a: z.number(), b: z.number() }),
    run: async ({ a, b }, ctx) => {
      ctx.progress("adding", 50);
      ctx.log("warning", "slow");
      await sleep(0);
      return a + b;
    },
  }),
  tool({
    name: "move",
    description: "Move a point.",
    input: z.object({ point, by: z.array(z.int()).nullish() }),
    run: ({ point, by }) => ({ x: (by ?? []).reduce((sum, one) => sum + one, point.x), y: point.y }),
  }),
  tool({
    name: "count",
    description: "Count.",
    mode: "streaming",
    input: { type: "object", properties: { to: { type: "integer" } }, required: ["to"] },
    run: async ({ to }, ctx) => {
      for (let number = 0; number < to; number += 1) ctx.progress(`${number}`, (100 * number) / to);
      await ctx.artifact("log.txt", "done");
      return to;
    },
  }),
  tool({
    name: "guess",
    description: "Guess a number.",
    mode: "session",
    run: async (_, ctx) => {
      const first = await ctx.ask("First?", z.int());
      const second = await ctx.ask("Second?");
      return `${first} ${second === null ? "None" : second}`;
    },
  }),
  tool({
    name: "ask",
    description: "Ask a question and sample.",
    run: async (_, ctx) => {
      const [answer, sample] = await Promise.all([
        ctx.ask("Sure?", { type: "boolean" }), ctx.sample("Why?", { maxTokens: 5 }),
      ]);
      return `${answer ? "True" : "False"} ${sample.content}`;
    },
  }),
  tool({
    name: "sample",
    description: "Sample a model.",
    run: async (_, ctx) => (await ctx.sample("Why?", { system: "short" })).content,
  }),
  tool({
    name: "fail",
    description: "Fail.",
    input: { type: "object", properties: { code: { type: "string", default: "" } } },
    run: ({ code }) => {
      if (code) throw new ToolError(code, "it failed", { suggestion: "Do not call it.", context: { fact: 1 } });
      throw new RangeError("outer secret", { cause: new TypeError("inner secret") });
    },
  }),
  tool({
    name: "rows",
    description: "Return rows.",
    input: z.object({ good: z.int(), bad: z.int() }),
    run: ({ good, bad }) => {
      const errors = Array.from({ length: bad }, (_, row) => new ToolError("NOT_FOUND", `row ${row}`));
      return new Output({ rows: [...new Array(good).keys()] }, { partial: { succeeded: good, errors } });
    },
  }),
  tool({
    name: "nap",
    description: "Sleep, deaf to cancellation.",
    timeout: 200,
    input: z.object({ seconds: z.number() }),
    run: async ({ seconds }) => (await sleep(seconds * 1000), seconds),
  }),
  tool({
    name: "doze",
    description: "Sleep until a cancellation.",
    timeout: "200ms",
    input: z.object({ seconds: z.number() }),
    run: async ({ seconds }, ctx) => sleep(seconds * 1000, seconds, { signal: ctx.signal }),
  }),
  tool({
    name: "wait",
    description: "Wait for the cancellation.",
    run: async (_, ctx) => {
      console.error("waiting");
      while (!ctx.isCancelled) await sleep(5);
      throw new ToolError("CANCELLED", "as requested");
    },
  }),
  tool({
    name: "here",
    description: "Print the directory.",
    input: z.object({
      working_dir: z.string().default("."), dry_run: z.boolean().default(false), verbose: z.boolean().default(false),
    }),
    run: (_, ctx) => {
      ctx.log("info", "looking");
      return process.cwd();
    },
  }),
  tool({
    name: "facts",
    description: "Facts of the call.",
    input: { type: "object", additionalProperties: { type: "integer" } },
    run: (rest, ctx) => ({ id: ctx.id, front: ctx.caller.front, metadata: ctx.metadata, rest }),
  }),
  tool({
    name: "read_input",
    description: "Read standard input, which is empty.",
    run: async () => {
      let text = "";
      for await (const part of process.stdin) text += part;
      return text;
    },
  }),
];

const note = resource({
  uri: "notes://{user}",
  description: "A note.",
  mimeTypes: ["text/plain"],
  read: ({ user }) => {
    if (user === "nobody") throw new ToolError("NOT_FOUND", "no such user");
    return `Note of ${user}.`;
  },
});

const review = prompt({
  name: "review",
  description: "Review a text.",
  input: z.object({ text: z.string(), style: z.string().default("short") }),
  render: async ({ text, style }) => `Review in a ${style} style: ${text}`,
});

main([...tools, note, review], { version: "1.2.3", about: "A program of every kind of tool." });
