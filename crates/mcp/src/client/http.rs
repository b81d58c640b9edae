//! The streamable HTTP transport.

use std::collections::HashMap;
use std::error::Error as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use reqwest::Url;
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError};
use rustls_platform_verifier::BuilderVerifierExt as _;
use toolpost_core::{Secret, ToolError};

use super::flight::SendFailure;
use super::oauth::{AuthFailure, AuthorizedClient};
use super::settings::{MAX_CALLS, MAX_MESSAGE_BYTES, Settings};

/// The `User-Agent` of the client.
pub(super) const USER_AGENT: &str = concat!("toolpost/", env!("CARGO_PKG_VERSION"));

impl SendFailure for StreamableHttpError<reqwest::Error> {
    fn is_undelivered(&self) -> bool {
        match self {
            Self::Client(error) => error.is_connect(),
            // A server does not run unauthorized requests.
            Self::Io(error) => AuthFailure::within(error).is_some(),
            _ => false,
        }
    }
}

/// Parses and checks the URL of a server.
pub(super) fn address(url: &str, schemes: &[&str], no_network: bool) -> Result<Url, ToolError> {
    let wrong = |found: &str| {
        let expected = schemes.iter().map(|scheme| format!("`{scheme}://HOST/…`")).collect::<Vec<_>>();
        ToolError::invalid_input(format!(
            "the URL of the server: expected {}, found {found}",
            expected.join(" or ")
        ))
    };
    let url = Url::parse(url).map_err(|error| wrong(&format!("an invalid URL ({error})")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("a URL with a user or password").suggest("Use an `Authorization` header instead."));
    }
    if !schemes.contains(&url.scheme()) {
        return Err(wrong(&format!("`{}:`", url.scheme())));
    }
    let Some(host) = url.host_str() else { return Err(wrong("a URL without a host")) };
    if no_network && !is_loopback(host) {
        return Err(ToolError::permission(format!(
            "connections to `{host}` are blocked by TOOLPOST_NO_NETWORK"
        ))
        .with("rule", "no_network")
        .suggest("Unset TOOLPOST_NO_NETWORK to allow it."));
    }
    Ok(url)
}

/// Whether a host is loopback, without DNS.
pub(super) fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    }
}

/// An HTTP client that follows no redirects, since they would leak headers.
pub(super) fn builder(connect_timeout: Duration) -> Result<reqwest::ClientBuilder, ToolError> {
    Ok(builder_with(connect_timeout, tls()?))
}

fn builder_with(connect_timeout: Duration, tls: rustls::ClientConfig) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .connect_timeout(connect_timeout)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .user_agent(USER_AGENT)
}

/// A TLS configuration with the trust store of the platform.
pub(super) fn tls() -> Result<rustls::ClientConfig, ToolError> {
    let wrong = |error| ToolError::dependency(format!("cannot load the trust store of this host: {error}"));
    let config = tls_builder().and_then(rustls::ConfigBuilder::with_platform_verifier).map_err(wrong)?;
    Ok(config.with_no_client_auth())
}

/// A TLS configuration that trusts no server, for `http:` addresses. An image from scratch has no trust store.
fn no_tls() -> Result<rustls::ClientConfig, ToolError> {
    let builder =
        tls_builder().map_err(|error| ToolError::dependency(format!("cannot configure TLS: {error}")))?;
    Ok(builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth())
}

fn tls_builder() -> Result<rustls::ConfigBuilder<rustls::ClientConfig, rustls::WantsVerifier>, rustls::Error>
{
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

pub(super) fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, ToolError> {
    let failed = |error| ToolError::dependency(format!("cannot create the HTTP client: {}", cause(&error)));
    builder.build().map_err(failed)
}

/// Creates the transport to a server.
pub(super) fn transport(
    settings: &Settings,
    url: &str,
    headers: &[(String, Secret)],
) -> Result<StreamableHttpClientTransport<AuthorizedClient>, ToolError> {
    let url = address(url, &["http", "https"], settings.no_network)?;
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(header_map(headers)?)
        .max_concurrent_requests(MAX_CALLS)
        .max_sse_event_size(MAX_MESSAGE_BYTES);
    let tls = if url.scheme() == "https" { tls()? } else { no_tls()? };
    let client = build(builder_with(settings.connect_timeout, tls))?;
    let client = AuthorizedClient::new(client, settings.session.clone());
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

/// Converts headers. Errors never quote a value.
pub(super) fn header_map(
    headers: &[(String, Secret)],
) -> Result<HashMap<HeaderName, HeaderValue>, ToolError> {
    headers
        .iter()
        .map(|(name, value)| {
            let wrong = |what: &str| ToolError::invalid_input(format!("the header `{name}`: {what}"));
            let key: HeaderName = name.parse().map_err(|_| wrong("invalid header name"))?;
            let mut value =
                HeaderValue::from_str(value.expose()).map_err(|_| wrong("the value is not visible ASCII"))?;
            value.set_sensitive(true);
            Ok((key, value))
        })
        .collect()
}

/// The innermost cause of an error. Outer ones repeat the URL, which may hold a secret.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut source = error.source();
    let mut text = None;
    while let Some(error) = source {
        text = Some(error.to_string());
        source = error.source();
    }
    text.unwrap_or_else(|| if error.is_timeout() { "timed out".into() } else { "failed".into() })
}
