/** Standard output and input, reserved for the protocol. */

import { Readable } from "node:stream";

/** The maximum length of a line in bytes. */
export const MAX_LINE = 32 << 20;

/** A line above {@link MAX_LINE}, of which only the start is known. */
export class LongLine {
  constructor(readonly start: string) {}
}

/**
 * The lines of the protocol.
 *
 * What a tool prints goes to standard error, and its reads find an empty input, so that neither can corrupt a line.
 */
export class Wire {
  readonly isTerminal = process.stdout.isTTY === true;
  readonly #write = process.stdout.write.bind(process.stdout);
  readonly #input = process.stdin;
  #lines: AsyncIterator<string | LongLine> | undefined;

  constructor() {
    process.stdout.write = process.stderr.write.bind(process.stderr) as typeof process.stdout.write;
    const nothing = Readable.from([]);
    Object.defineProperty(process, "stdin", { configurable: true, get: () => nothing });
  }

  /** Writes text, and waits until the reader has it. A reader that is gone ends the process. */
  write(text: string): Promise<void> {
    return new Promise((done) => {
      this.#write(text, (error) => (error ? process.exit(1) : done()));
    });
  }

  /** Writes a value as a line of JSON. */
  line(value: unknown): Promise<void> {
    return this.write(`${JSON.stringify(value)}\n`);
  }

  /**
   * Reads at most so many bytes to the end of the input; null if there are more.
   *
   * @internal
   */
  async all(limit: number): Promise<Buffer | null> {
    const parts: Buffer[] = [];
    let size = 0;
    for await (const part of this.#input as AsyncIterable<Buffer>) {
      size += part.length;
      if (size > limit) return null;
      parts.push(part);
    }
    return Buffer.concat(parts);
  }

  /** The next line that is not empty; null at the end of the input. */
  async next(): Promise<string | LongLine | null> {
    this.#lines ??= lines(this.#input as AsyncIterable<Buffer>);
    const { value, done } = await this.#lines.next();
    return done ? null : value;
  }
}

async function* lines(input: AsyncIterable<Buffer>): AsyncGenerator<string | LongLine> {
  let parts: Buffer[] = [];
  let size = 0;
  function* ended(): Generator<string | LongLine> {
    const text = Buffer.concat(parts).toString();
    if (size > MAX_LINE) yield new LongLine(text.slice(0, 256));
    else if (text.trim()) yield text;
    parts = [];
    size = 0;
  }
  for await (const chunk of input) {
    let start = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, start)) {
      keep(chunk.subarray(start, end));
      yield* ended();
      start = end + 1;
    }
    keep(chunk.subarray(start));
  }
  yield* ended();

  function keep(part: Buffer): void {
    size += part.length;
    // Of a line that is too long, only the start stays in memory.
    if (size <= MAX_LINE || parts.length === 0) parts.push(part);
    else if (parts.length > 1) parts = [Buffer.concat(parts).subarray(0, 1024)];
  }
}
