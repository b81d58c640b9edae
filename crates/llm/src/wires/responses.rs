//! The Responses API of OpenAI, and xAI's dialect of it.

mod encode;
pub(super) mod error;
mod fold;
mod hosted;
mod view;

use std::sync::Arc;

use super::answer_tool::is_object;
use super::codec::{Codec, Encoded};
use super::{AnyFold, FoldOf};
use crate::catalog::ModelInfo;
use crate::schema::{SchemaTarget, lower};
use crate::{
    ContextEdit, ErrorKind, HostedTool, MediaSource, ModelError, OutputFormat, Part, Request, Response, Turn,
};

pub(crate) use self::fold::ResponseFold;

/// The dialect of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's.
    OpenAi,
    /// xAI's: instructions are a message, hosted tools differ, and the provider runs custom calls.
    Xai,
}

/// The wire for one model.
#[derive(Debug)]
pub(crate) struct ResponsesCodec {
    dialect: Dialect,
    info: Arc<ModelInfo>,
    /// Whether the server is the provider itself.
    is_own: bool,
}

impl ResponsesCodec {
    pub(crate) fn new(dialect: Dialect, info: Arc<ModelInfo>, is_own: bool) -> Self {
        Self { dialect, info, is_own }
    }
}

impl Codec for ResponsesCodec {
    fn native_schema_obstacle(&self, request: &Request) -> Option<String> {
        let Some(OutputFormat::Schema { schema, .. }) = &request.settings.output else { return None };
        let schema = schema.to_value().ok()?;
        if is_object(&schema) {
            return None;
        }
        // Lowering converts equivalents of an object; the provider rejects anything else.
        lower(&schema, SchemaTarget::OpenAiStrict).unsupported
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let unsupported =
            |message: String| Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        if let Some(what) = request.hosted_tools.iter().find_map(|tool| hosted::obstacle(self.dialect, tool))
        {
            return unsupported(what);
        }
        for edit in &request.context_edits {
            if let (ContextEdit::Compact { .. }, Dialect::OpenAi) = (edit, self.dialect) {
                continue;
            }
            let (provider, others) = match self.dialect {
                Dialect::OpenAi => ("OpenAI", "use Anthropic"),
                Dialect::Xai => ("xAI", "use Anthropic, or OpenAI for `compact`"),
            };
            return unsupported(format!("{provider} has no context edit `{}`: {others}", edit.name()));
        }
        if self.dialect == Dialect::Xai
            && let Some(name) = request.metadata.keys().find(|name| *name != "user_id")
        {
            return unsupported(format!(
                "metadata `{name}` is unsupported: the xAI wire accepts `user_id` only"
            ));
        }
        self.check_parts(request)
    }

    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError> {
        let (body, notices) = encode::encode(self.dialect, &self.info, self.is_own, request, stream)?;
        Ok(Encoded { path: "/v1/responses".to_owned(), headers: Vec::new(), body, notices })
    }

    fn fold(&self) -> AnyFold {
        FoldOf::Responses(ResponseFold::new(self.dialect, self.info.id.clone())).into()
    }

    fn read_body(&self, body: &str) -> Result<Response, ModelError> {
        fold::read_response(self.dialect, &self.info.id, body)
    }

    fn read_error(&self, status: u16, body: &str) -> ModelError {
        error::read_error(status, body).with_model(&self.info.id)
    }
}

impl ResponsesCodec {
    /// Checks that the dialect supports the parts of the conversation.
    fn check_parts(&self, request: &Request) -> Result<(), ModelError> {
        let has_code =
            request.hosted_tools.iter().any(|tool| matches!(tool, HostedTool::CodeExecution { .. }));
        for turn in &request.turns {
            let parts = match turn {
                Turn::User(parts) | Turn::System(parts) => parts.as_slice(),
                Turn::Assistant(_) | Turn::ToolResults(_) => &[],
            };
            for part in parts {
                let message = match part {
                    Part::ContainerFile { .. } if self.dialect == Dialect::OpenAi && !has_code => {
                        "container files need the hosted tool `code_execution`: add it to the request"
                    }
                    Part::Document(media)
                        if self.dialect == Dialect::Xai && matches!(media.source, MediaSource::Base64(_)) =>
                    {
                        "xAI accepts no inline documents: use a URL or an uploaded file"
                    }
                    Part::Image(media) if matches!(media.source, MediaSource::Text(_)) => {
                        "invalid image: expected bytes, a URL or an uploaded file, found text"
                    }
                    _ => continue,
                };
                return Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
            }
        }
        Ok(())
    }
}

/// Whether a model of OpenAI reasons. An unknown name counts as a newer model, which reasons.
///
/// Other models reject requests for encrypted reasoning, and reasoning models reject a temperature.
fn is_reasoning_model(model: &str) -> bool {
    let name = model.strip_prefix("ft:").unwrap_or(model);
    let plain = ["gpt-3", "gpt-4", "chatgpt-", "davinci", "babbage"];
    !plain.iter().any(|start| name.starts_with(start)) && !name.contains("-chat")
}

#[cfg(test)]
mod tests {
    use super::is_reasoning_model;

    #[test]
    fn names_tell_reasoning_models() {
        for name in
            ["gpt-5.6-sol", "gpt-5-mini", "o3", "o4-mini", "gpt-6-luna", "something-new", "codex-mini"]
        {
            assert!(is_reasoning_model(name), "{name}");
        }
        for name in ["gpt-4o", "gpt-4.1-nano", "ft:gpt-4o-mini:x", "chatgpt-4o-latest", "gpt-5-chat-latest"] {
            assert!(!is_reasoning_model(name), "{name}");
        }
    }
}
