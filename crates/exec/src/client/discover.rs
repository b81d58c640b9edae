//! Discovery: a program's tools, resources and prompts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toolpost_core::{StartCheck, ToolError, format_duration};
use toolpost_sandbox::{Cancel, Verdict, Workspace};

use super::call::with_stderr;
use super::program::{self, Dialect, Known, Stamp, command_line, excerpt};
use super::settings::Settings;
use crate::failure;
use crate::protocol::dialect::{Discovery, Manifest, PromptEntry, ResourceEntry, ToolEntry};
use crate::protocol::outcome::{is_envelope, read_envelope};

/// Maximum output of a query, in bytes.
const MAX_ANSWER: usize = 8 << 20;
/// Maximum number of tools, resources and prompts per program.
const MAX_ENTRIES: usize = 1_000;
/// The number of manifests of one program that are queried in parallel.
const MANIFESTS: usize = 4;
/// The version that every program of the development line 0.2 reports.
const COMMAND_VERSION: &str = "0.2.0";

/// Cancels a run when the waiting future is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The output of a program and its exit status.
struct Printed {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: i32,
}

impl Printed {
    /// Adds the exit status and the end of stderr.
    fn explain(&self, error: ToolError) -> ToolError {
        with_stderr(error.with("exit_code", self.status), &self.stderr)
    }
}

/// Runs a program to its end.
async fn printed(
    settings: &Settings,
    path: &Path,
    arguments: &[&str],
    wall: Duration,
    workspace: Workspace,
) -> Result<Printed, ToolError> {
    let mut sandbox = program::sandbox(settings, path, wall, workspace);
    let limits = settings.limits.clone().with_wall(wall).with_stdout(2 * MAX_ANSWER).with_stderr(4 << 10);
    sandbox = sandbox.limits(limits.with_output_total(2 * MAX_ANSWER as u64));
    let program = command_line(settings, path, arguments.iter().copied());
    let cancel = Cancel::new();
    let guard = CancelOnDrop(cancel.clone());
    let check = settings.start_check.clone();
    let run = move || {
        check.as_ref().map_or(Ok(()), StartCheck::check)?;
        sandbox.run(&program, &cancel, &mut |_| {}).map_err(failure::of_sandbox)
    };
    let outcome = tokio::task::spawn_blocking(run).await?;
    drop(guard);
    let outcome = outcome?;
    let what = format!("`{} {}`", path.display(), arguments.join(" "));
    let too_long = || ToolError::limit(format!("{what} printed more than {} MiB", MAX_ANSWER >> 20));
    if outcome.stdout.dropped > 0
        || outcome.stdout.head.len() > MAX_ANSWER
        || matches!(outcome.verdict, Verdict::Output { .. })
    {
        return Err(too_long());
    }
    let masks = &settings.masks;
    let (stdout, stderr) = (masks.bytes(outcome.stdout.head), masks.bytes(outcome.stderr.bytes()));
    match (&outcome.verdict, failure::of_verdict(&outcome.verdict, &what)) {
        // Exit statuses of other implementations are unreliable; the output decides.
        (Verdict::Exit { code }, Some(_)) if !stdout.trim_ascii().is_empty() => {
            Ok(Printed { stdout, stderr, status: *code })
        }
        (_, Some(error)) => Err(with_stderr(error, &stderr)),
        (_, None) => Ok(Printed { stdout, stderr, status: 0 }),
    }
}

