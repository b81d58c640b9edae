/** JSON Schema: its TypeScript types, and the check of arguments. */

import { ToolError } from "./errors.js";

/** A JSON Schema: the keywords that {@link check} reads, and any others, which callers see. */
export interface JsonSchema {
  readonly type?: string | readonly string[];
  readonly description?: string;
  readonly default?: unknown;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly properties?: { readonly [name: string]: JsonSchema };
  readonly required?: readonly string[];
  readonly additionalProperties?: boolean | JsonSchema;
  readonly items?: JsonSchema | boolean;
  readonly anyOf?: readonly JsonSchema[];
  readonly oneOf?: readonly JsonSchema[];
  readonly allOf?: readonly JsonSchema[];
  readonly $ref?: string;
  readonly $defs?: { readonly [name: string]: JsonSchema };
  readonly [keyword: string]: unknown;
}

/** A validator with a JSON Schema, such as a zod object: https://standardschema.dev. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => StandardResult<Output> | Promise<StandardResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
    readonly jsonSchema?: {
      readonly input: (options: { readonly target: "draft-2020-12" }) => Record<string, unknown>;
      readonly output: (options: { readonly target: "draft-2020-12" }) => Record<string, unknown>;
    };
  };
}

type PathStep = PropertyKey | { readonly key: PropertyKey };
type StandardResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: ReadonlyArray<{ readonly message: string; readonly path?: readonly PathStep[] | undefined }> };

/** The type of the values that a schema describes. */
export type Infer<S> = S extends StandardSchema<any, infer Output> ? Output : FromJson<S>;

type FromJson<S> = S extends { readonly const: infer Value }
  ? Value
  : S extends { readonly enum: readonly (infer Value)[] }
    ? Value
    : S extends { readonly anyOf: readonly (infer Option)[] }
      ? FromJson<Option>
      : S extends { readonly type: infer Name }
        ? OfType<Name extends readonly (infer One)[] ? One : Name, S>
        : unknown;
type OfType<Name, S> = Name extends "string"
  ? string
  : Name extends "number" | "integer"
    ? number
    : Name extends "boolean"
      ? boolean
      : Name extends "null"
        ? null
        : Name extends "array"
          ? S extends { readonly items: infer Item } ? FromJson<Item>[] : unknown[]
          : Name extends "object"
            ? S extends { readonly properties: infer Properties } ? Members<Properties, S> : Record<string, unknown>
            : unknown;
type Required<S> = S extends { readonly required: readonly (infer Name)[] } ? Name : never;
type IsPresent<Properties, Name extends keyof Properties, S> =
  Name extends Required<S> ? true : Properties[Name] extends { readonly default: unknown } ? true : false;
type Members<Properties, S> = Simplified<
  { -readonly [Name in keyof Properties as IsPresent<Properties, Name, S> extends true ? Name : never]: FromJson<Properties[Name]> }
  & { -readonly [Name in keyof Properties as IsPresent<Properties, Name, S> extends true ? never : Name]?: FromJson<Properties[Name]> }
>;
type Simplified<T> = { [Name in keyof T]: T[Name] };

/** A mismatch between a JSON value and its schema. */
export interface Problem {
  /** The JSON pointer of the value. */
  at: string;
  expected: string;
  found: string;
  /** The name of a missing property. */
  missing?: string;
  suggestion?: string | undefined;
}

const MAX_PROBLEMS = 16;
const MAX_QUOTE = 80;
const MAX_DEPTH = 200;

/** The limits of values: the type that a keyword applies to, whether a value is within it, and its words. */
const LIMITS: Record<string, [type: string, holds: (value: any, limit: any) => boolean, words: string]> = {
  minimum: ["number", (value, limit) => value >= limit, "at least {}"],
  exclusiveMinimum: ["number", (value, limit) => value > limit, "more than {}"],
  maximum: ["number", (value, limit) => value <= limit, "at most {}"],
  exclusiveMaximum: ["number", (value, limit) => value < limit, "less than {}"],
  multipleOf: ["number", (value, step) => Number.isInteger(value / step), "a multiple of {}"],
  minLength: ["string", (value, limit) => [...value].length >= limit, "at least {} characters"],
  maxLength: ["string", (value, limit) => [...value].length <= limit, "at most {} characters"],
  pattern: ["string", (value, pattern) => new RegExp(pattern, "u").test(value), "text that matches {}"],
  minItems: ["array", (value, limit) => value.length >= limit, "at least {} items"],
  maxItems: ["array", (value, limit) => value.length <= limit, "at most {} items"],
  minProperties: ["object", (value, limit) => Object.keys(value).length >= limit, "at least {} keys"],
  maxProperties: ["object", (value, limit) => Object.keys(value).length <= limit, "at most {} keys"],
};

