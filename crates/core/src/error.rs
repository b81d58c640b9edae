//! The error of a tool call.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Output;

/// The kind of an error. The caller can fix the first six; it cannot fix the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum Code {
    /// An argument has the wrong type, format or value.
    InvalidInput,
    /// A required argument is missing.
    MissingParam,
    /// A path is missing, has the wrong type, or is outside the permitted directories.
    InvalidPath,
    /// The requested tool, record or page does not exist.
    NotFound,
    /// Another writer changed the same value.
    Conflict,
    /// A required step, setting or connection is missing.
    Precondition,
    /// The operation timed out.
    Timeout,
    /// Policy, approval or the sandbox denies it.
    Permission,
    /// A defect in the tool.
    Internal,
    /// A dependency of the tool failed.
    Dependency,
    /// The queue is full.
    Overloaded,
    /// A budget or a size limit is reached.
    Limit,
    /// The caller cancelled the call.
    Cancelled,
}

impl Code {
    /// Whether the caller can fix its request.
    pub const fn is_recoverable(self) -> bool {
        matches!(
            self,
            Self::InvalidInput
                | Self::MissingParam
                | Self::InvalidPath
                | Self::NotFound
                | Self::Conflict
                | Self::Precondition
        )
    }

    /// The wire name, such as `INVALID_INPUT`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidInput => "INVALID_INPUT",
            Self::MissingParam => "MISSING_PARAM",
            Self::InvalidPath => "INVALID_PATH",
            Self::NotFound => "NOT_FOUND",
            Self::Conflict => "CONFLICT",
            Self::Precondition => "PRECONDITION",
            Self::Timeout => "TIMEOUT",
            Self::Permission => "PERMISSION",
            Self::Internal => "INTERNAL",
            Self::Dependency => "DEPENDENCY",
            Self::Overloaded => "OVERLOADED",
            Self::Limit => "LIMIT",
            Self::Cancelled => "CANCELLED",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a retry of the same request may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RetryAdvice {
    /// A retry fails as well.
    Never,
    /// A retry may succeed, after this wait at the earliest.
    After(Duration),
    /// The request never started: a queue was full or a connection was refused. Even a request that is not idempotent
    /// may be retried, after this wait at the earliest.
    NotStarted(Duration),
}

/// The error of a call: a code, a message, and a suggestion for the caller.
///
/// It does not implement [`std::error::Error`], so that `?` converts any error into one with the code `INTERNAL`.
/// The cause chain is for records and logs; a model or a remote caller gets [`ToolError::public`].
///
/// ```
/// # use toolpost_core::{Code, ToolError};
/// fn port(text: &str) -> Result<u16, ToolError> {
///     text.parse().map_err(|_| {
///         ToolError::invalid_input(format!("`{text}` is not a port")).suggest("Give a number from 0 to 65535.")
///     })
/// }
/// assert_eq!(port("http").unwrap_err().code(), Code::InvalidInput);
/// ```
#[derive(Clone, Serialize, Deserialize)]
pub struct ToolError(Box<Fields>);

#[derive(Clone, Serialize, Deserialize)]
struct Fields {
    code: Code,
    message: String,
    #[serde(default)]
    recoverable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry: Option<RetryAdvice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    suggestion: Option<String>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    context: Map<String, Value>,
    #[serde(skip)]
    cause: Option<Arc<dyn StdError + Send + Sync>>,
    #[serde(skip)]
    failed_output: Option<Arc<Output>>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(Code::$code, message)
        })*
    };
}

/// Applies a function to every string in a value.
fn change_texts(value: &mut Value, change: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(items) => items.iter_mut().for_each(|item| change_texts(item, change)),
        Value::Object(fields) => fields.values_mut().for_each(|item| change_texts(item, change)),
        _ => {}
    }
}

