#!/usr/bin/env node
/** The command `toolpost` of the npm package: becomes the binary. */

import { spawn } from "node:child_process";
import { constants } from "node:os";
import { isatty } from "node:tty";
import { binary, MISSING } from "./binary.js";

const path = binary();
const words = process.argv.slice(2);
if (path === undefined) fail(MISSING);
// Node 22.15 can replace its process; signals and the exit status are then those of the binary.
else if ("execve" in process) (process.execve as (...call: unknown[]) => void)(path, [path, ...words], process.env);
else run(path);

/** Runs the binary beside this process. A terminal sends SIGINT and SIGQUIT to both, so that they are not sent again. */
function run(path: string): void {
  const child = spawn(path, words, { stdio: "inherit" });
  const hasTerminal = [0, 1, 2].some((stream) => isatty(stream));
  for (const signal of ["SIGINT", "SIGQUIT"] as const) {
    process.on(signal, () => hasTerminal || child.kill(signal));
  }
  for (const signal of ["SIGTERM", "SIGHUP", "SIGUSR2"] as const) {
    process.on(signal, () => child.kill(signal));
  }
  child.on("error", (error) => fail(`cannot start ${path}: ${error.message}`));
  child.on("exit", (status, signal) => {
    if (signal === null) process.exit(status);
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
    // An ignored signal does not end this process.
    process.exit(128 + constants.signals[signal]);
  });
}

function fail(message: string): void {
  process.stderr.write(`error: ${message}\n`);
  process.exitCode = 127;
}
