//! The wires of the providers, each behind a [`Codec`].
//!
//! A wire encodes a [`Request`] as a body, decodes a stream or a body into a [`Response`], and decodes errors. It opens no
//! connection. [`Wire`] offers the same for recorded traffic.

mod answer_tool;
pub(crate) mod anthropic;
mod bounds;
pub(crate) mod chat;
pub(crate) mod codec;
mod counts;
mod failure;
pub(crate) mod gemini;
pub(crate) mod responses;
mod roles;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use self::answer_tool::AnswerToolCodec;
use self::codec::{Codec, Fold};
use self::responses::{Dialect, ResponsesCodec};
use crate::catalog::ModelInfo;
use crate::fields::MAX_VALUES;
use crate::http::sse::{Decoder, Malformed};
use crate::{ErrorKind, ModelError, ModelEvent, ModelId, RawJson, Request, Response, surrogates};

/// A provider's wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wire {
    /// The Anthropic Messages API.
    Messages,
    /// Gemini's `GenerateContent`.
    GenerateContent,
    /// The OpenAI Responses API.
    Responses,
    /// The Responses API of xAI.
    XaiResponses,
    /// Chat Completions, of many servers.
    ChatCompletions,
}

impl Wire {
    /// Every supported wire.
    pub const ALL: &[Self] =
        &[Self::Messages, Self::GenerateContent, Self::Responses, Self::XaiResponses, Self::ChatCompletions];

    /// The wire's name, for reports: `messages`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::GenerateContent => "generate_content",
            Self::Responses => "responses",
            Self::XaiResponses => "xai_responses",
            Self::ChatCompletions => "chat_completions",
        }
    }

    /// The codec for a model. `is_own` tells the provider itself from other servers with its wire.
    pub(crate) fn codec(self, info: Arc<ModelInfo>, is_own: bool) -> Arc<dyn Codec> {
        let known = Arc::clone(&info);
        let codec: Arc<dyn Codec> = match self {
            Self::Messages => Arc::new(anthropic::MessagesCodec::new(info)),
            Self::GenerateContent => Arc::new(gemini::GenerateCodec::new(info)),
            Self::Responses => Arc::new(ResponsesCodec::new(Dialect::OpenAi, info, is_own)),
            Self::XaiResponses => Arc::new(ResponsesCodec::new(Dialect::Xai, info, is_own)),
            // This codec implements the answer tool itself, because its answers are one message.
            Self::ChatCompletions => return Arc::new(chat::ChatCodec::new(info)),
        };
        Arc::new(AnswerToolCodec::new(codec, self, known))
    }

    /// The provider's types of the hosted tools in a request.
    pub(crate) fn hosted_tool_types(self, info: &ModelInfo, request: &Request) -> Vec<String> {
        match self {
            Self::Messages => anthropic::hosted_types(info, request),
            _ => Vec::new(),
        }
    }

    /// Encodes a request to a model as a body. An unsupported feature is an error.
    pub fn write_body(self, model: &ModelId, request: &Request, stream: bool) -> Result<RawJson, ModelError> {
        let codec = self.codec(Arc::new(ModelInfo::find(model)), true);
        codec.check(request)?;
        codec
            .encode(request, stream)?
            .body
            .into_raw()
            .map_err(|error| ModelError::new(ErrorKind::InvalidRequest, error.to_string()).with_model(model))
    }

    /// Decodes the body of a successful or unsuccessful (`status` at least 400) answer.
    pub fn read_body(self, model: &ModelId, status: u16, body: &str) -> Result<Response, ModelError> {
        let codec = self.codec(Arc::new(ModelInfo::find(model)), true);
        let body = surrogates::replaced(body);
        if status >= 400 { Err(codec.read_error(status, &body)) } else { codec.read_body(&body) }
    }

    /// A fold for one stream of a model.
    pub fn fold(self, model: &ModelId) -> WireFold {
        WireFold {
            decoder: Decoder::default(),
            fold: self.codec(Arc::new(ModelInfo::find(model)), true).fold(),
            model: model.clone(),
        }
    }
}

/// The fold of one stream of any wire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AnyFold {
    fold: FoldOf,
    /// An event that ends within a surrogate pair, until the next event arrives.
    held: Option<String>,
}

/// The folds of the wires.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FoldOf {
    Messages(anthropic::MessageFold),
    GenerateContent(gemini::GenerateFold),
    Responses(responses::ResponseFold),
    Chat(Box<chat::ChatFold>),
}

