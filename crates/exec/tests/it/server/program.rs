//! A program in memory: a command line and an input go in, two outputs and a status come out.

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Write};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use toolpost_exec::server::{Program, Streams, serve};
use toolpost_toolbox::Toolbox;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// The outcome of a program.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) output: String,
    pub(super) errors: String,
    pub(super) status: u8,
}

impl Ended {
    /// The lines of the output, each as JSON; an output over several lines is one value.
    pub(super) fn lines(&self) -> Vec<Value> {
        lines(&self.output)
    }
}

pub(super) fn lines(text: &str) -> Vec<Value> {
    if let Ok(whole) = serde_json::from_str(text) {
        return vec![whole];
    }
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| Value::from(line))).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn program() -> Program {
    Program::new("demo", "1.2.3")
}

/// Runs a program to its end.
pub(super) fn run(toolbox: Toolbox, words: &[&str], input: impl Read + Send + 'static) -> Ended {
    run_as(program(), toolbox, words, input)
}

/// Runs a program whose output a person reads on a terminal.
pub(super) fn run_for_terminal(toolbox: Toolbox, words: &[&str]) -> Ended {
    let mut program = program();
    program.for_terminal = true;
    run_as(program, toolbox, words, io::empty())
}

fn run_as(program: Program, toolbox: Toolbox, words: &[&str], input: impl Read + Send + 'static) -> Ended {
    let (output, errors) = (Shared::default(), Shared::default());
    let streams = Streams {
        input: Box::new(input),
        output: Box::new(output.clone()),
        errors: Box::new(errors.clone()),
    };
    let words = words.iter().map(Into::into).collect();
    let status = runtime().block_on(serve(Arc::new(toolbox), program, words, streams));
    Ended { output: output.text(), errors: errors.text(), status }
}

/// A program that is talked to.
pub(super) struct Running {
    pub(super) input: Option<PipeWriter>,
    output: BufReader<PipeReader>,
    errors: Shared,
    thread: std::thread::JoinHandle<u8>,
}

impl Running {
    pub(super) fn start(toolbox: Toolbox, words: &[&str]) -> Self {
        let (input, to_program) = io::pipe().unwrap();
        let (from_program, output) = io::pipe().unwrap();
        let errors = Shared::default();
        let streams =
            Streams { input: Box::new(input), output: Box::new(output), errors: Box::new(errors.clone()) };
        let words = words.iter().map(Into::into).collect();
        let thread = std::thread::spawn(move || {
            let runtime = runtime();
            let status = runtime.block_on(serve(Arc::new(toolbox), program(), words, streams));
            runtime.shutdown_background();
            status
        });
        Self { input: Some(to_program), output: BufReader::new(from_program), errors, thread }
    }

    pub(super) fn write(&mut self, line: impl std::fmt::Display) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The next line, as JSON; null at the end.
    pub(super) fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        if line.is_empty() { Value::Null } else { serde_json::from_str(&line).unwrap() }
    }

    /// Ends the input, and gives what is left of the output, the errors and the status.
    pub(super) fn end(mut self) -> Ended {
        self.input.take();
        let mut output = String::new();
        self.output.read_to_string(&mut output).unwrap();
        Ended { output, status: self.thread.join().unwrap(), errors: self.errors.text() }
    }
}
