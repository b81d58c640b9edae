/**
 * Tools for LLM agents: {@link tool} and {@link main} make a program that Toolpost, and all that speaks its
 * executable protocol, can call. {@link Toolpost} calls tools, agents and sandboxed code.
 */

export { Ctx, type Level } from "./ctx.js";
export { type Code, type ErrorData, SpecError, ToolError } from "./errors.js";
export { Artifact, type Content, Output } from "./output.js";
export { main, type ProgramOptions } from "./program.js";
export type { Infer, JsonSchema, StandardSchema } from "./schema.js";
export { type Duration, Prompt, prompt, Resource, resource, Tool, tool, type ToolOptions } from "./tool.js";
export {
  AgentRun, type CallOptions, CommandError, type ExecOptions, type Grants, type Outcome, type RunEvent, type RunOptions,
  type RunRecord, Server, type ServeOptions, Session, Toolpost, type ToolpostOptions,
} from "./client.js";
