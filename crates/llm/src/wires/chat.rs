//! Chat Completions, of many servers.
//!
//! An answer of this wire is one message. [`message`] splits it into items and joins them again. Content that the wire
//! cannot represent is an error before the request, or a notice.
//!
//! The provider option `"structured_output": "tool"` replaces `response_format` by a forced call of the answer tool. Models
//! without native structured output use the tool by default; `"structured_output": "native"` forbids it. The option is not
//! sent.

mod body;
mod chunk;
mod encode;
pub(super) mod error;
mod fold;
mod message;
mod parts;

use std::sync::Arc;

use super::answer_tool::{ANSWER_TOOL, DESCRIPTION, STRUCTURED_OUTPUT, check_option};
use super::codec::{Codec, Encoded};
use super::{AnyFold, FoldOf};
use crate::catalog::ModelInfo;
use crate::{ErrorKind, Feature, HostedTool, ModelError, Request, Response, Turn};

pub(crate) use self::encode::write_messages;
pub(crate) use self::fold::ChatFold;
pub(crate) use self::message::items_of;

/// The wire for one model.
#[derive(Debug)]
pub(crate) struct ChatCodec {
    info: Arc<ModelInfo>,
}

impl ChatCodec {
    pub(crate) fn new(info: Arc<ModelInfo>) -> Self {
        Self { info }
    }
}

impl Codec for ChatCodec {
    fn emulates(&self) -> &'static [Feature] {
        // The answer tool needs a model with tools.
        if self.info.has(Feature::Tools) == Some(false) { &[] } else { &[Feature::StructuredOutput] }
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let unsupported =
            |message: String| Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        if let Some(tool) = request.hosted_tools.iter().find(|tool| !matches!(tool, HostedTool::Raw(_))) {
            return unsupported(format!(
                "the Chat Completions wire has no hosted tool `{}`: use another provider or a local tool",
                tool.name()
            ));
        }
        if let Some(edit) = request.context_edits.first() {
            return unsupported(format!(
                "the Chat Completions wire has no context edit `{}`: use Anthropic, or OpenAI for `compact`",
                edit.name()
            ));
        }
        check_option(request).or_else(unsupported)?;
        let parts = request.turns.iter().filter_map(|turn| match turn {
            Turn::User(parts) | Turn::System(parts) => Some(parts),
            _ => None,
        });
        match parts.flatten().find_map(parts::obstacle) {
            Some(message) => unsupported(message),
            None => Ok(()),
        }
    }

    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError> {
        let (body, notices) = encode::encode(&self.info, request, stream)?;
        // The base URL of `openai-compatible` includes the version, as in OpenAI's client library.
        let path = if self.info.id.provider == "openai-compatible" { "" } else { "/v1" };
        Ok(Encoded { path: format!("{path}/chat/completions"), headers: Vec::new(), body, notices })
    }

    fn fold(&self) -> AnyFold {
        FoldOf::Chat(Box::new(ChatFold::new(self.info.id.clone()))).into()
    }

    fn read_body(&self, body: &str) -> Result<Response, ModelError> {
        body::read_completion(&self.info.id, body)
    }

    fn read_error(&self, status: u16, body: &str) -> ModelError {
        error::read_error(status, body).with_model(&self.info.id)
    }
}
#[cfg(test)]
mod tests;
