//! `toolpost call`

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_agent::{CallingModel, ModelPort};
use toolpost_core::{
    ArtifactData, Call, CallRecord, Code, Envelope, Event, EventSink, Mode, Output, Reply, Scope, ToolError,
    ToolSource, ToolSpec, WideJson, check_tool_name, did_you_mean,
};
use toolpost_exec::protocol::dialect::Notice;
use toolpost_sandbox::{Report, Verdict};

use crate::args::{CallArgs, Format};
use crate::arguments::arguments;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::gateway::missing;
use crate::outcome::{check_whole, evidence};
use crate::port::{Stored, TerminalPort};
use crate::print::{self, Printer, Stream};
use crate::target::opened::Opened;
use crate::target::{OpenOptions, Wait};
use crate::target_grammar::{CODE_EXECUTION, Target, unnamed};
use crate::workspace::Store;
use crate::{call_records, env, grants, interrupt, logs, progress, target, verdict};

pub(crate) fn run(args: &CallArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let directory =
        args.workdir.canonicalize().map_err(|error| Failure::file("the directory", &args.workdir, &error))?;
    let runtime = crate::runtime::start()?;
    let mut granted = grants::of_args(&args.grants)?;
    let takes_grants = || Target::parse(unnamed(&args.target)).takes_grants();
    if granted.workdir.is_none() && args.workdir != Path::new(".") && takes_grants() {
        granted.workdir = Some(directory.clone());
    }
    // A first word that may be an argument needs all upstreams.
    let named = args.rest.first().filter(|word| check_tool_name(word).is_ok());
    let options = OpenOptions {
        access: (&args.permission).into(),
        sampling: args.model.is_some(),
        token: crate::mcp::token(&args.server)?,
        granted,
        wait: named.map_or(Wait::All, |tool| Wait::Tool(tool)),
    };
    let opened = runtime.block_on(target::open(std::slice::from_ref(&args.target), config, options))?;
    opened.warnings.iter().for_each(|warning| printer.warn(warning));
    let exit = match (&args.resource, &args.prompt) {
        (Some(uri), _) => runtime.block_on(resource(&opened, uri, printer)),
        (_, Some(name)) => runtime.block_on(prompt(&opened, name, &args.rest, printer)),
        (None, None) => tool(args, opened, &directory, config, &runtime, printer),
    };
    crate::runtime::end(runtime);
    exit
}