impl ToolError {
    /// Creates an error with a code and a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(Box::new(Fields {
            code,
            message: message.into(),
            recoverable: code.is_recoverable(),
            retry: None,
            suggestion: None,
            context: Map::new(),
            cause: None,
            failed_output: None,
        }))
    }

    constructors! {
        /// An argument has the wrong type, format or value.
        invalid_input => InvalidInput;
        /// A required argument is missing.
        missing_param => MissingParam;
        /// A path is missing, has the wrong type, or is outside the permitted directories.
        invalid_path => InvalidPath;
        /// The requested thing does not exist.
        not_found => NotFound;
        /// Another writer changed the same value.
        conflict => Conflict;
        /// A required step, setting or connection is missing.
        precondition => Precondition;
        /// The operation timed out.
        timeout => Timeout;
        /// Policy, approval or the sandbox denies it.
        permission => Permission;
        /// A defect in the tool.
        internal => Internal;
        /// A dependency of the tool failed.
        dependency => Dependency;
        /// The queue is full.
        overloaded => Overloaded;
        /// A budget or a size limit is reached.
        limit => Limit;
        /// The caller cancelled the call.
        cancelled => Cancelled;
    }

    /// Adds a suggestion: one sentence on what to do next.
    #[must_use]
    pub fn suggest(mut self, suggestion: impl Into<String>) -> Self {
        self.0.suggestion = Some(suggestion.into());
        self
    }

    /// Adds a suggestion if there is one.
    #[must_use]
    pub fn suggest_maybe(self, suggestion: Option<String>) -> Self {
        match suggestion {
            Some(text) => self.suggest(text),
            None => self,
        }
    }

    /// Adds a fact for programs, such as the JSON pointer of the invalid argument.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.context.insert(key.to_owned(), value.into());
        self
    }

    /// Sets the retry advice.
    #[must_use]
    pub fn retry(mut self, advice: RetryAdvice) -> Self {
        self.0.retry = Some(advice);
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.cause = Some(Arc::from(cause.into()));
        self
    }

    /// Adds causes as text, outermost first, such as the [`causes`](Self::causes) from another process.
    #[must_use]
    pub fn with_causes(self, causes: Vec<String>) -> Self {
        let chain = causes
            .into_iter()
            .take(MAX_CAUSES)
            .rev()
            .fold(None, |source, text| Some(Box::new(TextCause { text, source })));
        match chain {
            Some(cause) => self.caused_by(cause as Box<dyn StdError + Send + Sync>),
            None => self,
        }
    }

    /// Adds the failed result of a foreign server, whose text is the message. A server of the same protocol forwards it.
    #[must_use]
    pub fn with_failed_output(mut self, output: Output) -> Self {
        self.0.failed_output = Some(Arc::new(output));
        self
    }

    /// Applies a function to every string of the error, and drops a context larger than `limit` bytes of JSON. A changed
    /// message drops the failed result of a foreign server.
    #[must_use]
    pub fn map_text(mut self, change: impl Fn(&str) -> String, limit: usize) -> Self {
        let fields = &mut *self.0;
        let message = change(&fields.message);
        if std::mem::replace(&mut fields.message, message) != fields.message {
            fields.failed_output = None;
        }
        fields.suggestion = fields.suggestion.as_deref().map(&change);
        if serde_json::to_string(&fields.context).map_or(0, |text| text.len()) > limit {
            fields.context = Map::from_iter([("omitted".to_owned(), true.into())]);
        }
        fields.context.values_mut().for_each(|value| change_texts(value, &change));
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the caller can fix its request.
    pub fn is_recoverable(&self) -> bool {
        self.0.recoverable
    }

    /// The suggestion.
    pub fn suggestion(&self) -> Option<&str> {
        self.0.suggestion.as_deref()
    }

    /// Facts for programs.
    pub fn context(&self) -> &Map<String, Value> {
        &self.0.context
    }

    /// Whether a program of the tool failed: the context has its `exit_code` or its `signal`.
    pub fn is_program_failure(&self) -> bool {
        self.0.code == Code::Dependency
            && ["exit_code", "signal"].iter().any(|fact| self.0.context.contains_key(*fact))
    }

    /// The retry advice; `None` leaves the decision to the code.
    pub fn retry_advice(&self) -> Option<RetryAdvice> {
        self.0.retry
    }

    /// Converts the error into a standard library error whose source is the cause. `?` converts it into a
    /// `Box<dyn Error>` as well.
    pub fn into_boxed(self) -> Box<dyn StdError + Send + Sync> {
        Box::new(Boxed(self))
    }

    /// The cause as a value, for code that knows its type and downcasts it.
    pub fn cause(&self) -> Option<&(dyn StdError + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }

    /// The failed result of a foreign server, for servers that forward it.
    pub fn failed_output(&self) -> Option<&Output> {
        self.0.failed_output.as_deref()
    }

    /// The messages of the causes, outermost first. For records and logs only.
    pub fn causes(&self) -> Vec<String> {
        let first = self.0.cause.as_deref().map(|cause| cause as &dyn StdError);
        std::iter::successors(first, |&error| error.source())
            .take(MAX_CAUSES)
            .map(ToString::to_string)
            .collect()
    }

    /// The part that a model or a remote caller may see. An `INTERNAL` error names only the record.
    #[must_use]
    pub fn public(&self, call: crate::CallId) -> Self {
        if self.0.code != Code::Internal {
            return Self(Box::new(Fields { cause: None, ..(*self.0).clone() }));
        }
        Self::internal(format!("the tool failed internally; see the record of call {call}"))
            .with("call", call.to_string())
    }
}

