// The interpreter of a JavaScript session: runs cells, one after another, in one context, by the evaluator of Node's own
// prompt: declarations stay, `await` may stand outside of functions. Descriptor 4 is a socket of packets to the host: a
// letter, 16 bytes that name the request, and the rest. Timers and promises continue between the cells. A function:
// `describe` makes JSON of values.
(describe) => {
  "use strict";
  const fs = require("fs");
  const repl = require("repl");
  const { PassThrough } = require("stream");
  const util = require("util");
  const CONTROL = 4, LARGEST = 60000, HEAD = 17;
  const options = JSON.parse(process.argv[process.argv.length - 1]);
  const { write, writeSync, read } = fs;
  const exit = process.reallyExit.bind(process);
  const inspect = util.inspect, soon = setImmediate;
  const asBuffer = Buffer.from.bind(Buffer), concat = Buffer.concat.bind(Buffer);

  process.chdir(options.start);
  // Neither this file nor its options are an argument of the code's.
  process.argv.splice(1);

  class Exit extends Error {
    constructor(status) {
      super("the cell asked for the end of the program");
      this.status = status;
    }
  }
  let running = null;
  process.exit = (status) => {
    const error = new Exit(status === undefined ? process.exitCode ?? 0 : status);
    // Also from a callback, which the cell may be waiting for.
    if (running) running.stop(error);
    throw error;
  };

  function send(kind, nonce, payload) {
    try {
      writeSync(CONTROL, concat([asBuffer(kind), nonce, payload ?? asBuffer("")]));
    } catch {
      exit(70);
    }
  }

  function complain(error) {
    if (error instanceof Exit) return;
    let text;
    try {
      text = error instanceof Error && typeof error.stack === "string" ? error.stack : "Uncaught " + inspect(error);
      // The frames of this file are nobody's.
      const lines = text.split("\n");
      const own = lines.findIndex((line) => /^ {4}at .*(REPLServer|node:repl|node:vm|\[eval\]|node:internal\/repl)/.test(line));
      text = (own < 0 ? lines : lines.slice(0, own)).join("\n");
    } catch {
      text = "Uncaught error that cannot be shown";
    }
    try {
      writeSync(2, text + "\n");
    } catch {
      // It has closed its streams.
    }
  }

  const server = repl.start({
    input: new PassThrough(),
    output: new PassThrough().resume(),
    terminal: false,
    prompt: "",
    useGlobal: true,
    breakEvalOnSigint: true,
    ignoreUndefined: true,
  });
  const evaluate = server.eval;
  // An error that nobody catches ends the cell that runs, also if it comes from a callback; between the cells it is told.
  const fail = (error) => {
    process.exitCode = undefined;
    if (running) running.stop(error);
    else complain(error);
  };
  server._domain?.removeAllListeners("error");
  server._domain?.on("error", fail);
  process.removeAllListeners("uncaughtException");
  process.on("uncaughtException", fail);
  process.on("unhandledRejection", complain);
  // The engine's SIGINT watchdog, held for good: a listener and the watchdog of an evaluation replace each other's
  // handler, and a signal in between would end the process.
  const engine = process.binding?.("contextify");
  const hold = () => engine.startSigintWatchdog();
  const release = () => engine.stopSigintWatchdog();
  if (engine) hold();
  else process.on("SIGINT", () => running?.interrupt());
  // A signal that came after the evaluation and before its watchdog ended.
  server.removeAllListeners("SIGINT");
  server.on("SIGINT", () => running?.interrupt());

  async function run(nonce, number, source) {
    const cell = { nonce };
    let ended = "o", status = 0, value = null, interrupted = false;
    const stopped = new Promise((_, reject) => {
      cell.stop = reject;
      cell.interrupt = () => {
        interrupted = true;
        reject(new Error("the cell was interrupted"));
      };
    });
    stopped.catch(() => {});
    try {
      const result = new Promise((resolve, reject) => {
        running = cell;
        // The engine stops code by the handler of the watchdog, which a listener of the code's would have replaced.
        const listeners = process.listeners("SIGINT");
        process.removeAllListeners("SIGINT");
        if (engine && listeners.length) release(), hold();
        // Forgets a signal that came before this cell.
        if (engine) hold(), release();
        try {
          evaluate.call(server, source + "\n", server.context, `<cell ${number}>`, (error, found) => {
            if (error === null || error === undefined) resolve([found]);
            else reject(error.err instanceof Error ? error.err : error);
          });
        } finally {
          for (const listener of listeners) process.on("SIGINT", listener);
        }
      });
      let [found] = await Promise.race([result, stopped]);
      if (util.types.isPromise(found)) {
        // What it has resolved to; one that waits is the value itself.
        const waits = new Promise((resolve) => soon(resolve, [found]));
        [found] = await Promise.race([found.then((inner) => [inner]), waits, stopped]);
      }
      value = describe(found) ?? null;
    } catch (error) {
      if (error instanceof Exit) {
        ended = "q";
        status = Number.isInteger(error.status) ? error.status & 255 : 1;
      } else {
        ended = interrupted || error?.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED" ? "i" : "x";
        complain(error);
      }
    }
    running = null;
    process.exitCode = undefined;
    if (value !== null) {
      const data = asBuffer(value);
      for (let place = 0; place < data.length; place += LARGEST) {
        send("V", nonce, data.subarray(place, place + LARGEST));
      }
    }
    send("E", nonce, concat([asBuffer(ended), asBuffer([status])]));
  }

  const buffer = Buffer.alloc(LARGEST + HEAD);
  let parts = [];
  function receive() {
    read(CONTROL, buffer, 0, buffer.length, null, (error, size) => {
      if (error?.code === "EINTR" || error?.code === "EAGAIN") return setImmediate(receive);
      if (error || size === 0) return exit(0);
      const kind = buffer.toString("latin1", 0, 1);
      const nonce = asBuffer(buffer.subarray(1, HEAD)), payload = asBuffer(buffer.subarray(HEAD, size));
      if (size >= HEAD && kind === "P") {
        parts.push(payload);
      } else if (kind === "C" && payload.length >= 4) {
        const source = concat([...parts, payload.subarray(4)]).toString();
        parts = [];
        // Not awaited: the interrupt of a cell that waits is a packet.
        run(nonce, payload.readUInt32LE(0), source);
      } else if (size === HEAD && kind === "I" && running?.nonce.equals(nonce)) {
        running.interrupt();
      }
      receive();
    });
  }
  send("R", Buffer.alloc(16));
  receive();
}
