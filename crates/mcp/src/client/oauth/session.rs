//! The tokens of one server: which one is sent, and what follows a 401 or 403.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use ::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use reqwest::Url;
use serde_json::json;
use tokio::sync::Mutex;
use toolpost_core::{Hint, Secret, ToolError, random_hex};

use super::callback::Callback;
use super::challenge::Challenge;
use super::key::{self, ProofKey};
use super::metadata::{self, Issuer, Resource};
use super::store::{Entry, Registration, Token};
use super::tokens::{self, Grant, Granted, TokenClient, TokenFailure};
use super::web::{Rules, Web};
use super::{OAuth, words};
use crate::client::http;
use crate::convert::inward::shortened;

/// A token is refreshed this many seconds before it expires.
const EXPIRY_MARGIN: u64 = 30;
/// The most tokens that are requested for a server within a period, refreshes not counted.
const MAX_REQUESTS: (usize, Duration) = (3, Duration::from_mins(10));
/// Some authorization servers issue a refresh token only with this scope.
const OFFLINE: &str = "offline_access";
/// The most scopes that are requested.
const MAX_SCOPES: usize = 200;

/// The result of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Login {
    /// The authorization server.
    pub issuer: String,
    /// The scopes of the token, as far as they are known.
    pub scopes: Vec<String>,
    /// The time that the token is valid, if the authorization server says so.
    pub expires_in: Option<Duration>,
    /// Whether the token can be refreshed without another login.
    pub is_refreshable: bool,
}

/// A token and the key that it is bound to.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    token: Secret,
    proof: Option<Arc<ProofKey>>,
}

/// The remedies that were tried for one request.
#[derive(Debug, Default)]
pub(super) struct Tried {
    refreshed: bool,
    requested: bool,
    scopes_added: bool,
    nonce: bool,
}

#[derive(Default)]
struct LoginState {
    is_loaded: bool,
    entry: Option<Entry>,
    proof: Option<Arc<ProofKey>>,
    /// When tokens were requested.
    requests: VecDeque<Instant>,
}

pub(in crate::client) struct Session {
    oauth: OAuth,
    server: Url,
    web: Web,
    state: Mutex<LoginState>,
    /// The nonce that the server requires in proofs.
    nonce: StdMutex<Option<String>>,
}

/// The metadata of the server and of its authorization server.
struct Discovered {
    resource: Option<Resource>,
    issuer: Issuer,
}

impl Session {
    pub(super) fn new(oauth: OAuth, url: &str, no_network: bool) -> Result<Self, ToolError> {
        let mut server = http::address(url, &["http", "https"], no_network)?;
        server.set_fragment(None);
        let web = Web::new(Rules::of_server(&server, &oauth.hosts, no_network));
        Ok(Self { oauth, server, web, state: Mutex::default(), nonce: StdMutex::default() })
    }

    /// The key of the server in the token store: its URL without the query, which may hold a secret.
    fn key(&self) -> String {
        let mut server = self.server.clone();
        server.set_query(None);
        server.into()
    }

    pub(in crate::client) fn extra_time(&self) -> Duration {
        self.oauth.extra_time()
    }

    /// The credentials for the next request.
    pub(super) async fn credentials(&self) -> Result<Option<Credentials>, ToolError> {
        let mut state = self.state.lock().await;
        if !state.is_loaded {
            self.load(&mut state).await?;
        }
        let ends_soon = |token: &Token| token.expires.is_some_and(|end| end <= key::now() + EXPIRY_MARGIN);
        let old = state.entry.as_ref().and_then(|entry| entry.token.as_ref());
        if old.is_some_and(|token| ends_soon(token) && token.refresh.is_some()) {
            // The old token may still be valid; the server decides.
            if let Err(error) = self.refresh_early(&mut state).await {
                tracing::debug!(%error, "a token could not be refreshed");
            }
        }
        Ok(credentials(&state))
    }

    /// Loads the entry of this server from the store.
    async fn load(&self, state: &mut LoginState) -> Result<(), ToolError> {
        let known = self.oauth.store.of_server(&self.key()).await?;
        adopt(state, known.into_iter().next_back().filter(|entry| entry.token.is_some()));
        state.is_loaded = true;
        Ok(())
    }

