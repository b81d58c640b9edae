//! One-shot mode: one call per process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use serde_json::{Map, Value, json};
use toolpost_core::{
    Call, CallId, Caller, Cancellation, Code, Envelope, Mode, Output, Reply, Status, ToolError, ToolSpec,
};

use super::grammar::{Input, Run};
use super::port::ProgramPort;
use super::reserved::Reserved;
use super::{Server, input, status, terminal};
use crate::protocol::dialect::{SessionLine, level_name, result_line};
use crate::protocol::explained::explain;

pub(super) async fn run(server: &Server, run: Run) -> u8 {
    let arguments = match &run.input {
        Input::Value(value) => Ok(value.clone()),
        Input::Text(text) => input::object(text),
        Input::File(path) => input::file(path).and_then(|text| input::object(&text)),
        Input::Standard => server.input.whole().and_then(|text| input::object(&text)),
    };
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) if run.validate => return invalid(server, &[described(&error)], status::USAGE).await,
        Err(error) => return server.reject(&error, status::USAGE).await,
    };
    if run.validate {
        return validate(server, &run, arguments).await;
    }
    let begun = check_mode(&run)
        .and_then(|()| run.spec.input_schema.check_hiding(&arguments, &run.spec.sensitive))
        .and_then(|()| Reserved::new(&run.spec, &arguments));
    let reserved = match begun {
        Ok(reserved) => reserved,
        Err(error) => return server.reject(&error, status::for_error(&error)).await,
    };
    if server.program.owns_process
        && let Some(directory) = &reserved.working_dir
        && let Err(error) = std::env::set_current_dir(directory)
    {
        let error = ToolError::invalid_path(format!("cannot enter {}: {error}", directory.display()));
        return server.reject(&error, status::for_error(&error)).await;
    }
    let cancellation = Cancellation::new();
    let port = Arc::new(ProgramPort {
        output: server.output.clone(),
        errors: server.errors.clone(),
        input: Arc::clone(&server.input),
        stream: run.stream,
        for_terminal: is_for_terminal(server, &run),
        session: run.session,
        sample_via: run.sample_via.clone(),
        offline: server.program.offline,
        cancellation: cancellation.clone(),
        keep_log: reserved.verbose,
        log: std::sync::Mutex::default(),
        begun: AtomicBool::new(false),
        unanswered: AtomicUsize::new(0),
        sampling: tokio::sync::Mutex::default(),
    });
    let mut call = new_call(&run.spec, arguments)
        .with_port(Arc::clone(&port) as _)
        .with_cancellation(cancellation.clone());
    reserved.apply(&mut call.options);
    let id = call.id;
    let mut reply = tokio::select! {
        reply = server.source.call(call) => reply,
        // The reader is gone.
        () = server.output.closed() => return status::FAILED,
    };
    if reserved.dry_run {
        flatten_dry_run(&run.spec, &mut reply);
    }
    let mut envelope = Envelope::new(id, &reply.result).as_value().clone();
    if let Err(error) = &reply.result
        && error.code() == Code::Internal
    {
        // The caller gets only the id; stderr explains the error to the program's author.
        server.errors.send(explained(id, error, &reply.record.causes)).await;
    }
    if is_for_terminal(server, &run) {
        return show(server, &reply).await;
    }
    if reserved.verbose {
        add_details(&mut envelope, &reply, &port);
    }
    if run.session && reply.result.is_ok() {
        let end = SessionLine::SessionEnd { status: "success".to_owned() };
        server.line(&serde_json::to_value(end).unwrap_or_default()).await;
        // A session without a result ends with the status alone.
        if let Some(fields) = envelope.as_object_mut()
            && fields.get("result").is_some_and(|result| *result == json!({ "result": null }))
        {
            fields.remove("result");
        }
    }
    if run.stream && reply.result.is_ok() {
        envelope = result_line(&envelope);
    }
    server.line(&envelope).await;
    match &reply.result {
        Err(error) => status::for_error(error),
        Ok(output) if output.status() == Status::Error => status::FAILED,
        Ok(_) => status::OK,
    }
}

/// Formats an error with its causes for stderr.
pub(super) fn explained(call: CallId, error: &ToolError, causes: &[String]) -> Vec<u8> {
    explain(&call.to_string(), error.message(), causes).into_bytes()
}

/// Whether to print the result as text for a terminal.
fn is_for_terminal(server: &Server, run: &Run) -> bool {
    server.program.for_terminal && !run.stream && !run.session && run.sample_via.is_none()
}

