/** One call of a tool per process: flags, JSON, streams and sessions. */

import { randomBytes } from "node:crypto";
import { Ctx, type Facts, type Host, unable, type Verb } from "./ctx.js";
import { EXIT, exitCode, failure, ToolError, wireError } from "./errors.js";
import { type ArtifactData, Output, valueOf } from "./output.js";
import { entry, fileText, HELP_OF_EXITS, MAX_INPUT, newId, type Program, rows } from "./program.js";
import { reserved, shortest } from "./reserved.js";
import { didYouMean, expected, limits, type Problem, text as described, types } from "./schema.js";
import { parseObject, type Tool, typed } from "./tool.js";
import { LongLine } from "./wire.js";

const MAX_LOG = 1000;
const COMMANDS = new Set(["--discover", "--tools", "--resources", "--prompts", "--resource", "--prompt"]);
const OPTIONS: [string, string][] = [
  ["--stream", "print progress, log lines and files as JSON Lines"],
  ["--session", "answer the tool's questions, one JSON line each"],
  ["--sample-via stdin|URL", "where to send sampling requests"],
  ["--validate", "validate the arguments without a run"],
  ["--manifest", "print the tool's manifest as JSON"],
];

interface Parsed {
  /** A command of the program, which precedes all else. */
  command?: string[];
  text?: string | undefined;
  error?: ToolError | undefined;
}

export class Run {
  readonly #flags = new Map<string, unknown>();
  readonly #options = new Set<string>();
  readonly #log: { level: string; message: string }[] = [];
  #sampleVia: string | undefined;
  #ctx: Ctx | undefined;
  #hasBegun = false;
  #hasEnded = false;
  /** Questions wait for each other. */
  #turn: Promise<unknown> = Promise.resolve();

  constructor(readonly program: Program, readonly tool: Tool) {}

  async answer(words: string[]): Promise<number> {
    const { command, text, error } = this.#parse(words);
    if (command) return (await this.program.command(command)) ?? EXIT.success;
    if (this.#options.has("manifest")) return this.program.pretty(this.#manifest());
    if (this.#options.has("help")) return this.program.text(this.#help());
    let args: Record<string, unknown>;
    try {
      if (error) throw error;
      args = await this.#arguments(text);
    } catch (usage) {
      if (!this.#options.has("validate") || !(usage instanceof ToolError)) throw usage;
      const { code, message, suggestion } = usage.toJSON();
      return this.#invalid([{ code, message, ...(suggestion ? { suggestion } : {}) }], EXIT.usage);
    }
    return this.#options.has("validate") ? this.#validate(args) : this.#call(args);
  }

  #parse(words: string[]): Parsed {
    let text: string | undefined;
    let error: ToolError | undefined;
    for (let at = 0; at < words.length; ) {
      const word = words[at]!;
      at += 1;
      try {
        if (word === "-h") {
          this.#options.add("help");
        } else if (!word.startsWith("--") || word === "--") {
          if (word !== "-" && !word.startsWith("{") && !word.startsWith("@")) {
            throw new ToolError("INVALID_INPUT", `\`${word.slice(0, 80)}\` is neither a flag nor a JSON object`, {
              suggestion: "Write `--name value`, `'{\"name\": …}'`, `@FILE` or `-`.",
            });
          }
          if (text !== undefined) {
            throw new ToolError("INVALID_INPUT", "the arguments are given twice", {
              suggestion: "Give one JSON object, one `@FILE`, or `-`.",
            });
          }
          text = word;
        } else if (this.#find(word) === undefined && COMMANDS.has(word)) {
          return { command: words.slice(at - 1) };
        } else {
          at += this.#flag(word, words[at]);
        }
      } catch (first) {
        if (!(first instanceof ToolError)) throw first;
        error ??= first;
      }
    }
    if (text !== undefined && this.#flags.size > 0) {
      error ??= new ToolError("INVALID_INPUT", "the arguments are given both as JSON and as flags", {
        suggestion: "Use one of them.",
      });
    }
    return { text, error };
  }

  /** The parameter of a flag: `--max-items` is `max_items`. */
  #find(word: string): string | undefined {
    const name = word.slice(2).split("=", 1)[0]!;
    return [name, name.replaceAll("-", "_")].find((one) => Object.hasOwn(this.tool.schema.properties, one));
  }

  #types(parameter: string): Set<string> {
    return types(this.tool.schema.properties[parameter] ?? {}, this.tool.schema);
  }