/// Calls a tool of the opened target.
fn tool(
    args: &CallArgs,
    opened: Opened,
    directory: &Path,
    config: &Config,
    runtime: &tokio::runtime::Runtime,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let (name, rest) = chosen(args, &opened)?;
    let model = args.model.as_deref().map(|model| crate::model::open_model(model, config)).transpose()?;
    // A single call ends before it could use a pool.
    let pool = None;
    let stored = Stored::default();
    // A program's output is its result, which is printed once.
    let specs = opened.specs();
    let is_program = |spec: &ToolSpec| {
        spec.meta.contains_key("program") || ["run_code", CODE_EXECUTION].contains(&spec.name.as_str())
    };
    let prints_result = specs.iter().any(|spec| spec.name == name && is_program(spec));
    let events = events(args, stored.clone(), prints_result && printer.verbose == 0, printer);
    let toolbox = crate::toolbox::build(opened, directory, &args.permission, config, pool, events);
    let toolbox = runtime.block_on(toolbox)?;
    let spec = toolbox.spec(&name);
    // Executables and wrapped programs map their exit status themselves.
    let runs_code = spec
        .as_deref()
        .is_some_and(|spec| !spec.meta.contains_key("program") && !spec.meta.contains_key("executable"));
    let has_timeout = spec
        .as_deref()
        .is_some_and(|spec| spec.input_schema.as_value().pointer("/properties/timeout").is_some());
    let arguments = arguments(rest, &name, spec.as_deref())?;
    // The program at the other end of the pipe drives the session; the last line is the result.
    let is_piped = spec.as_deref().is_some_and(|spec| spec.mode == Mode::Session)
        && !args.permission.no_input
        && !io::stdin().is_terminal();
    let mut call = call(args, name, arguments, directory, &stored, is_piped, printer)?;
    if let Some(model) = model {
        call.values.provide(CallingModel(Arc::clone(&model)));
        call.port = Arc::new(ModelPort::new(Arc::clone(&call.port), model));
    }
    let is_data = args.stream || is_piped || !printer.is_text();
    // A pipe or a file gets all of a text, too.
    call.options.whole_output = is_data || !Stream::Stdout.is_terminal();
    let reply = runtime.block_on(async {
        call.cancellation = interrupt::watch()?;
        Ok::<_, Failure>(toolbox.call(call).await)
    })?;
    if args.validate {
        return judgement(reply, printer);
    }
    let is_stored = runtime.block_on(store(&reply, config, printer));
    printer.print_paths("shown:", &host_paths(&reply.record, |report| report.shown));
    printer.print_hidden("not shown:", &host_paths(&reply.record, |report| report.not_shown));
    let envelope = || Envelope::new(reply.record.id, &reply.result);
    match (printer.format, &reply.result) {
        _ if args.stream || (is_piped && printer.format != Format::Jsonl) => {
            let mut line = json!({ "type": "result" });
            if let (Some(line), Value::Object(envelope)) =
                (line.as_object_mut(), envelope().as_value().clone())
            {
                line.extend(envelope);
            }
            print::line(&WideJson(&line))?;
        }
        (Format::Json, _) => {
            let mut envelope = envelope().as_value().clone();
            // The executable protocol has fewer error codes than stderr.
            if let Err(error) = &reply.result {
                envelope["error"]["code"] = error.code().as_str().into();
            }
            printer.foreign_json(&WideJson(&envelope))?;
        }
        (Format::Text, Ok(output)) => printer.foreign_result(&output.to_text())?,
        // The last event has the record; an error is printed as a failure.
        (Format::Jsonl, _) | (Format::Text, Err(_)) => {}
    }
    match reply.result {
        // Failed code is a result for a model, but a failure for a shell.
        Ok(output) => {
            if let Some(partial) = &output.partial {
                let errors = partial.errors.len();
                printer.warn(&format!("the result is partial: {errors} parts failed"));
            }
            let judged = if runs_code { judged(&reply.record) } else { None };
            judged
                .and_then(|judged| verdict::failure(&judged, verdict::Ran::Call { has_timeout }))
                .map_or_else(|| check_whole(&output.truncated, is_data, printer), Err)
        }
        Err(error) => {
            let of_arguments = !is_piped && matches!(error.code(), Code::InvalidInput | Code::MissingParam);
            let is_internal = error.code() == Code::Internal;
            let mut failure = grants::explain_rejected_key(error.into(), &args.grants);
            if is_internal && is_stored {
                failure = failure.hint(format!("`toolpost runs show {}` shows the record.", reply.record.id));
            }
            let manifest = match args.target.strip_prefix("builtin:").unwrap_or(&args.target) {
                target if *target == *reply.record.tool || target == "builtin" => {
                    format!("`toolpost tools --manifest {}` shows its parameters.", reply.record.tool)
                }
                target => {
                    format!(
                        "`toolpost tools {target} --manifest {}` shows its parameters.",
                        reply.record.tool
                    )
                }
            };
            Err(if of_arguments { failure.hint(manifest) } else { failure })
        }
    }
}

/// Stores the record of the call; false if that failed.
async fn store(reply: &Reply, config: &Config, printer: &Printer) -> bool {
    let Some(calls) = call_records::open(config) else { return false };
    let stored = calls.add_call(&reply.record).await;
    if let Err(error) = &stored {
        printer.warn(&format!("call record not stored: {error}"));
    }
    stored.is_ok()
}

/// The host paths in a field of the sandbox's report.
fn host_paths(record: &CallRecord, field: fn(Report) -> Vec<PathBuf>) -> Vec<PathBuf> {
    evidence(record).and_then(|evidence| evidence.report).map(field).unwrap_or_default()
}

