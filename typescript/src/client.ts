/** A client of the command `toolpost`: tools, agents, sandboxed code, sessions, servers. */

import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { binary as installed } from "./binary.js";
import { ToolError, type ErrorData } from "./errors.js";
import { encode } from "./output.js";
import type { Duration } from "./tool.js";

/** A command that failed: its code, its message with hints, and its exit code. */
export class CommandError extends Error {
  override name = "CommandError";

  constructor(readonly code: string, message: string, readonly hints: readonly string[], readonly exit: number) {
    super([message, ...hints].join(" "));
  }
}

/** What tools and code may do on this machine. */
export interface Grants {
  level?: "minimal" | "standard" | "strict" | "maximum";
  /** Work in a host directory; checked changes are applied at the end. */
  workdir?: string;
  /** Hosts such as `pypi.org` or `*.example.org:443`. */
  allowHost?: string[];
  allowAddress?: string[];
  allowProtected?: string[];
  /** Let programs write to the working directory without a private layer. */
  live?: boolean;
}

/** The options of {@link Toolpost.exec}. */
export interface ExecOptions extends Grants {
  /** Default: `python`. */
  lang?: string;
  env?: Record<string, string>;
  /** Files to copy into the workspace. */
  attach?: string[];
  allowDegraded?: boolean;
  review?: boolean;
  discard?: boolean;
  timeout?: Duration;
  /** Bytes, or a text such as `1G`. */
  memory?: number | string;
  cpu?: number;
  cpuTime?: Duration;
  idle?: Duration;
  pids?: number;
  maxOutput?: number | string;
  maxTotalOutput?: number | string;
  maxFile?: number | string;
  egressPolicy?: string;
  backend?: "process" | "docker";
  image?: string;
  profile?: string;
  requirement?: string[];
  /** A directory for new files. */
  artifacts?: string;
}

/** The result of code or of a command in the sandbox. */
export interface Outcome {
  verdict: { kind: string; [fact: string]: unknown };
  exit_code: number | null;
  stdout: { text: string; dropped: number };
  stderr: { text: string; dropped: number };
  /** The value of the last expression. */
  value: unknown;
  artifacts: { name: string; [fact: string]: unknown }[];
  usage: { wall_ms: number; [fact: string]: unknown };
  report: { effective: string; [fact: string]: unknown };
  [member: string]: unknown;
}

/** The options of {@link Toolpost.run}. */
export interface RunOptions extends Grants {
  model?: string;
  /** Targets, names of tools, and `hosted:NAME`. */
  tools?: string[];
  mcpServer?: string[];
  systemPrompt?: string;
  attach?: string[];
  /** A file with the JSON Schema of the answer. */
  outputSchema?: string;
  fallback?: string[];
  temperature?: number;
  effort?: "minimal" | "low" | "medium" | "high" | "xhigh" | "max";
  /** Settings for this run, such as `max_output_tokens=500`. */
  config?: string[];
  /** A file that records the model's answers, for `replay:FILE`. */
  record?: string;
  /** Tools whose calls need no approval. Without a terminal, other approvals are denied. */
  approve?: string[];
  yes?: boolean;
  /** Continue the conversation with this id. */
  resume?: string;
  fork?: string;
  noSave?: boolean;
  maxIterations?: number;
  maxToolCalls?: number;
  maxTokens?: number;
  maxTime?: Duration;
  maxCost?: number;
  agent?: string;
  artifacts?: string;
}

/** An event of a run, such as `text.delta`. `toolpost schema event` lists them. */
export interface RunEvent {
  type: string;
  timestamp: string;
  [member: string]: unknown;
}

/** The record of a run. `toolpost schema run-record` describes it. */
export interface RunRecord {
  id: string;
  success: boolean;
  stop_reason: string;
  response: string;
  cost_usd: number | null;
  [member: string]: unknown;
}

/** The options of {@link Toolpost.call}. */
export interface CallOptions {
  workdir?: string;
  timeout?: Duration;
  retries?: number;
  priority?: "low" | "normal" | "high" | "critical";
  meta?: Record<string, string>;
  noCache?: boolean;
  dryRun?: boolean;
  model?: string;
}

