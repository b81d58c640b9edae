//! The toolable envelope of a result: `{"status":"success","result":{…}}`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{CallId, Code, Output, ToolError};

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Complete.
    Success,
    /// Failed.
    Error,
    /// Some of several items succeeded.
    Partial,
}

/// The wire form of a result: one JSON object with a `status`.
///
/// - success: `{"status":"success","result":{…}}`; a result that is not an object is under `result.result`.
/// - error: `{"status":"error","error":{"code","message","recoverable","suggestion"?,"hint"?,"context"?}}`
/// - partial: `{"status":"partial","result":{…},"summary":{"total","succeeded","failed","recoverable_failures"},
///   "errors":[{"code","message","recoverable"}]}`
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Envelope(Value);

/// Maps a code to the nearest one of the wire.
fn wire_code(code: Code) -> Code {
    match code {
        Code::Overloaded | Code::Limit => Code::Dependency,
        Code::Cancelled => Code::Timeout,
        known => known,
    }
}

fn wire_error(error: &ToolError) -> Value {
    let mut value = json!({
        "code": wire_code(error.code()),
        "message": error.message(),
        "recoverable": error.is_recoverable(),
    });
    if let Some(suggestion) = error.suggestion() {
        value["suggestion"] = suggestion.into();
    }
    if let Some(hint) = error.hint::<Value>() {
        value["hint"] = hint;
    }
    if !error.context().is_empty() {
        value["context"] = Value::Object(error.context().clone());
    }
    value
}

impl Envelope {
    /// The envelope of an outcome. The details of an `INTERNAL` error are replaced by the call's id.
    pub fn new(call: CallId, outcome: &Result<Output, ToolError>) -> Self {
        match outcome {
            Err(error) => Self(json!({ "status": "error", "error": wire_error(&error.public(call)) })),
            Ok(output) => {
                let result = match output.result_value() {
                    object @ Value::Object(_) => object,
                    other => json!({ "result": other }),
                };
                let Some(partial) = &output.partial else {
                    return Self(json!({ "status": "success", "result": result }));
                };
                let errors: Vec<Value> = partial
                    .errors
                    .iter()
                    .map(|error| {
                        let error = error.public(call);
                        json!({
                            "code": wire_code(error.code()),
                            "message": error.message(),
                            "recoverable": error.is_recoverable(),
                        })
                    })
                    .collect();
                Self(json!({
                    "status": partial.status(),
                    "result": result,
                    "summary": {
                        "total": partial.succeeded + partial.errors.len(),
                        "succeeded": partial.succeeded,
                        "failed": partial.errors.len(),
                        "recoverable_failures": partial.errors.iter().filter(|error| error.is_recoverable()).count(),
                    },
                    "errors": errors,
                }))
            }
        }
    }

    /// The JSON object.
    pub fn as_value(&self) -> &Value {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Partial;

    fn envelope(outcome: &Result<Output, ToolError>) -> Value {
        Envelope::new(CallId::new(), outcome).0
    }

    #[test]
    fn success_wraps_what_is_not_an_object() {
        assert_eq!(
            envelope(&Ok(Output::json(json!({"a": 1})))),
            json!({"status": "success", "result": {"a": 1}})
        );
        assert_eq!(
            envelope(&Ok(Output::json(json!(3)))),
            json!({"status": "success", "result": {"result": 3}})
        );
        // A tool's own field `status` is data, not an envelope.
        let order = json!({"status": "shipped"});
        assert_eq!(envelope(&Ok(Output::json(order.clone()))), json!({"status": "success", "result": order}));
    }

    #[test]
    fn errors_keep_code_suggestion_and_context() {
        let error = ToolError::not_found("no such city").suggest("Try Oslo.").with("pointer", "/city");
        assert_eq!(
            envelope(&Err(error)),
            json!({"status": "error", "error": {
                "code": "NOT_FOUND", "message": "no such city", "recoverable": true,
                "suggestion": "Try Oslo.", "context": {"pointer": "/city"}
            }})
        );
        assert_eq!(envelope(&Err(ToolError::overloaded("full")))["error"]["code"], "DEPENDENCY");
        assert_eq!(envelope(&Err(ToolError::cancelled("stop")))["error"]["code"], "TIMEOUT");
    }

    #[test]
    fn partial_counts() {
        let mut output = Output::json(json!({"rows": [1, 2]}));
        output.partial = Some(Partial { succeeded: 2, errors: vec![ToolError::not_found("row 3")] });
        let value = envelope(&Ok(output));
        assert_eq!(value["status"], "partial");
        assert_eq!(
            value["summary"],
            json!({"total": 3, "succeeded": 2, "failed": 1, "recoverable_failures": 1})
        );
    }
}
