//! Which tools the model may or must call, and for how long.

use toolpost_core::{ToolError, did_you_mean};
use toolpost_llm::{ErrorKind, ModelError, ToolChoice};

use super::{Interrupted, Running};

impl Running<'_> {
    /// A tool that must be called must be there: no provider says so as plainly.
    pub(super) fn check_choice(&mut self) -> Result<(), Interrupted> {
        let (tools, hosted) = (&self.request.tools, &self.request.hosted_tools);
        let has_none = tools.is_empty() && hosted.is_empty();
        let message = match &self.request.tool_choice {
            Some(ToolChoice::Any) if has_none => {
                "the model must call a tool, and none is offered to it".to_owned()
            }
            Some(ToolChoice::Tool(name)) => {
                let names = || tools.iter().map(|tool| tool.name.as_str());
                if names().any(|known| known == name) || hosted.iter().any(|tool| tool.name() == name) {
                    return Ok(());
                }
                let near = did_you_mean(name, names()).unwrap_or_else(|| "Offer it, or name another.".into());
                format!("the model must call the tool `{name}`, which is not offered to it. {near}")
            }
            _ => {
                // Without tools there is nothing to choose from, and some providers refuse a choice.
                if has_none {
                    self.request.tool_choice = None;
                }
                return Ok(());
            }
        };
        let error = ModelError::new(ErrorKind::InvalidRequest, message);
        Err(error.with_model(self.config.model.id()).into())
    }

    /// What must be called was asked for: from now on the model decides, else it could never come to an end.
    pub(super) fn release_choice(&mut self) {
        if matches!(self.request.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_))) {
            self.request.tool_choice = None;
        }
    }

    /// Why no call is made at all, if so. Not every model keeps to what it was told.
    pub(super) fn refuse_by_choice(&self) -> Option<ToolError> {
        let is_refused = self.config.tool_choice == Some(ToolChoice::None);
        is_refused.then(|| ToolError::permission("the call was not made: this run may call no tool"))
    }
}
