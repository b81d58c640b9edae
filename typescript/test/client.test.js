/** The client, with the real command: TOOLPOST_BIN. */

import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { CommandError, ToolError, Toolpost } from "toolpost";

const home = mkdtempSync(join(tmpdir(), "toolpost-ts-"));
const binary = process.env.TOOLPOST_BIN ?? "toolpost";
const toolpost = new Toolpost({ binary, cwd: home, env: { HOME: home, XDG_STATE_HOME: join(home, "state") } });
const place = (path) => fileURLToPath(new URL(path, import.meta.url));

/** A project as `npm install toolpost zod` leaves it. */
function project(name) {
  const directory = join(home, name);
  mkdirSync(directory);
  writeFileSync(join(directory, "package.json"), '{ "type": "module" }');
  for (const part of ["dist", "package.json"]) {
    cpSync(place(`../${part}`), join(directory, "node_modules/toolpost", part), { recursive: true });
  }
  cpSync(place("../node_modules/zod"), join(directory, "node_modules/zod"), { recursive: true });
  return directory;
}

test("a built-in tool", async () => {
  const result = await toolpost.call("calculate", { expression: "6 * 7" });
  assert.equal(result.value, 42);
  await assert.rejects(toolpost.call("calculate", { expression: "6 *" }), (error) => {
    assert(error instanceof ToolError);
    assert.equal(error.code, "INVALID_INPUT");
    assert.equal(error.context.pointer, "/expression");
    return true;
  });
});

test("code, its value and its failure", async () => {
  const outcome = await toolpost.exec("import os; print(os.environ['A']); 40 + 2", { env: { A: "b" }, timeout: 20_000 });
  assert.equal(outcome.value, 42);
  assert.equal(outcome.stdout.text, "b\n");
  const failed = await toolpost.exec("raise SystemExit(3)");
  assert.deepEqual([failed.exit_code, failed.verdict.kind], [3, "exit"]);
  const slow = await toolpost.exec("import time; time.sleep(60)", { timeout: 500 });
  assert.equal(slow.verdict.kind, "timeout");
  assert.equal((await toolpost.exec("1 + 1", { lang: "javascript" })).value, 2);
});

test("a command with its own options", async () => {
  const outcome = await toolpost.command(["echo", "--json", "-n", "$HOME"]);
  assert.equal(outcome.stdout.text, "--json -n $HOME\n");
});

test("a session keeps variables, and its fork too", async () => {
  const session = toolpost.session({ keep: "1m" });
  await session.exec("x = [1]");
  const fork = await session.fork();
  assert.deepEqual((await fork.exec("x.append(2); x")).value, [1, 2]);
  assert.deepEqual((await session.exec("x")).value, [1]);
  const looping = session.exec("while True: pass");
  await new Promise((done) => setTimeout(done, 300));
  await session.interrupt();
  assert.match((await looping).stderr.text, /KeyboardInterrupt/);
  await session.reset();
  assert.match((await session.exec("x")).stderr.text, /NameError/);
  await session.end();
  await fork.end();
  await assert.rejects(fork.end(), CommandError);
});

test("an agent with events, and without a reader", async () => {
  writeFileSync(join(home, "script.yaml"), `
turns:
  - calls: [{ tool: calculate, args: { expression: "6 * 7" } }]
  - text: It is 42.
`);
  const run = toolpost.run("--What is 6 * 7?", { model: "script:script.yaml", tools: ["calculate"], maxTime: "1m" });
  const types = [];
  for await (const event of run) types.push(event.type);
  assert(types.includes("text.delta") && types.at(-1) === "run.finished");
  const record = await run.result;
  assert.deepEqual([record.success, record.response], [true, "It is 42."]);
  assert.equal((await toolpost.run("again", { model: "script:script.yaml", tools: ["calculate"] }).result).success, true);
  await assert.rejects(toolpost.run("x", { model: "script:missing.yaml" }).result, (error) => {
    assert(error instanceof CommandError);
    assert.deepEqual([error.code, error.exit], ["SCRIPT", 2]);
    return true;
  });
});