/// Prints a result as text, or its error on stderr.
async fn show(server: &Server, reply: &Reply) -> u8 {
    match &reply.result {
        Err(error) => {
            let status = status::for_error(error);
            server.reject(&error.public(reply.record.id), status).await
        }
        Ok(output) => {
            server.output.send(terminal::result(output).into_bytes()).await;
            if let Some(partial) = &output.partial {
                server.errors.send(terminal::partial(partial).into_bytes()).await;
            }
            if output.status() == Status::Error { status::FAILED } else { status::OK }
        }
    }
}

fn new_call(spec: &ToolSpec, arguments: Value) -> Call {
    Call::new(spec.name.clone(), arguments).with_caller(Caller::new("exec"))
}

/// Requires `--stream` or `--session` for a tool of that mode.
fn check_mode(run: &Run) -> Result<(), ToolError> {
    let (flag, given) = match run.spec.mode {
        Mode::Unary => return Ok(()),
        Mode::Streaming => ("--stream", run.stream),
        Mode::Session => ("--session", run.session),
    };
    if given {
        return Ok(());
    }
    Err(ToolError::invalid_input(format!("This tool requires {flag} flag"))
        .suggest(format!("Add {flag} to the command")))
}

/// Converts the answer of a dry run to dialect 0.1: the arguments with their defaults.
pub(super) fn flatten_dry_run(spec: &ToolSpec, reply: &mut Reply) {
    let Ok(Output { structured: Some(value), .. }) = &mut reply.result else { return };
    if value.get("dry_run") != Some(&Value::Bool(true)) {
        return;
    }
    let Some(Value::Object(mut arguments)) =
        value.get_mut("would_execute").and_then(|would| would.get_mut("arguments")).map(Value::take)
    else {
        return;
    };
    let properties = spec.input_schema.as_value().get("properties").and_then(Value::as_object);
    for (name, schema) in properties.into_iter().flatten() {
        if let (false, Some(default)) = (arguments.contains_key(name), schema.get("default")) {
            arguments.insert(name.clone(), default.clone());
        }
    }
    *value = json!({ "dry_run": true, "would_execute": arguments });
}

/// Adds the details of `verbose` to an envelope.
fn add_details(envelope: &mut Value, reply: &Reply, port: &ProgramPort) {
    let log = port
        .log()
        .into_iter()
        .map(|line| json!({ "level": level_name(line.level), "message": line.message }));
    let details = json!({
        "duration_ms": reply.record.duration.as_micros() as f64 / 1000.0,
        "attempts": reply.record.attempts,
        "log": log.collect::<Vec<_>>(),
    });
    if let Some(fields) = envelope.as_object_mut() {
        fields.insert("details".to_owned(), details);
    }
}

/// `--validate`: validates everything, including the tool's own `pre_validate`, without a run.
async fn validate(server: &Server, run: &Run, arguments: Value) -> u8 {
    let spec = &run.spec;
    if spec.sensitive.is_empty()
        && let Ok(problems) = spec.input_schema.problems(&arguments)
        && !problems.is_empty()
    {
        let errors = problems.iter().map(|problem| {
            let kind = if problem.missing.is_some() { "missing" } else { "invalid" };
            let code = if problem.missing.is_some() { "MISSING_PARAM" } else { "INVALID_INPUT" };
            let place: Vec<&str> = problem.pointer.split('/').skip(1).collect();
            json!({ "type": kind, "loc": place, "msg": problem.to_string(), "code": code, "message": problem.to_string() })
        });
        return invalid(server, &errors.collect::<Vec<_>>(), status::FAILED).await;
    }
    if let Err(error) = Reserved::new(spec, &arguments) {
        return invalid(server, &[described(&error)], status::FAILED).await;
    }
    let mut call = new_call(spec, arguments);
    call.options.validate = true;
    let reply = server.source.call(call).await;
    match reply.result {
        Ok(_) => {
            server.line(&json!({ "valid": true })).await;
            status::OK
        }
        Err(error) => {
            invalid(server, &[described(&error.public(reply.record.id))], status::for_error(&error)).await
        }
    }
}

fn described(error: &ToolError) -> Value {
    let mut fields = Map::new();
    fields.insert("code".to_owned(), error.code().as_str().into());
    fields.insert("message".to_owned(), error.message().into());
    if let Some(suggestion) = error.suggestion() {
        fields.insert("suggestion".to_owned(), suggestion.into());
    }
    fields.into()
}

async fn invalid(server: &Server, errors: &[Value], status: u8) -> u8 {
    server.line(&json!({ "valid": false, "errors": errors })).await;
    status
}
