//! Chat Completions, as many servers speak it.
//!
//! The wire has one message for an answer; [`message`] takes it apart into items and puts it together again. What no
//! message of this wire can carry is an error before anything is sent, or a notice.
//!
//! A server that cannot keep an answer to a schema can be asked by way of a tool: the provider option
//! `"structured_output": "tool"` replaces `response_format` by a tool that the model must call, and the arguments of
//! the call are the text of the answer. The option itself is not sent. Models that are known to lack answers of a schema
//! are asked so without the option; `"structured_output": "native"` forbids it.

mod body;
mod chunk;
mod encode;
mod error;
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
        // By a tool that must be called: a model without tools has none of it.
        if self.info.has(Feature::Tools) == Some(false) { &[] } else { &[Feature::StructuredOutput] }
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let unsupported =
            |message: String| Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        if let Some(tool) = request.hosted_tools.iter().find(|tool| !matches!(tool, HostedTool::Raw(_))) {
            return unsupported(format!(
                "the hosted tool `{}`: the Chat Completions wire has none; use a provider that runs it, or a tool of \
                 your own",
                tool.name()
            ));
        }
        if let Some(edit) = request.context_edits.first() {
            return unsupported(format!(
                "`{}` of a long conversation: the Chat Completions wire has no such thing; Anthropic does it, and OpenAI \
                 sums up",
                edit.name()
            ));
        }
        check_option(request).or_else(unsupported)?;
        let said = request.turns.iter().filter_map(|turn| match turn {
            Turn::User(parts) | Turn::System(parts) => Some(parts),
            _ => None,
        });
        match said.flatten().find_map(parts::obstacle) {
            Some(message) => unsupported(message),
            None => Ok(()),
        }
    }

    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError> {
        let (body, notices) = encode::encode(&self.info, request, stream)?;
        // A base URL of any server says where its version is, as for the library of OpenAI; of the servers with rows
        // of their own it is known.
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