  /** Reads a flag and returns how many following words it takes. */
  #flag(word: string, following: string | undefined): number {
    const equals = word.indexOf("=");
    const name = equals < 0 ? word.slice(2) : word.slice(2, equals);
    const own = equals < 0 ? undefined : word.slice(equals + 1);
    const parameter = this.#find(word);
    if (parameter !== undefined) {
      const allowed = this.#types(parameter);
      if (own !== undefined) return this.#give(parameter, own);
      const isSwitch = allowed.size === 1 && allowed.has("boolean");
      if (isSwitch && following !== "true" && following !== "false") return this.#give(parameter, true);
      if (following !== undefined && !(following.startsWith("--") && this.#find(following))) {
        this.#give(parameter, following);
        return 1;
      }
      if (allowed.size === 0 || allowed.has("boolean")) return this.#give(parameter, true);
      throw new ToolError("INVALID_INPUT", `\`--${name}\` needs a value`, { context: { pointer: `/${parameter}` } });
    }
    if (["manifest", "help", "validate", "stream", "session"].includes(name) && own === undefined) {
      this.#options.add(name);
      return 0;
    }
    if (name === "sample-via") {
      const place = own ?? following ?? "";
      if (!/^(stdin$|https?:\/\/)/.test(place)) {
        throw new ToolError("INVALID_INPUT", "`--sample-via` needs `stdin` or a URL, such as http://127.0.0.1:8080/");
      }
      this.#sampleVia = place;
      return own === undefined ? 1 : 0;
    }
    const opposite = name.startsWith("no-") && own === undefined ? this.#find(`--${name.slice(3)}`) : undefined;
    if (opposite !== undefined && this.#types(opposite).has("boolean")) return this.#give(opposite, false);
    if (this.tool.schema.additionalProperties !== false) {
      const takes = own === undefined && following !== undefined && !following.startsWith("--");
      this.#give(name.replaceAll("-", "_"), own ?? (takes ? following : true));
      return Number(takes);
    }
    const hint = didYouMean(name, Object.keys(this.tool.schema.properties).map((one) => one.replaceAll("_", "-")));
    throw new ToolError("INVALID_INPUT", `\`${this.tool.name}\` has no flag \`--${name}\``, {
      suggestion: hint?.replaceAll(" `", " `--") ?? `See \`${this.tool.name} --help\`.`,
      context: { flag: `--${name}` },
    });
  }

  /** Sets an argument from a text, or from a switch. An array grows with each. */
  #give(name: string, given: unknown): number {
    const schema = this.tool.schema.properties[name] ?? {};
    const allowed = this.#types(name);
    let value = typeof given === "string" ? typed(given, allowed) : given;
    if (typeof given === "string" && allowed.has("array") && !Array.isArray(value) && value !== null) {
      const items = typeof schema.items === "object" ? schema.items : {};
      value = [typeof value === "string" ? typed(value, types(items, this.tool.schema)) : value];
    }
    const before = this.#flags.get(name);
    if (!this.#flags.has(name)) {
      this.#flags.set(name, value);
    } else if (allowed.has("array") && Array.isArray(before) && Array.isArray(value)) {
      before.push(...value);
    } else {
      throw new ToolError("INVALID_INPUT", `\`--${name.replaceAll("_", "-")}\` is given twice`, {
        suggestion: "Give it once; only arrays take several values.",
        context: { pointer: `/${name}` },
      });
    }
    return 0;
  }

  async #arguments(text: string | undefined): Promise<Record<string, unknown>> {
    if (text === undefined) return Object.fromEntries(this.#flags);
    if (text.startsWith("{")) return parseObject(text);
    const name = text === "-" ? "standard input" : `the file \`${text.slice(1)}\``;
    const data = text === "-" ? await this.program.wire.all(MAX_INPUT) : fileText(text.slice(1));
    if (data === null || data.length > MAX_INPUT) {
      throw new ToolError("INVALID_INPUT", `${name} is larger than 16 MiB`, {
        suggestion: "Write large data to a file and pass its path as an argument.",
      });
    }
    return parseObject(utf8(data, name));
  }

