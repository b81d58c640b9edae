//! The wires: what providers speak, each behind a [`Codec`].
//!
//! A wire writes a [`Request`] as a body, folds a stream or reads a body to a [`Response`], and reads errors. It makes
//! no connection: that is `http`'s. [`Wire`] offers the same to who has recorded traffic and no provider.

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

use self::answer_tool::ByAnswerTool;
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
    /// The Responses API in the form of xAI.
    XaiResponses,
    /// Chat Completions, as many servers speak it.
    ChatCompletions,
}

impl Wire {
    /// Every wire that this crate speaks.
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

    /// The codec for a model, of which this is known. `is_own` says whether the provider itself is asked, and not another
    /// server that speaks its wire.
    pub(crate) fn codec(self, info: Arc<ModelInfo>, is_own: bool) -> Arc<dyn Codec> {
        let known = Arc::clone(&info);
        let codec: Arc<dyn Codec> = match self {
            Self::Messages => Arc::new(anthropic::MessagesCodec::new(info)),
            Self::GenerateContent => Arc::new(gemini::GenerateCodec::new(info)),
            Self::Responses => Arc::new(ResponsesCodec::new(Dialect::OpenAi, info, is_own)),
            Self::XaiResponses => Arc::new(ResponsesCodec::new(Dialect::Xai, info, is_own)),
            // It has a way with the tool of its own: answers are one message.
            Self::ChatCompletions => return Arc::new(chat::ChatCodec::new(info)),
        };
        Arc::new(ByAnswerTool::new(codec, self, known))
    }

    /// The provider's types of the hosted tools in a request.
    pub(crate) fn hosted_tool_types(self, info: &ModelInfo, request: &Request) -> Vec<String> {
        match self {
            Self::Messages => anthropic::hosted_types(info, request),
            _ => Vec::new(),
        }
    }

    /// The body that a request to a model at its provider has. An error if the wire lacks what the request needs.
    pub fn write_body(self, model: &ModelId, request: &Request, stream: bool) -> Result<RawJson, ModelError> {
        let codec = self.codec(Arc::new(ModelInfo::find(model)), true);
        codec.check(request)?;
        codec
            .encode(request, stream)?
            .body
            .into_raw()
            .map_err(|error| ModelError::new(ErrorKind::InvalidRequest, error.to_string()).with_model(model))
    }

    /// Reads a whole body of an unsuccessful (`status` at least 400) or successful answer.
    pub fn read_body(self, model: &ModelId, status: u16, body: &str) -> Result<Response, ModelError> {
        let codec = self.codec(Arc::new(ModelInfo::find(model)), true);
        let body = surrogates::replaced(body);
        if status >= 400 { Err(codec.read_error(status, &body)) } else { codec.read_body(&body) }
    }

    /// A fold for one stream of a model's answer.
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
    /// An event that ends within a character, until the next one has come, which may have the rest of it.
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
    /// Takes an event in, of which no character is cut any more.
    fn take_whole(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let from = events.len();
        self.fold.inner().take(data, events)?;
        answer_tool::take_events(events, from, self.fold.wire());
        if self.count() > MAX_VALUES {
            let message = format!("the answer has more than {MAX_VALUES} items");
            return Err(ModelError::new(ErrorKind::Protocol, message));
        }
        Ok(())
    }

    /// Takes the event in that was held back, and gives the next one, each with the halves that it is to have.
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
        // That something was replaced is rare, and looked into only then.
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
        answer_tool::take_events(events, from, self.fold.wire());
        Ok(())
    }

    fn count(&self) -> usize {
        self.fold.shared().count()
    }

    fn finish(&mut self) -> Result<Response, ModelError> {
        let mut response = self.fold.inner().finish()?;
        answer_tool::take_answer(&mut response, self.fold.wire());
        Ok(response)
    }
}

/// Reads the bytes of a stream of server-sent events, without a connection.
#[derive(Clone, Debug, PartialEq)]
pub struct WireFold {
    decoder: Decoder,
    fold: AnyFold,
    model: ModelId,
}

impl WireFold {
    /// Takes bytes in, cut anywhere, and appends what they complete.
    pub fn feed(&mut self, bytes: &[u8], events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Self { decoder, fold, .. } = self;
        let fed = decoder.feed(bytes, &mut |data: &str| fold.take(data, events).map_err(Failure::Model));
        fed.map_err(|failure| self.error(failure))
    }

    /// The answer, after the last bytes. An error if it is not complete.
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