    /// Answers a challenge: obtains other credentials than the rejected ones, or fails.
    pub(super) async fn challenged(
        &self,
        sent: Option<&Credentials>,
        challenge: &Challenge,
        tried: &mut Tried,
    ) -> Result<Credentials, ToolError> {
        let mut state = self.state.lock().await;
        let is_same = |state: &LoginState| match (credentials(state), sent) {
            (Some(now), Some(sent)) => now.token == sent.token,
            (now, sent) => now.is_none() && sent.is_none(),
        };
        if !is_same(&state)
            && let Some(now) = credentials(&state)
        {
            return Ok(now);
        }
        if challenge.wants_nonce() {
            if std::mem::replace(&mut tried.nonce, true) {
                return Err(unauthorized(&self.server, "it rejects the `DPoP` proof"));
            }
            let now = credentials(&state)
                .ok_or_else(|| unauthorized(&self.server, "it requires a `DPoP` proof"))?;
            self.fetch_nonce(&now).await?;
            return Ok(now);
        }
        if challenge.is_forbidden {
            return self.add_scopes(&mut state, challenge, tried).await;
        }
        // Another process may have stored a newer token.
        self.load(&mut state).await?;
        if !is_same(&state)
            && let Some(now) = credentials(&state)
        {
            return Ok(now);
        }
        if state.entry.is_none() && self.oauth.show.is_none() {
            return Err(unauthorized(&self.server, "no token is stored for it"));
        }
        let found = self.discover(challenge).await?;
        let is_refreshable = |entry: &Entry| {
            entry.issuer == found.issuer.issuer
                && entry.token.as_ref().is_some_and(|token| token.refresh.is_some())
        };
        if state.entry.as_ref().is_some_and(is_refreshable) && !std::mem::replace(&mut tried.refreshed, true)
        {
            match self.refresh(&mut state, &found.issuer).await {
                Ok(now) => return Ok(now),
                Err(TokenFailure::InvalidGrant(error)) => {
                    tracing::debug!(%error, "a token could not be refreshed");
                }
                Err(TokenFailure::Other(error)) => return Err(error),
            }
        }
        if std::mem::replace(&mut tried.requested, true) {
            return Err(unauthorized(&self.server, "it rejects a token that was issued for it"));
        }
        let scopes = self.initial_scopes(&found, challenge);
        self.obtain(&mut state, &found, scopes).await
    }

    /// Obtains a token with more scopes.
    async fn add_scopes(
        &self,
        state: &mut LoginState,
        challenge: &Challenge,
        tried: &mut Tried,
    ) -> Result<Credentials, ToolError> {
        let denied = |why: &str| {
            let shown = shortened(&challenge.scopes.join(" "), 200);
            let scopes =
                if shown.is_empty() { String::new() } else { format!(" (required scopes: `{shown}`)") };
            ToolError::permission(format!("the server at `{}` denies the request{scopes}: {why}", self.key()))
        };
        let old = state.entry.as_ref().map(|entry| entry.scopes.clone()).unwrap_or_default();
        let scopes = union(&old, &challenge.scopes);
        if !challenge.wants_scopes() || scopes.len() == old.len() {
            return Err(denied("more scopes would not help"));
        }
        if std::mem::replace(&mut tried.scopes_added, true) {
            return Err(denied("it requires more scopes each time"));
        }
        if self.oauth.show.is_none() {
            return Err(
                unauthorized(&self.server, "the token lacks scopes").with("scopes", challenge.scopes.clone())
            );
        }
        let found = self.discover(challenge).await?;
        self.obtain(state, &found, scopes).await
    }

    /// Fetches the metadata of the server and of its authorization server.
    async fn discover(&self, challenge: &Challenge) -> Result<Discovered, ToolError> {
        let resource = metadata::resource(&self.web, &self.server, challenge).await?;
        let issuer = match &resource {
            // Before 2025-06-18 each server was its own authorization server.
            None => self.server.origin().ascii_serialization(),
            Some(resource) => {
                let known = self.oauth.store.of_server(&self.key()).await?;
                let servers = &resource.authorization_servers;
                let is_listed = |entry: &&Entry| servers.contains(&entry.issuer);
                let issuer =
                    known.iter().rev().find(is_listed).map(|entry| &entry.issuer).or_else(|| servers.first());
                issuer.cloned().ok_or_else(|| {
                    ToolError::dependency(format!(
                        "the server at `{}` names no authorization server",
                        self.key()
                    ))
                })?
            }
        };
        let issuer = metadata::issuer(&self.web, &issuer).await?;
        Ok(Discovered { resource, issuer })
    }