  async #validate(args: Record<string, unknown>): Promise<number> {
    const problems = await this.tool.problems(args);
    if (problems.length > 0) return this.#invalid(problems.map(problemEntry), EXIT.failed);
    try {
      reserved(this.tool, args);
    } catch (error) {
      if (!(error instanceof ToolError)) throw error;
      return this.#invalid([{ code: error.code, message: error.message }], EXIT.failed);
    }
    await this.program.wire.line({ valid: true });
    return EXIT.success;
  }

  async #invalid(errors: Record<string, unknown>[], code: number): Promise<number> {
    await this.program.wire.line({ valid: false, errors });
    return code;
  }

  async #call(args: Record<string, unknown>): Promise<number> {
    const [call, started] = [newId(), performance.now()];
    let outcome: Output | ToolError;
    let ctx: Ctx | undefined;
    let envelope: Record<string, unknown>;
    try {
      const mode = { streaming: "stream", session: "session" }[this.tool.spec.mode as string];
      if (mode !== undefined && !this.#options.has(mode)) {
        throw new ToolError("INVALID_INPUT", `This tool requires --${mode} flag`, {
          suggestion: `Add --${mode} to the command`,
        });
      }
      const values = await this.tool.decode(args);
      const control = reserved(this.tool, args);
      if (control.workingDir !== undefined) process.chdir(control.workingDir);
      const limit = shortest(this.tool.timeout, control.timeout);
      const facts: Facts = { call, dry_run: control.isDryRun, verbose: control.isVerbose };
      if (control.workingDir !== undefined) facts.working_dir = control.workingDir;
      if (limit !== undefined) facts.timeout_ms = limit;
      const host = this.#host(control.isVerbose);
      this.#ctx = ctx = new Ctx(facts, host);
      outcome = control.isDryRun && !this.tool.spec.dry_run
        ? new Output(control.plan)
        : await this.#limited(values, ctx, this.#options.has("session") ? undefined : limit);
      envelope = enveloped(outcome);
    } catch (error) {
      outcome = failure(error, call);
      envelope = enveloped(outcome);
    }
    if (this.#isForTerminal) return this.#show(outcome);
    if (ctx?.isVerbose) {
      const duration = Math.round((performance.now() - started) * 1000) / 1000;
      envelope.details = { duration_ms: duration, attempts: 1, log: this.#log };
    }
    const { wire } = this.program;
    if (outcome instanceof Output) {
      for (const artifact of outcome.artifacts) this.#artifact(artifact.toJSON());
      if (this.#options.has("session")) {
        await wire.line({ type: "session_end", status: "success" });
        if (JSON.stringify(envelope.result) === '{"result":null}') delete envelope.result;
      }
      if (this.#options.has("stream")) envelope = { type: "result", ...envelope };
    }
    await wire.line(envelope);
    if (outcome instanceof ToolError) return exitCode(outcome);
    return outcome.status === "error" ? EXIT.failed : EXIT.success;
  }

  /** The output of the tool, or the error of an interrupt or a timeout: both end the call at once. */
  async #limited(values: unknown, ctx: Ctx, limit: number | undefined): Promise<Output> {
    const ended = new Promise<never>((_, reject) => {
      ctx.signal.addEventListener("abort", () => reject(ctx.signal.reason), { once: true });
    });
    ended.catch(() => {});
    process.once("SIGINT", () => ctx.cancel(new ToolError("CANCELLED", "the call was interrupted")));
    const seconds = (limit ?? 0) / 1000;
    const expire = (): void => ctx.cancel(new ToolError("TIMEOUT", `the call timed out after ${seconds} s`));
    const timer = limit === undefined ? undefined : setTimeout(expire, limit);
    try {
      return Output.of(await Promise.race([this.tool.run(values, ctx), ended]));
    } finally {
      clearTimeout(timer);
    }
  }

  get #isForTerminal(): boolean {
    const isProtocol = this.#options.has("stream") || this.#options.has("session") || this.#sampleVia !== undefined;
    return this.program.wire.isTerminal && !isProtocol;
  }

  /** Prints a result as text for a terminal. */
  async #show(outcome: Output | ToolError): Promise<number> {
    if (outcome instanceof ToolError) return this.program.reject(outcome);
    const result = valueOf(outcome.toJSON());
    const text = typeof result === "string" ? result : JSON.stringify(result, null, 2);
    // Control characters of a tool could command the terminal.
    if (result !== null) await this.program.text(`${text.replace(/[^\P{C}\n\t]/gu, "\ufffd")}\n`);
    for (const error of outcome.partial?.errors ?? []) process.stderr.write(`warning: ${error.message}\n`);
    return outcome.status === "error" ? EXIT.failed : EXIT.success;
  }

  #host(isVerbose: boolean): Host {
    return {
      notify: (kind, body) => {
        if (kind !== "log") return this.#notify(kind, body);
        const level = { trace: "debug", warn: "warning" }[body.level as string] ?? String(body.level);
        const line = { level, message: String(body.message) };
        if (isVerbose && this.#log.length < MAX_LOG) this.#log.push(line);
        this.#notify(kind, line);
      },
      request: (verb, body) => this.#request(verb, body),
    };
  }

  #notify(kind: string, body: Record<string, unknown>): void {
    if (this.#isForTerminal) {
      const percent = typeof body.percent === "number" ? ` ${Math.round(body.percent)} %` : "";
      const start = kind === "artifact" ? "created " : kind === "log" ? `${body.level}: ` : "… ";
      process.stderr.write(`${start}${body.message ?? body.name}${percent}\n`);
    } else if (this.#options.has("stream")) {
      void this.program.wire.line({ type: kind, ...body });
    } else {
      process.stderr.write(`${JSON.stringify({ type: "notification", kind, ...body })}\n`);
    }
  }

  async #request(verb: Verb, body: Record<string, any>): Promise<unknown> {
    if (verb === "artifact") return this.#artifact(body.artifact);
    if (verb === "ask") return this.#inTurn(() => this.#ask(body.question));
    if (verb === "sample") return this.#sample(body.prompt);
    const called = this.program.tools.get(body.tool);
    if (!called || !this.#ctx) throw unable(verb);
    return Output.of(await called.run(await called.decode(body.arguments), this.#ctx)).toJSON();
  }

  #artifact(artifact: ArtifactData): void {
    if (artifact.size > MAX_INPUT) {
      throw new ToolError("LIMIT", `the artifact \`${artifact.name}\` has ${artifact.size} bytes; a line holds 16 MiB`, {
        suggestion: "Write large files to the working directory and return their path.",
      });
    }
    this.#notify("artifact", { name: artifact.name, uri: `data:${artifact.media_type};base64,${artifact.data}` });
  }

  /** Runs a dialog over standard input after the one before it. */
  #inTurn<T>(dialog: () => Promise<T>): Promise<T> {
    const next = this.#turn.then(dialog, dialog);
    this.#turn = next.catch(() => {});
    return next;
  }

  async #ask(question: { message: string; schema?: { type?: unknown } }): Promise<unknown> {
    if (!this.#options.has("session")) {
      throw new ToolError("PRECONDITION", "the tool asks a question, but no session is open", {
        suggestion: "Add --session to the command.",
      });
    }
    const type = this.#hasBegun ? "awaiting_input" : "session_start";
    this.#hasBegun = true;
    const schema = question.schema ? { schema: question.schema } : {};
    await this.program.wire.line({ type, message: question.message, prompt: "> ", ...schema });
    const line = await this.#line("session");
    if (line === null) {
      // The end of the input declines one question, so that the tool can finish.
      if (this.#hasEnded) throw new ToolError("CANCELLED", "the session ended");
      this.#hasEnded = true;
      return { answer: "declined" };
    }
    let value: Record<string, unknown>;
    try {
      value = parseObject(line);
    } catch {
      throw new ToolError("INVALID_INPUT", "the session line is not a JSON object", {
        suggestion: 'Write one JSON object per line, such as {"value": "yes"}.',
      });
    }
    if (value.action === "quit") return { answer: "declined" };
    const [key, ...others] = Object.keys(value);
    const isPlain = ["value", "answer", "input", "text", "response"].includes(key ?? "") && others.length === 0;
    return { answer: "given", value: isPlain && question.schema?.type !== "object" ? value[key!] : value };
  }

  async #line(kind: string): Promise<string | null> {
    const line = await this.program.wire.next();
    if (line instanceof LongLine) throw new ToolError("INVALID_INPUT", `the ${kind} line is longer than 32 MiB`);
    return line;
  }

  async #sample(prompt: Record<string, unknown>): Promise<unknown> {
    const via = this.#sampleVia;
    if (via === undefined) {
      throw new ToolError("PRECONDITION", "the tool needs a model, but sampling is not enabled", {
        suggestion: "Add `--sample-via stdin` or `--sample-via http://…` to the command.",
      });
    }
    const request = { type: "sample_request", id: randomBytes(4).toString("hex"), ...prompt };
    if (via !== "stdin") return posted(via, request);
    return this.#inTurn(async () => {
      await this.program.wire.line(request);
      for (;;) {
        const line = await this.#line("sampling");
        if (line === null) throw new ToolError("DEPENDENCY", "the input ended before the sampling response");
        const found = parsed(line);
        if (found?.type === "sample_response" && found.id === request.id) return found;
      }
    });
  }

  #manifest(): Record<string, unknown> {
    const all = entry(this.tool.spec);
    const keys = ["name", "summary", "streaming", "session_mode", "schema", "examples", "tags", "output_schema"];
    const given = keys.filter((key) => key in all).map((key) => [key, all[key]]);
    return { ...Object.fromEntries(given), description: this.tool.spec.description };
  }

  #help(): string {
    const { name, spec, schema } = this.tool;
    const line = this.program.tools.size === 1 ? this.program.name : `${this.program.name} ${name}`;
    const required = new Set(schema.required);
    let usage = line;
    const parameters = Object.entries(schema.properties).map(([parameter, one]): [string, string] => {
      const allowed = types(one, schema);
      const kinds = [...allowed].filter((kind) => kind !== "null").sort().join(" or ").toUpperCase();
      const isSwitch = allowed.size === 1 && allowed.has("boolean");
      const flag = `--${parameter.replaceAll("_", "-")}${isSwitch ? "" : ` ${kinds || "VALUE"}`}`;
      const facts = [
        ...(required.has(parameter) ? ["required"] : []),
        ...(one.enum ? [expected(one, schema)] : []),
        ...limits(one),
        ...(one.default === undefined ? [] : [`default ${JSON.stringify(one.default)}`]),
      ];
      if (required.has(parameter)) usage += ` ${flag}`;
      return [flag, `${one.description ?? ""}${facts.length > 0 ? ` [${facts.join("; ")}]` : ""}`.trim()];
    });
    if (parameters.length > required.size) usage += " [FLAGS]";
    const start = `${spec.description}\n\nUsage: ${usage}\n       ${line} '{JSON}' | @FILE | -\n`;
    return `${start}${rows("Parameters", parameters)}${rows("Options", OPTIONS)}${HELP_OF_EXITS}`;
  }
}