test("a prompt may be longer than an argument", async () => {
  writeFileSync(join(home, "long.yaml"), 'turns:\n  - text: "read"\n');
  const run = toolpost.run("word ".repeat(60_000), { model: "script:long.yaml" });
  assert.equal((await run.result).response, "read");
});

test("an abort ends the command", async () => {
  const begin = performance.now();
  const signal = AbortSignal.timeout(400);
  await assert.rejects(toolpost.exec("import time; time.sleep(60)", { signal, timeout: "1m" }));
  assert(performance.now() - begin < 10_000);
});

test("a missing command is named", async () => {
  const missing = new Toolpost({ binary: join(home, "none") });
  await assert.rejects(missing.exec("1"), /cannot find the command/);
});

test("a server with a token", async () => {
  const server = await toolpost.serve("calculate");
  const body = JSON.stringify({
    jsonrpc: "2.0", id: 1, method: "initialize",
    params: { protocolVersion: "2025-06-18", capabilities: {}, clientInfo: { name: "t", version: "1" } },
  });
  const headers = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
  assert.equal((await fetch(server.url, { method: "POST", headers, body })).status, 401);
  const reply = await fetch(server.url, { method: "POST", headers: { ...headers, ...server.headers }, body });
  assert.equal(reply.status, 200);
  await reply.body?.cancel();
  await server.close();
  await assert.rejects(fetch(server.url));
  await assert.rejects(toolpost.serve("no-such-target"), CommandError);
});

test("the command calls a program, in its sandbox", async () => {
  const program = join(project("tools"), "program.js");
  cpSync(place("programs/program.js"), program);
  const result = await toolpost.call([program, "greet"], { name: "Ada", times: 2 });
  assert.equal(result, "Hello, Ada. Hello, Ada.");
  await assert.rejects(toolpost.call([program, "greet"], { name: 7 }), /expected string/);
});

test("two readers get all events of a run", async () => {
  writeFileSync(join(home, "readers.yaml"), 'turns:\n  - text: "one"\n');
  const run = toolpost.run("x", { model: "script:readers.yaml" });
  const read = async () => {
    const types = [];
    for await (const event of run) types.push(event.type);
    return types;
  };
  const [one, two] = await Promise.all([read(), read()]);
  assert(one.length > 2);
  assert.deepEqual(one, two);
});

test("each option of the client is one of the command", () => {
  const source = readFileSync(place("../src/client.ts"), "utf8");
  const members = (name) => {
    const body = new RegExp(`interface ${name}( extends Grants)? \\{(.*?)^\\}`, "ms").exec(source);
    const own = [...body[2].matchAll(/^ {2}(\w+)\?:/gm)].map((match) => match[1]);
    return body[1] ? [...members("Grants"), ...own] : own;
  };
  for (const [command, options] of [
    ["exec", [...members("ExecOptions"), "keep"]],
    ["run", members("RunOptions")],
    ["call", members("CallOptions")],
    ["serve", members("ServeOptions")],
  ]) {
    assert(options.length >= 8, command);
    const help = execFileSync(binary, [command, "--help-all"], { encoding: "utf8", env: { ...process.env, HOME: home } });
    const known = new Set(help.match(/--[a-z-]+/g));
    const flags = options.map((name) => `--${name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`);
    assert.deepEqual(flags.filter((flag) => !known.has(flag)), [], command);
  }
});

test("a target is not an option", async () => {
  await assert.rejects(toolpost.call("--workdir=/"), TypeError);
  await assert.rejects(toolpost.serve(["calculate", "--no-token"]), TypeError);
});