/** The options of {@link Toolpost.serve}. */
export interface ServeOptions extends Grants {
  /** Default: any free port of the loopback address. */
  http?: string;
  name?: string;
  search?: boolean;
  lazy?: boolean;
  allow?: string[];
  deny?: string[];
  approve?: string[];
  host?: string[];
  noToken?: boolean;
}

/** The command and its environment. */
export interface ToolpostOptions {
  /** Default: `TOOLPOST_BIN`, the package of this platform, or `toolpost` from `PATH`. */
  binary?: string;
  cwd?: string;
  /** Variables besides those of this process. */
  env?: Record<string, string>;
}

/**
 * Runs the command `toolpost`. A `signal` among the options ends the command, and rejects with its reason.
 *
 * ```ts
 * const toolpost = new Toolpost();
 * console.log(await toolpost.call("calculate", { expression: "6 * 7" }));
 * console.log((await toolpost.exec("import math; math.factorial(20)")).value);
 * ```
 */
export class Toolpost {
  readonly #binary: string;
  readonly #options: { cwd?: string; env: NodeJS.ProcessEnv };

  constructor({ binary = installed() ?? "toolpost", cwd, env }: ToolpostOptions = {}) {
    this.#binary = binary;
    this.#options = { env: { ...process.env, ...env }, ...(cwd === undefined ? {} : { cwd }) };
  }

  /**
   * Calls a tool of a target: a built-in tool, an executable, a description or a server; `[target, tool]` names the
   * tool of several. Returns its result.
   *
   * @throws ToolError of the tool, or CommandError.
   */
  async call(
    target: string | readonly [target: string, tool: string],
    args: Record<string, unknown> = {},
    { signal, ...options }: CallOptions & { signal?: AbortSignal } = {},
  ): Promise<any> {
    const command = this.#start(["call", ...flags(options), ...named([target].flat()), "-"], { signal });
    command.input(JSON.stringify(encode(args)));
    const envelope = await command.value<Envelope>();
    const error = envelope.error ?? (envelope.status === "error" ? envelope.errors?.[0] : undefined);
    if (error) throw ToolError.from(error);
    const { result } = envelope;
    return Object.keys(result).length === 1 && "result" in result ? result.result : result;
  }

  /** Runs code in the sandbox. A program that fails is an outcome, no error. */
  async exec(code: string, { signal, ...options }: ExecOptions & { signal?: AbortSignal } = {}): Promise<Outcome> {
    const command = this.#start(["exec", ...flags({ lang: "python", ...options }), "-"], { signal });
    command.input(code);
    return command.value();
  }

  /** Runs a program with its arguments in the sandbox, without a shell. */
  async command(
    words: readonly string[], { signal, ...options }: ExecOptions & { signal?: AbortSignal } = {},
  ): Promise<Outcome> {
    return this.#start(["exec", ...flags(options), "--", ...words], { signal }).value();
  }

