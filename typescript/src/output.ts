/** What tools return. */

import { type ErrorData, ToolError } from "./errors.js";

/** A block of content for a model. */
export type Content =
  | { type: "text"; text: string }
  | { type: "image"; media_type: string; data: string };

/** An output as JSON. */
export interface OutputData {
  content?: Content[];
  structured?: unknown;
  artifacts?: ArtifactData[];
  partial?: { succeeded: number; errors: ErrorData[] };
}

/** A file as JSON, with its bytes in base64. */
export interface ArtifactData {
  name: string;
  media_type: string;
  size: number;
  data: string;
}

/** A file that a call creates. Text is `text/plain` unless `mediaType` says otherwise. */
export class Artifact {
  readonly data: Uint8Array;
  readonly mediaType: string;

  constructor(readonly name: string, data: Uint8Array | string, mediaType?: string) {
    this.data = typeof data === "string" ? new TextEncoder().encode(data) : data;
    this.mediaType = mediaType ?? (typeof data === "string" ? "text/plain" : "application/octet-stream");
  }

  toJSON(): ArtifactData {
    return { name: this.name, media_type: this.mediaType, size: this.data.length, data: base64(this.data) };
  }
}

/** The output of a tool that needs more than one value. Most tools return a plain value instead. */
export class Output {
  readonly content: Content[];
  readonly artifacts: Artifact[];
  /** How many items succeeded, and the errors of the others. */
  readonly partial: { succeeded: number; errors: ToolError[] } | undefined;

  /** `content` is for a model, which otherwise gets the structured value. */
  constructor(
    readonly structured: unknown = undefined,
    options: {
      content?: (string | Content)[];
      artifacts?: Artifact[];
      partial?: { succeeded: number; errors: ToolError[] };
    } = {},
  ) {
    this.content = (options.content ?? []).map((one) => (typeof one === "string" ? { type: "text", text: one } : one));
    this.artifacts = options.artifacts ?? [];
    this.partial = options.partial;
  }

  /** A content block with an image. */
  static image(mediaType: string, data: Uint8Array): Content {
    return { type: "image", media_type: mediaType, data: base64(data) };
  }

  /** The output for a return value. */
  static of(value: unknown): Output {
    return value instanceof Output ? value : new Output(value);
  }

  /** `success`, `partial` or `error`. */
  get status(): "success" | "partial" | "error" {
    if (!this.partial || this.partial.errors.length === 0) return "success";
    return this.partial.succeeded > 0 ? "partial" : "error";
  }

  toJSON(): OutputData {
    const structured = encode(this.structured);
    return {
      ...(this.content.length > 0 ? { content: this.content } : {}),
      ...(structured === null ? {} : { structured }),
      ...(this.artifacts.length > 0 ? { artifacts: this.artifacts.map((artifact) => artifact.toJSON()) } : {}),
      ...(this.partial
        ? { partial: { succeeded: this.partial.succeeded, errors: this.partial.errors.map((one) => one.toJSON()) } }
        : {}),
    };
  }
}

/** The structured value of an output, or its text. */
export function valueOf(output: OutputData): unknown {
  if (output.structured !== undefined || !output.content?.length) return output.structured ?? null;
  return output.content.flatMap((block) => ("text" in block ? [block.text] : [])).join("\n");
}

/**
 * A value as JSON: bytes in base64, maps as objects, sets as arrays, dates as text, `undefined` as null.
 *
 * @throws ToolError for a value without a JSON form, such as one with a cycle.
 */
export function encode(value: unknown): unknown {
  function replaced(this: unknown, key: string, one: unknown): unknown {
    // Buffers have a `toJSON` of their own, so the value is read before it.
    const original = (this as Record<string, unknown>)[key];
    if (original instanceof Uint8Array) return base64(original);
    if (original instanceof Map) return Object.fromEntries(original);
    if (original instanceof Set) return [...original];
    if (typeof original === "bigint") return Number.isSafeInteger(Number(original)) ? Number(original) : `${original}`;
    return one;
  }
  try {
    return JSON.parse(JSON.stringify(value, replaced) ?? "null");
  } catch (error) {
    throw new ToolError("INTERNAL", `the result has no JSON form: ${String(error)}`, { cause: error });
  }
}

function base64(data: Uint8Array): string {
  return Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64");
}