/** The mismatches between a JSON value and a schema: missing values first, at most 16. */
export function check(schema: JsonSchema, value: unknown, sensitive: readonly string[] = []): Problem[] {
  const problems: Problem[] = [];
  visit(schema, value, "", schema, problems, 0);
  for (const problem of problems) {
    const place = problem.at.split("/")[1];
    if (sensitive.length > 0 && !problem.missing && (place === undefined || sensitive.includes(place))) {
      problem.found = "***";
      problem.suggestion = undefined;
    }
  }
  return problems.sort((one, two) => Number(!one.missing) - Number(!two.missing)).slice(0, MAX_PROBLEMS);
}

function visit(
  schema: JsonSchema | boolean, value: unknown, at: string, root: JsonSchema, problems: Problem[], depth: number,
): void {
  if (schema === true || problems.length > MAX_PROBLEMS * 4) return;
  if (schema === false || depth > MAX_DEPTH) {
    problems.push({ at, expected: schema === false ? "nothing" : `at most ${MAX_DEPTH} levels`, found: quote(value) });
    return;
  }
  if (schema.$ref) {
    visit(resolved(schema.$ref, root), value, at, root, problems, depth + 1);
    return;
  }
  const kind = typeOf(value);
  const types = schema.type === undefined ? [] : [schema.type].flat();
  const fits = types.length === 0 || types.includes(kind) || (kind === "integer" && types.includes("number"));
  const isListed = (schema.enum ?? (schema.const === undefined ? undefined : [schema.const]))
    ?.some((one) => JSON.stringify(one) === JSON.stringify(value));
  if (!fits || isListed === false) {
    problems.push({ at, expected: expected(schema, root), found: `${kind} (${quote(value)})` });
    return;
  }
  for (const [keyword, [type, holds, words]] of Object.entries(LIMITS)) {
    const limit = schema[keyword];
    const applies = limit !== undefined && (kind === type || (type === "number" && kind === "integer"));
    if (applies && !holds(value, limit)) {
      problems.push({ at, expected: words.replace("{}", String(limit)), found: quote(value) });
    }
  }
  const options = schema.anyOf ?? schema.oneOf;
  if (options) {
    const tried = options.map((option) => {
      const found: Problem[] = [];
      visit(option, value, at, root, found, depth + 1);
      return found;
    });
    if (tried.every((found) => found.length > 0)) {
      // The option whose mismatch lies deepest is the one that was meant.
      const nearest = tried.reduce((best, found) => (found[0]!.at.length > best[0]!.at.length ? found : best));
      problems.push(...(nearest[0]!.at === at
        ? [{ at, expected: expected(schema, root), found: `${kind} (${quote(value)})` }]
        : nearest));
    }
  }
  for (const part of schema.allOf ?? []) visit(part, value, at, root, problems, depth + 1);
  if (Array.isArray(value) && schema.items !== undefined) {
    value.forEach((item, index) => visit(schema.items!, item, `${at}/${index}`, root, problems, depth + 1));
  }
  if (kind === "object") members(schema, value as Record<string, unknown>, at, root, problems, depth);
}

function members(
  schema: JsonSchema, value: Record<string, unknown>, at: string, root: JsonSchema, problems: Problem[], depth: number,
): void {
  const known = schema.properties ?? {};
  for (const [name, one] of Object.entries(value)) {
    const place = `${at}/${escaped(name)}`;
    if (Object.hasOwn(known, name)) {
      visit(known[name]!, one, place, root, problems, depth + 1);
    } else if (schema.additionalProperties === false) {
      const names = Object.keys(known);
      const wanted = names.length > 0 ? `only the properties ${names.join(", ")}` : "no properties";
      const found = `\`${name.slice(0, MAX_QUOTE)}\``;
      problems.push({ at: place, expected: wanted, found, suggestion: didYouMean(name, names) });
    } else if (typeof schema.additionalProperties === "object") {
      visit(schema.additionalProperties, one, place, root, problems, depth + 1);
    }
  }
  for (const name of schema.required ?? []) {
    if (!Object.hasOwn(value, name)) {
      const about = (known[name]?.description ?? "a value").replace(/\.+$/, "");
      problems.push({ at: `${at}/${escaped(name)}`, expected: about, found: "nothing", missing: name });
    }
  }
}

/** The error that names each mismatch. */
export function mismatch(problems: readonly Problem[]): ToolError {
  const first = problems[0]!;
  return new ToolError(first.missing ? "MISSING_PARAM" : "INVALID_INPUT", problems.map(text).join("; "), {
    suggestion: problems.find((problem) => problem.suggestion)?.suggestion,
    context: {
      pointer: first.at,
      expected: first.expected,
      found: first.found,
      pointers: problems.map((problem) => problem.at),
    },
  });
}

