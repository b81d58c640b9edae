import { encode } from "./output.js";

/** The kinds of errors that a caller can tell apart. */
export type Code =
  | "INVALID_INPUT" | "MISSING_PARAM" | "INVALID_PATH" | "NOT_FOUND" | "CONFLICT" | "PRECONDITION" | "TIMEOUT"
  | "PERMISSION" | "INTERNAL" | "DEPENDENCY" | "OVERLOADED" | "LIMIT" | "CANCELLED";

/** An error as JSON. */
export interface ErrorData {
  code: string;
  message: string;
  recoverable?: boolean;
  suggestion?: string | null;
  context?: Record<string, unknown> | null;
}

/** Codes after which the same caller can succeed with other arguments. */
const RECOVERABLE = new Set<string>([
  "INVALID_INPUT", "MISSING_PARAM", "INVALID_PATH", "NOT_FOUND", "CONFLICT", "PRECONDITION",
]);
const CODES = new Set<string>([
  ...RECOVERABLE, "TIMEOUT", "PERMISSION", "INTERNAL", "DEPENDENCY", "OVERLOADED", "LIMIT", "CANCELLED",
]);

/** Exit codes of programs. */
export const EXIT = { success: 0, failed: 1, usage: 2, unreachable: 4, denied: 5, limit: 6, interrupted: 130 } as const;
const EXIT_OF: Record<string, number> = {
  TIMEOUT: EXIT.unreachable,
  OVERLOADED: EXIT.unreachable,
  DEPENDENCY: EXIT.unreachable,
  PERMISSION: EXIT.denied,
  LIMIT: EXIT.limit,
  CANCELLED: EXIT.interrupted,
};
/** The codes of dialect 0.1 for codes that it lacks. */
const DIALECT: Record<string, string> = { OVERLOADED: "DEPENDENCY", LIMIT: "DEPENDENCY", CANCELLED: "TIMEOUT" };

/**
 * The error of a tool call: a code, a message and a suggestion for the caller.
 *
 * Any other exception of a tool is an `INTERNAL` error, whose details the caller does not see.
 *
 * ```ts
 * throw new ToolError("NOT_FOUND", "no city is named Osol", { suggestion: "Try Oslo.", context: { city: "Osol" } });
 * ```
 */
export class ToolError extends Error {
  readonly code: Code;
  /** Whether the caller can succeed with other arguments. */
  readonly recoverable: boolean;
  /** The fix, as a sentence. */
  readonly suggestion: string | undefined;
  /** Facts for programs, such as the JSON pointer of the invalid argument. */
  readonly context: Readonly<Record<string, unknown>>;

  /** @throws RangeError for an unknown code. */
  constructor(
    code: Code,
    message: string,
    options: { suggestion?: string | undefined; context?: Record<string, unknown>; cause?: unknown } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    if (!CODES.has(code)) {
      throw new RangeError(`\`${code}\` is not an error code; use one of ${[...CODES].sort().join(", ")}`);
    }
    this.name = "ToolError";
    this.code = code;
    this.recoverable = RECOVERABLE.has(code);
    this.suggestion = options.suggestion;
    this.context = options.context ?? {};
  }

  /** The error of a JSON object. An unknown code becomes `DEPENDENCY`. */
  static from(data: ErrorData): ToolError {
    return new ToolError((CODES.has(data.code) ? data.code : "DEPENDENCY") as Code, data.message ?? "the call failed", {
      suggestion: data.suggestion ?? undefined,
      context: data.context ?? {},
    });
  }

  /** The error as JSON. */
  toJSON(): ErrorData {
    return {
      code: this.code,
      message: this.message,
      recoverable: this.recoverable,
      ...(this.suggestion ? { suggestion: this.suggestion } : {}),
      ...(Object.keys(this.context).length > 0 ? { context: jsonOf(this.context) } : {}),
    };
  }
}

/** The facts of an error, or words about facts without a JSON form. */
function jsonOf(context: Readonly<Record<string, unknown>>): Record<string, unknown> {
  try {
    return encode(context) as Record<string, unknown>;
  } catch {
    return { context: "it has no JSON form" };
  }
}

/** The definition of a tool is invalid. The message names the tool and the fix. */
export class SpecError extends TypeError {
  override name = "SpecError";
}

/** An error with a code of dialect 0.1. */
export function wireError(error: ToolError): ErrorData {
  return { ...error.toJSON(), code: DIALECT[error.code] ?? error.code };
}

/** The exit code of a program that ends with an error. */
export function exitCode(error: ToolError): number {
  const isProgramFailure = error.code === "DEPENDENCY" && ("exit_code" in error.context || "signal" in error.context);
  return isProgramFailure ? EXIT.failed : (EXIT_OF[error.code] ?? EXIT.failed);
}

/** The error that the caller sees. Standard error explains an internal error to the program's author. */
export function failure(error: unknown, call: string): ToolError {
  if (error instanceof ToolError && error.code !== "INTERNAL") return error;
  const lines = [error instanceof Error ? (error.stack ?? described(error)) : described(error)];
  lines.push(`error: call ${call}: ${indented(described(error))}`);
  let cause = error instanceof Error ? error.cause : undefined;
  for (let depth = 0; cause !== undefined && depth < 16; depth += 1) {
    lines.push(`  caused by: ${indented(described(cause))}`);
    cause = cause instanceof Error ? cause.cause : undefined;
  }
  process.stderr.write(`${lines.join("\n")}\n`);
  return new ToolError("INTERNAL", `the tool failed internally; see the record of call ${call}`, { context: { call } });
}

function described(error: unknown): string {
  if (error instanceof ToolError) return error.message;
  if (error instanceof Error) return `${error.name}: ${error.message}`;
  try {
    return String(error);
  } catch {
    return "a value without a text";
  }
}

function indented(text: string): string {
  return text.replaceAll("\n", "\n    ");
}
