/** Where the command `toolpost` is: `TOOLPOST_BIN`, the package of the platform, or `PATH`. */

import { createRequire } from "node:module";

const name = `toolpost-${process.platform}-${process.arch}`;

/** The path of the binary in the package of this platform, if that is installed. */
export function packaged(): string | undefined {
  try {
    return createRequire(import.meta.url).resolve(`${name}/bin/toolpost`);
  } catch {
    return undefined;
  }
}

/** The binary that `TOOLPOST_BIN` names, or that of the package. */
export function binary(): string | undefined {
  return process.env.TOOLPOST_BIN || packaged();
}

/** How a missing binary is fixed. */
export const MISSING = `the package ${name} is missing; run \`npm install --include=optional toolpost\` on Linux (x64 or arm64), or set TOOLPOST_BIN`;