/// The name of the tool, and the words of its arguments.
fn chosen<'a>(args: &'a CallArgs, opened: &Opened) -> Result<(String, &'a [String]), Failure> {
    let specs = opened.specs();
    if let Some((first, rest)) = args.rest.split_first()
        && specs
            .iter()
            .any(|spec| spec.name == *first || spec.aliases.iter().any(|alias| alias.name == *first))
    {
        return Ok((first.clone(), rest));
    }
    // A missing upstream may have the tool.
    if !opened.missing.is_empty() {
        return Err(missing::failure(&opened.missing));
    }
    if let [spec] = specs.as_slice()
        && !opened.is_partial
    {
        // An alias of a tool may have other parameters.
        let target = args.target.strip_prefix("builtin:").unwrap_or(&args.target);
        let alias = spec.aliases.iter().find(|alias| alias.name == target);
        return Ok((alias.map_or(&spec.name, |alias| &alias.name).clone(), &args.rest));
    }
    let names = specs.iter().map(|spec| spec.name.as_str());
    let list = match args.target.as_str() {
        "builtin" => "`toolpost tools` lists them.".to_owned(),
        target => format!("`toolpost tools {target}` lists them."),
    };
    Err(match args.rest.first().filter(|word| !word.contains('=') && !word.trim_start().starts_with('{')) {
        Some(name) => {
            Failure::new(Exit::Failed, "NOT_FOUND", format!("`{}` has no tool `{name}`", args.target))
                .hint(did_you_mean(name, names).unwrap_or(list))
        }
        None => Failure::usage(format!("`{}` has {} tools: name one", args.target, specs.len())).hint(list),
    })
}

/// Prints whether the arguments are valid.
fn judgement(reply: Reply, printer: &Printer) -> Result<Exit, Failure> {
    let problem = match reply.result {
        Ok(_) => None,
        Err(error) if error.is_recoverable() => Some(error),
        Err(error) => return Err(error.into()),
    };
    match (&problem, printer.is_text()) {
        (None, true) => printer.result("valid")?,
        (None, false) => printer.json(&json!({ "valid": true }))?,
        (Some(error), true) => printer.foreign_result(error.message())?,
        (Some(error), false) => {
            let error = json!({ "code": error.code(), "message": error.message() });
            printer.json(&json!({ "valid": false, "errors": [error] }))?;
        }
    }
    Ok(if problem.is_none() { Exit::Ok } else { Exit::Failed })
}

/// The source of a target; built-in tools have none.
fn source(opened: &Opened, what: &str) -> Result<Arc<dyn ToolSource>, Failure> {
    opened.sources().into_iter().next().ok_or_else(|| {
        Failure::usage(format!("the target has no {what}; executables and servers have them"))
            .hint("Name an executable, such as ./weather, or a server, such as https://HOST/mcp.")
    })
}

async fn resource(opened: &Opened, uri: &str, printer: &Printer) -> Result<Exit, Failure> {
    let output = source(opened, "resources")?.read_resource(uri).await;
    print_output(&output.map_err(|error| of_missing(error, opened))?, printer)
}

async fn prompt(opened: &Opened, name: &str, words: &[String], printer: &Printer) -> Result<Exit, Failure> {
    let source = source(opened, "prompts")?;
    let Value::Object(arguments) = arguments(words, name, None)? else {
        return Err(Failure::usage(format!("the arguments of the prompt `{name}`: expected an object")));
    };
    let output = source.render_prompt(name, &arguments).await;
    print_output(&output.map_err(|error| of_missing(error, opened))?, printer)
}

/// The failure of a resource or prompt that a missing upstream may have.
fn of_missing(error: ToolError, opened: &Opened) -> Failure {
    match error.code() {
        Code::NotFound if !opened.missing.is_empty() => missing::failure(&opened.missing),
        _ => error.into(),
    }
}

/// Prints a resource or a prompt without an envelope.
fn print_output(output: &Output, printer: &Printer) -> Result<Exit, Failure> {
    if printer.is_text() {
        printer.foreign_result(&output.to_text())?;
    } else {
        printer.foreign_json(&WideJson(&output.result_value()))?;
    }
    Ok(Exit::Ok)
}

