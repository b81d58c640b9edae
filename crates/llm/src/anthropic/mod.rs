//! The Anthropic Messages API.

mod encode;
mod error;
mod fold;
mod view;

use std::sync::Arc;

use futures_util::StreamExt as _;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::exchange::Exchange;
use crate::http::{HttpClient, endpoint};
use crate::wire::{Fold, Wire};
use crate::{
    BoxFuture, ErrorKind, Model, ModelError, ModelId, RawJson, Request, Response, ResponseStream, Secret,
};

pub use folding::AnthropicFold;

/// Where the provider answers.
pub const ANTHROPIC_BASE_URL: &str = "https://api.anthropic.com";

/// The version of the wire that this crate speaks.
const VERSION: &str = "2023-06-01";

/// How to reach the Anthropic Messages API.
#[derive(Clone, Debug)]
pub struct AnthropicOptions {
    /// The key, sent as `x-api-key`.
    pub key: Secret,
    /// The address before `/v1/messages`; a final `/v1` is understood. Default: [`ANTHROPIC_BASE_URL`].
    pub base_url: String,
    /// Beta features for every request, sent as `anthropic-beta` together with the request's own.
    pub betas: Vec<String>,
}

impl AnthropicOptions {
    /// The provider's own address, with this key and no beta features.
    pub fn new(key: Secret) -> Self {
        Self { key, base_url: ANTHROPIC_BASE_URL.to_owned(), betas: Vec::new() }
    }
}

/// A model behind the Anthropic Messages API.
#[derive(Debug)]
pub struct Anthropic {
    id: ModelId,
    wire: Arc<dyn Wire>,
    client: HttpClient,
    url: Url,
    key: Secret,
    betas: Vec<String>,
}

impl Anthropic {
    /// The model of a name, such as `claude-sonnet-5-5`. An error if the base URL or the key cannot be used.
    pub fn new(
        name: impl Into<String>,
        options: AnthropicOptions,
        client: HttpClient,
    ) -> Result<Self, ModelError> {
        let id = ModelId::new(encode::PROVIDER, name);
        let base = options.base_url.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let url = endpoint(&format!("{base}/v1/messages")).map_err(|error| error.with_model(&id))?;
        if options.key.expose().is_empty() {
            let message = "no key was given. Expected one in ANTHROPIC_API_KEY or in the configuration";
            return Err(ModelError::new(ErrorKind::Auth, message).with_model(&id));
        }
        let wire = Arc::new(MessagesWire { origin: id.clone() });
        Ok(Self { id, wire, client, url, key: options.key, betas: options.betas })
    }

    fn exchange(&self, request: &Request, stream: bool) -> Result<Exchange, ModelError> {
        self.check(request)?;
        let encoded = encode::encode(&self.id, request, stream)?;
        Ok(Exchange {
            client: self.client.clone(),
            wire: Arc::clone(&self.wire),
            model: self.id.clone(),
            url: self.url.clone(),
            headers: self.headers(request)?,
            body: encoded.body.into_bytes().into(),
            secrets: self.client.options().proxy.iter().chain([&self.key]).cloned().collect(),
            notices: encoded.notices,
        })
    }

    fn headers(&self, request: &Request) -> Result<HeaderMap, ModelError> {
        let refused = |what: &str| {
            let message = format!("{what} has characters that no HTTP header can carry");
            ModelError::new(ErrorKind::Configuration, message).with_model(&self.id)
        };
        let mut headers = HeaderMap::new();
        let mut key = HeaderValue::from_str(self.key.expose()).map_err(|_| refused("the key"))?;
        key.set_sensitive(true);
        headers.insert(HeaderName::from_static("x-api-key"), key);
        headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static(VERSION));
        let mut betas: Vec<&str> = Vec::new();
        for beta in self.betas.iter().chain(&request.betas) {
            if !betas.contains(&beta.as_str()) {
                betas.push(beta);
            }
        }
        if !betas.is_empty() {
            let value = HeaderValue::from_str(&betas.join(",")).map_err(|_| refused("a beta's name"))?;
            headers.insert(HeaderName::from_static("anthropic-beta"), value);
        }
        Ok(headers)
    }
}

impl Model for Anthropic {
    fn id(&self) -> &ModelId {
        &self.id
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let refused =
            |kind: ErrorKind, message: String| Err(ModelError::new(kind, message).with_model(&self.id));
        if request.turns.is_empty() {
            return refused(
                ErrorKind::InvalidRequest,
                "the request has no turns. Expected at least one".to_owned(),
            );
        }
        if request.settings.max_output_tokens == Some(0) {
            return refused(
                ErrorKind::InvalidRequest,
                "max_output_tokens: expected at least 1, found 0".to_owned(),
            );
        }
        if let Some(user) = request.metadata.keys().find(|name| *name != "user_id") {
            let message = format!("metadata `{user}`: the Anthropic wire takes `user_id` alone");
            return refused(ErrorKind::Unsupported, message);
        }
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        match self.exchange(request, true) {
            Ok(exchange) => exchange.stream(),
            Err(error) => futures_util::stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Response, ModelError>> {
        Box::pin(async move { self.exchange(request, false)?.respond().await })
    }
}

#[derive(Debug)]
struct MessagesWire {
    origin: ModelId,
}

impl Wire for MessagesWire {
    fn fold(&self) -> Box<dyn Fold> {
        Box::new(fold::MessageFold::new(self.origin.clone()))
    }

    fn read_body(&self, body: &str) -> Result<Response, ModelError> {
        fold::read_message(&self.origin, body)
    }

    fn read_error(&self, status: u16, body: &str) -> ModelError {
        error::read_error(status, body).with_model(&self.origin)
    }
}

/// The parts of the wire that need no connection, for tools that read recorded traffic.
mod folding {
    use std::collections::VecDeque;

    use super::{ModelError, ModelId, RawJson, Request, Response, encode, error, fold};
    use crate::ModelEvent;
    use crate::sse::{Decoder, Malformed};
    use crate::wire::Fold as _;

    /// Reads the bytes of a Messages stream, without a connection.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AnthropicFold {
        decoder: Decoder,
        fold: fold::MessageFold,
        origin: ModelId,
    }

    impl AnthropicFold {
        /// A fold of the answer of a model of this name.
        pub fn new(model: &str) -> Self {
            let origin = ModelId::new(encode::PROVIDER, model);
            Self { decoder: Decoder::default(), fold: fold::MessageFold::new(origin.clone()), origin }
        }

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
            self.fold.finish()
        }

        fn error(&self, failure: Failure) -> ModelError {
            match failure {
                Failure::Model(error) => error,
                Failure::Malformed(malformed) => {
                    ModelError::new(crate::ErrorKind::Protocol, malformed.to_string())
                        .with_model(&self.origin)
                }
            }
        }

        /// Reads a whole body of an unsuccessful (`status` at least 400) or successful answer.
        pub fn read_body(model: &str, status: u16, body: &str) -> Result<Response, ModelError> {
            let origin = ModelId::new(encode::PROVIDER, model);
            if status >= 400 {
                return Err(error::read_error(status, body).with_model(&origin));
            }
            fold::read_message(&origin, body)
        }

        /// The body that a request to a model of this name has.
        pub fn write_body(model: &str, request: &Request, stream: bool) -> Result<RawJson, ModelError> {
            let id = ModelId::new(encode::PROVIDER, model);
            let encoded = encode::encode(&id, request, stream)?;
            encoded.body.into_raw().map_err(|error| {
                ModelError::new(crate::ErrorKind::InvalidRequest, error.to_string()).with_model(&id)
            })
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
}
