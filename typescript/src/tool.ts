/** Definitions of tools, resources and prompts. */

import type { Ctx } from "./ctx.js";
import { SpecError, ToolError } from "./errors.js";
import { encode } from "./output.js";
import { check, type Infer, type JsonSchema, mismatch, type Problem, type StandardSchema, types, validated } from "./schema.js";

/** A number of milliseconds, or a text such as `250ms`, `10s` or `1m30s`. */
export type Duration = number | string;

/** The options of {@link tool}. Most are policy, which the caller applies. */
export interface ToolOptions<S extends JsonSchema | StandardSchema> {
  /** Letters, digits, `_`, `-` and `.`, at most 64. */
  name: string;
  /** What the tool does, for a model. Its first line is the summary. */
  description: string;
  /** The arguments: a zod object, or a JSON Schema. Default: none. */
  input?: S;
  /** The result, as a schema. */
  output?: JsonSchema | StandardSchema;
  /** Runs the tool. */
  run: (args: Infer<S>, ctx: Ctx) => unknown;
  /** A name for people. */
  title?: string;
  tags?: string[];
  examples?: Record<string, unknown>[];
  /** Parameters whose values appear in no error and no record. */
  sensitive?: string[];
  /** `streaming` tools report progress, `session` tools ask questions. */
  mode?: "unary" | "streaming" | "session";
  /** The limit of one attempt. Default: 60 s. */
  timeout?: Duration | "never";
  /** Maximum number of retries. */
  retries?: number;
  /** How long the same arguments have the same result. The tool must be idempotent. */
  cache?: Duration;
  /** Calls per period, such as `10/s`. */
  rate?: string;
  /** Maximum number of calls at once. */
  concurrency?: number;
  approval?: "allow" | "ask" | "deny";
  readOnly?: boolean;
  destructive?: boolean;
  idempotent?: boolean;
  openWorld?: boolean;
  /** The tool handles dry runs itself: `ctx.isDryRun`. Otherwise the program answers them. */
  dryRun?: boolean;
}

/** A definition as JSON. */
export interface Spec {
  name: string;
  description: string;
  input_schema: JsonSchema & { properties: Record<string, JsonSchema> };
  [member: string]: unknown;
}

/**
 * Defines a tool.
 *
 * ```ts
 * const forecast = tool({
 *   name: "forecast",
 *   description: "Forecast the weather for a city.",
 *   input: z.object({ city: z.string().describe("City name."), days: z.int().default(1) }),
 *   run: ({ city, days }) => `${city}: sun for ${days} days`,
 * });
 * ```
 *
 * @throws SpecError for an invalid definition.
 */
export function tool<const S extends JsonSchema | StandardSchema = { type: "object" }>(options: ToolOptions<S>): Tool {
  return new Tool(options as unknown as ToolOptions<JsonSchema>);
}

/** A definition with checked arguments. */
class Definition {
  readonly name: string;
  readonly #input: JsonSchema | StandardSchema | undefined;
  readonly #schema: Spec["input_schema"];
  readonly #sensitive: readonly string[];

  constructor(
    options: { name: string; description: string; input?: JsonSchema | StandardSchema; sensitive?: string[] },
  ) {
    if (!/^[A-Za-z0-9_.-]{1,64}$/.test(options.name)) {
      throw new SpecError(`\`${options.name}\` is not a name; use 1 to 64 letters, digits, \`_\`, \`-\` and \`.\``);
    }
    if (!options.description?.trim()) throw new SpecError(`\`${options.name}\` has no description; add one`);
    this.name = options.name;
    this.#input = options.input;
    this.#sensitive = options.sensitive ?? [];
    const schema = schemaOf(options.input ?? { type: "object" }, `the input of \`${options.name}\``);
    if (schema.type !== "object") throw new SpecError(`the input of \`${options.name}\` is not an object; use an object`);
    const properties = schema.properties ?? {};
    this.#schema = { ...schema, properties, additionalProperties: schema.additionalProperties ?? false };
    for (const name of this.#sensitive) {
      if (!(name in properties)) throw new SpecError(`\`${options.name}\` has no parameter \`${name}\` (\`sensitive\`)`);
    }
  }

  get schema(): Spec["input_schema"] {
    return this.#schema;
  }

