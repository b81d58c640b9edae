//! Servers over streamable HTTP.

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

use super::flight::Arrival;
use super::oauth::{Refusal, Wire};
use super::settings::Settings;

/// What this client calls itself.
pub(super) const AGENT: &str = concat!("toolpost/", env!("CARGO_PKG_VERSION"));

impl Arrival for StreamableHttpError<reqwest::Error> {
    fn surely_did_not_arrive(&self) -> bool {
        match self {
            Self::Client(error) => error.is_connect(),
            // A server that does not know who asks has done nothing.
            Self::Io(error) => Refusal::within(error).is_some(),
            _ => false,
        }
    }
}

/// The address of a server, checked.
pub(super) fn address(url: &str, schemes: &[&str], no_network: bool) -> Result<Url, ToolError> {
    let wrong = |found: &str| {
        let expected = schemes.iter().map(|scheme| format!("`{scheme}://HOST/…`")).collect::<Vec<_>>();
        ToolError::invalid_input(format!(
            "the address of the server: expected {}, found {found}",
            expected.join(" or ")
        ))
    };
    let url = Url::parse(url).map_err(|error| wrong(&format!("no address ({error})")))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("one with a user or a password in it").suggest("Give them as a header instead."));
    }
    if !schemes.contains(&url.scheme()) {
        return Err(wrong(&format!("`{}:`", url.scheme())));
    }
    let Some(host) = url.host_str() else { return Err(wrong("none with a host")) };
    if no_network && !is_this_machine(host) {
        return Err(ToolError::permission(format!(
            "the server at `{host}` may not be connected to: TOOLPOST_NO_NETWORK is set"
        ))
        .suggest("Unset TOOLPOST_NO_NETWORK (`ClientBuilder::no_network`) to allow it."));
    }
    Ok(url)
}

/// A host that needs no name service and leaves no machine.
pub(super) fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => bare.eq_ignore_ascii_case("localhost"),
    }
}

/// A client that follows no redirection: who redirects would be given the headers.
pub(super) fn builder(connect_timeout: Duration) -> Result<reqwest::ClientBuilder, ToolError> {
    Ok(reqwest::Client::builder()
        .tls_backend_preconfigured(tls()?)
        .connect_timeout(connect_timeout)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .user_agent(AGENT))
}

/// How servers prove who they are: by what this machine trusts.
pub(super) fn tls() -> Result<rustls::ClientConfig, ToolError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(rustls::ConfigBuilder::with_platform_verifier)
        .map_err(|error| {
            ToolError::dependency(format!("this machine's certificates cannot be used: {error}"))
        })?;
    Ok(tls.with_no_client_auth())
}

pub(super) fn made(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, ToolError> {
    let failed = |error| ToolError::dependency(format!("the HTTP client cannot be made: {}", cause(&error)));
    builder.build().map_err(failed)
}

/// The transport to a server.
pub(super) fn transport(
    settings: &Settings,
    url: &str,
    headers: &[(String, Secret)],
) -> Result<StreamableHttpClientTransport<Wire>, ToolError> {
    let url = address(url, &["http", "https"], settings.no_network)?;
    let config = StreamableHttpClientTransportConfig::with_uri(url.as_str())
        .custom_headers(header_map(headers)?)
        .max_concurrent_requests(settings.limits.calls)
        .max_sse_event_size(settings.limits.message_bytes);
    let wire = Wire::new(made(builder(settings.connect_timeout)?)?, settings.session.clone());
    Ok(StreamableHttpClientTransport::with_client(wire, config))
}

/// Headers as the library takes them. No error repeats a value.
pub(super) fn header_map(
    headers: &[(String, Secret)],
) -> Result<HashMap<HeaderName, HeaderValue>, ToolError> {
    headers
        .iter()
        .map(|(name, value)| {
            let wrong = |what: &str| ToolError::invalid_input(format!("the header `{name}`: {what}"));
            let key: HeaderName = name.parse().map_err(|_| wrong("its name is none of a header"))?;
            let mut value = HeaderValue::from_str(value.expose())
                .map_err(|_| wrong("its value cannot be sent: expected visible ASCII"))?;
            value.set_sensitive(true);
            Ok((key, value))
        })
        .collect()
}

/// The innermost cause of an error; unlike the outer ones it does not repeat the address, which may hold a secret.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut source = error.source();
    let mut text = None;
    while let Some(error) = source {
        text = Some(error.to_string());
        source = error.source();
    }
    text.unwrap_or_else(|| if error.is_timeout() { "it took too long".into() } else { "it failed".into() })
}
