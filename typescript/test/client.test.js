/** The client, with the real command: TOOLPOST_BIN. */

import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { chmodSync, cpSync, mkdirSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { CommandError, ToolError, Toolpost } from "toolpost";

const home = mkdtempSync(join(tmpdir(), "toolpost-ts-"));
const binary = process.env.TOOLPOST_BIN ?? "toolpost";
const toolpost = new Toolpost({ binary, cwd: home, env: { HOME: home, XDG_STATE_HOME: join(home, "state") } });
const place = (path) => fileURLToPath(new URL(path, import.meta.url));

/** A project as `npm install toolpost zod` leaves it. */
function project(name) {
  const folder = join(home, name);
  mkdirSync(folder);
  writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
  for (const part of ["dist", "package.json"]) {
    cpSync(place(`../${part}`), join(folder, "node_modules/toolpost", part), { recursive: true });
  }
  cpSync(place("../node_modules/zod"), join(folder, "node_modules/zod"), { recursive: true });
  return folder;
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

test("a forgotten promise ends no other call", () => {
  const folder = project("forgotten");
  const program = join(folder, "program.js");
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
  const folder = project("readme");
  const blocks = [...readFileSync(place("../README.md"), "utf8").matchAll(/^```js\n(.*?)^```/gms)].map((match) => match[1]);
  assert.equal(blocks.length, 2);
  const [weather, client] = [join(folder, "weather.js"), join(folder, "client.js")];
  writeFileSync(weather, blocks[0]);
  chmodSync(weather, 0o755);
  assert.equal(JSON.parse(execFileSync(weather, ["--city", "Oslo", "--days", "3"])).result.result, "Oslo: sun for 3 days");
  writeFileSync(join(folder, "script.yaml"), 'turns:\n  - text: "2, 3, 5"\n');
  writeFileSync(client, blocks[1].replace('"anthropic/claude-sonnet-5-5"', '"script:script.yaml"'));
  symlinkSync(binary, join(folder, "toolpost"));
  const env = { ...process.env, PATH: `${folder}:${process.env.PATH}`, HOME: home };
  const text = execFileSync(process.execPath, [client], { cwd: folder, env, encoding: "utf8" });
  assert.equal(text, "2432902008176640000\n2, 3, 50\n");
});
