//! Whether the arguments are what the tool asks for.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use toolpost_core::{Args, Call, CallRecord, Output, Secret, ToolError};

use super::host::CallHost;

use crate::registry::{Entry, Target};
use crate::toolbox::Shared;

/// What stands where something sensitive was.
const MASK: &str = "[secret]";

/// Counts bytes up to a limit.
struct Counter {
    bytes: usize,
    limit: usize,
}

impl Write for Counter {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.bytes = self.bytes.saturating_add(piece.len());
        if self.bytes > self.limit { Err(io::ErrorKind::StorageFull.into()) } else { Ok(piece.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The size of a value as JSON; `None` if it is over the limit.
pub(crate) fn json_size(value: &impl Serialize, limit: usize) -> Option<usize> {
    let mut counter = Counter { bytes: 0, limit };
    serde_json::to_writer(&mut counter, value).is_ok().then_some(counter.bytes)
}

/// About how many bytes a value has as JSON, without writing it: numbers count as eight, nothing is escaped.
pub(crate) fn estimate(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| estimate(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => {
            map.iter().map(|(key, value)| key.len() + estimate(value) + 4).sum::<usize>() + 2
        }
    }
}

/// Whether arguments of this size are taken.
pub(super) fn size(size: usize, limit: usize) -> Result<(), ToolError> {
    (size <= limit).then_some(()).ok_or_else(|| {
        ToolError::limit(format!("the arguments are larger than {limit} bytes"))
            .suggest("Give large data as a file and pass its path.")
    })
}

pub(super) fn may_nest(toolbox: &Shared, call: &Call) -> Result<(), ToolError> {
    let limit = toolbox.settings().depth;
    if call.depth > limit {
        return Err(ToolError::limit(format!("calls nest at most {limit} deep, and this would be one more"))
            .suggest("Check whether two tools call each other for ever."));
    }
    // A toolbox in front has counted a call that comes through it.
    if let (Some(scope), false) = (&call.scope, call.approved) {
        scope.count_call()?;
    }
    Ok(())
}

/// Checks the arguments against the compiled schema; a value that is injected can never be among them.
pub(super) fn arguments(entry: &Entry, call: &Call) -> Result<(), ToolError> {
    for name in &entry.spec.injected {
        if call.arguments.get(name).is_some() {
            return Err(ToolError::invalid_input(format!(
                "`{name}` is given by the application and cannot be an argument"
            ))
            .with("pointer", format!("/{name}"))
            .suggest(format!("Leave `{name}` out.")));
        }
    }
    if !call.arguments.is_object() {
        return Err(ToolError::invalid_input("the arguments must be a JSON object").with("pointer", ""));
    }
    // The schema of a foreign tool is checked where the tool lives.
    if !entry.is_local() {
        return Ok(());
    }
    entry.spec.input_schema.check_hiding(&call.arguments, &entry.spec.sensitive)
}

/// What a call that is not run is checked for besides: the tool's own look at its arguments. The tool of a source is not
/// asked, because nothing proves that the source would not run it; its schema is what is known of it here.
pub(super) fn validated(entry: &Entry, call: &Call) -> Result<(), ToolError> {
    match &entry.target {
        Target::Local(tool) => tool.pre_validate(&Args::new(Arc::clone(&call.arguments))),
        Target::Source(_) => entry.spec.input_schema.check_hiding(&call.arguments, &entry.spec.sensitive),
    }
}

/// The answer of a call that was only to be checked.
pub(super) fn dry_run(entry: &Entry, call: &Call, secrets: &[Secret]) -> Output {
    Output::json(json!({
        "dry_run": true,
        "would_execute": { "tool": &*entry.name, "arguments": masked(entry, &call.arguments, secrets) },
    }))
}

/// The sensitive values of a call; `None` if there are none, as almost always.
#[derive(Clone, Default)]
pub(super) struct Secrets(Option<Arc<[Secret]>>);

impl Secrets {
    pub(super) fn all(&self) -> &[Secret] {
        self.0.as_deref().unwrap_or_default()
    }

    /// A text without them.
    pub(super) fn scrubbed(&self, text: String) -> String {
        self.all().iter().fold(text, |text, secret| if text.is_empty() { text } else { secret.scrub(&text) })
    }

    /// An error without them: a tool may quote them.
    pub(super) fn without(&self, error: ToolError) -> ToolError {
        if self.all().is_empty() {
            return error;
        }
        error.map_text(|text| self.scrubbed(text.to_owned()), usize::MAX)
    }

    /// The record of a call that a source has made on behalf of this one, without them.
    pub(super) fn record(&self, record: &Arc<CallRecord>) -> Arc<CallRecord> {
        if self.all().is_empty() {
            return Arc::clone(record);
        }
        let mut record = CallRecord::clone(record);
        record.error = record.error.map(|error| self.without(error));
        for cause in &mut record.causes {
            *cause = self.scrubbed(std::mem::take(cause));
        }
        for value in record.arguments.iter_mut().map(Arc::make_mut).chain(&mut record.sandbox) {
            scrub(value, self.all());
        }
        for child in &mut record.children {
            *child = self.record(child);
        }
        Arc::new(record)
    }
}

/// The sensitive values of a call and of those that it was made from, which may pass them on.
pub(super) fn secrets(entry: &Entry, call: &Call, parent: Option<&Arc<CallHost>>) -> Secrets {
    let above = parent.map(|parent| parent.secrets.clone()).unwrap_or_default();
    let hidden = entry.secrets(&call.arguments);
    if entry.spec.sensitive.is_empty() && hidden.is_empty() {
        return above;
    }
    let own = entry.spec.sensitive.iter().filter_map(|name| call.arguments.get(name));
    let own = own.flat_map(Secret::of_argument);
    let hidden = hidden.iter().filter(|text| !text.trim().is_empty()).map(Secret::new);
    Secrets(Some(above.all().iter().cloned().chain(own).chain(hidden).collect()))
}

/// The arguments without what is sensitive.
pub(super) fn masked(entry: &Entry, arguments: &Value, secrets: &[Secret]) -> Value {
    if !entry.spec.sensitive.is_empty() && !arguments.is_object() {
        // Nobody can tell which part of it is which argument.
        return MASK.into();
    }
    let mut arguments = arguments.clone();
    for name in &entry.spec.sensitive {
        if let Some(value) = arguments.get_mut(name) {
            *value = MASK.into();
        }
    }
    scrub(&mut arguments, secrets);
    arguments
}

/// Masks secrets wherever they stand in the texts of a value.
fn scrub(value: &mut Value, secrets: &[Secret]) {
    match value {
        Value::String(text) => {
            for secret in secrets {
                if text.contains(secret.expose()) {
                    *text = secret.scrub(text);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| scrub(item, secrets)),
        Value::Object(map) => map.values_mut().for_each(|item| scrub(item, secrets)),
        _ => {}
    }
}