/** A mismatch as a sentence. */
export function text(problem: Problem): string {
  if (problem.missing) return `\`${problem.missing}\` is missing: expected ${problem.expected}`;
  return `${problem.at || "the arguments"}: expected ${problem.expected}, found ${problem.found}`;
}

/** The value that a validator makes of a JSON value, or its mismatches. */
export async function validated(
  schema: StandardSchema, value: unknown,
): Promise<{ value: unknown } | { problems: Problem[] }> {
  const result = await schema["~standard"].validate(value);
  if (!result.issues) return { value: result.value };
  return {
    problems: result.issues.slice(0, MAX_PROBLEMS).map((issue) => {
      const keys = (issue.path ?? []).map((step) => (typeof step === "object" ? step.key : step));
      const found = keys.reduce<any>((inner, key) => inner?.[key], value);
      const at = keys.map((key) => `/${escaped(String(key))}`).join("");
      return { at, expected: `a valid value (${issue.message})`, found: quote(found) };
    }),
  };
}

/** The limits of a schema as words, for help. */
export function limits(schema: JsonSchema): string[] {
  const given = Object.entries(LIMITS).filter(([keyword]) => schema[keyword] !== undefined);
  return given.map(([keyword, [, , words]]) => words.replace("{}", String(schema[keyword])));
}

/** The JSON types that a schema allows; empty if it allows any. */
export function types(schema: JsonSchema, root: JsonSchema, depth = 0): Set<string> {
  if (depth > MAX_DEPTH) return new Set();
  if (schema.$ref) {
    const target = resolved(schema.$ref, root);
    return typeof target === "object" ? types(target, root, depth + 1) : new Set();
  }
  if (schema.type !== undefined) return new Set([schema.type].flat());
  const options = (schema.anyOf ?? schema.oneOf ?? []).map((option) => types(option, root, depth + 1));
  if (options.length > 0) {
    return options.every((option) => option.size > 0) ? new Set(options.flatMap((option) => [...option])) : new Set();
  }
  return new Set((schema.enum ?? (schema.const === undefined ? [] : [schema.const])).map(typeOf));
}

/** What a schema expects, in words. */
export function expected(schema: JsonSchema, root: JsonSchema): string {
  const values = schema.enum ?? (schema.const === undefined ? undefined : [schema.const]);
  if (values) return `one of ${values.map((one) => (typeof one === "string" ? one : JSON.stringify(one))).join(", ")}`;
  return [...types(schema, root)].sort().join(" or ") || "a value";
}

/** The JSON type of a value. */
export function typeOf(value: unknown): string {
  if (value === null || value === undefined) return "null";
  if (Array.isArray(value)) return "array";
  if (typeof value === "number") return Number.isInteger(value) ? "integer" : "number";
  return typeof value;
}

/** A value as short JSON. */
export function quote(value: unknown): string {
  const json = JSON.stringify(value) ?? "null";
  return json.length <= MAX_QUOTE ? json : `${json.slice(0, MAX_QUOTE)}…`;
}

/** A suggestion of names that are near to an unknown one. */
export function didYouMean(found: string, known: Iterable<string>): string | undefined {
  const near = [...known]
    .map((name) => ({ name, ratio: (2 * commonLength(found.slice(0, 200), name)) / (found.length + name.length) }))
    .filter(({ ratio }) => ratio >= 0.6)
    .sort((one, two) => two.ratio - one.ratio)
    .slice(0, 3);
  return near.length > 0 ? `Did you mean ${near.map(({ name }) => `\`${name}\``).join(" or ")}?` : undefined;
}

/** The length of the longest common subsequence. */
function commonLength(one: string, two: string): number {
  let row = new Array<number>(two.length + 1).fill(0);
  for (const letter of one) {
    const next = [0];
    for (let at = 1; at <= two.length; at += 1) {
      next.push(two[at - 1] === letter ? row[at - 1]! + 1 : Math.max(row[at]!, next[at - 1]!));
    }
    row = next;
  }
  return row[two.length]!;
}

function resolved(reference: string, root: JsonSchema): JsonSchema | boolean {
  if (reference === "#") return root;
  const name = /^#\/\$defs\/([^/]+)$/.exec(reference)?.[1]?.replaceAll("~1", "/").replaceAll("~0", "~");
  const target = name === undefined ? undefined : root.$defs?.[name];
  if (target === undefined) throw new ToolError("PRECONDITION", `the schema has no definition \`${reference}\``);
  return target;
}

function escaped(name: string): string {
  return name.replaceAll("~", "~0").replaceAll("/", "~1");
}
