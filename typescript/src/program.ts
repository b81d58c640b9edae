/** A tool program: the executable protocol, dialect 0.1, as `toolpost` and toolable call it. */

import { randomBytes } from "node:crypto";
import { closeSync, openSync, readSync } from "node:fs";
import { basename } from "node:path";
import { EXIT, exitCode, failure, SpecError, ToolError, wireError } from "./errors.js";
import { Output, valueOf } from "./output.js";
import { didYouMean } from "./schema.js";
import { Prompt, parseObject, Resource, summary, Tool } from "./tool.js";
import { Wire } from "./wire.js";

export const PROTOCOL = "0.1+toolpost.1";
/** The maximum size of arguments on standard input and of files, in bytes. */
export const MAX_INPUT = 16 << 20;

const EXIT_HELP = `
Exit code:
  0    success, at least partial
  1    the tool failed, or the arguments are invalid
  2    invalid command line
  4    a dependency is unreachable or too slow
  5    permission denied
  6    a limit was reached
  130  cancelled
`;
const COMMANDS: [string, string][] = [
  ["--discover", "print tools, resources and prompts as JSON"],
  ["--tools", "list the tools as JSON"],
  ["--resources", "list the resources as JSON"],
  ["--prompts", "list the prompts as JSON"],
  ["--resource URI", "read a resource"],
  ["--prompt NAME '{…}'", "render a prompt"],
  ["--resident", "serve many calls over one process"],
  ["--version", "print the version"],
];

/** The options of {@link main}. */
export interface ProgramOptions {
  /** Default: the name of the file. */
  name?: string;
  /** Default: `0.1.0`. */
  version?: string;
  /** What the program is, for `--help`. */
  about?: string;
}

/**
 * Runs the command line of a tool program, and exits. `./program.js --help` lists its commands.
 *
 * ```ts
 * main([forecast], { version: "1.0.0" });
 * ```
 */
export async function main(
  sources: readonly (Tool | Resource | Prompt)[], options: ProgramOptions = {},
): Promise<never> {
  const wire = new Wire();
  // A promise that a tool forgot must not end the calls of others.
  process.on("unhandledRejection", (error) => process.stderr.write(`unhandled rejection: ${String(error)}\n`));
  process.exit(await new Program(sources, options, wire).run(process.argv.slice(2)));
}

/** The tools, resources and prompts of a program, and the answers to its command line. */
export class Program {
  readonly name: string;
  readonly version: string;
  readonly tools = new Map<string, Tool>();
  readonly #resources: Resource[] = [];
  readonly #prompts = new Map<string, Prompt>();
  readonly #about: string;

  constructor(sources: readonly (Tool | Resource | Prompt)[], options: ProgramOptions, readonly wire: Wire) {
    this.name = options.name ?? (basename(process.argv[1] ?? "").replace(/\.[cm]?[jt]s$/, "") || "tool");
    this.version = options.version ?? "0.1.0";
    this.#about = options.about ? `${options.about.trim()}\n\n` : "";
    for (const one of sources) {
      if (one instanceof Resource) {
        this.#resources.push(one);
        continue;
      }
      const table: Map<string, Tool | Prompt> = one instanceof Prompt ? this.#prompts : this.tools;
      if (table.has(one.name)) throw new SpecError(`two tools are named \`${one.name}\`; rename one`);
      table.set(one.name, one);
    }
  }

  /** Answers a command line and returns the exit code. */
  async run(words: string[]): Promise<number> {
    try {
      return await this.#answer(words);
    } catch (error) {
      if (error instanceof ToolError) return this.reject(error, EXIT.usage);
      return this.reject(failure(error, newId()));
    }
  }

  async #answer(given: string[]): Promise<number> {
    const words = this.#plain(given);
    const first = words[0];
    if (first === undefined || (words.length === 1 && (first === "--help" || first === "-h"))) {
      return this.text(this.#help());
    }
    if (words.length === 1 && first === "--version") return this.text(`${this.name} ${this.version}\n`);
    if (words.length === 1 && first === "--resident") {
      const { Resident } = await import("./resident.js");
      return new Resident(this).serve();
    }
    const found = await this.command(words);
    if (found !== null) return found;
    const { Run } = await import("./run.js");
    const named = this.tools.get(first);
    if (named) return new Run(this, named).answer(words.slice(1));
    const [only] = this.tools.values();
    if (only && this.tools.size === 1) return new Run(this, only).answer(words);
    for (let start = 1; start < words.length; start += 1) {
      const later = await this.command(words.slice(start));
      if (later !== null) return later;
    }
    const suggestion = didYouMean(first, this.tools.keys()) ?? "See `--tools` for the available tools.";
    throw new ToolError("NOT_FOUND", `Unknown command: ${first.slice(0, 80)}`, { suggestion });
  }