/// The sandbox verdict of the tool's code.
fn judged(record: &CallRecord) -> Option<Verdict> {
    evidence(record)?.verdict
}

/// The call of the command line.
fn call(
    args: &CallArgs,
    name: String,
    arguments: Value,
    directory: &Path,
    stored: &Stored,
    is_piped: bool,
    printer: &Printer,
) -> Result<Call, Failure> {
    let owner = env::get("USER").unwrap_or_else(|| "operator".into());
    let store = Store::new(directory.join("artifacts"));
    let mut port = TerminalPort::new(printer, &args.permission, Some(store)).recording(stored);
    if is_piped {
        port = port.over_lines();
    }
    let mut call = Call::new(name, arguments)
        .with_caller(crate::toolbox::caller())
        .with_scope(Scope::new(owner).with_working_dir(directory))
        .with_priority(args.priority)
        .with_port(Arc::new(port));
    call.options.timeout = args.timeout;
    call.options.retries = args.retries;
    call.options.dry_run = args.dry_run;
    call.options.no_cache = args.no_cache;
    call.options.validate = args.validate;
    call.options.verbose = printer.verbose > 0;
    for meta in &args.meta {
        let (key, value) = crate::parse::pair("--meta", meta)?;
        call.options.metadata.insert(key.to_owned(), value.into());
    }
    Ok(call)
}

/// Prints events. The failure of the command itself reports a failed call.
fn events(args: &CallArgs, stored: Stored, hides_log: bool, printer: &Printer) -> EventSink {
    if args.stream {
        return streamed(stored);
    }
    let (sink, text) = (progress::sink(printer), printer.is_text());
    Arc::new(move |event: &Event| match event {
        Event::CallFinished { record } if text && record.parent.is_none() && record.error.is_some() => {
            logs::event(event);
        }
        Event::CallLog { .. } if text && hides_log => logs::event(event),
        event => sink(event),
    })
}

/// Prints events as lines of the executable protocol on standard output.
fn streamed(stored: Stored) -> EventSink {
    Arc::new(move |event: &Event| {
        logs::event(event);
        let line = match event {
            Event::CallProgress { progress, .. } => {
                let mut line = json!({ "type": "progress", "message": progress.message });
                if let Some(percent) = progress.percent {
                    line["percent"] = percent.into();
                }
                line
            }
            Event::CallLog { line, .. } => {
                json!({ "type": "log", "level": line.level, "message": line.message })
            }
            Event::CallArtifact { call, artifact } => {
                let mut artifact = artifact.clone();
                if let Some(path) = stored.take(*call, &artifact.name) {
                    artifact.data = ArtifactData::Path(path);
                }
                Notice::from(&artifact).to_stream_line()
            }
            _ => return,
        };
        // The end of the command reports a broken pipe.
        let _ = print::line(&line);
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;
    use toolpost_core::Priority;

    use super::*;
    use crate::args::{Cli, Color, Command};

    /// Built-in tools never retry, and a single call has no queue: only the call shows these options.
    #[test]
    fn every_option_is_in_the_call() {
        let line = "toolpost call calculate --timeout 3s --retries 2 --priority critical --meta a=b --dry-run --no-cache";
        let Ok(Cli { command: Command::Call(args), .. }) = Cli::try_parse_from(line.split(' ')) else {
            panic!("it is not read as a call")
        };
        let printer = Printer::new(Format::Json, Color::Never);
        let stored = Stored::default();
        let call =
            call(&args, "calculate".into(), Value::Null, Path::new("/"), &stored, false, &printer).unwrap();
        assert_eq!(call.priority, Priority::Critical);
        assert_eq!(call.options.timeout, Some(Duration::from_secs(3)));
        assert_eq!(call.options.retries, Some(2));
        assert_eq!(call.options.metadata["a"], "b");
        assert!(call.options.dry_run && call.options.no_cache && !call.options.verbose);
    }
}