/// Runs a program to its end and parses its output as JSON.
pub(super) async fn query(
    settings: &Settings,
    path: &Path,
    arguments: &[&str],
    wall: Duration,
    workspace: Workspace,
) -> Result<Value, ToolError> {
    let printed = printed(settings, path, arguments, wall, workspace).await?;
    let what = format!("`{} {}`", path.display(), arguments.join(" "));
    if printed.stdout.trim_ascii().is_empty() {
        let error = ToolError::dependency(format!("{what} printed nothing; expected JSON"));
        return Err(printed.explain(error));
    }
    let value: Value = serde_json::from_slice(&printed.stdout).map_err(|error| {
        let ended =
            if printed.status == 0 { "" } else { &format!("exited with status {} and ", printed.status) };
        let found = excerpt(&printed.stdout, 200);
        printed.explain(ToolError::dependency(format!(
            "{what} {ended}printed invalid JSON: {error}; found {found}"
        )))
    })?;
    if is_envelope(&value) && value.get("status").and_then(Value::as_str) == Some("error") {
        read_envelope(&value, false)?;
    }
    Ok(value)
}

/// Discovers a program within the operator's timeout. A known manifest of the same file content is reused.
pub(super) async fn discover(
    settings: &Settings,
    path: PathBuf,
    stamp: Stamp,
    before: Option<Known>,
) -> Result<Known, ToolError> {
    let limit = settings.discovery_timeout;
    let file = path.clone();
    let digest = tokio::task::spawn_blocking(move || program::digest(&file)).await??;
    let is_same =
        |before: &Known| before.is_complete && before.digest == digest && before.stamp.has_modules_of(&stamp);
    if let Some(before) = before.filter(is_same) {
        return Ok(Known { stamp, ..before });
    }
    // Each query has the limit; all of them together have a little more than twice that.
    let all = limit.saturating_mul(2).saturating_add(Duration::from_secs(1));
    let answers = tokio::time::timeout(all, query_all(settings, &path)).await.map_err(|_| {
        ToolError::timeout(format!(
            "discovery of `{}` timed out after {}",
            path.display(),
            format_duration(all)
        ))
    })??;
    let (discovery, dialect, mut problems, is_complete) = answers;
    if Stamp::read(&path)? != stamp {
        return Err(ToolError::conflict(format!("`{}` changed during its discovery", path.display()))
            .suggest("Retry when the file no longer changes."));
    }
    problems.truncate(MAX_ENTRIES);
    let environment = settings.environment();
    Ok(Known { stamp, digest, dialect, discovery, problems, is_complete, environment })
}

type Answers = (Discovery, Dialect, Vec<(Option<String>, ToolError)>, bool);

async fn query_all(settings: &Settings, path: &Path) -> Result<Answers, ToolError> {
    let limit = settings.discovery_timeout;
    let value = query(settings, path, &["--discover"], limit, Workspace::Fresh).await?;
    let mut problems = Vec::new();
    let mut discovery = read(&value, path, &mut problems)?;
    let dialect = match discovery.protocol.as_deref() {
        Some(protocol) if protocol.contains("toolpost") => Dialect::Extended,
        None if discovery.version == COMMAND_VERSION => dialect(settings, path).await,
        _ => Dialect::Original,
    };
    let mut is_complete = true;
    let missing: Vec<usize> = discovery
        .tools
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.schema.is_none())
        .map(|(index, _)| index)
        .collect();
    for some in missing.chunks(MANIFESTS) {
        let asked = some.iter().filter_map(|index| {
            let name = discovery.tools.get(*index)?.name.clone();
            Some(async move { (*index, manifest(settings, path, &name).await) })
        });
        for (index, manifest) in futures_util::future::join_all(asked).await {
            let Some(entry) = discovery.tools.get_mut(index) else { continue };
            match manifest {
                Ok(manifest) => complete(entry, manifest),
                Err(error) => {
                    is_complete = false;
                    let error = ToolError::new(
                        error.code(),
                        format!("its schema is unknown, and any arguments are accepted: {}", error.message()),
                    );
                    problems.push((Some(entry.name.clone()), error));
                }
            }
        }
    }
    Ok((discovery, dialect, problems, is_complete))
}

/// Both dialects may report version 0.2.0; only the original grammar has `--tools`, which has no effect in either.
async fn dialect(settings: &Settings, path: &Path) -> Dialect {
    let listed = query(settings, path, &["--tools"], settings.discovery_timeout, Workspace::Fresh).await;
    if listed.is_ok_and(|value| value.get("tools").is_some()) { Dialect::Original } else { Dialect::Command }
}

