#!/usr/bin/env node
/** The tools of the table of command lines that the Rust half of the protocol is tested with, in TypeScript. */

import { setTimeout as sleep } from "node:timers/promises";
import { main, Output, prompt, resource, tool, ToolError } from "toolpost";
import { z } from "zod";

const greet = tool({
  name: "greet",
  description: "Greet a person.\n\nWith titles.",
  input: z.object({
    name: z.string().min(1).describe("Whom."),
    titles: z.array(z.string()).default([]).describe("Titles, one flag each."),
    numbers: z.array(z.int()).default([]).describe("Whole numbers."),
    loud: z.boolean().default(false).describe("In capitals."),
    extra: z.any().default(null).describe("Anything."),
  }),
  run: (args) => args,
});

const tools = [
  tool({
    name: "add",
    description: "Add two numbers.",
    tags: ["math"],
    examples: [{ a: 1, b: 2 }],
    idempotent: true,
    input: {
      type: "object",
      properties: {
        a: { type: "integer", description: "The first." },
        b: { type: "integer", description: "The second.", default: 10 },
      },
      required: ["a"],
    },
    output: { type: "integer" },
    run: ({ a, b }) => a + b,
  }),
  greet,
  tool({
    name: "order",
    description: "Order a thing; the answer has a status of its own.",
    run: () => ({ status: "shipped", id: 7 }),
  }),
  tool({
    name: "count",
    description: "Count, and report progress.",
    mode: "streaming",
    input: z.object({ to: z.int().min(1).describe("How far.") }),
    run: async ({ to }, ctx) => {
      for (let number = 1; number <= to; number += 1) ctx.progress(`${number}`, (number * 100) / to);
      ctx.log("warning", "counted");
      await ctx.artifact("count.txt", `${to}`);
      if (to === 13) throw new ToolError("CONFLICT", "13 is unlucky");
      return to;
    },
  }),
  tool({
    name: "guess",
    description: "Guess a number.",
    mode: "session",
    input: z.object({ number: z.int().default(7) }),
    run: async ({ number }, ctx) => {
      let question = "Guess.";
      for (let tries = 1; ; tries += 1) {
        const guessed = await ctx.ask(question);
        if (guessed === null) return new Output();
        if (guessed === number) return { tries };
        question = guessed < number ? "More." : "Less.";
      }
    },
  }),
  tool({
    name: "summarize",
    description: "Say it shorter.",
    input: z.object({ text: z.string() }),
    run: async ({ text }, ctx) => {
      const options = { system: "Be brief.", temperature: 0.5, stopSequences: ["END"] };
      return (await ctx.sample(`Short: ${text}`, options)).content;
    },
  }),
  tool({
    name: "divide",
    description: "Divide numbers by numbers.",
    input: z.object({ numbers: z.array(z.number()), by: z.array(z.number()) }),
    run: ({ numbers, by }) => {
      const errors = by.filter((one) => one === 0).map(() => new ToolError("INVALID_INPUT", "division by 0"));
      const quotients = numbers.flatMap((number, at) => (by[at] ? [number / by[at]] : []));
      return new Output({ quotients }, { partial: { succeeded: quotients.length, errors } });
    },
  }),
  tool({
    name: "find",
    description: "Find a file.",
    input: z.object({
      name: z.string().describe("A part of the name."),
      working_dir: z.string().nullable().default(null),
      timeout: z.number().nullable().default(null),
      dry_run: z.boolean().default(false),
      verbose: z.boolean().default(false),
    }),
    run: (args, ctx) => {
      if (args.name.includes("/")) throw new ToolError("INVALID_INPUT", "/name: expected a name, found a path");
      ctx.log("info", "looking");
      return {
        name: args.name,
        directory: ctx.workingDir,
        seconds: Math.ceil((ctx.remaining ?? 0) / 1000),
        verbose: ctx.isVerbose,
        given: [args.working_dir !== null, args.timeout, args.dry_run, args.verbose],
      };
    },
  }),
  tool({
    name: "delete",
    description: "Delete a thing; it knows what it would do.",
    dryRun: true,
    destructive: true,
    input: z.object({ thing: z.string(), dry_run: z.boolean().default(false) }),
    run: ({ thing, dry_run }, ctx) => ({ thing, deleted: !ctx.isDryRun, asked: dry_run }),
  }),
  tool({
    name: "sleep",
    description: "Sleep.",
    timeout: "1200ms",
    input: z.object({ milliseconds: z.int(), timeout: z.number().nullable().default(null) }),
    run: async ({ milliseconds }) => sleep(milliseconds, milliseconds),
  }),
  tool({
    name: "fail",
    description: "Fail.",
    input: z.object({ code: z.string() }),
    run: ({ code }) => {
      throw new ToolError(code, "hunter2", { suggestion: "Do it later." });
    },
  }),
  tool({
    name: "explode",
    description: "Fail without a code.",
    run: () => {
      throw new Error("hunter2");
    },
  }),
  tool({
    name: "nested",
    description: "Call another tool.",
    input: z.object({ tool: z.string(), arguments: z.record(z.string(), z.any()) }),
    run: (args, ctx) => ctx.call(args.tool, args.arguments),
  }),
  tool({
    name: "give",
    description: "Return a file and facts of the caller.",
    run: async (_, ctx) => {
      await ctx.artifact("a.bin", new Uint8Array([0, 255]));
      return {
        front: ctx.caller.front,
        identity: ctx.caller.identity ?? null,
        metadata: ctx.metadata,
        key: ctx.idempotencyKey,
        level: ctx.level,
        scope: ctx.scope,
      };
    },
  }),
];

const note = resource({
  uri: "notes://{user}/{page}",
  description: "A note.",
  mimeTypes: ["text/plain"],
  tags: ["notes"],
  input: z.object({ user: z.string(), page: z.int() }),
  read: ({ user, page }) => {
    if (page > 9) throw new ToolError("NOT_FOUND", "no such page");
    return { user, page };
  },
});

const review = prompt({
  name: "review",
  description: "Ask for a review.",
  tags: ["writing"],
  input: z.object({ text: z.string().describe("The text."), tone: z.string().default("kind").describe("How strict.") }),
  render: ({ text, tone }) => `${tone}: ${text}`,
});

const isSingle = process.argv[2] === "single";
if (isSingle) process.argv.splice(2, 1);
main(isSingle ? [greet] : [...tools, note, review], { name: "demo", version: "1.2.3" });
