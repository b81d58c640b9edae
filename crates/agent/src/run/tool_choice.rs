//! Required and forbidden tool calls.

use toolpost_core::{ToolError, did_you_mean};
use toolpost_llm::{ErrorKind, ModelError, ToolChoice};

use super::{Interrupted, Running};

impl Running<'_> {
    /// Checks that a required tool is offered.
    pub(super) fn check_choice(&mut self) -> Result<(), Interrupted> {
        let (tools, hosted) = (&self.request.tools, &self.request.hosted_tools);
        let has_none = tools.is_empty() && hosted.is_empty();
        let message = match &self.request.tool_choice {
            Some(ToolChoice::Any) if has_none => "a tool call is required, but no tool is offered".to_owned(),
            Some(ToolChoice::Tool(name)) => {
                let names = || tools.iter().map(|tool| tool.name.as_str());
                if names().any(|known| known == name) || hosted.iter().any(|tool| tool.name() == name) {
                    return Ok(());
                }
                let near =
                    did_you_mean(name, names()).unwrap_or_else(|| "Offer it, or name another one.".into());
                format!("the required tool `{name}` is not offered. {near}")
            }
            _ => {
                // Some providers reject a choice without tools.
                if has_none {
                    self.request.tool_choice = None;
                }
                return Ok(());
            }
        };
        let error = ModelError::new(ErrorKind::InvalidRequest, message);
        Err(error.with_model(self.config.model.id()).into())
    }

    /// Ends the requirement after the first answer, so that the run can end.
    pub(super) fn release_choice(&mut self) {
        if matches!(self.request.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_))) {
            self.request.tool_choice = None;
        }
    }

    /// The error for any call of a run without calls: not every model complies.
    pub(super) fn reject_by_choice(&self) -> Option<ToolError> {
        let is_rejected = self.config.request.tool_choice == Some(ToolChoice::None);
        is_rejected.then(|| ToolError::permission("the call did not run: this run allows no tool calls"))
    }
}
