//! The outcome of a run in a sandbox.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde_json::Value;
use toolpost::ToolError;
use toolpost::error::Code;
use toolpost::output::WideJson;
use toolpost::sandbox::{self, Error, Interruption};
use toolpost::time::format_duration;

use crate::{bridge, convert, errors};

/// The end of a program, its output, its value and its files.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct Outcome(sandbox::Outcome);

impl Outcome {
    /// Reads the artifacts, which frees the workspace.
    pub(crate) fn new(mut outcome: sandbox::Outcome) -> Result<Self, Error> {
        for artifact in &mut outcome.artifacts {
            *artifact = sandbox::SandboxArtifact::from_bytes(&*artifact.path, artifact.read()?)?;
        }
        Ok(Self(outcome))
    }

    fn json(&self) -> Value {
        serde_json::to_value(&self.0).unwrap_or_default()
    }

    fn ending(&self) -> Ending {
        Ending::new(&self.0.verdict)
    }

    /// The last line that the program printed to standard error.
    fn last_words(&self) -> String {
        let text = self.0.stderr.text();
        text.lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default()
            .trim()
            .chars()
            .take(200)
            .collect()
    }
}

#[pymethods]
impl Outcome {
    /// Whether the program exited with status 0.
    #[getter]
    fn ok(&self) -> bool {
        self.0.verdict.is_ok()
    }

    /// The exit status; None if the program did not exit by itself.
    #[getter]
    fn exit_code(&self) -> Option<i32> {
        self.0.exit_code
    }

    /// Standard output; a long one has a mark in its middle for the dropped bytes.
    #[getter]
    fn stdout(&self) -> String {
        self.0.stdout.text()
    }

    /// Standard error; a long one has a mark in its middle for the dropped bytes.
    #[getter]
    fn stderr(&self) -> String {
        self.0.stderr.text()
    }

    /// The value of the last expression, or of the last line `::result JSON`: exact, or its `type` and `text`; None
    /// without one.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, self.0.value.as_ref().unwrap_or(&Value::Null))
    }

    /// The files that the program created or changed.
    #[getter]
    fn artifacts(&self) -> Vec<Artifact> {
        self.0.artifacts.iter().cloned().map(Artifact).collect()
    }

    /// The end of the program.
    #[getter]
    fn verdict(&self) -> Verdict {
        let Ending { kind, message, .. } = self.ending();
        Verdict { kind, message }
    }

    /// The seconds from the start of the sandbox to the end of its last process.
    #[getter]
    fn duration(&self) -> f64 {
        self.0.usage.wall.as_secs_f64()
    }

    /// The level in force.
    #[getter]
    fn level(&self) -> &'static str {
        self.0.report.effective.name()
    }

    /// The attested layers: those that the kernel accepted for this run.
    #[getter]
    fn layers(&self) -> Vec<String> {
        self.0.report.layers.iter().map(|layer| name_of(serde_json::to_value(layer))).collect()
    }

    /// The used resources: `wall_ms`, `user_ms`, `system_ms`, `largest_process`, `peak_memory`.
    #[getter]
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &serde_json::to_value(&self.0.usage).unwrap_or_default())
    }

    /// The outcome as `toolpost exec --format json` prints it, with changes, applied files and the whole report.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &self.json())
    }

    /// Raises `ToolError` unless the program exited with status 0; else returns the outcome.
    fn raise_for_status(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        if slf.0.verdict.is_ok() {
            return Ok(slf);
        }
        let Ending { kind, message, code, option } = slf.ending();
        let message = match slf.last_words() {
            line if line.is_empty() || kind != "exit" => message,
            line => format!("{message}: {line}"),
        };
        let fix = option.map(|option| format!("Raise `{option}` to allow more."));
        let mut error = ToolError::new(code, message).suggest_maybe(fix).with("verdict", kind);
        if let Some(status) = slf.0.exit_code {
            error = error.with("exit_code", status);
        }
        Err(errors::to_python(slf.py(), &error))
    }

    /// The forms that a notebook may show: `toolpost._notebook` renders them.
    #[pyo3(signature = (**_options))]
    fn _repr_mimebundle_<'py>(
        slf: &Bound<'py, Self>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        bridge::notebook(slf.py())?.call_method1("outcome", (slf,))
    }

    fn __repr__(&self) -> String {
        let time = format_duration(self.0.usage.wall);
        let shown = match (&self.0.value, self.0.verdict.is_ok()) {
            (Some(value), true) => format!("value={}", shortened(&WideJson(value).to_string())),
            (None, true) => format!("stdout={:?}", shortened(&self.0.stdout.text())),
            (_, false) => format!("{:?}", self.ending().message),
        };
        format!("Outcome({}, {shown}, {time})", self.ending().kind)
    }
}

