/** The context of a call. */

import { ToolError } from "./errors.js";
import { Artifact, encode, valueOf, type OutputData } from "./output.js";
import { check, type Infer, type JsonSchema, mismatch, type StandardSchema, validated } from "./schema.js";
import { schemaOf } from "./tool.js";

/** What the caller tells of a call. */
export interface Facts {
  call?: string;
  depth?: number;
  attempt?: number;
  caller?: { front: string; identity?: string };
  scope?: { id: string; owner: string };
  metadata?: Record<string, unknown>;
  idempotency_key?: string;
  level?: string;
  working_dir?: string;
  verbose?: boolean;
  dry_run?: boolean;
  deadline_ms?: number;
  timeout_ms?: number;
}

/** The capabilities of a caller. */
export type Verb = "ask" | "sample" | "artifact" | "nested";

/** The way to the caller. */
export interface Host {
  notify(kind: "progress" | "log", body: Record<string, unknown>): void;
  request(verb: Verb, body: Record<string, unknown>): Promise<any>;
}

/** The levels of log lines. */
export type Level = "trace" | "debug" | "info" | "warning" | "error";

const VERBS: Record<Verb, string> = {
  ask: "answer questions",
  sample: "sample from a model",
  artifact: "accept artifacts during a call",
  nested: "call other tools",
};

/** The error for a capability that the caller lacks. */
export function unable(verb: Verb): ToolError {
  return new ToolError("PRECONDITION", `this caller cannot ${VERBS[verb]}`, {
    suggestion: "Use a front that can, or pass the value as an argument.",
  });
}

const NONE: Host = { notify: () => {}, request: (verb) => Promise.reject(unable(verb)) };

/**
 * The context of a call: the second argument of a tool's `run`.
 *
 * `ask`, `sample`, `artifact` and `call` wait for the caller. If the caller lacks the capability, they throw
 * `PRECONDITION`. `new Ctx()` is a context without a caller, for tests.
 */
export class Ctx {
  readonly #facts: Facts;
  readonly #host: Host;
  readonly #abort = new AbortController();
  readonly #deadline: number | undefined;

  constructor(facts: Facts = {}, host: Host = NONE) {
    this.#facts = facts;
    this.#host = host;
    const left = [facts.deadline_ms, facts.timeout_ms].filter((limit) => limit !== undefined);
    this.#deadline = left.length > 0 ? performance.now() + Math.min(...left) : undefined;
  }

  /** Aborts when the call is cancelled or timed out: give it to `fetch`. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Whether the call is cancelled or timed out. */
  get isCancelled(): boolean {
    return this.#abort.signal.aborted;
  }

  /** Cancels the call. */
  cancel(reason: ToolError = new ToolError("CANCELLED", "the caller cancelled the call")): void {
    this.#abort.abort(reason);
  }

  /** The call's id. */
  get id(): string {
    return this.#facts.call ?? "";
  }

  /** Nesting depth of the call. */
  get depth(): number {
    return this.#facts.depth ?? 0;
  }

  /** The caller: its `front`, such as `cli` or `agent`, and its `identity` if known. */
  get caller(): { front: string; identity?: string } {
    return this.#facts.caller ?? { front: "exec" };
  }

  /** The run or conversation of the call. */
  get scope(): { id: string; owner: string } | null {
    return this.#facts.scope ?? null;
  }

  /** Number of the attempt, from 1. */
  get attempt(): number {
    return this.#facts.attempt ?? 1;
  }

  /** Milliseconds to the deadline; null without a deadline. */
  get remaining(): number | null {
    return this.#deadline === undefined ? null : Math.max(0, this.#deadline - performance.now());
  }

  /** Calls with the same key have one external effect. */
  get idempotencyKey(): string | null {
    return this.#facts.idempotency_key ?? null;
  }

  /** Whether the caller asks for detailed output. */
  get isVerbose(): boolean {
    return this.#facts.verbose ?? false;
  }

  /** Whether this is a dry run: report the plan, change nothing. Only tools with `dryRun` see it. */
  get isDryRun(): boolean {
    return this.#facts.dry_run ?? false;
  }

  /** The working directory that the caller names. */
  get workingDir(): string | null {
    return this.#facts.working_dir ?? null;
  }

  /** The sandbox level that the caller requests. */
  get level(): string | null {
    return this.#facts.level ?? null;
  }

  /** Facts that the caller attached. */
  get metadata(): Record<string, unknown> {
    return this.#facts.metadata ?? {};
  }

  /** Reports progress, `percent` from 0 to 100. Returns immediately. */
  progress(message: string, percent?: number): void {
    this.#host.notify("progress", percent === undefined ? { message } : { message, percent });
  }

  /** Writes a line to the caller's log. Returns immediately. */
  log(level: Level, message: string): void {
    this.#host.notify("log", { level: level === "warning" ? "warn" : level, message });
  }

  /** Asks the user behind the caller and returns the answer; null if the user declines. Without a schema: any text. */
  async ask<const S extends JsonSchema | StandardSchema = { type: "string" }>(
    message: string, schema?: S,
  ): Promise<Infer<S> | null> {
    const json = schema === undefined ? undefined : schemaOf(schema, "the answer of `ask`");
    const question = { message, kind: "input", ...(json ? { schema: json } : {}) };
    const reply = await this.#host.request("ask", { question });
    if (reply?.answer !== "given") return null;
    if (schema === undefined) return reply.value;
    const problems = check(json!, reply.value);
    if (problems.length > 0) throw mismatch(problems);
    if (!("~standard" in schema)) return reply.value;
    const result = await validated(schema as StandardSchema, reply.value);
    if ("problems" in result) throw mismatch(result.problems);
    return result.value as Infer<S>;
  }

  /** Requests a completion from the caller's model: its text, and the token usage if known. */
  async sample(
    prompt: string,
    options: { system?: string; maxTokens?: number; temperature?: number; stopSequences?: string[] } = {},
  ): Promise<{ content: string; usage: Record<string, unknown> | null }> {
    const reply = await this.#host.request("sample", {
      prompt: {
        prompt,
        max_tokens: options.maxTokens ?? 1000,
        ...(options.system === undefined ? {} : { system: options.system }),
        ...(options.temperature === undefined ? {} : { temperature: options.temperature }),
        ...(options.stopSequences?.length ? { stop_sequences: options.stopSequences } : {}),
      },
    });
    return { content: String(reply?.content ?? ""), usage: reply?.usage ?? null };
  }

  /** Delivers a file to the caller and waits for its acceptance. */
  async artifact(name: string, data: Uint8Array | string, mediaType?: string): Promise<void> {
    await this.#host.request("artifact", { artifact: new Artifact(name, data, mediaType).toJSON() });
  }

  /** Calls another tool and returns its structured value, or else its text. */
  async call(tool: string, args: Record<string, unknown> = {}): Promise<unknown> {
    return valueOf((await this.#host.request("nested", { tool, arguments: encode(args) })) as OutputData);
  }
}
