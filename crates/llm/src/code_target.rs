//! Selects where the code of a model runs: hosted by the provider or in the local sandbox.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::catalog::{Feature, ModelCatalog, ModelInfo, unsupported};
use crate::{HostedTool, ModelError};

/// The requested place for code execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeExecutionMode {
    /// Hosted if the model is known to support the provider's tool, else local.
    #[default]
    Auto,
    /// Hosted by the provider.
    Hosted,
    /// In the sandbox of this host.
    Local,
}

impl FromStr for CodeExecutionMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "hosted" => Ok(Self::Hosted),
            "local" => Ok(Self::Local),
            other => Err(format!("expected `auto`, `hosted` or `local`, found `{other}`")),
        }
    }
}

/// The selected place for code execution. Its text explains the selection.
#[derive(Clone, Debug, PartialEq)]
pub enum CodeExecutionTarget {
    /// Hosted by the provider, through this tool of a request.
    Hosted(HostedTool),
    /// Local, through the sandbox's tool `code_execution`.
    Local(LocalReason),
}

/// The reason why code runs locally.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalReason {
    /// The caller requested it.
    Requested,
    /// The model does not support hosted code execution.
    Unsupported,
    /// The catalog does not say whether the model supports hosted code execution.
    Unknown,
}

impl fmt::Display for CodeExecutionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hosted(_) => "the provider runs code",
            Self::Local(LocalReason::Requested) => "the local sandbox runs code, as requested",
            Self::Local(LocalReason::Unsupported) => {
                "the local sandbox runs code: the model has no hosted code execution"
            }
            Self::Local(LocalReason::Unknown) => {
                "the local sandbox runs code: the catalog does not know whether the model has hosted code execution"
            }
        })
    }
}

/// Selects where the code of a model runs.
///
/// # Errors
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the caller requests hosted execution and the model is
/// known not to support it. The message names models that do.
pub fn select_code_execution(
    catalog: &ModelCatalog,
    info: &ModelInfo,
    mode: CodeExecutionMode,
) -> Result<CodeExecutionTarget, ModelError> {
    use CodeExecutionMode as Mode;
    let local = |reason| Ok(CodeExecutionTarget::Local(reason));
    match (mode, info.has(Feature::CodeExecution)) {
        (Mode::Local, _) => local(LocalReason::Requested),
        (Mode::Auto | Mode::Hosted, Some(true)) | (Mode::Hosted, None) => {
            let tool = HostedTool::CodeExecution { version: None, file_ids: Vec::new() };
            Ok(CodeExecutionTarget::Hosted(tool))
        }
        (Mode::Auto, Some(false)) => local(LocalReason::Unsupported),
        (Mode::Auto, None) => local(LocalReason::Unknown),
        (Mode::Hosted, Some(false)) => {
            let mut error = unsupported(catalog, info, Feature::CodeExecution, "hosted code execution");
            error.message.push_str(". Use `local` to run code in the sandbox of this host");
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, ModelId};

    #[test]
    fn the_mode_and_the_model_select_the_target() {
        let info = |has: Option<bool>| {
            let mut info = ModelInfo::unknown(&ModelId::new("p", "m"));
            info.features.extend(has.map(|has| (Feature::CodeExecution, has)));
            info
        };
        let hosted =
            CodeExecutionTarget::Hosted(HostedTool::CodeExecution { version: None, file_ids: Vec::new() });
        let local = |reason| Some(CodeExecutionTarget::Local(reason));
        for (mode, has, expected) in [
            ("auto", Some(true), Some(hosted.clone())),
            ("auto", Some(false), local(LocalReason::Unsupported)),
            ("auto", None, local(LocalReason::Unknown)),
            ("hosted", Some(true), Some(hosted.clone())),
            ("hosted", None, Some(hosted)),
            ("hosted", Some(false), None),
            ("local", Some(true), local(LocalReason::Requested)),
        ] {
            let found = select_code_execution(ModelCatalog::built_in(), &info(has), mode.parse().unwrap());
            match expected {
                Some(expected) => assert_eq!(found.unwrap(), expected, "{mode} {has:?}"),
                None => {
                    let error = found.unwrap_err();
                    assert_eq!(error.kind, ErrorKind::Unsupported);
                    assert!(error.message.contains("Models that support it: "), "{error}");
                }
            }
        }
        assert!("both".parse::<CodeExecutionMode>().unwrap_err().contains("`hosted`"));
        let target = CodeExecutionTarget::Local(LocalReason::Unsupported);
        assert!(target.to_string().contains("local sandbox"));
    }
}