  /** A live interpreter that keeps variables. It begins with its first code, and ends after `keep` without use. */
  session(options: ExecOptions & { id?: string; keep?: Duration } = {}): Session {
    const { id = `js-${randomBytes(6).toString("hex")}`, ...rest } = options;
    return new Session(id, rest, (words, given) => this.#start(words, given));
  }

  /** Runs an agent: an async iterable of events, whose `result` is the record. */
  run(prompt: string, { signal, tools, ...options }: RunOptions & { signal?: AbortSignal } = {}): AgentRun {
    const words = ["run", ...flags({ ...options, tools: tools?.join(",") }), "--file=-"];
    const command = this.#start(words, { signal, format: "jsonl" });
    // An argument has at most 128 KiB, and other users can read it.
    command.input(prompt);
    return new AgentRun(command);
  }

  /** Serves targets to MCP clients over HTTP, until {@link Server.close}. */
  async serve(
    targets: string | readonly string[], { signal, ...options }: ServeOptions & { signal?: AbortSignal } = {},
  ): Promise<Server> {
    const words = ["serve", ...flags({ http: "127.0.0.1:0", ...options }), ...named([targets].flat())];
    const command = this.#start(words, { signal });
    try {
      for await (const line of command.lines<Record<string, string>>()) {
        if (line.type !== "ready") continue;
        const token = line.token_file ? (await readFile(line.token_file, "utf8")).trim() : null;
        // What it prints later is read and dropped, so that it never waits for a reader.
        setImmediate(() => command.child.stdout!.resume());
        return new Server(line.url!, token, () => command.end());
      }
    } catch (error) {
      await command.end();
      throw error;
    }
    throw await command.failure();
  }

  #start(words: string[], options: StartOptions): Command {
    const format = `--format=${options.format ?? "json"}`;
    // After `--`, words belong to the program.
    return new Command(spawn(this.#binary, [words[0]!, format, ...words.slice(1)], this.#options), options.signal);
  }
}

/** The answer to a call, in dialect 0.1. */
interface Envelope {
  status: string;
  result: Record<string, unknown>;
  error?: ErrorData;
  errors?: ErrorData[];
}

interface StartOptions {
  signal?: AbortSignal | undefined;
  format?: "json" | "jsonl";
}

/** A live interpreter. {@link Toolpost.session} makes it. */
export class Session {
  readonly #start: (words: string[], options: StartOptions) => Command;
  readonly #options: ExecOptions & { keep?: Duration };

  /** @internal */
  constructor(
    readonly id: string,
    options: ExecOptions & { keep?: Duration },
    start: (words: string[], options: StartOptions) => Command,
  ) {
    this.#options = options;
    this.#start = start;
  }

  /** Runs code with the variables of earlier code. */
  async exec(code: string, { signal }: { signal?: AbortSignal } = {}): Promise<Outcome> {
    const command = this.#start([...this.#words(), ...flags({ lang: "python", ...this.#options }), "-"], { signal });
    command.input(code);
    return command.value();
  }

  /** Copies memory and files into a new session. */
  async fork(id = `js-${randomBytes(6).toString("hex")}`): Promise<Session> {
    await this.#start([...this.#words(), `--fork=${id}`], {}).done();
    return new Session(id, this.#options, this.#start);
  }

  /** Interrupts the code that runs. */
  interrupt(): Promise<void> {
    return this.#start([...this.#words(), "--interrupt"], {}).done();
  }

  /** Restarts the interpreter; files stay. */
  reset(): Promise<void> {
    return this.#start([...this.#words(), "--reset"], {}).done();
  }

  /** Ends the session. */
  end(): Promise<void> {
    return this.#start([...this.#words(), "--end"], {}).done();
  }

  #words(): string[] {
    return ["exec", `--session=${this.id}`];
  }
}

/** A run of an agent. It runs whether or not its events are read. */
export class AgentRun implements AsyncIterable<RunEvent> {
  /** The record. Rejects with the CommandError of a run that could not begin or failed. */
  readonly result: Promise<RunRecord>;
  readonly #events: RunEvent[] = [];
  #hasEnded = false;
  #waiting: (() => void)[] = [];

  /** @internal */
  constructor(command: Command) {
    this.result = this.#read(command);
    // The reader of the events or of the result gets the error.
    this.result.catch(() => {});
  }

  #wake(): void {
    for (const done of this.#waiting.splice(0)) done();
  }

  async #read(command: Command): Promise<RunRecord> {
    let record: RunRecord | undefined;
    try {
      for await (const event of command.lines<RunEvent>()) {
        if (event.type === "run.finished" && !event.parent) record = event.record as RunRecord;
        this.#events.push(event);
        this.#wake();
      }
      if (record) return record;
      throw await command.failure();
    } catch (error) {
      void command.end();
      throw error;
    } finally {
      this.#hasEnded = true;
      this.#wake();
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<RunEvent> {
    for (let at = 0; ; ) {
      while (at < this.#events.length) yield this.#events[at++]!;
      if (this.#hasEnded) break;
      await new Promise<void>((done) => this.#waiting.push(done));
    }
    await this.result;
  }
}

/** A server for MCP clients. */
export class Server {
  readonly #end: () => Promise<void>;

  /** `token` is null if clients need none. */
  constructor(readonly url: string, readonly token: string | null, end: () => Promise<void>) {
    this.#end = end;
  }

  /** The headers that clients send. */
  get headers(): Record<string, string> {
    return this.token === null ? {} : { Authorization: `Bearer ${this.token}` };
  }

  close(): Promise<void> {
    return this.#end();
  }
}

const MAX_ERRORS = 1 << 20;
/** How long an interrupted command may take to clean up. */
const GRACE_MS = 5000;

/**
 * A process of the command.
 *
 * @internal
 */
class Command {
  #errors = "";
  readonly #ended: Promise<number>;

  constructor(readonly child: ChildProcess, readonly signal: AbortSignal | undefined) {
    if (!child.stdout) {
      child.once("error", () => {});
      throw new CommandError("SPAWN", `cannot start \`${child.spawnfile}\`: no file descriptor is left`, [], 126);
    }
    child.stderr!.setEncoding("utf8").on("data", (text: string) => {
      this.#errors = (this.#errors + text).slice(-MAX_ERRORS);
    });
    // A command that ends before it has read its input says so itself.
    child.stdin!.on("error", () => {});
    this.#ended = new Promise((resolve, reject) => {
      child.once("error", (error: NodeJS.ErrnoException) => {
        const isMissing = error.code === "ENOENT";
        reject(isMissing ? new CommandError("MISSING", `cannot find the command \`${child.spawnfile}\``, [], 127) : error);
      });
      child.once("close", (code) => resolve(code ?? 130));
    });
    this.#ended.catch(() => {});
    const stop = (): void => this.#stop();
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
    void this.#ended.catch(() => {}).then(() => signal?.removeEventListener("abort", stop));
  }

  input(text: string): void {
    this.child.stdin!.end(text);
  }

  /** The values that the command prints, one per line. */
  async *lines<T>(): AsyncGenerator<T> {
    this.child.stdin!.end();
    for await (const line of createInterface({ input: this.child.stdout!, crlfDelay: Infinity })) {
      if (line.trim()) yield JSON.parse(line);
    }
    await this.#ended;
    this.signal?.throwIfAborted();
  }

  /** The value that the command prints. */
  async value<T>(): Promise<T> {
    const parts: Buffer[] = [];
    this.child.stdin!.end();
    for await (const part of this.child.stdout!) parts.push(part as Buffer);
    await this.#ended;
    this.signal?.throwIfAborted();
    const text = Buffer.concat(parts).toString();
    if (!text.trim()) throw await this.failure();
    return JSON.parse(text);
  }

  /** Waits for the end. */
  async done(): Promise<void> {
    this.child.stdin!.end();
    this.child.stdout!.resume();
    if ((await this.#ended) !== 0) throw await this.failure();
  }

  /** Interrupts the command, and kills it if it does not end. */
  #stop(): void {
    this.child.kill("SIGINT");
    const timer = setTimeout(() => this.child.kill("SIGKILL"), GRACE_MS).unref();
    this.child.once("close", () => clearTimeout(timer));
  }

  /** Ends the command, and waits for it. */
  async end(): Promise<void> {
    this.#stop();
    await this.#ended.catch(() => {});
  }

  /** The error that the command printed. */
  async failure(): Promise<Error> {
    const exit = await this.#ended;
    if (this.signal?.aborted) return this.signal.reason;
    const line = this.#errors.trimEnd().split("\n").at(-1) ?? "";
    try {
      const { code, message, hints } = JSON.parse(line).error;
      return new CommandError(code, message, hints ?? [], exit);
    } catch {
      return new CommandError("EXIT", line || `\`toolpost\` ended with exit status ${exit}`, [], exit);
    }
  }
}

/** @throws TypeError for a word that the command would take as an option. */
function named(words: readonly string[]): readonly string[] {
  const option = words.find((word) => word.startsWith("-"));
  if (option !== undefined) throw new TypeError(`\`${option}\` is not a target: targets and tools do not begin with \`-\``);
  return words;
}

/** Options as words: `maxCost` is `--max-cost`, numbers of durations are milliseconds, lists repeat the word. */
function flags(options: object): string[] {
  const durations = new Set(["timeout", "cpuTime", "idle", "keep", "maxTime"]);
  return Object.entries(options).flatMap(([name, value]) => {
    const flag = `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
    if (value === undefined || value === false) return [];
    if (value === true) return [flag];
    if (Array.isArray(value)) return value.map((one) => `${flag}=${one}`);
    if (typeof value === "object") return Object.entries(value).map(([key, one]) => `${flag}=${key}=${one}`);
    return [`${flag}=${durations.has(name) && typeof value === "number" ? `${value}ms` : value}`];
  });
}
