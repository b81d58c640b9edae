/** Resident mode: many calls over one process, each line an object with the version `v` and the `id` of its call. */

import { Ctx, type Facts, type Host, unable, type Verb } from "./ctx.js";
import { EXIT, failure, ToolError, type ErrorData } from "./errors.js";
import { Output } from "./output.js";
import { newId, type Program, PROTOCOL } from "./program.js";
import { reserved, shortest } from "./reserved.js";
import { didYouMean, quote } from "./schema.js";
import { place } from "./tool.js";
import { LongLine, MAX_LINE } from "./wire.js";

const MAX_REQUESTS = 4096;
const GRACE_MS = 1000;

interface Frame extends Facts {
  v?: unknown;
  id?: unknown;
  type?: unknown;
  tool?: unknown;
  arguments?: Record<string, unknown> | null;
  uri?: unknown;
  prompt?: unknown;
  validate?: boolean;
  serves?: Verb[];
  request?: number;
  ok?: unknown;
  error?: ErrorData;
}

/** A running request, and its questions to the caller. */
interface Running {
  /** Absent while the arguments are checked. */
  ctx?: Ctx;
  cancelled?: ToolError;
  questions: Map<number, { resolve: (value: unknown) => void; reject: (error: ToolError) => void }>;
}

export class Resident {
  readonly #running = new Map<number, Running>();
  #lastQuestion = 0;

  constructor(readonly program: Program) {}

  /** Serves until the end of the input. */
  async serve(): Promise<number> {
    const { name, version, wire } = this.program;
    this.#send(0, "hello", { name, version, protocol: PROTOCOL });
    for (let line = await wire.next(); line !== null; line = await wire.next()) {
      if (line instanceof LongLine) {
        const id = /"id": *(\d+)/.exec(line.start)?.[1];
        this.#problem(id === undefined ? undefined : Number(id), "the line is longer than 32 MiB");
      } else {
        try {
          this.#take(line);
        } catch {
          // A value that is nested too deeply cannot even be quoted.
          this.#problem(undefined, "the line is not a frame");
        }
      }
    }
    this.#cancelAll();
    const end = performance.now() + GRACE_MS;
    while (this.#running.size > 0 && performance.now() < end) await new Promise((done) => setTimeout(done, 5));
    await wire.write("");
    return EXIT.success;
  }

  #cancelAll(): void {
    for (const running of this.#running.values()) cancel(running, cancelled());
  }

  #send(id: number, type: string, body: object): void {
    let line = `${JSON.stringify({ v: 1, id, type, ...body })}\n`;
    if (Buffer.byteLength(line) > MAX_LINE) {
      const error = new ToolError("LIMIT", `the answer has ${line.length} characters of JSON; a line holds 32 MiB`, {
        suggestion: "Write large results to a file and return its path.",
      });
      line = `${JSON.stringify({ v: 1, id, type: "result", error })}\n`;
    }
    void this.program.wire.write(line);
  }

  /** Rejects an invalid line: the request that it names, or the line alone. */
  #problem(id: unknown, message: string): void {
    const error = new ToolError("INVALID_INPUT", message, {
      suggestion: "Write one JSON object per line, with `v`, `id` and `type`.",
    });
    if (typeof id === "number" && id > 0 && !this.#running.has(id)) this.#send(id, "result", { error });
    else this.#send(0, "problem", { error });
  }

