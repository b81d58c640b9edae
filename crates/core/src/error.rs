//! The error of a tool call.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Output, SpecError, Suggestion};

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
#[serde(rename_all = "snake_case", from = "RetryForm")]
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

/// The forms of a [`RetryAdvice`]: with durations as in records, or in milliseconds as in frames.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RetryForm {
    Never,
    After(Duration),
    AfterMs(u64),
    NotStarted(Duration),
    NotStartedMs(u64),
}

impl From<RetryForm> for RetryAdvice {
    fn from(form: RetryForm) -> Self {
        match form {
            RetryForm::Never => Self::Never,
            RetryForm::After(wait) => Self::After(wait),
            RetryForm::AfterMs(wait) => Self::After(Duration::from_millis(wait)),
            RetryForm::NotStarted(wait) => Self::NotStarted(wait),
            RetryForm::NotStartedMs(wait) => Self::NotStarted(Duration::from_millis(wait)),
        }
    }
}

/// The error of a call: a code, a message, and a suggestion for the caller.
///
/// It does not implement [`std::error::Error`], so that `?` converts any error into one with the code `INTERNAL`.
/// Callers receive a [`CallError`], which does, and `?` converts it back without a change.
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<Value>,
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
            hint: None,
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

    /// Adds a suggestion: one sentence on what to do next, or a [`Hint`](crate::Hint).
    #[must_use]
    pub fn suggest(mut self, suggestion: impl Into<Suggestion>) -> Self {
        let Suggestion { text, hint } = suggestion.into();
        (self.0.suggestion, self.0.hint) = (Some(text), hint);
        self
    }

    /// Adds a suggestion if there is one.
    #[must_use]
    pub fn suggest_maybe(self, suggestion: Option<impl Into<Suggestion>>) -> Self {
        match suggestion {
            Some(suggestion) => self.suggest(suggestion),
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
        fields.hint = fields.hint.take().filter(|hint| hint.to_string().len() <= limit);
        fields.hint.iter_mut().for_each(|hint| change_texts(hint, &change));
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

    /// The suggestion with its hint.
    pub fn whole_suggestion(&self) -> Option<Suggestion> {
        let text = self.0.suggestion.clone()?;
        Some(Suggestion { text, hint: self.0.hint.clone() })
    }

    /// The hint of the suggestion if it has this type, such as [`Hint`](crate::Hint).
    pub fn hint<T: DeserializeOwned>(&self) -> Option<T> {
        T::deserialize(self.0.hint.as_ref()?).ok()
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

/// A [`ToolError`] for callers: a [`std::error::Error`] whose source is the cause.
///
/// `?` converts it into `anyhow::Error`, `Box<dyn Error + Send + Sync>`, and back into the `ToolError`.
///
/// ```
/// # use toolpost_core::{CallError, ToolError};
/// fn call() -> Result<(), CallError> {
///     Err(ToolError::not_found("unknown city").into())
/// }
/// fn application() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///     Ok(call()?)
/// }
/// assert_eq!(application().unwrap_err().to_string(), "NOT_FOUND: unknown city");
/// ```
#[derive(Clone, PartialEq)]
pub struct CallError(ToolError);

impl CallError {
    /// Converts the error into the one of the tool.
    pub fn into_inner(self) -> ToolError {
        self.0
    }
}

impl std::ops::Deref for CallError {
    type Target = ToolError;

    fn deref(&self) -> &ToolError {
        &self.0
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl StdError for CallError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.0.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

impl From<ToolError> for CallError {
    fn from(error: ToolError) -> Self {
        Self(error)
    }
}

impl From<SpecError> for CallError {
    fn from(error: SpecError) -> Self {
        Self(error.into())
    }
}

/// Lets `?` work in a function that returns `Result<_, Box<dyn Error>>`.
impl From<ToolError> for Box<dyn StdError> {
    fn from(error: ToolError) -> Self {
        Box::new(CallError(error))
    }
}

/// Lets `?` work in a function that returns `anyhow::Result`.
#[cfg(feature = "anyhow")]
impl From<ToolError> for anyhow::Error {
    fn from(error: ToolError) -> Self {
        Self::new(CallError(error))
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for ToolError {
    fn from(error: E) -> Self {
        match error.into().downcast::<CallError>() {
            Ok(error) => error.0,
            Err(error) => Self::internal(error.to_string()).caused_by(error),
        }
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
                fields.hint.clone(),
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
        // The output of `main`.
        let printed = "DEPENDENCY: no weather. Try again.\n  caused by: invalid digit found in string";
        assert_eq!(format!("{error:?}"), printed);
        assert_eq!(error.source().unwrap().to_string(), "invalid digit found in string");
    }

    #[test]
    fn a_call_error_passes_through_a_tool_unchanged() {
        fn call() -> Result<(), CallError> {
            let cause = "x".parse::<u8>().unwrap_err();
            Err(ToolError::not_found("gone").caused_by(cause).into())
        }
        fn tool() -> Result<(), ToolError> {
            Ok(call()?)
        }
        fn threaded() -> Result<(), Box<dyn StdError + Send + Sync>> {
            Ok(call()?)
        }
        assert_eq!(tool().unwrap_err(), ToolError::not_found("gone"));
        assert_eq!(tool().unwrap_err().causes(), ["invalid digit found in string"]);
        let error = threaded().unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "invalid digit found in string");
        assert_eq!(ToolError::from(error).code(), Code::NotFound);
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn anyhow_takes_both_errors() {
        fn tool() -> anyhow::Result<()> {
            Err(ToolError::conflict("busy"))?
        }
        fn call() -> anyhow::Result<()> {
            Err(CallError::from(ToolError::conflict("busy")))?
        }
        for error in [tool().unwrap_err(), call().unwrap_err()] {
            assert_eq!(error.downcast_ref::<CallError>().map(|error| error.code()), Some(Code::Conflict));
        }
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
    fn retry_advice_is_read_in_both_forms_and_stays_in_records() {
        let stored = serde_json::json!({ "after": { "secs": 1, "nanos": 500_000_000 } });
        let framed = serde_json::json!({ "after_ms": 1_500 });
        let advice = RetryAdvice::After(Duration::from_millis(1_500));
        assert_eq!(serde_json::to_value(advice).unwrap(), stored);
        for form in [stored, framed] {
            assert_eq!(serde_json::from_value::<RetryAdvice>(form).unwrap(), advice);
        }
        let form = serde_json::json!({ "not_started_ms": 20 });
        let advice: RetryAdvice = serde_json::from_value(form).unwrap();
        assert_eq!(advice, RetryAdvice::NotStarted(Duration::from_millis(20)));
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
