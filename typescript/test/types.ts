/** What the compiler knows of tools: `tsc --noEmit` is the test. */

import { type Infer, tool, Toolpost } from "toolpost";
import { z } from "zod";

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
function holds<_T extends true>(): void {}

const schema = {
  type: "object",
  properties: {
    city: { type: "string" },
    days: { type: "integer", default: 1 },
    unit: { enum: ["C", "F"] },
    tags: { type: "array", items: { type: "string" } },
    near: { anyOf: [{ type: "number" }, { type: "null" }] },
  },
  required: ["city", "unit"],
} as const;
holds<Equal<
  Infer<typeof schema>,
  { city: string; days: number; unit: "C" | "F"; tags?: string[]; near?: number | null }
>>();

tool({
  name: "json",
  description: "A JSON Schema.",
  input: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  run: ({ city }, ctx) => {
    holds<Equal<typeof city, string>>();
    return ctx.signal.aborted ? null : city.length;
  },
});

const input = z.object({ day: z.coerce.date(), days: z.int().default(1) });
tool({
  name: "zod",
  description: "A zod object.",
  input,
  run: ({ day, days }) => {
    holds<Equal<typeof day, Date>>();
    holds<Equal<typeof days, number>>();
  },
});

// @ts-expect-error A tool has a description.
tool({ name: "none", run: () => 1 });
// @ts-expect-error An unknown level.
void new Toolpost().exec("1", { level: "none" });