  #take(line: string): void {
    let frame: Frame;
    try {
      frame = JSON.parse(line);
    } catch (error) {
      return this.#problem(undefined, `the line is not a frame: ${place(error)}`);
    }
    const id = frame?.id;
    if (typeof id !== "number" || !Number.isSafeInteger(id) || id < 0) {
      return this.#problem(undefined, "the line is not a frame: it has no `id`");
    }
    if (frame.v !== 1) return this.#problem(id, `unknown frame version ${quote(frame.v)}; expected version 1`);
    switch (frame.type) {
      case "answer": {
        const questions = this.#running.get(id)?.questions;
        const question = questions?.get(frame.request ?? 0);
        // An answer without a pending question is late.
        questions?.delete(frame.request ?? 0);
        if (frame.error) question?.reject(ToolError.from(frame.error));
        else question?.resolve(frame.ok);
        return;
      }
      case "cancel": {
        const running = this.#running.get(id);
        if (running) cancel(running, cancelled());
        return;
      }
      case "list":
        return this.#send(id, "listed", { ok: this.program.discovery() });
      case "call":
      case "read":
      case "render":
        return this.#enter(id, frame);
      default:
        return this.#problem(id, `unknown frame type ${quote(frame.type)}`);
    }
  }

  #enter(id: number, frame: Frame): void {
    if (id === 0 || this.#running.has(id)) {
      return this.#problem(0, `the id ${id} is 0 or belongs to a running request`);
    }
    const kind = frame.type === "call" ? "result" : "value";
    if (this.#running.size >= MAX_REQUESTS) {
      const error = new ToolError("OVERLOADED", `${MAX_REQUESTS} requests are already running`);
      return this.#send(id, kind, { error });
    }
    const running: Running = { questions: new Map() };
    this.#running.set(id, running);
    const call = frame.call || newId();
    void this.#outcome(id, running, { ...frame, call }).then(
      (value) => ({ ok: kind === "result" ? Output.of(value).toJSON() : value }),
    ).catch((error: unknown) => ({ error: failure(error, call) })).then((body) => {
      // The id is free before the caller sees the answer.
      this.#running.delete(id);
      this.#send(id, kind, body);
    }).catch((error: unknown) => this.#send(id, kind, { error: failure(error, call) }));
  }

  async #outcome(id: number, running: Running, frame: Frame): Promise<unknown> {
    const args = frame.arguments ?? {};
    if (frame.type === "read") return this.program.read(String(frame.uri));
    if (frame.type === "render") return this.program.render(String(frame.prompt), args);
    const name = String(frame.tool);
    const tool = this.program.tools.get(name);
    if (!tool) {
      const suggestion = didYouMean(name, this.program.tools.keys());
      throw new ToolError("NOT_FOUND", `unknown tool \`${name.slice(0, 80)}\``, { suggestion });
    }
    const values = await tool.decode(args);
    const control = reserved(tool, args);
    if (frame.validate) return { valid: true };
    if (!tool.spec.dry_run && control.isDryRun) return control.plan;
    if (!tool.spec.dry_run && frame.dry_run) return { dry_run: true, would_execute: { tool: name, arguments: args } };
    const limit = shortest(tool.timeout, control.timeout, frame.deadline_ms, frame.timeout_ms);
    const facts: Facts = { ...frame, verbose: frame.verbose || control.isVerbose };
    if (control.isDryRun) facts.dry_run = true;
    if (control.workingDir !== undefined) facts.working_dir = control.workingDir;
    if (limit !== undefined) facts.timeout_ms = limit;
    if (running.cancelled) throw running.cancelled;
    const ctx = new Ctx(facts, this.#host(id, running, frame));
    running.ctx = ctx;
    const expired = (): void => cancel(running, new ToolError("TIMEOUT", `\`${name}\` timed out after ${(limit ?? 0) / 1000} s`));
    const timer = limit === undefined ? undefined : setTimeout(expired, limit);
    try {
      const value = await Promise.race([tool.run(values, ctx), ended(ctx)]);
      if (ctx.isCancelled) throw ctx.signal.reason;
      return value;
    } catch (error) {
      // What an aborted `fetch` or timer throws is not the tool's own error.
      throw ctx.isCancelled && !(error instanceof ToolError) ? ctx.signal.reason : error;
    } finally {
      clearTimeout(timer);
    }
  }

  #host(id: number, running: Running, frame: Frame): Host {
    return {
      notify: (kind, body) => {
        // The id of an ended request may belong to a later one.
        if (this.#running.get(id) !== running) return;
        this.#send(id, kind, kind === "progress" ? { ...body, attempt: frame.attempt ?? 1 } : body);
      },
      request: async (verb, body) => {
        if (running.ctx?.isCancelled || this.#running.get(id) !== running) throw cancelled();
        const called = verb === "nested" ? this.program.tools.get(String(body.tool)) : undefined;
        if (called && running.ctx) {
          const values = await called.decode(body.arguments as Record<string, unknown>);
          return Output.of(await called.run(values, running.ctx)).toJSON();
        }
        if (!frame.serves?.includes(verb)) throw unable(verb);
        const request = (this.#lastQuestion += 1);
        return new Promise((resolve, reject) => {
          running.questions.set(request, { resolve, reject });
          this.#send(id, verb, { request, ...body });
        });
      },
    };
  }
}

/** Cancels a request: its tool by the signal, its questions at once. */
function cancel(running: Running, reason: ToolError): void {
  running.cancelled ??= reason;
  running.ctx?.cancel(reason);
  for (const question of running.questions.values()) question.reject(reason);
  running.questions.clear();
}

function cancelled(): ToolError {
  return new ToolError("CANCELLED", "the caller cancelled the call");
}

/** How long a cancelled tool has to end by itself: it may say more than that it was cancelled. */
const GRACEFUL_MS = 500;

/** Rejects some time after the end of a call that its tool ignores. */
function ended(ctx: Ctx): Promise<never> {
  return new Promise((_, reject) => {
    const end = (): void => void setTimeout(() => reject(ctx.signal.reason), GRACEFUL_MS).unref();
    if (ctx.isCancelled) end();
    else ctx.signal.addEventListener("abort", end, { once: true });
  });
}