async fn manifest(settings: &Settings, path: &Path, name: &str) -> Result<Manifest, ToolError> {
    let limit = settings.discovery_timeout;
    let value = query(settings, path, &[name, "--manifest"], limit, Workspace::Fresh).await?;
    let invalid = |what: String| {
        ToolError::dependency(format!("`{} {name} --manifest` is not a manifest: {what}", path.display()))
    };
    // A program that runs a call for every command line answers with an envelope.
    if !value.get("schema").is_some_and(|schema| schema.is_object() || schema.is_boolean()) {
        return Err(invalid("expected an object with `schema`".to_owned()));
    }
    Manifest::deserialize(&value).map_err(|error| invalid(error.to_string()))
}

/// Merges a manifest into its entry. The manifest's `name` may be a function's, so it is ignored.
fn complete(entry: &mut ToolEntry, manifest: Manifest) {
    entry.schema = Some(manifest.schema);
    if !manifest.description.trim().is_empty() {
        let description = manifest.description.trim();
        entry.description = Some(if description.starts_with(entry.summary.trim()) {
            description.to_owned()
        } else {
            format!("{}\n\n{description}", entry.summary.trim())
        });
    }
    entry.streaming |= manifest.streaming;
    entry.session_mode |= manifest.session_mode;
    entry.examples = manifest.examples;
    entry.tags = manifest.tags;
    entry.output_schema = manifest.output_schema;
}

/// Parses the answer to `--discover`. An invalid entry affects only itself.
fn read(
    value: &Value,
    path: &Path,
    problems: &mut Vec<(Option<String>, ToolError)>,
) -> Result<Discovery, ToolError> {
    let invalid = |what: &str| {
        ToolError::dependency(format!("the answer of `{} --discover` is invalid: {what}", path.display()))
    };
    let Some(fields) = value.as_object() else { return Err(invalid("expected an object")) };
    if !["tools", "resources", "prompts"].iter().any(|key| fields.get(*key).is_some_and(Value::is_array)) {
        return Err(invalid("expected an array `tools`, `resources` or `prompts`"));
    }
    let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    Ok(Discovery {
        name: text("name"),
        version: text("version"),
        protocol: fields.get("protocol").and_then(Value::as_str).map(str::to_owned),
        resident: fields.get("resident") == Some(&Value::Bool(true)),
        tools: entries::<ToolEntry>(fields.get("tools"), "tool", |entry| &entry.name, problems),
        resources: entries::<ResourceEntry>(
            fields.get("resources"),
            "resource",
            |entry| &entry.uri_pattern,
            problems,
        ),
        prompts: entries::<PromptEntry>(fields.get("prompts"), "prompt", |entry| &entry.name, problems),
    })
}

fn entries<T: DeserializeOwned>(
    list: Option<&Value>,
    kind: &str,
    name: impl Fn(&T) -> &str,
    problems: &mut Vec<(Option<String>, ToolError)>,
) -> Vec<T> {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if list.len() > MAX_ENTRIES {
        problems.push((
            None,
            ToolError::limit(format!("it reports {} {kind}s; the first {MAX_ENTRIES} are used", list.len())),
        ));
    }
    let mut taken = Vec::new();
    for (index, value) in list.iter().take(MAX_ENTRIES).enumerate() {
        match T::deserialize(value) {
            Ok(entry) if !name(&entry).trim().is_empty() => taken.push(entry),
            Ok(_) => {
                problems.push((None, ToolError::dependency(format!("{kind} {} has no name", index + 1))));
            }
            Err(error) => {
                let name = value.get("name").and_then(Value::as_str).map(|name| excerpt(name.as_bytes(), 80));
                let error = ToolError::dependency(format!("{kind} {} is invalid: {error}", index + 1));
                problems.push((name, error));
            }
        }
    }
    taken
}