    /// The scopes of the first request: those of the operator, else of the challenge, else of the server.
    fn initial_scopes(&self, found: &Discovered, challenge: &Challenge) -> Vec<String> {
        let named =
            [&self.oauth.scopes, &challenge.scopes].into_iter().find(|scopes| !scopes.is_empty()).cloned();
        named
            .or_else(|| found.resource.as_ref()?.scopes_supported.clone())
            .unwrap_or_default()
            .into_iter()
            .take(MAX_SCOPES)
            .collect()
    }

    /// Obtains a token by a login and stores it.
    async fn obtain(
        &self,
        state: &mut LoginState,
        found: &Discovered,
        scopes: Vec<String>,
    ) -> Result<Credentials, ToolError> {
        let (max, period) = MAX_REQUESTS;
        state.requests.retain(|at| at.elapsed() < period);
        if state.requests.len() >= max {
            return Err(unauthorized(&self.server, "it required three tokens within ten minutes"));
        }
        state.requests.push_back(Instant::now());
        // Exactly as the server spells it.
        let resource =
            found.resource.as_ref().map_or_else(|| self.key(), |resource| resource.resource.clone());
        let proof = if found.issuer.supports_dpop() { Some(Arc::new(ProofKey::generate()?)) } else { None };
        let (client, granted, requested) = self.authorize(found, &resource, scopes, proof.as_deref()).await?;
        let entry = Entry {
            server: self.key(),
            issuer: found.issuer.issuer.clone(),
            resource: Some(resource),
            client,
            scopes: union(&requested, granted.scopes.as_deref().unwrap_or_default()),
            proof: proof.as_ref().filter(|_| granted.token.is_bound).map(|proof| proof.stored.clone()),
            token: Some(granted.token),
        };
        self.oauth.store.lock().await?.put(entry.clone())?;
        adopt(state, Some(entry));
        credentials(state).ok_or_else(|| ToolError::internal("a stored token is missing"))
    }