/// The end of a program.
#[pyclass(frozen, get_all, module = "toolpost")]
pub(crate) struct Verdict {
    /// "ok", "exit", "signal", "timeout", "memory", "denied" and so on.
    kind: String,
    /// The reason as a sentence.
    message: String,
}

#[pymethods]
impl Verdict {
    fn __repr__(&self) -> String {
        format!("Verdict({:?}, {:?})", self.kind, self.message)
    }

    fn __str__(&self) -> &str {
        &self.message
    }
}

/// A file that a program created or changed.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct Artifact(sandbox::SandboxArtifact);

#[pymethods]
impl Artifact {
    /// The path relative to the workspace.
    #[getter]
    fn name(&self) -> &str {
        &self.0.path
    }

    #[getter]
    fn media_type(&self) -> &'static str {
        self.0.media_type
    }

    /// The size in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.0.size
    }

    /// The content.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let content = self.0.read().map_err(|error| crate::sandbox::to_exception(py, error))?;
        Ok(PyBytes::new(py, &content))
    }

    /// The forms that a notebook may show: `toolpost._notebook` renders them.
    #[pyo3(signature = (**_options))]
    fn _repr_mimebundle_<'py>(
        slf: &Bound<'py, Self>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        bridge::notebook(slf.py())?.call_method1("artifact", (slf,))
    }

    fn __repr__(&self) -> String {
        format!("Artifact({:?}, {:?}, {} bytes)", self.0.path, self.0.media_type, self.0.size)
    }
}

/// A verdict in words.
struct Ending {
    kind: String,
    message: String,
    code: Code,
    /// The option of `Sandbox` that allows more.
    option: Option<&'static str>,
}

impl Ending {
    fn new(verdict: &sandbox::Verdict) -> Self {
        use sandbox::Verdict as V;
        let (code, message, option) = match verdict {
            V::Ok => (Code::Internal, "the program exited with status 0".to_owned(), None),
            V::Exit { code } => (Code::Dependency, format!("the program exited with status {code}"), None),
            V::Signal { signal } => (Code::Dependency, format!("signal {signal} ended the program"), None),
            V::Timeout { limit_ms } => {
                (Code::Timeout, format!("the program timed out after {}", time(*limit_ms)), Some("timeout"))
            }
            V::Cpu { limit_ms } => {
                (Code::Timeout, format!("the program used {} of processor time", time(*limit_ms)), None)
            }
            V::Idle { limit_ms } => {
                (Code::Timeout, format!("the program was idle for {}", time(*limit_ms)), None)
            }
            V::Memory { limit } => {
                (Code::Limit, format!("the program exceeded {} of memory", size(*limit)), Some("memory"))
            }
            V::Processes { limit } => {
                (Code::Limit, format!("the program exceeded {limit} processes"), Some("pids"))
            }
            V::Disk { limit } => (Code::Limit, format!("the files exceeded {}", size(*limit)), None),
            V::Inodes { limit } => {
                (Code::Limit, format!("the program exceeded {limit} files and directories"), None)
            }
            V::FileSize { limit } => (Code::Limit, format!("a file exceeded {}", size(*limit)), None),
            V::Output { limit } => (Code::Limit, format!("the output exceeded {}", size(*limit)), None),
            V::Denied { rule } => (Code::Permission, format!("the sandbox blocked {rule}"), None),
            V::Interrupted { by: Interruption::Wall } => {
                (Code::Timeout, "the code was interrupted at its time limit".to_owned(), Some("timeout"))
            }
            V::Interrupted { by: Interruption::Caller } => {
                (Code::Cancelled, "the code was interrupted".to_owned(), None)
            }
            V::Interrupted { by } => (
                Code::Limit,
                format!("the code was interrupted at its limit `{}`", name_of(serde_json::to_value(by))),
                None,
            ),
            V::Cancelled => (Code::Cancelled, "the program was cancelled".to_owned(), None),
            other => (Code::Dependency, format!("the program ended: {other:?}"), None),
        };
        let kind = serde_json::to_value(verdict).unwrap_or_default();
        let kind = kind.get("kind").and_then(Value::as_str).unwrap_or("unknown").to_owned();
        Self { kind, message, code, option }
    }
}

/// The name of a unit variant in JSON.
fn name_of(value: serde_json::Result<Value>) -> String {
    value.ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

fn time(milliseconds: u64) -> String {
    format_duration(Duration::from_millis(milliseconds))
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}

fn shortened(text: &str) -> String {
    let short: String = text.chars().take(100).collect();
    if short.len() < text.len() { format!("{short}…") } else { short }
}