  /** The default values of the arguments. */
  get defaults(): Record<string, unknown> {
    const given = Object.entries(this.#schema.properties).filter(([, one]) => one.default !== undefined);
    return Object.fromEntries(given.map(([name, one]) => [name, structuredClone(one.default)]));
  }

  /** The mismatches between arguments and the schema. */
  async problems(args: Record<string, unknown>): Promise<Problem[]> {
    const result = await this.#checked(args);
    return "problems" in result ? result.problems : [];
  }

  /**
   * Checks arguments, and returns them with defaults.
   *
   * @throws ToolError with `MISSING_PARAM` or `INVALID_INPUT`, which names each invalid parameter.
   */
  async decode(args: Record<string, unknown>): Promise<any> {
    const result = await this.#checked(args);
    if ("problems" in result) throw mismatch(result.problems);
    return result.value;
  }

  async #checked(args: Record<string, unknown>): Promise<{ value: unknown } | { problems: Problem[] }> {
    const problems = check(this.#schema, args, this.#sensitive);
    if (problems.length > 0) return { problems };
    if (this.#input === undefined || !("~standard" in this.#input)) return { value: { ...this.defaults, ...args } };
    const result = await validated(this.#input as StandardSchema, args);
    if ("problems" in result && this.#sensitive.length > 0) {
      result.problems = result.problems.map((one) => ({ ...one, expected: "a valid value", found: "***" }));
    }
    return result;
  }
}

const RETRY = { initial: "100ms", maximum: "2s", on: ["DEPENDENCY", "TIMEOUT", "OVERLOADED"] };

/** A tool. {@link tool} creates it. */
export class Tool extends Definition {
  readonly run: (args: any, ctx: Ctx) => unknown;
  readonly spec: Spec;
  /** The limit of one attempt in milliseconds; null without one. */
  readonly timeout: number | null;

  constructor(options: ToolOptions<JsonSchema>) {
    super(options);
    this.run = options.run;
    this.timeout = options.timeout === "never" ? null : milliseconds(options.timeout ?? "60s", "timeout");
    this.spec = specOf(this, options);
  }
}

function specOf(made: Tool, options: ToolOptions<JsonSchema>): Spec {
  const where = `\`${options.name}\``;
  if (options.cache !== undefined && !options.idempotent) {
    throw new SpecError(`only an idempotent tool can be cached; add \`idempotent: true\` to ${where}, or remove \`cache\``);
  }
  const annotations = defined({
    read_only: options.readOnly || undefined,
    destructive: options.destructive || undefined,
    idempotent: options.idempotent || undefined,
    open_world: options.openWorld || undefined,
  });
  const policy = defined({
    timeout: options.timeout === "never" ? "never" : limit(options.timeout, "timeout"),
    retry: options.retries === undefined ? undefined : { attempts: options.retries, ...RETRY },
    cache: options.cache === undefined ? undefined : duration(options.cache, "cache"),
    rate: options.rate === undefined ? undefined : rate(options.rate),
    concurrency: options.concurrency,
    approval: options.approval,
  });
  return defined({
    name: made.name,
    description: options.description.trim(),
    input_schema: made.schema,
    output_schema: options.output && schemaOf(options.output, `the output of ${where}`, "output"),
    title: options.title,
    tags: options.tags?.length ? options.tags : undefined,
    examples: options.examples?.map((args) => ({ args: encode(args) })),
    sensitive: options.sensitive?.length ? options.sensitive : undefined,
    mode: options.mode === "unary" ? undefined : options.mode,
    annotations: Object.keys(annotations).length > 0 ? annotations : undefined,
    policy: Object.keys(policy).length > 0 ? policy : undefined,
    dry_run: options.dryRun || undefined,
  }) as Spec;
}

/** Defines a resource: text or data under a URI template, such as `notes://{user}`. */
export function resource<const S extends JsonSchema | StandardSchema = { type: "object" }>(options: {
  /** `{name}` matches all characters but `/`. */
  uri: string;
  description: string;
  /** The types of the parts. Default: strings. */
  input?: S;
  mimeTypes?: string[];
  tags?: string[];
  read: (parts: [S] extends [{ type: "object" }] ? Record<string, string> : Infer<S>) => unknown;
}): Resource {
  return new Resource(options as unknown as ConstructorParameters<typeof Resource>[0]);
}

/** A resource. {@link resource} creates it. */
export class Resource extends Definition {
  readonly read: (parts: any) => unknown;
  readonly entry: Record<string, unknown>;
  readonly #pattern: RegExp;

  constructor(options: {
    uri: string;
    description: string;
    input?: JsonSchema | StandardSchema;
    mimeTypes?: string[];
    tags?: string[];
    read: (parts: any) => unknown;
  }) {
    const names = [...options.uri.matchAll(/\{([A-Za-z_]\w*)\}/g)].map((match) => match[1]!);
    const text = Object.fromEntries(names.map((name) => [name, { type: "string" }]));
    const input = options.input ?? { type: "object", properties: text, required: names };
    super({ name: "resource", description: options.description, input });
    const declared = Object.keys(this.schema.properties);
    const extra = names.find((name) => !declared.includes(name)) ?? declared.find((name) => !names.includes(name));
    if (extra) throw new SpecError(`\`${options.uri}\` and its input differ in \`${extra}\`; give both the same names`);
    this.read = options.read;
    const parts = options.uri.split(/\{[A-Za-z_]\w*\}/).map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    this.#pattern = new RegExp(`^${parts.map((part, at) => (at ? `(?<${names[at - 1]}>[^/]+)${part}` : part)).join("")}$`);
    this.entry = {
      tags: options.tags ?? [],
      uri_pattern: options.uri,
      summary: summary(options.description),
      mime_types: options.mimeTypes ?? [],
    };
  }

  /** The parts of a URI, typed by the schema; null if the template does not match. */
  match(uri: string): Record<string, unknown> | null {
    const found = this.#pattern.exec(uri);
    if (!found) return null;
    const parts = Object.entries(found.groups ?? {});
    return Object.fromEntries(parts.map(([name, text]) => {
      return [name, typed(text, types(this.schema.properties[name] ?? {}, this.schema))];
    }));
  }
}

/** Defines a prompt: text for a model, with parameters. */
export function prompt<const S extends JsonSchema | StandardSchema = { type: "object" }>(options: {
  name: string;
  description: string;
  input?: S;
  tags?: string[];
  render: (args: Infer<S>) => unknown;
}): Prompt {
  return new Prompt(options as unknown as ConstructorParameters<typeof Prompt>[0]);
}

/** A prompt. {@link prompt} creates it. */
export class Prompt extends Definition {
  readonly render: (args: any) => unknown;
  readonly entry: Record<string, unknown>;

  constructor(options: {
    name: string;
    description: string;
    input?: JsonSchema | StandardSchema;
    tags?: string[];
    render: (args: any) => unknown;
  }) {
    super(options);
    this.render = options.render;
    const parameters = Object.entries(this.schema.properties).map(([name, one]) => [name, one.description ?? ""]);
    this.entry = {
      name: this.name,
      summary: summary(options.description),
      arguments: Object.fromEntries(parameters),
      tags: options.tags ?? [],
    };
  }
}

/** The JSON Schema of a schema. */
export function schemaOf(schema: JsonSchema | StandardSchema, where: string, io: "input" | "output" = "input"): JsonSchema {
  if (!("~standard" in schema)) return schema;
  const convert = (schema as StandardSchema)["~standard"].jsonSchema;
  if (!convert) throw new SpecError(`${where} has no JSON Schema; use zod 4.2 or later, or a JSON Schema`);
  const { $schema: _, ...json } = convert[io]({ target: "draft-2020-12" });
  // zod bounds each integer by what a double holds; to a model these bounds are noise.
  return JSON.parse(JSON.stringify(json, (key, value) => (isNoise(key, value) ? undefined : value)));
}

function isNoise(key: string, value: unknown): boolean {
  return (key === "minimum" || key === "maximum") && Math.abs(value as number) === Number.MAX_SAFE_INTEGER;
}

/** The first line of a description. */
export function summary(description: string): string {
  return description.trim().split("\n", 1)[0]!;
}

/** The JSON value of a text. A text of the wrong type stays a string, so that the check reports it. */
export function typed(text: string, allowed: Set<string>): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return text;
  }
  const kind = value === null ? "null" : Array.isArray(value) ? "array" : typeof value;
  const isNumber = kind === "number" && (allowed.has("number") || (allowed.has("integer") && Number.isInteger(value)));
  const fits = allowed.size === 0 || allowed.has(kind) || isNumber;
  return fits && kind !== "string" ? value : text;
}

const UNITS: Record<string, number> = { us: 0.001, ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** A duration in milliseconds. */
export function milliseconds(value: Duration, option: string): number {
  if (typeof value === "number" && value >= 0 && Number.isFinite(value)) return value;
  const parts = [...String(value).matchAll(/(\d+(?:\.\d+)?)(us|ms|s|m|h|d)/g)];
  if (parts.length === 0 || parts.map((part) => part[0]).join("") !== value) {
    throw new SpecError(`\`${option}: ${value}\` is not a duration; write milliseconds, or a text such as "10s"`);
  }
  return parts.reduce((sum, part) => sum + Number(part[1]) * UNITS[part[2]!]!, 0);
}

function duration(value: Duration, option: string): string {
  const time = milliseconds(value, option);
  return time % 1000 === 0 ? `${time / 1000}s` : `${Math.round(time)}ms`;
}

function limit(value: Duration | undefined, option: string): { after: string } | undefined {
  return value === undefined ? undefined : { after: duration(value, option) };
}

function rate(value: string): { calls: number; per: string } {
  const found = /^([1-9]\d*)\/(.+)$/.exec(value);
  if (!found) throw new SpecError(`\`rate: ${value}\` is not a rate; write calls and a period, such as 10/s or 5/30s`);
  const per = /^\d/.test(found[2]!) ? found[2]! : `1${found[2]}`;
  return { calls: Number(found[1]), per: duration(per, "rate") };
}

function defined(members: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined));
}

/** Where JSON is invalid, without the quote of the text, which may hold a secret. */
export function place(error: unknown): string {
  return (error as Error).message.replace(/, [^]*is not valid JSON$/, "");
}

/** Parses a JSON object; an empty text is an empty object. */
export function parseObject(text: string): Record<string, unknown> {
  if (!text.trim()) return {};
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new ToolError("INVALID_INPUT", `the arguments are not valid JSON: ${place(error)}`, {
      suggestion: 'Give one JSON object, such as \'{"name": "value"}\', or flags, such as --name value.',
    });
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    throw new ToolError("INVALID_INPUT", "the arguments are not a JSON object; expected `{…}`");
  }
  return value as Record<string, unknown>;
}