    fn token_client<'a>(
        &'a self,
        issuer: &'a Issuer,
        client: &'a Registration,
        proof: Option<&'a ProofKey>,
    ) -> TokenClient<'a> {
        TokenClient { web: &self.web, issuer, client, proof }
    }

    /// The authorization code grant with PKCE: a login in the browser.
    async fn authorize(
        &self,
        found: &Discovered,
        resource: &str,
        mut scopes: Vec<String>,
        proof: Option<&ProofKey>,
    ) -> Result<(Registration, Granted, Vec<String>), ToolError> {
        let Some(show) = &self.oauth.show else {
            return Err(unauthorized(&self.server, "it requires a login"));
        };
        let issuer = &found.issuer;
        let mut url = issuer.authorization_endpoint(&self.web)?;
        let known = self.oauth.store.of_server(&self.key()).await?;
        let earlier =
            known.into_iter().rev().find(|entry| entry.issuer == issuer.issuer).map(|entry| entry.client);
        let redirect = earlier.as_ref().and_then(|client| client.redirect.as_deref());
        let callback = Callback::listen(self.oauth.callback_port, redirect).await?;
        let client = self.client(issuer, earlier, callback.redirect_uri()).await?;
        if !scopes.is_empty()
            && issuer.scopes_supported.iter().any(|scope| scope == OFFLINE)
            && !scopes.iter().any(|scope| scope == OFFLINE)
        {
            scopes.push(OFFLINE.to_owned());
        }
        let (verifier, state, scope) = (random_hex(32)?, random_hex(32)?, scopes.join(" "));
        {
            let mut query = url.query_pairs_mut();
            query
                .append_pair("response_type", "code")
                .append_pair("client_id", &client.id)
                .append_pair("redirect_uri", callback.redirect_uri())
                .append_pair("state", &state)
                .append_pair("code_challenge", &key::sha256(&verifier))
                .append_pair("code_challenge_method", "S256")
                .append_pair("resource", resource);
            if !scope.is_empty() {
                query.append_pair("scope", &scope);
            }
            if scopes.iter().any(|scope| scope == OFFLINE) {
                // `OpenID` servers issue a refresh token only after consent.
                query.append_pair("prompt", "consent");
            }
            if let Some(proof) = proof {
                query.append_pair("dpop_jkt", &proof.thumbprint());
            }
        }
        show(url.as_str());
        let requires_issuer = issuer.authorization_response_iss_parameter_supported;
        let code = callback.code(&state, &issuer.issuer, requires_issuer, self.oauth.login_timeout).await?;
        let fields = vec![
            ("code", code.expose()),
            ("redirect_uri", callback.redirect_uri()),
            ("code_verifier", verifier.as_str()),
            ("resource", resource),
        ];
        let grant = Grant { kind: "authorization_code", fields };
        let granted = self.token_client(issuer, &client, proof).token(grant).await;
        Ok((client, granted.map_err(TokenFailure::into_error)?, scopes))
    }

    /// The client that the operator registered, if it belongs to this authorization server.
    async fn identity(&self, issuer: &Issuer) -> Result<Option<Registration>, ToolError> {
        let Some(identity) = &self.oauth.identity else { return Ok(None) };
        match &identity.issuer {
            Some(named) if *named != issuer.issuer => return Ok(None),
            Some(_) => {}
            None => {
                // The client belongs to the first authorization server that the server named.
                let known = self.oauth.store.of_server(&self.key()).await?;
                let mut others = known.iter().filter(|entry| entry.client.id == identity.id);
                if let Some(other) = others.find(|entry| entry.issuer != issuer.issuer) {
                    return Err(ToolError::permission(format!(
                        "the server at `{}` now names the authorization server `{}`, but the client `{}` belongs to `{}`",
                        self.key(),
                        shortened(&issuer.issuer, 200),
                        identity.id,
                        shortened(&other.issuer, 200)
                    ))
                    .suggest(Hint::SetIssuer));
                }
            }
        }
        Ok(Some(Registration {
            id: identity.id.clone(),
            secret: identity.secret.clone(),
            ..Registration::default()
        }))
    }

    /// The client of a login: the operator's, else the metadata document, else the stored registration, else
    /// a new registration.
    async fn client(
        &self,
        issuer: &Issuer,
        earlier: Option<Registration>,
        redirect: &str,
    ) -> Result<Registration, ToolError> {
        if let Some(client) = self.identity(issuer).await? {
            return Ok(client);
        }
        if let (Some(document), true) =
            (&self.oauth.metadata_document, issuer.client_id_metadata_document_supported)
        {
            return Ok(Registration { id: document.clone(), ..Registration::default() });
        }
        let is_good = |client: &Registration| {
            client.redirect.as_deref() == Some(redirect)
                && client.expires.is_none_or(|end| end > key::now() + EXPIRY_MARGIN)
        };
        if let Some(client) = earlier.filter(is_good) {
            return Ok(client);
        }
        self.register(issuer, redirect).await
    }

    /// Registers this client dynamically (RFC 7591).
    async fn register(&self, issuer: &Issuer, redirect: &str) -> Result<Registration, ToolError> {
        let shown = shortened(&issuer.issuer, 200);
        let Some(url) = issuer.registration_endpoint(&self.web)? else {
            return Err(ToolError::precondition(format!(
                "the authorization server `{shown}` does not support client registration"
            ))
            .suggest(Hint::SetClientId));
        };
        let supports_none =
            issuer.supports_auth("none") || issuer.token_endpoint_auth_methods_supported.is_none();
        let method = ["client_secret_basic", "client_secret_post"]
            .into_iter()
            .find(|method| issuer.supports_auth(method));
        let request = json!({
            "client_name": "Toolpost",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": "native",
            "token_endpoint_auth_method": if supports_none { "none" } else { method.unwrap_or("none") },
        });
        let reply = self.web.json("the registration endpoint", &url, &request).await?;
        let rejected = || {
            ToolError::permission(format!(
                "the authorization server `{shown}` rejected the registration (HTTP status {})",
                reply.status.as_u16()
            ))
        };
        let json = reply.json.as_ref().filter(|_| reply.status.is_success()).ok_or_else(rejected)?;
        let text = |name: &str| {
            json.get(name)?.as_str().filter(|text| !text.is_empty() && text.len() <= 4_096).map(str::to_owned)
        };
        Ok(Registration {
            id: text("client_id").ok_or_else(rejected)?,
            secret: text("client_secret").map(Secret::new),
            method: text("token_endpoint_auth_method"),
            redirect: Some(redirect.to_owned()),
            expires: json
                .get("client_secret_expires_at")
                .and_then(serde_json::Value::as_u64)
                .filter(|end| *end > 0),
        })
    }

    /// Refreshes the token at its own authorization server, before it expires.
    async fn refresh_early(&self, state: &mut LoginState) -> Result<(), ToolError> {
        let Some(entry) = &state.entry else { return Ok(()) };
        let issuer = metadata::issuer(&self.web, &entry.issuer.clone()).await?;
        self.refresh(state, &issuer).await.map(drop).map_err(TokenFailure::into_error)
    }

    /// Refreshes the token under the lock of the store: many servers accept a refresh token once and treat a
    /// second use as theft.
    async fn refresh(&self, state: &mut LoginState, issuer: &Issuer) -> Result<Credentials, TokenFailure> {
        let mut store = self.oauth.store.lock().await?;
        let stored = store.of_server(&self.key())?.into_iter().next_back();
        let known = state.entry.as_ref().and_then(|entry| entry.token.as_ref());
        if let Some(entry) = stored
            && entry.token.is_some()
            && entry.token.as_ref() != known
        {
            adopt(state, Some(entry));
        } else {
            let none = || TokenFailure::InvalidGrant(unauthorized(&self.server, "there is no refresh token"));
            let entry = state.entry.clone().ok_or_else(none)?;
            let old = entry.token.as_ref().and_then(|token| token.refresh.clone()).ok_or_else(none)?;
            let mut fields = vec![("refresh_token", old.expose())];
            if let Some(resource) = &entry.resource {
                fields.push(("resource", resource.as_str()));
            }
            let grant = Grant { kind: "refresh_token", fields };
            let client = self.token_client(issuer, &entry.client, state.proof.as_deref());
            let mut token = match client.token(grant).await {
                Ok(granted) => granted.token,
                Err(failure) => {
                    if let TokenFailure::InvalidGrant(_) = &failure {
                        // The refresh token is never used again.
                        let token = entry.token.clone().map(|token| Token { refresh: None, ..token });
                        let entry = Entry { token, ..entry };
                        store.put(entry.clone())?;
                        adopt(state, Some(entry));
                    }
                    return Err(failure);
                }
            };
            token.refresh.get_or_insert(old);
            let entry = Entry { token: Some(token), ..entry };
            store.put(entry.clone())?;
            adopt(state, Some(entry));
        }
        credentials(state)
            .ok_or_else(|| TokenFailure::Other(ToolError::internal("a stored token is missing")))
    }

    /// The authorization headers of a request to the server.
    pub(super) fn headers(
        &self,
        method: &Method,
        credentials: &Credentials,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, ToolError> {
        let value = |text: &str| {
            let mut value = HeaderValue::from_str(text)
                .map_err(|_| ToolError::dependency("the token is not visible ASCII"))?;
            value.set_sensitive(true);
            Ok::<_, ToolError>(value)
        };
        let token = credentials.token.expose();
        let Some(proof) = &credentials.proof else {
            return Ok(vec![(AUTHORIZATION, value(&format!("Bearer {token}"))?)]);
        };
        let nonce = self.nonce.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let proof = proof.prove(method.as_str(), &self.server, Some(&credentials.token), nonce.as_deref())?;
        Ok(vec![
            (AUTHORIZATION, value(&format!("DPoP {token}"))?),
            (HeaderName::from_static("dpop"), value(&proof)?),
        ])
    }

    /// Sends a `ping` to read the nonce that the server requires: rmcp does not expose the response headers.
    async fn fetch_nonce(&self, credentials: &Credentials) -> Result<(), ToolError> {
        let headers = self.headers(&Method::POST, credentials)?;
        let reply = self.ping(headers.into_iter().collect()).await?;
        let nonce = tokens::nonce_of(reply.headers());
        *self.nonce.lock().unwrap_or_else(PoisonError::into_inner) = nonce;
        Ok(())
    }

    /// Sends a `ping` request; the response body is not read.
    async fn ping(&self, headers: HeaderMap) -> Result<reqwest::Response, ToolError> {
        let client = http::build(http::builder(Duration::from_secs(20))?.timeout(Duration::from_secs(20)))?;
        let request = client
            .post(self.server.clone())
            .headers(headers)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(json!({ "jsonrpc": "2.0", "id": "ping", "method": "ping" }).to_string());
        request.send().await.map_err(|error| {
            ToolError::dependency(format!(
                "cannot connect to the server at `{}`: {}",
                self.key(),
                http::cause(&error)
            ))
        })
    }

    pub(super) async fn login(&self) -> Result<Login, ToolError> {
        let reply = self.ping(HeaderMap::new()).await?;
        let challenges: Vec<_> = reply
            .headers()
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let requires_token = reply.status() == StatusCode::UNAUTHORIZED;
        let challenge = if requires_token {
            Challenge::read(&challenges.join(", "), false)
        } else {
            Challenge::default()
        };
        if !requires_token && metadata::resource(&self.web, &self.server, &challenge).await?.is_none() {
            return Err(ToolError::precondition(format!("the server at `{}` requires no login", self.key())));
        }
        let found = self.discover(&challenge).await?;
        let scopes = self.initial_scopes(&found, &challenge);
        let mut state = self.state.lock().await;
        self.obtain(&mut state, &found, scopes).await?;
        let entry = state.entry.as_ref();
        let token = entry.and_then(|entry| entry.token.as_ref());
        let end = token.and_then(|token| token.expires);
        Ok(Login {
            issuer: found.issuer.issuer,
            scopes: entry.map(|entry| entry.scopes.clone()).unwrap_or_default(),
            expires_in: end.map(|end| Duration::from_secs(end.saturating_sub(key::now()))),
            is_refreshable: token.is_some_and(|token| token.refresh.is_some()),
        })
    }

    pub(super) async fn logout(&self) -> Result<bool, ToolError> {
        let removed = self.oauth.store.lock().await?.remove(&self.key())?;
        let had_token = removed.iter().any(|entry| entry.token.is_some());
        for entry in removed {
            if let Err(error) = self.revoke(&entry).await {
                tracing::warn!(issuer = entry.issuer, %error, "a token was deleted but not revoked");
            }
        }
        *self.state.lock().await = LoginState::default();
        Ok(had_token)
    }

    async fn revoke(&self, entry: &Entry) -> Result<(), ToolError> {
        let Some(token) = &entry.token else { return Ok(()) };
        let issuer = metadata::issuer(&self.web, &entry.issuer).await?;
        let client = self.token_client(&issuer, &entry.client, None);
        // The refresh token first.
        for token in token.refresh.iter().chain([&token.access]) {
            client.revoke(token).await?;
        }
        Ok(())
    }
}

/// Makes an entry the current one.
fn adopt(state: &mut LoginState, entry: Option<Entry>) {
    let is_bound = |entry: &Entry| entry.token.as_ref().is_some_and(|token| token.is_bound);
    let stored = entry.as_ref().filter(|entry| is_bound(entry)).and_then(|entry| entry.proof.as_ref());
    state.proof = stored.and_then(ProofKey::load).map(Arc::new);
    state.entry = entry;
}

fn credentials(state: &LoginState) -> Option<Credentials> {
    let token = state.entry.as_ref()?.token.as_ref()?;
    // A bound token is useless without its key.
    (!token.is_bound || state.proof.is_some())
        .then(|| Credentials { token: token.access.clone(), proof: state.proof.clone() })
}

/// The union, in order.
fn union(one: &[String], other: &[String]) -> Vec<String> {
    words(&one.iter().chain(other).map(String::as_str).collect::<Vec<_>>().join(" "))
}

fn unauthorized(server: &Url, why: &str) -> ToolError {
    let mut shown = server.clone();
    shown.set_query(None);
    ToolError::permission(format!("the server at `{shown}` requires authorization: {why}"))
        .with("unauthorized", true)
        .with("server", shown.as_str())
}
