//! Checks of arguments, and sensitive values.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{Args, Call, CallRecord, Output, Secret, ToolError, mask_named};

use super::host::CallHost;
use crate::registry::{Entry, Target};
use crate::shared::Shared;

/// The replacement of sensitive values.
const MASK: &str = "[secret]";

/// Checks the size of the arguments.
pub(super) fn size(size: usize, limit: usize) -> Result<(), ToolError> {
    (size <= limit).then_some(()).ok_or_else(|| {
        ToolError::limit(format!("the arguments are larger than {limit} bytes"))
            .suggest("Write large data to a file and pass its path.")
    })
}

pub(super) fn may_nest(toolbox: &Shared, call: &Call) -> Result<(), ToolError> {
    let limit = toolbox.settings().depth;
    if call.depth > limit {
        return Err(ToolError::limit(format!("the nesting of calls exceeds the limit of {limit}"))
            .suggest("Check whether two tools call each other endlessly."));
    }
    // An outer toolbox has already counted its calls.
    if let (Some(scope), false) = (&call.scope, call.approved) {
        scope.count_call()?;
    }
    Ok(())
}

/// Checks the arguments against the schema. Injected values must not be among them.
pub(super) fn arguments(entry: &Entry, call: &Call) -> Result<(), ToolError> {
    for name in &entry.spec.injected {
        if call.arguments.get(name).is_some() {
            return Err(ToolError::invalid_input(format!(
                "`{name}` is injected by the application and cannot be an argument"
            ))
            .with("pointer", format!("/{name}"))
            .suggest(format!("Omit `{name}`.")));
        }
    }
    if !call.arguments.is_object() {
        return Err(ToolError::invalid_input("the arguments must be a JSON object").with("pointer", ""));
    }
    // The source of a tool checks its schema.
    if !entry.is_local() {
        return Ok(());
    }
    entry.spec.input_schema.check_hiding(&call.arguments, &entry.spec.sensitive)
}

/// The call with integers in place of whole floats such as `2.0`, which JSON Schema accepts and tools do not.
pub(super) fn normalized(entry: &Entry, call: Arc<Call>) -> Arc<Call> {
    match entry.spec.input_schema.normalized(&call.arguments) {
        None => call,
        Some(arguments) => {
            let mut call = Call::clone(&call);
            call.arguments = Arc::new(arguments);
            Arc::new(call)
        }
    }
}

/// The extra checks of a call that does not run: the tool's own validation. A source might run its tool, so
/// only its schema is checked.
pub(super) fn validated(entry: &Entry, call: &Call) -> Result<(), ToolError> {
    match &entry.target {
        Target::Local(tool) => tool.pre_validate(&Args::new(Arc::clone(&call.arguments))),
        Target::Source(_) => entry.spec.input_schema.check_hiding(&call.arguments, &entry.spec.sensitive),
    }
}

/// The output of a dry run.
pub(super) fn dry_run(entry: &Entry, call: &Call, secrets: &[Secret]) -> Output {
    Output::json(json!({
        "dry_run": true,
        "would_execute": { "tool": &*entry.name, "arguments": masked(entry, &call.arguments, secrets) },
    }))
}

/// The minimum length of a value that is secret by its name, to be masked in texts too. A shorter one is common.
const MIN_NAMED: usize = 6;

/// The sensitive values of a call; `None` for most calls.
#[derive(Clone, Default)]
pub(super) struct Secrets(Option<Arc<[Secret]>>);

impl Secrets {
    /// Whether the arguments may have secrets.
    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn all(&self) -> &[Secret] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Masks the values in a text.
    pub(super) fn scrubbed(&self, text: String) -> String {
        self.all().iter().fold(text, |text, secret| if text.is_empty() { text } else { secret.scrub(&text) })
    }

    /// Masks the values in an error, since a tool may quote them.
    pub(super) fn without(&self, error: ToolError) -> ToolError {
        if self.all().is_empty() {
            return error;
        }
        error.map_text(|text| self.scrubbed(text.to_owned()), usize::MAX)
    }

    /// Masks the values in the record of a call of a source.
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

/// The sensitive values of a call and its ancestors.
pub(super) fn secrets(entry: &Entry, call: &Call, parent: Option<&Arc<CallHost>>) -> Secrets {
    let above = parent.map(|parent| parent.secrets.clone()).unwrap_or_default();
    let hidden = entry.secrets(&call.arguments);
    let named = Secret::named_in(&call.arguments);
    if entry.spec.sensitive.is_empty() && hidden.is_empty() && named.is_empty() {
        return above;
    }
    let own = entry.spec.sensitive.iter().filter_map(|name| call.arguments.get(name));
    let own = own.flat_map(Secret::of_argument);
    let hidden = hidden.iter().filter(|text| !text.trim().is_empty()).map(Secret::new);
    let named = named.into_iter().filter(|secret| secret.expose().len() >= MIN_NAMED);
    Secrets(Some(above.all().iter().cloned().chain(own).chain(hidden).chain(named).collect()))
}

/// Masks the sensitive arguments.
pub(super) fn masked(entry: &Entry, arguments: &Value, secrets: &[Secret]) -> Value {
    if !entry.spec.sensitive.is_empty() && !arguments.is_object() {
        // Without an object, no part can be assigned to an argument.
        return MASK.into();
    }
    let mut arguments = arguments.clone();
    for name in &entry.spec.sensitive {
        if let Some(value) = arguments.get_mut(name) {
            *value = MASK.into();
        }
    }
    mask_named(&mut arguments);
    scrub(&mut arguments, secrets);
    arguments
}

/// Masks secrets in all texts of a value.
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
