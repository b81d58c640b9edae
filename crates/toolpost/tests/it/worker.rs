//! A program that is its own worker, as processes: `worker_entry`, `workers` and the frames between them.
#![expect(clippy::disallowed_methods, reason = "a test of a program has to start it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use toolpost::json;

use crate::program::example;

/// A process of the example, and lines in and out.
struct Lines {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Lines {
    fn start(argument: &str) -> Self {
        let mut command = Command::new(example("worker_program"));
        let command = command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut lines = Self { child, input, output: BufReader::new(output) };
        assert_eq!(lines.read()["type"], "hello");
        lines
    }

    fn write(&mut self, line: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn call(&mut self, id: u64, tool: &str) -> Value {
        self.write(&json!({"v": 1, "id": id, "type": "call", "tool": tool, "arguments": {}}));
        self.read()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_death_in_a_worker_costs_one_call() {
    let mut program = Lines::start("--resident");
    let own = program.call(1, "here")["ok"]["structured"].clone();
    assert_eq!(own, program.child.id());
    let worker = program.call(2, "whereabouts")["ok"]["structured"].clone();
    assert!(worker.is_u64() && worker != own, "{worker}");
    assert_eq!(program.call(3, "whereabouts")["ok"]["structured"], worker);
    let died = program.call(4, "die");
    assert_eq!(died["error"]["code"], "DEPENDENCY", "{died}");
    assert!(died["error"]["message"].as_str().unwrap().contains("signal 6"), "{died}");
    assert!(program.call(5, "whereabouts")["ok"]["structured"].is_u64());
    assert_eq!(program.call(6, "here")["ok"]["structured"], own);
}

#[test]
fn a_busy_worker_ends_with_its_input() {
    let mut worker = Lines::start("--toolpost-worker");
    worker.write(
        &json!({"v": 1, "id": 1, "type": "attempt", "tool": "be_busy", "arguments": {}, "attempt": 1}),
    );
    assert_eq!(worker.read()["message"], "busy");
    worker.input = None;
    for _ in 0..3000 {
        if let Some(status) = worker.child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it goes on though nobody waits for it");
}
