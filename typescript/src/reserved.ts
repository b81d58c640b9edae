/** Reserved arguments, which control how a tool runs. They apply if the tool declares them. */

import { statSync } from "node:fs";
import { resolve } from "node:path";
import { ToolError } from "./errors.js";
import { quote } from "./schema.js";
import type { Tool } from "./tool.js";

export interface Reserved {
  workingDir: string | undefined;
  /** Milliseconds. */
  timeout: number | undefined;
  isDryRun: boolean;
  isVerbose: boolean;
  /** The answer to a dry run. */
  plan: { dry_run: true; would_execute: Record<string, unknown> };
}

/** @throws ToolError for a directory that does not exist, or a timeout outside 1 to 600 seconds. */
export function reserved(tool: Tool, args: Record<string, unknown>): Reserved {
  const all = { ...tool.defaults, ...args };
  const given = (name: string): unknown => (name in tool.schema.properties ? all[name] : undefined) ?? undefined;
  const directory = given("working_dir");
  if (typeof directory === "string" && !statSync(directory, { throwIfNoEntry: false })?.isDirectory()) {
    throw new ToolError("INVALID_PATH", `/working_dir: \`${directory}\` is not a directory`, {
      suggestion: "Name an existing directory.",
      context: { pointer: "/working_dir" },
    });
  }
  const seconds = given("timeout");
  if (seconds !== undefined && !(typeof seconds === "number" && seconds >= 1 && seconds <= 600)) {
    throw new ToolError("INVALID_INPUT", `/timeout: expected seconds from 1 to 600, found ${quote(seconds)}`, {
      context: { pointer: "/timeout" },
    });
  }
  return {
    workingDir: typeof directory === "string" ? resolve(directory) : undefined,
    timeout: seconds === undefined ? undefined : seconds * 1000,
    isDryRun: given("dry_run") === true,
    isVerbose: given("verbose") === true,
    plan: { dry_run: true, would_execute: all },
  };
}

/** The longest time of a timer, 24.8 days: a longer one would end at once. */
const MAX_TIMER = 2 ** 31 - 1;

/** The shortest of the limits, in milliseconds. */
export function shortest(...limits: (number | null | undefined)[]): number | undefined {
  const given = limits.filter((limit): limit is number => limit !== null && limit !== undefined);
  return given.length > 0 ? Math.min(...given, MAX_TIMER) : undefined;
}
