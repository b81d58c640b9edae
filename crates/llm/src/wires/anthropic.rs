//! The Anthropic Messages API.

mod breakpoints;
mod container;
mod encode;
pub(super) mod error;
mod features;
mod fold;
mod tools;
mod view;

use std::sync::Arc;

use super::codec::{Codec, Encoded};
use super::{AnyFold, FoldOf};
use crate::catalog::ModelInfo;
use crate::{ErrorKind, ModelError, Request, Response, Thinking, ToolChoice, Turn};

pub(crate) use self::fold::MessageFold;
pub(crate) use self::tools::hosted_types;

/// The supported version of the wire.
pub(crate) const VERSION: &str = "2023-06-01";

/// The header for beta features.
pub(crate) const BETA_HEADER: &str = "anthropic-beta";

/// The wire for one model.
#[derive(Debug)]
pub(crate) struct MessagesCodec {
    info: Arc<ModelInfo>,
}

impl MessagesCodec {
    pub(crate) fn new(info: Arc<ModelInfo>) -> Self {
        Self { info }
    }
}

impl Codec for MessagesCodec {
    fn native_schema_obstacle(&self, request: &Request) -> Option<String> {
        encode::native_schema_obstacle(request.settings.output.as_ref())
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        if let Some(user) = request.metadata.keys().find(|name| *name != "user_id") {
            let message =
                format!("metadata `{user}` is unsupported: the Anthropic wire accepts `user_id` only");
            return Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        }
        // Adaptive thinking works with forced calls, as recorded requests show.
        if matches!(request.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_)))
            && matches!(request.settings.thinking, Some(Thinking::Budget(_)))
        {
            let message = "a forced tool call is unsupported with a thinking budget: \
                           turn thinking off, use adaptive thinking, or set `tool_choice` to `auto`";
            return Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        }
        for tool in &request.hosted_tools {
            tools::tool_type(&self.info, tool, request)?;
        }
        if !tools::files(request).is_empty()
            && !request.turns.iter().any(|turn| matches!(turn, Turn::User(_)))
        {
            let message = "files of `code_execution` need a user turn: add one";
            return Err(ModelError::new(ErrorKind::InvalidRequest, message).with_model(&self.info.id));
        }
        Ok(())
    }

    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError> {
        let (body, notices) = encode::encode(&self.info, request, stream)?;
        let mut headers = vec![("anthropic-version", VERSION.to_owned())];
        let betas = tools::betas(&self.info, request);
        headers.extend(betas.into_iter().map(|beta| (BETA_HEADER, beta.to_owned())));
        Ok(Encoded { path: "/v1/messages".to_owned(), headers, body, notices })
    }

    fn fold(&self) -> AnyFold {
        FoldOf::Messages(MessageFold::new(self.info.id.clone())).into()
    }

    fn read_body(&self, body: &str) -> Result<Response, ModelError> {
        fold::read_message(&self.info.id, body)
    }

    fn read_error(&self, status: u16, body: &str) -> ModelError {
        error::read_error(status, body).with_model(&self.info.id)
    }
}