impl From<FoldOf> for AnyFold {
    fn from(fold: FoldOf) -> Self {
        Self { fold, held: None }
    }
}

impl FoldOf {
    fn wire(&self) -> Wire {
        match self {
            Self::Messages(_) => Wire::Messages,
            Self::GenerateContent(_) => Wire::GenerateContent,
            Self::Responses(_) => Wire::Responses,
            Self::Chat(_) => Wire::ChatCompletions,
        }
    }

    fn inner(&mut self) -> &mut dyn Fold {
        match self {
            Self::Messages(fold) => fold,
            Self::GenerateContent(fold) => fold,
            Self::Responses(fold) => fold,
            Self::Chat(fold) => &mut **fold,
        }
    }

    fn shared(&self) -> &dyn Fold {
        match self {
            Self::Messages(fold) => fold,
            Self::GenerateContent(fold) => fold,
            Self::Responses(fold) => fold,
            Self::Chat(fold) => &**fold,
        }
    }
}

impl AnyFold {
    /// Decodes an event without split surrogate pairs.
    fn take_whole(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let from = events.len();
        self.fold.inner().take(data, events)?;
        answer_tool::convert_events(events, from, self.fold.wire());
        if self.count() > MAX_VALUES {
            let message = format!("the answer has more than {MAX_VALUES} items");
            return Err(ModelError::new(ErrorKind::Protocol, message));
        }
        Ok(())
    }

    /// Decodes the held event and returns the next one, with split surrogate pairs joined.
    fn release<'a>(
        &mut self,
        data: &'a str,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<Cow<'a, str>, ModelError> {
        let Some(held) = self.held.take() else { return Ok(Cow::Borrowed(data)) };
        let joined = surrogates::join(&held, data);
        let (held, data) =
            joined.map_or((held, Cow::Borrowed(data)), |(held, data)| (held, Cow::Owned(data)));
        self.take_whole(&surrogates::replaced(&held), events)?;
        Ok(data)
    }
}

impl Fold for AnyFold {
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let data = self.release(data, events)?;
        let replaced = surrogates::replaced(&data);
        // Replacements are rare, so this is the fast path.
        if matches!(replaced, Cow::Owned(_))
            && surrogates::ends_in_high_surrogate(&data)
            && self.fold.inner().may_continue(&data)
        {
            self.held = Some(data.into_owned());
            return Ok(());
        }
        self.take_whole(&replaced, events)
    }

    fn is_complete(&self) -> bool {
        self.fold.shared().is_complete()
    }

    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Some(held) = self.held.take() {
            self.take_whole(&surrogates::replaced(&held), events)?;
        }
        let from = events.len();
        self.fold.inner().end(events)?;
        answer_tool::convert_events(events, from, self.fold.wire());
        Ok(())
    }

    fn count(&self) -> usize {
        self.fold.shared().count()
    }

    fn finish(&mut self) -> Result<Response, ModelError> {
        let mut response = self.fold.inner().finish()?;
        answer_tool::convert_answer(&mut response, self.fold.wire());
        Ok(response)
    }
}

/// Decodes a stream of server-sent events, without a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct WireFold {
    decoder: Decoder,
    fold: AnyFold,
    model: ModelId,
}

impl WireFold {
    /// Decodes bytes, split anywhere, and appends the completed events.
    pub fn feed(&mut self, bytes: &[u8], events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Self { decoder, fold, .. } = self;
        let fed = decoder.feed(bytes, &mut |data: &str| fold.take(data, events).map_err(Failure::Model));
        fed.map_err(|failure| self.error(failure))
    }

    /// The answer after the last bytes. An incomplete answer is an error.
    pub fn finish(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<Response, ModelError> {
        let Self { decoder, fold, .. } = self;
        let fed = decoder.finish(&mut |data: &str| fold.take(data, events).map_err(Failure::Model));
        fed.map_err(|failure| self.error(failure))?;
        self.fold.end(events)?;
        self.fold.finish()
    }

    fn error(&self, failure: Failure) -> ModelError {
        match failure {
            Failure::Model(error) => error,
            Failure::Malformed(malformed) => {
                ModelError::new(ErrorKind::Protocol, malformed.to_string()).with_model(&self.model)
            }
        }
    }
}

enum Failure {
    Model(ModelError),
    Malformed(Malformed),
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}
