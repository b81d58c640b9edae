//! One exchange with its redirects, each of whose addresses is checked before the connection.

use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use percent_encoding::percent_decode_str;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{
    ACCEPT, ACCEPT_LANGUAGE, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap,
    HeaderName, HeaderValue, LOCATION, RANGE, TRANSFER_ENCODING, USER_AGENT,
};
use reqwest::{Method, StatusCode, Url};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use toolpost::{Ctx, Hint, Suggestion, ToolError};
use toolpost_sandbox::{AddressRule, address_rule};

use super::HttpSettings;
use super::secrets::without_credentials;
use crate::call_limits::CallLimits;

/// Maximum number of addresses per host name.
const MAX_ADDRESSES: usize = 64;

/// An HTTP request.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingRequest {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Vec<u8>>,
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// Final URL.
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    /// Whether the body is truncated.
    pub(crate) truncated: bool,
    /// The URLs before `url`.
    pub(crate) redirects: Vec<Url>,
}

/// The HTTP client of one call.
pub(crate) struct Session<'a> {
    settings: &'a HttpSettings,
    client: reqwest::Client,
    pinned: Arc<Pinned>,
    limits: CallLimits,
}

/// A resolver that knows only checked addresses.
#[derive(Default)]
struct Pinned(Mutex<HashMap<String, Vec<SocketAddr>>>);

