//! A model behind a provider's HTTP interface.

use std::sync::Arc;

use futures_util::StreamExt as _;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use toolpost_core::{Clock as _, SystemClock};

use crate::catalog::{self, Catalog, ModelInfo};
use crate::foreign::without_foreign_files;
use crate::http::client::{HttpClient, endpoint, unencrypted_host};
use crate::http::exchange::Exchange;
use crate::wires::codec::Codec;
use crate::{
    BoxFuture, ErrorKind, Model, ModelError, ModelId, Provider, ProviderAccess, Request, Response,
    ResponseStream, Secret,
};

/// Fields of providers' bodies that are the request's own and no options: prices and limits go by them.
const OWN_FIELDS: [&str; 5] = ["model", "messages", "input", "contents", "stream"];

/// A model behind a provider's HTTP interface.
#[derive(Debug)]
pub struct HostedModel {
    info: Arc<ModelInfo>,
    catalog: Arc<Catalog>,
    codec: Arc<dyn Codec>,
    client: HttpClient,
    provider: &'static Provider,
    /// The base URL without a final slash or version.
    base: String,
    key: Option<Secret>,
    betas: Vec<String>,
}

impl HostedModel {
    /// The model of a name, such as `claude-sonnet-5-5`, at a provider. An error if the base URL or the key is missing
    /// or cannot be used.
    pub fn new(
        provider: &'static Provider,
        name: impl Into<String>,
        access: ProviderAccess,
        client: HttpClient,
    ) -> Result<Self, ModelError> {
        Self::with_catalog(provider, name, access, client, Arc::clone(Catalog::built_in()))
    }

    /// The same, with what a catalog of the caller knows of models.
    pub fn with_catalog(
        provider: &'static Provider,
        name: impl Into<String>,
        access: ProviderAccess,
        client: HttpClient,
        catalog: Arc<Catalog>,
    ) -> Result<Self, ModelError> {
        let info = Arc::new(catalog.find(&ModelId::new(provider.name, name)));
        let base = provider.base(access.base_url.as_deref()).map_err(|error| error.with_model(&info.id))?;
        let key = provider.usable(access.key).map_err(|error| error.with_model(&info.id))?;
        // What a provider takes beyond its wire, a gateway may refuse.
        let is_own = provider.base_url == Some(base.as_str());
        let codec = provider.wire.codec(Arc::clone(&info), is_own);
        Ok(Self { info, catalog, codec, client, provider, base, key, betas: access.betas })
    }

    fn exchange(&self, request: &Request, stream: bool) -> Result<Exchange, ModelError> {
        let (request, mut notices) = without_foreign_files(&self.info.id.provider, request);
        self.check(&request)?;
        let (request, changed) = catalog::fit(&self.info, &request);
        notices.extend(self.info.retirement(SystemClock.timestamp()));
        notices.extend(changed);
        let encoded = self.codec.encode(&request, stream)?;
        notices.extend(encoded.notices);
        let headers = self.headers(&request, &encoded.headers)?;
        let url: Url = endpoint(&format!("{}{}", self.base, encoded.path))
            .map_err(|error| error.with_model(&self.info.id))?;
        if let (Some(host), Some(_)) = (unencrypted_host(&url), &self.key) {
            notices
                .push(format!("the key goes to `{host}` without encryption: use an address with `https:`"));
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
        of_wire: &[(&'static str, String)],
    ) -> Result<HeaderMap, ModelError> {
        let refused = |what: &str| {
            let message = format!("{what} has characters that no HTTP header can carry");
            ModelError::new(ErrorKind::Configuration, message).with_model(&self.info.id)
        };
        let mut headers = HeaderMap::new();
        if let Some(key) = &self.key {
            let (name, value) = self.provider.key.header(key);
            let mut value = HeaderValue::from_str(&value).map_err(|_| refused("the key"))?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(name), value);
        }
        // Features that the wire itself needs stand first.
        let mut betas: Vec<&str> = Vec::new();
        for (name, value) in of_wire {
            if Some(*name) == self.provider.beta_header {
                betas.push(value);
                continue;
            }
            let value = HeaderValue::from_str(value).map_err(|_| refused("a header of the wire"))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        for beta in self.betas.iter().chain(&request.betas) {
            if !betas.contains(&beta.as_str()) {
                betas.push(beta);
            }
        }
        if let Some(name) = self.provider.beta_header.filter(|_| !betas.is_empty()) {
            let value = HeaderValue::from_str(&betas.join(",")).map_err(|_| refused("a beta's name"))?;
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
            return invalid("the request has no turns. Expected at least one");
        }
        if request.settings.max_output_tokens == Some(0) {
            return invalid("max_output_tokens: expected at least 1, found 0");
        }
        if let Some(name) = OWN_FIELDS.iter().find(|name| request.provider_options.contains_key(**name)) {
            return invalid(&format!(
                "the provider option `{name}` would replace what the request says itself, and what its price and limits go by: leave it out"
            ));
        }
        if let (None, Some(beta)) = (self.provider.beta_header, request.betas.first()) {
            let message = format!("the beta `{beta}`: {} has no header for betas", self.provider.name);
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
