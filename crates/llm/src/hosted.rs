//! A model behind a provider's HTTP API.

use std::sync::Arc;

use futures_util::StreamExt as _;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use toolpost_core::{Clock as _, SystemClock};

use crate::catalog::{self, ModelCatalog, ModelInfo};
use crate::foreign_files::without_foreign_files;
use crate::http::client::{HttpClient, endpoint, unencrypted_host};
use crate::http::exchange::Exchange;
use crate::wires::codec::Codec;
use crate::{
    BoxFuture, ErrorKind, Model, ModelError, ModelId, Provider, ProviderAccess, Request, Response,
    ResponseStream, Secret,
};

/// Fields of the body that provider options must not replace: prices and limits depend on them.
const RESERVED_FIELDS: [&str; 5] = ["model", "messages", "input", "contents", "stream"];

/// A model behind a provider's HTTP API.
#[derive(Debug)]
pub struct HostedModel {
    info: Arc<ModelInfo>,
    catalog: Arc<ModelCatalog>,
    codec: Arc<dyn Codec>,
    client: HttpClient,
    provider: &'static Provider,
    /// The base URL without a trailing slash and version.
    base: String,
    key: Option<Secret>,
    betas: Vec<String>,
}

impl HostedModel {
    /// A provider's model by name, such as `claude-sonnet-5-5`.
    ///
    /// # Errors
    /// The base URL or the API key is missing or invalid.
    pub fn new(
        provider: &'static Provider,
        name: impl Into<String>,
        access: ProviderAccess,
        client: HttpClient,
    ) -> Result<Self, ModelError> {
        Self::with_catalog(provider, name, access, client, Arc::clone(ModelCatalog::built_in()))
    }

    /// A provider's model by name, with a catalog of the caller.
    pub fn with_catalog(
        provider: &'static Provider,
        name: impl Into<String>,
        access: ProviderAccess,
        client: HttpClient,
        catalog: Arc<ModelCatalog>,
    ) -> Result<Self, ModelError> {
        let info = Arc::new(catalog.find(&ModelId::new(provider.name, name)));
        let base = provider
            .resolve_base_url(access.base_url.as_deref())
            .map_err(|error| error.with_model(&info.id))?;
        let key = provider.resolve_key(access.key).map_err(|error| error.with_model(&info.id))?;
        // A gateway may reject extensions that the provider itself accepts.
        let is_own = provider.base_url == Some(base.as_str());
        let codec = provider.wire.codec(Arc::clone(&info), is_own);
        Ok(Self { info, catalog, codec, client, provider, base, key, betas: access.betas })
    }

    fn exchange(&self, request: &Request, stream: bool) -> Result<Exchange, ModelError> {
        let (request, mut notices) = without_foreign_files(&self.info.id.provider, request);
        self.check(&request)?;
        let (request, changed) = catalog::adapt(&self.info, &request);
        notices.extend(self.info.retirement(SystemClock.timestamp()));
        notices.extend(changed);
        let encoded = self.codec.encode(&request, stream)?;
        notices.extend(encoded.notices);
        let headers = self.headers(&request, &encoded.headers)?;
        let url: Url = endpoint(&format!("{}{}", self.base, encoded.path))
            .map_err(|error| error.with_model(&self.info.id))?;
        if let (Some(host), Some(_)) = (unencrypted_host(&url), &self.key) {
            notices
                .push(format!("the API key is sent to `{host}` without encryption: use an `https:` address"));
        }
        Ok(Exchange {
            client: self.client.clone(),
            codec: Arc::clone(&self.codec),
            model: self.info.id.clone(),
            url,
            headers,
            body: encoded.body.into_bytes().into(),
            secrets: self.client.options().proxy.iter().chain(&self.key).cloned().collect(),
            notices,
        })
    }

    fn headers(
        &self,
        request: &Request,
        wire_headers: &[(&'static str, String)],
    ) -> Result<HeaderMap, ModelError> {
        let invalid = |what: &str| {
            let message = format!("{what} has characters that are invalid in an HTTP header");
            ModelError::new(ErrorKind::Configuration, message).with_model(&self.info.id)
        };
        let mut headers = HeaderMap::new();
        if let Some(key) = &self.key {
            let (name, value) = self.provider.key.header(key);
            let mut value = HeaderValue::from_str(&value).map_err(|_| invalid("the API key"))?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(name), value);
        }
        // The wire's own features come first.
        let mut betas: Vec<&str> = Vec::new();
        for (name, value) in wire_headers {
            if Some(*name) == self.provider.beta_header {
                betas.push(value);
                continue;
            }
            let value = HeaderValue::from_str(value).map_err(|_| invalid("a header of the wire"))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        for beta in self.betas.iter().chain(&request.betas) {
            if !betas.contains(&beta.as_str()) {
                betas.push(beta);
            }
        }
        if let Some(name) = self.provider.beta_header.filter(|_| !betas.is_empty()) {
            let value = HeaderValue::from_str(&betas.join(",")).map_err(|_| invalid("a beta"))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        Ok(headers)
    }
}

impl Model for HostedModel {
    fn id(&self) -> &ModelId {
        &self.info.id
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let invalid = |message: &str| {
            Err(ModelError::new(ErrorKind::InvalidRequest, message).with_model(&self.info.id))
        };
        let (request, _) = without_foreign_files(&self.info.id.provider, request);
        let request = &*request;
        if request.turns.is_empty() {
            return invalid("the request has no turns: add at least one");
        }
        if request.settings.max_output_tokens == Some(0) {
            return invalid("`max_output_tokens`: expected at least 1, found 0");
        }
        if let Some(name) = RESERVED_FIELDS.iter().find(|name| request.provider_options.contains_key(**name))
        {
            return invalid(&format!(
                "the provider option `{name}` would replace a field of the request: remove the option"
            ));
        }
        if let (None, Some(beta)) = (self.provider.beta_header, request.betas.first()) {
            let message =
                format!("the beta `{beta}` is unsupported: {} has no beta header", self.provider.name);
            return Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        }
        catalog::check(&self.catalog, &self.info, request, self.codec.emulates())?;
        self.codec.check(request)
    }

    fn info(&self) -> Option<&ModelInfo> {
        Some(&self.info)
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