/** A resident process of a program, and the frames that it writes. */
function resident(directory, source) {
  const program = join(project(directory), "program.js");
  writeFileSync(program, `import { main, tool, ToolError } from "toolpost";\n${source}`);
  const child = spawn(process.execPath, [program, "--resident"], { stdio: ["pipe", "pipe", "ignore"] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const next = async () => JSON.parse((await lines.next()).value);
  return { child, next, send: (frame) => child.stdin.write(`${JSON.stringify({ v: 1, ...frame })}\n`) };
}

test("hostile frames and values end no resident process", async () => {
  const { child, next, send } = resident("hostile", `
main([
  tool({ name: "fact", description: "Fail with a fact.", run: () => {
    throw new ToolError("NOT_FOUND", "x", { context: { id: 10n, loop: (() => { const a = {}; a.a = a; return a; })() } });
  } }),
  tool({ name: "bare", description: "Throw a bare object.", run: () => { throw Object.create(null); } }),
  tool({ name: "late", description: "Ask, and wait.", run: async (_, ctx) => {
    const answer = ctx.ask("?");
    await new Promise((done) => setTimeout(done, 100));
    return answer;
  } }),
  tool({ name: "tags", description: "Add a tag.", run: ({ tags }) => (tags.push("x"), tags),
    input: { type: "object", properties: { tags: { type: "array", default: [] } } } }),
  tool({ name: "long", description: "A long timeout.", timeout: "300d", run: () => "done" }),
]);
`);
  await next();
  child.stdin.write(`{"v":${"[".repeat(100_000)}${"]".repeat(100_000)},"id":1,"type":"call"}\n`);
  assert.equal((await next()).type, "problem");
  send({ id: 1, type: "call", tool: "fact" });
  assert.equal((await next()).error.code, "NOT_FOUND");
  send({ id: 2, type: "call", tool: "bare" });
  assert.equal((await next()).error.code, "INTERNAL");
  send({ id: 3, type: "call", tool: "late", serves: ["ask"] });
  assert.equal((await next()).type, "ask");
  send({ id: 3, type: "cancel" });
  assert.equal((await next()).error.code, "CANCELLED");
  for (const id of [4, 5]) {
    send({ id, type: "call", tool: "tags" });
    assert.deepEqual((await next()).ok.structured, ["x"]);
  }
  send({ id: 6, type: "call", tool: "long" });
  assert.equal((await next()).ok.structured, "done");
  child.stdin.end();
});

test("a nested call has the dry run and the signal of its caller", async () => {
  const { child, next, send } = resident("nested", `
const inner = tool({ name: "inner", description: "Tell.", dryRun: true, run: (_, ctx) => [ctx.isDryRun, ctx.remaining > 0] });
const outer = tool({ name: "outer", description: "Call.", dryRun: true, run: (_, ctx) => ctx.call("inner") });
main([inner, outer]);
`);
  await next();
  send({ id: 1, type: "call", tool: "outer", dry_run: true });
  assert.deepEqual((await next()).ok.structured, [true, true]);
  child.stdin.end();
});

test("a forgotten promise ends no other call", () => {
  const directory = project("forgotten");
  const program = join(directory, "program.js");
  writeFileSync(program, `
import { main, tool } from "toolpost";
main([tool({ name: "forget", description: "Forget a promise.", run: async () => {
  Promise.reject(new Error("forgotten"));
  await new Promise((done) => setTimeout(done, 50));
  return "done";
} })]);
`);
  const { stdout, stderr } = spawnSync(process.execPath, [program, "{}"], { encoding: "utf8" });
  assert.equal(JSON.parse(stdout).result.result, "done");
  assert.match(stderr, /unhandled rejection: Error: forgotten/);
});

test("the first page works as printed", () => {
  const directory = project("readme");
  const blocks = [...readFileSync(place("../README.md"), "utf8").matchAll(/^```js\n(.*?)^```/gms)].map((match) => match[1]);
  assert.equal(blocks.length, 2);
  const [weather, client] = [join(directory, "weather.js"), join(directory, "client.js")];
  writeFileSync(weather, blocks[0]);
  chmodSync(weather, 0o755);
  assert.equal(JSON.parse(execFileSync(weather, ["--city", "Oslo", "--days", "3"])).result.result, "Oslo: sun for 3 days");
  writeFileSync(join(directory, "script.yaml"), 'turns:\n  - text: "2, 3, 5"\n');
  writeFileSync(client, blocks[1].replace('"anthropic/claude-sonnet-5-5"', '"script:script.yaml"'));
  symlinkSync(binary, join(directory, "toolpost"));
  const env = { ...process.env, PATH: `${directory}:${process.env.PATH}`, HOME: home };
  const text = execFileSync(process.execPath, [client], { cwd: directory, env, encoding: "utf8" });
  assert.equal(text, "2432902008176640000\n2, 3, 50\n");
});