/** @throws ToolError for bytes that are not UTF-8. */
function utf8(data: Buffer, name: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    throw new ToolError("INVALID_INPUT", `cannot read ${name} as text: it is not UTF-8`);
  }
}

function problemEntry(problem: Problem): Record<string, unknown> {
  const [type, code] = problem.missing ? ["missing", "MISSING_PARAM"] : ["invalid", "INVALID_INPUT"];
  const message = described(problem);
  return { type, loc: problem.at.split("/").slice(1), msg: message, code, message };
}

/** An outcome as dialect 0.1 writes it. */
function enveloped(outcome: Output | ToolError): Record<string, unknown> {
  if (outcome instanceof ToolError) return { status: "error", error: wireError(outcome) };
  const result = valueOf(outcome.toJSON());
  const isObject = result !== null && typeof result === "object" && !Array.isArray(result);
  const envelope: Record<string, unknown> = { status: outcome.status, result: isObject ? result : { result } };
  if (outcome.partial) {
    const { succeeded, errors } = outcome.partial;
    const recoverable = errors.filter((error) => error.recoverable).length;
    const total = succeeded + errors.length;
    envelope.summary = { total, succeeded, failed: errors.length, recoverable_failures: recoverable };
    envelope.errors = errors.map(wireError).map(({ code, message, recoverable: can }) => ({ code, message, recoverable: can }));
  }
  return envelope;
}

/** Posts a sampling request to the URL of `--sample-via`. */
async function posted(url: string, request: unknown): Promise<unknown> {
  const { host } = new URL(url);
  let reply: Response;
  try {
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify(request);
    reply = await fetch(url, { method: "POST", headers, body, signal: AbortSignal.timeout(600_000) });
  } catch (error) {
    const reason = error instanceof Error && error.cause instanceof Error ? error.cause.message : String(error);
    throw new ToolError("DEPENDENCY", `sampling via ${host} failed: ${reason}`);
  }
  const found = reply.ok ? parsed(await reply.text()) : undefined;
  if (typeof found?.content !== "string") {
    const reason = reply.ok ? 'the completion is not `{"content": …}`' : `sampling via ${host} failed: HTTP ${reply.status}`;
    throw new ToolError("DEPENDENCY", reason);
  }
  return found;
}

function parsed(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return value !== null && typeof value === "object" ? (value as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}
