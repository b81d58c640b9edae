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
    panic!("it continues without a caller");
}

/// The error of a file that is missing, as the system words it.
const CAUSE: &str = "No such file or directory";

fn run(words: &[&str]) -> (String, String) {
    let mut command = Command::new(example("worker_program"));
    command.args(words).env_remove("RUST_LOG").env_remove("TOOLPOST_LOG").stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr))
}

#[test]
fn the_causes_of_an_internal_error_reach_the_author_and_no_caller() {
    let read = json!({"v": 1, "id": 1, "type": "read", "uri": "index://all"});
    let call = |tool: &str| json!({"v": 1, "id": 1, "type": "call", "tool": tool, "arguments": {}});
    for (words, frame) in [
        (&["lose"][..], call("lose")),
        (&["lose_here"], call("lose_here")),
        (&["--resource", "index://all"], read),
    ] {
        let tool = words.concat();
        let (output, errors) = run(words);
        assert!(output.contains("INTERNAL") && !output.contains(CAUSE), "{tool}: {output}");
        assert!(
            errors.contains("the index cannot be opened\n  caused by: ") && errors.contains(CAUSE),
            "{errors}"
        );

        let mut program = Command::new(example("worker_program"));
        let program =
            program.arg("--resident").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        writeln!(input, "{frame}").unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let answers = [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()].concat();
        drop(input);
        let ended = child.wait_with_output().unwrap();
        let errors = String::from_utf8(ended.stderr).unwrap();
        assert!(answers.contains("INTERNAL") && !answers.contains(CAUSE), "{tool}: {answers}");
        assert!(errors.contains("the index cannot be opened") && errors.contains(CAUSE), "{tool}: {errors}");
    }
}

#[test]
fn variables_ask_for_a_log_on_standard_error() {
    let (help, _) = run(&["--help"]);
    assert!(help.contains("TOOLPOST_LOG") && help.contains("RUST_LOG"), "{help}");
    for (variables, is_logged) in [
        (&[][..], false),
        (&[("TOOLPOST_LOG", "debug")], true),
        (&[("RUST_LOG", "debug")], true),
        (&[("RUST_LOG", "toolpost::call=debug")], true),
        (&[("RUST_LOG", "other=debug")], false),
        (&[("RUST_LOG", "debug"), ("TOOLPOST_LOG", "off")], false),
        (&[("TOOLPOST_LOG", "a=b=c")], false),
    ] {
        // A failure that is none of the program's is in the log alone.
        let mut command = Command::new(example("worker_program"));
        command.arg("die").stdin(Stdio::null()).env_remove("RUST_LOG").env_remove("TOOLPOST_LOG");
        let output = command.envs(variables.iter().copied()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors.contains("toolpost::call"), is_logged, "{variables:?}: {errors}");
        let lines = String::from_utf8(output.stdout).unwrap();
        assert!(lines.lines().all(|line| line.starts_with('{')), "{variables:?}: {lines}");
    }
}

#[cfg(feature = "mcp")]
#[test]
fn a_client_over_mcp_gets_the_id_of_an_internal_error_alone() {
    for tool in ["lose", "lose_here"] {
        let mut program = Command::new(example("worker_program"));
        program.arg("--mcp").env_remove("RUST_LOG").env_remove("TOOLPOST_LOG");
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({"name": tool, "arguments": {}, "_meta": meta});
        writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}))
            .unwrap();
        let answer = BufReader::new(child.stdout.take().unwrap()).lines().next().unwrap().unwrap();
        drop(input);
        let errors = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert!(answer.contains("INTERNAL"), "{tool}: {answer}");
        assert!(!answer.contains(CAUSE) && !answer.contains("index"), "{tool}: {answer}");
        // The author needs no variable for it.
        assert!(errors.contains("the index cannot be opened") && errors.contains(CAUSE), "{tool}: {errors}");
    }
}