/// Maximum length of a chain of causes.
const MAX_CAUSES: usize = 16;

/// A cause known only by its message.
#[derive(Debug)]
struct TextCause {
    text: String,
    source: Option<Box<Self>>,
}

impl fmt::Display for TextCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for TextCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

/// A [`ToolError`] as a standard library error.
#[derive(Debug)]
struct Boxed(ToolError);

impl fmt::Display for Boxed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for Boxed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.0.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

/// Lets `?` work in a function that returns `Result<_, Box<dyn Error>>`.
impl From<ToolError> for Box<dyn StdError> {
    fn from(error: ToolError) -> Self {
        Box::new(Boxed(error))
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for ToolError {
    fn from(error: E) -> Self {
        let error = error.into();
        Self::internal(error.to_string()).caused_by(error)
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code, self.0.message)?;
        match &self.0.suggestion {
            Some(suggestion) if self.0.message.ends_with(['.', '!', '?']) => write!(f, " {suggestion}"),
            Some(suggestion) => write!(f, ". {suggestion}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for ToolError {
    /// The output of a `main` that returns the error. `{:#?}` prints all fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return f
                .debug_struct("ToolError")
                .field("code", &self.0.code)
                .field("message", &self.0.message)
                .field("suggestion", &self.0.suggestion)
                .field("context", &self.0.context)
                .field("retry", &self.0.retry)
                .field("causes", &self.causes())
                .finish_non_exhaustive();
        }
        write!(f, "{self}")?;
        // The first cause often repeats the message.
        self.causes()
            .iter()
            .filter(|cause| **cause != self.0.message)
            .try_for_each(|cause| write!(f, "\n  caused by: {cause}"))
    }
}

impl PartialEq for ToolError {
    /// Compares all serialized fields; the cause chain is not one.
    fn eq(&self, other: &Self) -> bool {
        let key = |error: &Self| {
            let fields = &error.0;
            (
                fields.code,
                fields.message.clone(),
                fields.suggestion.clone(),
                fields.context.clone(),
                fields.retry,
            )
        };
        key(self) == key(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_takes_it_as_any_error() {
        fn application() -> Result<(), Box<dyn StdError>> {
            let cause = "x".parse::<u8>().unwrap_err();
            Err(ToolError::dependency("no weather").caused_by(cause).suggest("Try again."))?
        }
        let error = application().unwrap_err();
        assert_eq!(error.to_string(), "DEPENDENCY: no weather. Try again.");
        assert_eq!(error.source().unwrap().to_string(), "invalid digit found in string");
        let boxed = ToolError::not_found("gone").into_boxed();
        assert_eq!((boxed.to_string(), boxed.source().is_none()), ("NOT_FOUND: gone".into(), true));
    }

    #[test]
    fn the_question_mark_takes_any_error() {
        fn read() -> Result<u8, ToolError> {
            Ok("x".parse::<u8>()?)
        }
        let error = read().unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert_eq!(error.causes(), ["invalid digit found in string"]);
        let cause = error.cause().and_then(|cause| cause.downcast_ref::<std::num::ParseIntError>());
        assert_eq!(cause.map(std::num::ParseIntError::kind), Some(&std::num::IntErrorKind::InvalidDigit));
    }

    #[test]
    fn internal_details_stay_inside() {
        let call = crate::CallId::new();
        let error = ToolError::internal("password is hunter2").with("file", "/etc/shadow").public(call);
        let text = serde_json::to_string(&error).unwrap();
        assert!(!text.contains("hunter2") && !text.contains("shadow"));
        assert!(text.contains(&call.to_string()));
    }

    #[test]
    fn every_code_is_its_wire_name() {
        for code in
            [Code::InvalidInput, Code::MissingParam, Code::Overloaded, Code::Cancelled, Code::Internal]
        {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