  /** The words of dialect 0.2, `{"command": …, "params": …}`, as those of dialect 0.1. */
  #plain(words: string[]): string[] {
    if (!words[0]?.startsWith("{")) return words;
    try {
      const { command, params, ...rest } = parseObject(words[0]);
      const isCommand = typeof command === "string" && this.tools.has(command) && params !== undefined;
      return isCommand && Object.keys(rest).length === 0
        ? [command, JSON.stringify(params), ...words.slice(1)]
        : words;
    } catch {
      return words;
    }
  }

  /** Answers a command of the program at the start of these words; null if there is none. */
  async command(words: string[]): Promise<number | null> {
    switch (words[0]) {
      case "--discover":
        return this.pretty(this.discovery());
      case "--tools":
        return this.pretty({ tools: this.#specs().map(({ name, description }) => ({ name, summary: summary(description) })) });
      case "--resources":
        return this.pretty({ resources: this.discovery().resources });
      case "--prompts":
        return this.pretty({ prompts: this.discovery().prompts });
      case "--resource": {
        const uri = words[1];
        if (uri === undefined) throw new ToolError("MISSING_PARAM", "`--resource` needs a URI: `--resource URI`");
        return this.#value(() => this.read(uri));
      }
      case "--prompt": {
        const name = words[1];
        if (name === undefined) throw new ToolError("MISSING_PARAM", "`--prompt` needs a name: `--prompt NAME '{…}'`");
        const args = parseObject(words[2] ?? "");
        return this.#value(() => this.render(name, args));
      }
      default:
        return null;
    }
  }

  #specs() {
    return [...this.tools.values()].map((one) => one.spec);
  }

  /** The program's manifest. */
  discovery() {
    return {
      name: this.name,
      version: this.version,
      protocol: PROTOCOL,
      resident: true,
      tools: this.#specs().map(entry),
      resources: this.#resources.map((one) => one.entry),
      prompts: [...this.#prompts.values()].map((one) => one.entry),
    };
  }

  /** The value of a resource. */
  async read(uri: string): Promise<unknown> {
    for (const one of this.#resources) {
      const parts = one.match(uri);
      if (parts) return valueOf(Output.of(await one.read(await one.decode(parts))).toJSON());
    }
    throw new ToolError("NOT_FOUND", `unknown resource \`${uri.slice(0, 200)}\``);
  }

  /** The value of a prompt. */
  async render(name: string, args: Record<string, unknown>): Promise<unknown> {
    const one = this.#prompts.get(name);
    if (!one) {
      const suggestion = didYouMean(name, this.#prompts.keys());
      throw new ToolError("NOT_FOUND", `unknown prompt \`${name.slice(0, 80)}\``, { suggestion });
    }
    return valueOf(Output.of(await one.render(await one.decode(args))).toJSON());
  }

  async text(text: string): Promise<number> {
    await this.wire.write(text);
    return EXIT.success;
  }

  pretty(value: unknown): Promise<number> {
    return this.text(`${JSON.stringify(value, null, 2)}\n`);
  }

  async #value(get: () => Promise<unknown>): Promise<number> {
    try {
      await this.wire.line(await get());
      return EXIT.success;
    } catch (error) {
      return this.reject(failure(error, newId()));
    }
  }

  /** Writes an error: an envelope, or a message on standard error for a terminal. */
  async reject(error: ToolError, code: number = exitCode(error)): Promise<number> {
    if (this.wire.isTerminal) {
      const hint = error.suggestion ? `hint: ${error.suggestion}\n` : "";
      process.stderr.write(`error: ${error.message}\n${hint}`);
    } else {
      await this.wire.line({ status: "error", error: wireError(error) });
    }
    return code;
  }

  #help(): string {
    const tools = this.#specs().map(({ name, description }): [string, string] => [name, summary(description)]);
    const usage = `Usage: ${this.name} TOOL [--FLAG VALUE]… | '{JSON}' | @FILE | -\n       ${this.name} TOOL --help\n`;
    return `${this.#about}${usage}${rows("Tools", tools)}${rows("Commands", COMMANDS)}${EXIT_HELP}`;
  }
}

/** A tool in the answer to `--discover`. */
export function entry(spec: Tool["spec"]): Record<string, unknown> {
  const short = summary(spec.description);
  const rest = ["title", "output_schema", "tags", "annotations", "policy", "sensitive"].filter((key) => key in spec);
  return {
    name: spec.name,
    summary: short,
    streaming: spec.mode === "streaming",
    session_mode: spec.mode === "session",
    ...(spec.description === short ? {} : { description: spec.description }),
    schema: spec.input_schema,
    ...Object.fromEntries(rest.map((key) => [key, spec[key]])),
    ...(spec.examples ? { examples: (spec.examples as { args: unknown }[]).map(({ args }) => args) } : {}),
  };
}

/** The parts of a text for people: help, or the page of a tool. */
export function rows(title: string, pairs: readonly [string, string][]): string {
  if (pairs.length === 0) return "";
  const width = Math.min(28, Math.max(...pairs.map(([left]) => left.length)));
  return `\n${title}:\n${pairs.map(([left, right]) => `  ${left.padEnd(width)}  ${right}`.trimEnd() + "\n").join("")}`;
}

export const HELP_OF_EXITS = EXIT_HELP;

/** A call id: 48 bits of milliseconds since 1970 and 80 random bits, in Crockford's base 32. */
export function newId(): string {
  const bits = (BigInt(Date.now()) << 80n) | BigInt(`0x${randomBytes(10).toString("hex")}`);
  const digits = Array.from({ length: 26 }, (_, at) => Number((bits >> BigInt(125 - 5 * at)) & 31n));
  return digits.map((digit) => "0123456789abcdefghjkmnpqrstvwxyz"[digit]).join("");
}

/**
 * The arguments in a file; null if it is too large.
 *
 * @internal
 */
export function fileText(path: string): Buffer | null {
  try {
    const file = openSync(path, "r");
    try {
      const data = Buffer.alloc(MAX_INPUT + 1);
      let size = 0;
      for (let read = 1; read > 0 && size <= MAX_INPUT; size += read) read = readSync(file, data, size, data.length - size, null);
      return size > MAX_INPUT ? null : data.subarray(0, size);
    } finally {
      closeSync(file);
    }
  } catch (error) {
    const reason = (error as NodeJS.ErrnoException).code ?? String(error);
    throw new ToolError("INVALID_PATH", `cannot read the file \`${path}\`: ${reason}`);
  }
}
