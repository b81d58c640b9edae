//! The Anthropic Messages API.

mod encode;
mod error;
mod fold;
mod view;

use std::sync::Arc;

use super::AnyFold;
use super::codec::{Codec, Encoded};
use crate::catalog::ModelInfo;
use crate::{ErrorKind, HostedTool, ModelError, OutputFormat, Request, Response};

pub(crate) use self::fold::MessageFold;

/// The version of the wire that this crate speaks.
const VERSION: &str = "2023-06-01";

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
    fn check(&self, request: &Request) -> Result<(), ModelError> {
        if let Some(user) = request.metadata.keys().find(|name| *name != "user_id") {
            let message = format!("metadata `{user}`: the Anthropic wire takes `user_id` alone");
            return Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        }
        let unsupported =
            |message: String| Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        if let Some(tool) = request.hosted_tools.iter().find(|tool| !matches!(tool, HostedTool::Raw(_))) {
            return unsupported(format!("the hosted tool `{}` is not written on this wire yet", tool.name()));
        }
        if request.settings.output == Some(OutputFormat::Json) {
            return unsupported("answers of any JSON: the Anthropic wire wants a schema".to_owned());
        }
        Ok(())
    }

    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError> {
        let (body, notices) = encode::encode(&self.info, request, stream)?;
        let headers = vec![("anthropic-version", VERSION.to_owned())];
        Ok(Encoded { path: "/v1/messages".to_owned(), headers, body, notices })
    }

    fn fold(&self) -> AnyFold {
        AnyFold::Messages(MessageFold::new(self.info.id.clone()))
    }

    fn read_body(&self, body: &str) -> Result<Response, ModelError> {
        fold::read_message(&self.info.id, body)
    }

    fn read_error(&self, status: u16, body: &str) -> ModelError {
        error::read_error(status, body).with_model(&self.info.id)
    }
}