impl Resolve for Pinned {
    fn resolve(&self, name: Name) -> Resolving {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name.as_str()).cloned();
        Box::pin(async move {
            let addresses = known.ok_or("the name was not checked before the connection")?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Accepts every certificate; handshake signatures are still verified.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn tls(settings: &HttpSettings, verify: bool) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = if verify {
        let extra = settings.extra_authorities.iter().map(|der| CertificateDer::from(der.clone()));
        Arc::new(rustls_platform_verifier::Verifier::new_with_extra_roots(extra, Arc::clone(&provider))?)
    } else {
        Arc::new(AnyCertificate(Arc::clone(&provider)))
    };
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

impl<'a> Session<'a> {
    /// Creates a session without connections. `verify` enables certificate verification.
    pub(crate) fn new(settings: &'a HttpSettings, verify: bool) -> Result<Self, ToolError> {
        if !verify && !settings.allow_unverified_tls {
            return Err(ToolError::permission("`verify_ssl` is false, but certificate verification is required")
                .with("pointer", "/verify_ssl")
                .with("rule", "tls_verification")
                .suggest(
                    "Omit `verify_ssl`. To trust your own authority, add its certificate to this machine's (or to \
                     `SSL_CERT_FILE`). Only an application in code can disable verification \
                     (`HttpSettings::allow_unverified_tls`).",
                ));
        }
        let unusable = |error: &dyn Error| {
            ToolError::precondition(format!("cannot use this machine's certificates: {error}")).suggest(
                "Install the certificates of authorities (`ca-certificates`), or set `SSL_CERT_FILE`.",
            )
        };
        let tls = tls(settings, verify).map_err(|error| unusable(&error))?;
        let pinned = Arc::new(Pinned::default());
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            // Redirects are followed here, after a check.
            .redirect(reqwest::redirect::Policy::none())
            // A proxy from the environment would connect to unchecked addresses.
            .no_proxy()
            .user_agent(concat!("toolpost/", env!("CARGO_PKG_VERSION")))
            .dns_resolver(Arc::clone(&pinned))
            .build()
            .map_err(|error| unusable(&error))?;
        Ok(Self { settings, client, pinned, limits: CallLimits::default() })
    }

    /// Counts its requests against the limits of a call.
    pub(crate) fn counted(self, ctx: &Ctx) -> Self {
        Self { limits: CallLimits::from_ctx(ctx), ..self }
    }

    /// Sends a request, optionally follows its redirects, and reads the body up to the limit.
    pub(crate) async fn exchange(
        &self,
        mut request: OutgoingRequest,
        follow: bool,
    ) -> Result<Answer, ToolError> {
        let mut redirects = Vec::new();
        loop {
            self.admit(&request.url).await.map_err(|error| match redirects.last() {
                Some(from) => error.with("redirected_from", without_credentials(from)),
                None => error,
            })?;
            self.limits.count_request()?;
            let mut sent = self.client.request(request.method.clone(), request.url.clone());
            sent = sent.headers(request.headers.clone());
            if let Some(body) = &request.body {
                sent = sent.body(body.clone());
            }
            let response = sent.send().await.map_err(|error| failed(&request.url, error))?;
            let next = if follow { redirect(&request, response.status(), response.headers())? } else { None };
            let Some(next) = next else {
                return self.read(request.url, response, redirects).await;
            };
            if redirects.len() >= self.settings.max_redirects {
                return Err(ToolError::limit(format!(
                    "the server redirects more than {} times",
                    self.settings.max_redirects
                ))
                .suggest("Request the final URL directly, or set `follow_redirects` to false."));
            }
            redirects.push(std::mem::replace(&mut request, next).url);
        }
    }

    /// Checks the addresses of a URL, and pins them for the connection.
    async fn admit(&self, url: &Url) -> Result<(), ToolError> {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(ToolError::invalid_input("the URL has no host").with("pointer", "/url"));
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let literal = bare.parse::<IpAddr>().ok();
        let is_this_machine =
            literal.map_or(bare.eq_ignore_ascii_case("localhost"), |address| address.is_loopback());
        if self.settings.no_network && !is_this_machine {
            return Err(blocked(url, "connections to other machines are disabled", "no_network")
                .suggest("Unset TOOLPOST_NO_NETWORK to allow them."));
        }
        let addresses = match (literal, self.settings.addresses.get(bare)) {
            (Some(address), _) => vec![address],
            (None, Some(known)) => known.clone(),
            (None, None) => tokio::net::lookup_host((bare, port))
                .await
                .map_err(|error| {
                    ToolError::dependency(format!("cannot resolve the host `{bare}`: {error}"))
                        .caused_by(error)
                })?
                .map(|address| address.ip())
                .take(MAX_ADDRESSES)
                .collect(),
        };
        if addresses.is_empty() {
            return Err(ToolError::dependency(format!("the host `{bare}` has no address")));
        }
        if !self.settings.allows(host, port) {
            // One internal address among public ones indicates DNS rebinding: reject all of them.
            if let Some((address, AddressRule { name: rule, reason, .. })) =
                addresses.iter().find_map(|address| Some((address, address_rule(*address)?)))
            {
                let what = if literal.is_some() {
                    format!("its address {reason}")
                } else {
                    format!("`{bare}` resolves to {address}, which {reason}")
                };
                let text = format!("Use a public address; the operator can allow the host `{host}`.");
                let hint = Hint::AllowPrivateHost { host: host.to_owned() };
                return Err(blocked(url, &what, rule).suggest(Suggestion::with_hint(text, &hint)));
            }
        }
        if literal.is_none() {
            let addresses = addresses.into_iter().map(|address| SocketAddr::new(address, 0)).collect();
            self.pinned.0.lock().unwrap_or_else(PoisonError::into_inner).insert(bare.to_owned(), addresses);
        }
        Ok(())
    }

    async fn read(
        &self,
        url: Url,
        mut response: reqwest::Response,
        redirects: Vec<Url>,
    ) -> Result<Answer, ToolError> {
        let limit = self.settings.max_body_bytes;
        let (mut body, mut truncated) = (Vec::new(), false);
        while let Some(piece) =
            response.chunk().await.map_err(|error| failed(&url, error).with("received_bytes", body.len()))?
        {
            let room = limit - body.len();
            body.extend_from_slice(piece.get(..room).unwrap_or(&piece));
            if piece.len() > room {
                truncated = true;
                break;
            }
        }
        let headers = std::mem::take(response.headers_mut());
        Ok(Answer { status: response.status(), url, headers, body, truncated, redirects })
    }
}

/// Headers that a redirect keeps for another origin.
const CROSS_ORIGIN: [HeaderName; 7] =
    [ACCEPT, ACCEPT_LANGUAGE, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RANGE, USER_AGENT];

fn blocked(url: &Url, reason: &str, rule: &str) -> ToolError {
    ToolError::permission(format!("the request to `{}` was blocked: {reason}", without_credentials(url)))
        .with("pointer", "/url")
        .with("rule", rule)
}

/// The request after a redirect, if the response is one.
fn redirect(
    request: &OutgoingRequest,
    status: StatusCode,
    headers: &HeaderMap,
) -> Result<Option<OutgoingRequest>, ToolError> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = headers.get(LOCATION).and_then(|value| std::str::from_utf8(value.as_bytes()).ok())
    else {
        return Ok(None);
    };
    let mut next = request.clone();
    next.url = request
        .url
        .join(location)
        .map_err(|error| ToolError::dependency(format!("the server redirects to an invalid URL: {error}")))?;
    if !matches!(next.url.scheme(), "http" | "https") {
        return Err(blocked(&next.url, "a redirect may lead only to `http` and `https` URLs", "scheme")
            .suggest("Set `follow_redirects` to false to see the redirect itself."));
    }
    // Do not send credentials that the server put into the URL.
    let _ = next.url.set_username("");
    let _ = next.url.set_password(None);
    let to_get = match status.as_u16() {
        303 => request.method != Method::HEAD,
        301 | 302 => request.method == Method::POST,
        _ => false,
    };
    if to_get {
        next.method = Method::GET;
        next.body = None;
        for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING] {
            next.headers.remove(name);
        }
    }
    if next.url.origin() != request.url.origin() {
        // A header's name does not prove that it is not a credential, so keep only known ones.
        let all = std::mem::take(&mut next.headers);
        next.headers = CROSS_ORIGIN
            .into_iter()
            .filter_map(|name| Some((name.clone(), all.get(name)?.clone())))
            .collect();
    }
    Ok(Some(next))
}

/// Moves user and password of a URL into an `Authorization` header.
pub(super) fn take_credentials(url: &mut Url) -> Option<(HeaderName, HeaderValue)> {
    use base64::Engine as _;

    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut pair: Vec<u8> = percent_decode_str(url.username()).collect();
    pair.push(b':');
    pair.extend(percent_decode_str(url.password().unwrap_or_default()));
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let text = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some((AUTHORIZATION, value))
}

/// Converts an error of the client.
fn failed(url: &Url, error: reqwest::Error) -> ToolError {
    let error = error.without_url();
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !reason.ends_with(&text) {
            reason.push_str(": ");
            reason.push_str(&text);
        }
        cause = inner.source();
    }
    let tls = reason.contains("certificate") || reason.contains("tls");
    let failed =
        ToolError::dependency(format!("the request to `{}` failed: {reason}", without_credentials(url)));
    let hint = if tls {
        "The server's certificate is invalid: check the URL and this machine's certificates."
    } else {
        "Check the URL, or retry later."
    };
    failed.suggest(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_leave_the_url_decoded() {
        let mut url = Url::parse("http://an%20na:p%40%zz@host.example/x").unwrap();
        let (_, value) = take_credentials(&mut url).unwrap();
        // "an na:p@%zz"
        assert_eq!(value.to_str().unwrap(), "Basic YW4gbmE6cEAleno=");
        assert_eq!(url.as_str(), "http://host.example/x");
        assert!(take_credentials(&mut url).is_none());
    }

    #[tokio::test]
    async fn an_unchecked_host_has_no_address() {
        let settings = HttpSettings::default();
        let session = Session::new(&settings, true).unwrap();
        let error = session.client.get("http://localhost:9/").send().await.unwrap_err();
        assert!(format!("{error:?}").contains("was not checked"), "{error:?}");
    }
}
