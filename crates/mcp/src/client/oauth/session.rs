//! The tokens for one server: which is sent, and what is done when it is refused.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::{Duration, Instant};

use ::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use ::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use reqwest::Url;
use serde_json::json;
use tokio::sync::Mutex;
use toolpost_core::{Secret, ToolError};

use super::callback::Callback;
use super::challenge::Challenge;
use super::key::{self, Proof};
use super::metadata::{self, Issuer, Resource};
use super::store::{Entry, Registration, Token};
use super::tokens::{self, Asker, Brought, Given, JWT_BEARER, Refused};
use super::web::{Rules, Web};
use super::{Grant, OAuth, words};
use crate::client::http;
use crate::convert::inward::shortened;

/// How long before its end a token is got anew, in seconds.
const EARLY: u64 = 30;
/// How often a token may be got for a server, other than by refreshing, within the time.
const MOST: (usize, Duration) = (3, Duration::from_mins(10));
/// The scope that a token which can be refreshed needs at some authorization servers.
const OFFLINE: &str = "offline_access";
/// The most scopes that are asked for.
const MAX_SCOPES: usize = 200;

/// What a login has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Login {
    /// The authorization server.
    pub issuer: String,
    /// What the token may be used for, as far as it is known.
    pub scopes: Vec<String>,
    /// How long the token lasts, if that was said.
    pub lasts: Option<Duration>,
    /// Whether another token can be got without a person when it has ended.
    pub is_renewable: bool,
}

/// A token, and what each request with it needs.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    token: Secret,
    proof: Option<Arc<Proof>>,
}

impl Credentials {
    fn is(&self, other: &Self) -> bool {
        self.token == other.token
    }
}

/// What was tried for one request.
#[derive(Debug, Default)]
pub(super) struct Tried {
    renewed: bool,
    got: bool,
    widened: bool,
    nonce: bool,
}

#[derive(Default)]
struct State {
    is_read: bool,
    entry: Option<Entry>,
    proof: Option<Arc<Proof>>,
    got: VecDeque<Instant>,
}

pub(in crate::client) struct Session {
    oauth: OAuth,
    server: Url,
    web: Web,
    state: Mutex<State>,
    /// The number that the server wants in proofs.
    nonce: StdMutex<Option<String>>,
}

/// Where tokens for the server are from.
struct Place {
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

    /// The address by which tokens for the server are kept: what is behind a question mark may be a secret.
    fn key(&self) -> String {
        let mut server = self.server.clone();
        server.set_query(None);
        server.into()
    }

    pub(in crate::client) fn longer(&self) -> Duration {
        self.oauth.longer()
    }

    /// What is sent now.
    pub(super) async fn credentials(&self) -> Result<Option<Credentials>, ToolError> {
        let mut state = self.state.lock().await;
        if !state.is_read {
            self.read(&mut state).await?;
        }
        let ends_soon = |token: &Token| token.expires.is_some_and(|end| end <= key::now() + EARLY);
        let old = state.entry.as_ref().and_then(|entry| entry.token.as_ref());
        if old.is_some_and(|token| ends_soon(token) && token.refresh.is_some()) {
            // It may still be good: the server will say.
            if let Err(error) = self.renew_in_place(&mut state).await {
                tracing::debug!(%error, "a token could not be got anew");
            }
        }
        Ok(credentials(&state))
    }

    /// Takes what the store has.
    async fn read(&self, state: &mut State) -> Result<(), ToolError> {
        let known = self.oauth.store.of_server(&self.key()).await?;
        adopt(state, known.into_iter().next_back().filter(|entry| entry.token.is_some()));
        state.is_read = true;
        Ok(())
    }

    /// Gets a token that will do in place of the one that was sent. Fails if nothing more can be done.
    pub(super) async fn challenged(
        &self,
        sent: Option<&Credentials>,
        challenge: &Challenge,
        tried: &mut Tried,
    ) -> Result<Credentials, ToolError> {
        let mut state = self.state.lock().await;
        let is_same = |state: &State| match (credentials(state), sent) {
            (Some(now), Some(sent)) => now.is(sent),
            (now, sent) => now.is_none() && sent.is_none(),
        };
        if !is_same(&state)
            && let Some(now) = credentials(&state)
        {
            return Ok(now);
        }
        if challenge.wants_nonce() {
            if std::mem::replace(&mut tried.nonce, true) {
                return Err(unauthorised(&self.server, "it refuses the proof of the key"));
            }
            let now = credentials(&state)
                .ok_or_else(|| unauthorised(&self.server, "it wants the proof of a key"))?;
            self.ask_for_nonce(&now).await?;
            return Ok(now);
        }
        if challenge.is_forbidden {
            return self.widened(&mut state, challenge, tried).await;
        }
        // Another process may have a newer one.
        self.read(&mut state).await?;
        if !is_same(&state)
            && let Some(now) = credentials(&state)
        {
            return Ok(now);
        }
        if state.entry.is_none() && !self.can_get() {
            return Err(unauthorised(&self.server, "there is no token for it"));
        }
        let place = self.place(challenge).await?;
        let is_its = |entry: &Entry| {
            entry.issuer == place.issuer.issuer
                && entry.token.as_ref().is_some_and(|token| token.refresh.is_some())
        };
        if state.entry.as_ref().is_some_and(is_its) && !std::mem::replace(&mut tried.renewed, true) {
            match self.renewed(&mut state, &place.issuer).await {
                Ok(now) => return Ok(now),
                Err(Refused::Worthless(error)) => tracing::debug!(%error, "a token could not be got anew"),
                Err(Refused::Other(error)) => return Err(error),
            }
        }
        if std::mem::replace(&mut tried.got, true) {
            return Err(unauthorised(&self.server, "it refuses a token that was just given for it"));
        }
        let scopes = self.first_scopes(&place, challenge);
        self.get(&mut state, &place, scopes).await
    }

    /// Gets a token that may do more.
    async fn widened(
        &self,
        state: &mut State,
        challenge: &Challenge,
        tried: &mut Tried,
    ) -> Result<Credentials, ToolError> {
        let refused = |why: &str| {
            let shown = shortened(&challenge.scopes.join(" "), 200);
            let scopes =
                if shown.is_empty() { String::new() } else { format!(" (it asks for the scopes `{shown}`)") };
            ToolError::permission(format!("the server at `{}` does not allow it{scopes}: {why}", self.key()))
        };
        let had = state.entry.as_ref().map(|entry| entry.scopes.clone()).unwrap_or_default();
        let wanted = union(&had, &challenge.scopes);
        if !challenge.wants_scopes() || wanted.len() == had.len() {
            return Err(refused("no token that could be got would do"));
        }
        if std::mem::replace(&mut tried.widened, true) {
            return Err(refused("it asks for more each time"));
        }
        if !self.can_get() {
            return Err(unauthorised(&self.server, "the token may not do that")
                .with("scopes", challenge.scopes.clone()));
        }
        let place = self.place(challenge).await?;
        self.get(state, &place, wanted).await
    }

    /// Whether a token can be got without one that is there already.
    fn can_get(&self) -> bool {
        self.oauth.show.is_some() || !matches!(self.oauth.grant, Grant::Code)
    }

    /// Finds out where tokens for the server are from.
    async fn place(&self, challenge: &Challenge) -> Result<Place, ToolError> {
        let resource = metadata::resource(&self.web, &self.server, challenge).await?;
        let issuer = match &resource {
            // Servers of before 2025-06-18 are their own authorization servers.
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
        Ok(Place { resource, issuer })
    }

    /// What is asked for at first: what the operator says, else the challenge, else the server.
    fn first_scopes(&self, place: &Place, challenge: &Challenge) -> Vec<String> {
        let named =
            [&self.oauth.scopes, &challenge.scopes].into_iter().find(|scopes| !scopes.is_empty()).cloned();
        named
            .or_else(|| place.resource.as_ref()?.scopes_supported.clone())
            .unwrap_or_default()
            .into_iter()
            .take(MAX_SCOPES)
            .collect()
    }

    /// How tokens name the server, exactly as it says.
    fn resource(&self, place: &Place) -> String {
        match &place.resource {
            Some(resource) => resource.resource.clone(),
            None => self.key(),
        }
    }

    /// Gets a token by the grant that there is, and keeps it.
    async fn get(
        &self,
        state: &mut State,
        place: &Place,
        scopes: Vec<String>,
    ) -> Result<Credentials, ToolError> {
        let (most, within) = MOST;
        state.got.retain(|at| at.elapsed() < within);
        if state.got.len() >= most {
            return Err(unauthorised(&self.server, "it wanted three tokens within ten minutes already"));
        }
        state.got.push_back(Instant::now());
        let resource = self.resource(place);
        let proof = if place.issuer.knows_proofs() { Some(Arc::new(Proof::new()?)) } else { None };
        let (client, given, asked) = match &self.oauth.grant {
            Grant::Code => self.by_code(place, &resource, scopes, proof.as_deref()).await?,
            grant => self.by_grant(grant, place, &resource, scopes, proof.as_deref()).await?,
        };
        let entry = Entry {
            server: self.key(),
            issuer: place.issuer.issuer.clone(),
            resource: Some(resource),
            client,
            scopes: union(&asked, given.scopes.as_deref().unwrap_or_default()),
            proof: proof.as_ref().filter(|_| given.token.is_bound).map(|proof| proof.kept.clone()),
            token: Some(given.token),
        };
        self.keep(state, entry).await
    }

    async fn keep(&self, state: &mut State, entry: Entry) -> Result<Credentials, ToolError> {
        self.oauth.store.alone().await?.put(entry.clone())?;
        adopt(state, Some(entry));
        credentials(state).ok_or_else(|| ToolError::internal("a token that was just kept is not there"))
    }

    /// As a client, or for somebody whom another one has vouched for. It is asked once: what is refused stays refused.
    async fn by_grant(
        &self,
        grant: &Grant,
        place: &Place,
        resource: &str,
        scopes: Vec<String>,
        proof: Option<&Proof>,
    ) -> Result<(Registration, Given, Vec<String>), ToolError> {
        let client = self.identity(&place.issuer).await?.ok_or_else(|| {
            ToolError::precondition(format!(
                "nobody has said as which client `{}` is asked",
                shortened(&place.issuer.issuer, 200)
            ))
            .suggest("Say it with `OAuth::identity`.")
        })?;
        let scope = scopes.join(" ");
        let granted = match grant {
            Grant::Enterprise(enterprise) => {
                Some(tokens::exchanged(&self.web, enterprise, &place.issuer.issuer, resource, &scope).await?)
            }
            Grant::Workload(assertion) => Some(assertion.clone()),
            Grant::Client | Grant::Code => None,
        };
        let mut fields = vec![("resource", resource)];
        if let Some(granted) = &granted {
            fields.push(("assertion", granted.expose()));
        }
        if !scope.is_empty() {
            fields.push(("scope", scope.as_str()));
        }
        let grant = if granted.is_some() { JWT_BEARER } else { "client_credentials" };
        let given = self.asker(&place.issuer, &client, proof).token(Brought { grant, fields }).await;
        Ok((client, given.map_err(Refused::into_error)?, scopes))
    }

    fn asker<'a>(
        &'a self,
        issuer: &'a Issuer,
        client: &'a Registration,
        proof: Option<&'a Proof>,
    ) -> Asker<'a> {
        let identity = self.oauth.identity.as_deref().filter(|identity| identity.id == client.id);
        Asker { web: &self.web, issuer, client, identity, proof }
    }

    /// A person, at a browser.
    async fn by_code(
        &self,
        place: &Place,
        resource: &str,
        mut scopes: Vec<String>,
        proof: Option<&Proof>,
    ) -> Result<(Registration, Given, Vec<String>), ToolError> {
        let Some(show) = &self.oauth.show else {
            return Err(unauthorised(&self.server, "a person has to log in"));
        };
        let issuer = &place.issuer;
        let mut url = issuer.authorization_endpoint(&self.web)?;
        let known = self.oauth.store.of_server(&self.key()).await?;
        let earlier =
            known.into_iter().rev().find(|entry| entry.issuer == issuer.issuer).map(|entry| entry.client);
        let redirect = earlier.as_ref().and_then(|client| client.redirect.as_deref());
        let callback = Callback::listen(self.oauth.callback_port, redirect).await?;
        let client = self.client(issuer, earlier, callback.redirect()).await?;
        if !scopes.is_empty()
            && issuer.scopes_supported.iter().any(|scope| scope == OFFLINE)
            && !scopes.iter().any(|scope| scope == OFFLINE)
        {
            scopes.push(OFFLINE.to_owned());
        }
        let (verifier, state, scope) = (key::random()?, key::random()?, scopes.join(" "));
        {
            let mut query = url.query_pairs_mut();
            query
                .append_pair("response_type", "code")
                .append_pair("client_id", &client.id)
                .append_pair("redirect_uri", callback.redirect())
                .append_pair("state", &state)
                .append_pair("code_challenge", &key::hashed(&verifier))
                .append_pair("code_challenge_method", "S256")
                .append_pair("resource", resource);
            if !scope.is_empty() {
                query.append_pair("scope", &scope);
            }
            if scopes.iter().any(|scope| scope == OFFLINE) {
                // Without it a server that goes by OpenID gives nothing to refresh with.
                query.append_pair("prompt", "consent");
            }
            if let Some(proof) = proof {
                query.append_pair("dpop_jkt", &proof.thumbprint());
            }
        }
        show(url.as_str());
        let must_say = issuer.authorization_response_iss_parameter_supported;
        let code = callback.code(&state, &issuer.issuer, must_say, self.oauth.patience).await?;
        let fields = vec![
            ("code", code.expose()),
            ("redirect_uri", callback.redirect()),
            ("code_verifier", verifier.as_str()),
            ("resource", resource),
        ];
        let brought = Brought { grant: "authorization_code", fields };
        let given = self.asker(issuer, &client, proof).token(brought).await.map_err(Refused::into_error)?;
        Ok((client, given, scopes))
    }

    /// The client as the operator has registered it, if it is for this authorization server.
    async fn identity(&self, issuer: &Issuer) -> Result<Option<Registration>, ToolError> {
        let Some(identity) = &self.oauth.identity else { return Ok(None) };
        match &identity.issuer {
            Some(named) if *named != issuer.issuer => return Ok(None),
            Some(_) => {}
            None => {
                // It belongs to the first one that the server has named.
                let known = self.oauth.store.of_server(&self.key()).await?;
                let mut others = known.iter().filter(|entry| entry.client.id == identity.id);
                if let Some(other) = others.find(|entry| entry.issuer != issuer.issuer) {
                    return Err(ToolError::permission(format!(
                        "the server at `{}` names the authorization server `{}` now; the client `{}` was for `{}`",
                        self.key(),
                        shortened(&issuer.issuer, 200),
                        identity.id,
                        shortened(&other.issuer, 200)
                    ))
                    .suggest("If that is right, name the authorization server with `Identity::issuer`, `--issuer`."));
                }
            }
        }
        Ok(Some(Registration {
            id: identity.id.clone(),
            secret: identity.secret.clone(),
            ..Registration::default()
        }))
    }

    /// As which client a person is sent: as the operator has registered it, as a document says, as it was registered
    /// before, or registered now.
    async fn client(
        &self,
        issuer: &Issuer,
        earlier: Option<Registration>,
        redirect: &str,
    ) -> Result<Registration, ToolError> {
        if let Some(client) = self.identity(issuer).await? {
            return Ok(client);
        }
        if let (Some(document), true) = (&self.oauth.document, issuer.client_id_metadata_document_supported) {
            return Ok(Registration { id: document.clone(), ..Registration::default() });
        }
        let is_good = |client: &Registration| {
            client.redirect.as_deref() == Some(redirect)
                && client.expires.is_none_or(|end| end > key::now() + EARLY)
        };
        if let Some(client) = earlier.filter(is_good) {
            return Ok(client);
        }
        self.register(issuer, redirect).await
    }

    /// Registers this client (RFC 7591).
    async fn register(&self, issuer: &Issuer, redirect: &str) -> Result<Registration, ToolError> {
        let shown = shortened(&issuer.issuer, 200);
        let Some(url) = issuer.registration_endpoint(&self.web)? else {
            return Err(ToolError::precondition(format!(
                "the authorization server `{shown}` lets no client register itself"
            ))
            .suggest("Register one there by hand, and say its name with `OAuth::identity`, `--client-id`."));
        };
        let takes_none = issuer.takes("none") || issuer.token_endpoint_auth_methods_supported.is_none();
        let method =
            ["client_secret_basic", "client_secret_post"].into_iter().find(|method| issuer.takes(method));
        let request = json!({
            "client_name": "Toolpost",
            "redirect_uris": [redirect],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "application_type": "native",
            "token_endpoint_auth_method": if takes_none { "none" } else { method.unwrap_or("none") },
        });
        let reply = self.web.json("the registration endpoint", &url, &request).await?;
        let refused = || {
            ToolError::permission(format!(
                "the authorization server `{shown}` registers no client (HTTP status {})",
                reply.status.as_u16()
            ))
        };
        let json = reply.json.as_ref().filter(|_| reply.status.is_success()).ok_or_else(refused)?;
        let text = |name: &str| {
            json.get(name)?.as_str().filter(|text| !text.is_empty() && text.len() <= 4_096).map(str::to_owned)
        };
        Ok(Registration {
            id: text("client_id").ok_or_else(refused)?,
            secret: text("client_secret").map(Secret::new),
            method: text("token_endpoint_auth_method"),
            redirect: Some(redirect.to_owned()),
            expires: json
                .get("client_secret_expires_at")
                .and_then(serde_json::Value::as_u64)
                .filter(|end| *end > 0),
        })
    }

    /// Gets another token for the one that ends, where the store says that it is from.
    async fn renew_in_place(&self, state: &mut State) -> Result<(), ToolError> {
        let Some(entry) = &state.entry else { return Ok(()) };
        let issuer = metadata::issuer(&self.web, &entry.issuer.clone()).await?;
        self.renewed(state, &issuer).await.map(drop).map_err(Refused::into_error)
    }

    /// Refreshes the token. Nobody else does so meanwhile: many servers take a refresh token once, and then think that it
    /// was stolen.
    async fn renewed(&self, state: &mut State, issuer: &Issuer) -> Result<Credentials, Refused> {
        let mut store = self.oauth.store.alone().await?;
        let now = store.of_server(&self.key())?.into_iter().next_back();
        let had = state.entry.as_ref().and_then(|entry| entry.token.as_ref());
        if let Some(entry) = now
            && entry.token.is_some()
            && entry.token.as_ref() != had
        {
            adopt(state, Some(entry));
        } else {
            let none = || Refused::Worthless(unauthorised(&self.server, "there is nothing to refresh with"));
            let entry = state.entry.clone().ok_or_else(none)?;
            let old = entry.token.as_ref().and_then(|token| token.refresh.clone()).ok_or_else(none)?;
            let mut fields = vec![("refresh_token", old.expose())];
            if let Some(resource) = &entry.resource {
                fields.push(("resource", resource.as_str()));
            }
            let brought = Brought { grant: "refresh_token", fields };
            let given = self.asker(issuer, &entry.client, state.proof.as_deref()).token(brought).await;
            let mut token = match given {
                Ok(given) => given.token,
                Err(refused) => {
                    if let Refused::Worthless(_) = &refused {
                        // It is not tried again.
                        let token = entry.token.clone().map(|token| Token { refresh: None, ..token });
                        let entry = Entry { token, ..entry };
                        store.put(entry.clone())?;
                        adopt(state, Some(entry));
                    }
                    return Err(refused);
                }
            };
            token.refresh.get_or_insert(old);
            let entry = Entry { token: Some(token), ..entry };
            store.put(entry.clone())?;
            adopt(state, Some(entry));
        }
        credentials(state)
            .ok_or_else(|| Refused::Other(ToolError::internal("a token that was just kept is not there")))
    }

    /// The headers of a request to the server.
    pub(super) fn headers(
        &self,
        method: &Method,
        credentials: &Credentials,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, ToolError> {
        let value = |text: &str| {
            let mut value = HeaderValue::from_str(text)
                .map_err(|_| ToolError::dependency("the token cannot be sent: expected visible ASCII"))?;
            value.set_sensitive(true);
            Ok::<_, ToolError>(value)
        };
        let token = credentials.token.expose();
        let Some(proof) = &credentials.proof else {
            return Ok(vec![(AUTHORIZATION, value(&format!("Bearer {token}"))?)]);
        };
        let nonce = self.nonce.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let made =
            proof.of_request(method.as_str(), &self.server, Some(&credentials.token), nonce.as_deref())?;
        Ok(vec![
            (AUTHORIZATION, value(&format!("DPoP {token}"))?),
            (HeaderName::from_static("dpop"), value(&made)?),
        ])
    }

    /// Asks the server for something harmless, to see what number it wants in proofs: the library below does not show it.
    async fn ask_for_nonce(&self, credentials: &Credentials) -> Result<(), ToolError> {
        let headers = self.headers(&Method::POST, credentials)?;
        let reply = self.knock(headers.into_iter().collect()).await?;
        let nonce = tokens::nonce_of(reply.headers());
        *self.nonce.lock().unwrap_or_else(PoisonError::into_inner) = nonce;
        Ok(())
    }

    /// Sends the server a request that does nothing; its answer is not read.
    async fn knock(&self, headers: HeaderMap) -> Result<reqwest::Response, ToolError> {
        let client = http::made(http::builder(Duration::from_secs(20))?.timeout(Duration::from_secs(20)))?;
        let request = client
            .post(self.server.clone())
            .headers(headers)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            .body(json!({ "jsonrpc": "2.0", "id": "knock", "method": "ping" }).to_string());
        request.send().await.map_err(|error| {
            ToolError::dependency(format!(
                "the server at `{}` cannot be reached: {}",
                self.key(),
                http::cause(&error)
            ))
        })
    }

    pub(super) async fn login(&self) -> Result<Login, ToolError> {
        let reply = self.knock(HeaderMap::new()).await?;
        let said: Vec<_> = reply
            .headers()
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let wants_token = reply.status() == StatusCode::UNAUTHORIZED;
        let challenge =
            if wants_token { Challenge::read(&said.join(", "), false) } else { Challenge::default() };
        if !wants_token && metadata::resource(&self.web, &self.server, &challenge).await?.is_none() {
            return Err(ToolError::precondition(format!("the server at `{}` wants no token", self.key())));
        }
        let place = self.place(&challenge).await?;
        let scopes = self.first_scopes(&place, &challenge);
        let mut state = self.state.lock().await;
        self.get(&mut state, &place, scopes).await?;
        let entry = state.entry.as_ref();
        let token = entry.and_then(|entry| entry.token.as_ref());
        let end = token.and_then(|token| token.expires);
        Ok(Login {
            issuer: place.issuer.issuer,
            scopes: entry.map(|entry| entry.scopes.clone()).unwrap_or_default(),
            lasts: end.map(|end| Duration::from_secs(end.saturating_sub(key::now()))),
            is_renewable: token.is_some_and(|token| token.refresh.is_some()),
        })
    }

    pub(super) async fn logout(&self) -> Result<bool, ToolError> {
        let gone = self.oauth.store.alone().await?.remove(&self.key())?;
        let had = gone.iter().any(|entry| entry.token.is_some());
        for entry in gone {
            if let Err(error) = self.give_back(&entry).await {
                tracing::warn!(issuer = entry.issuer, %error, "a token was forgotten, but could not be given back");
            }
        }
        *self.state.lock().await = State::default();
        Ok(had)
    }

    async fn give_back(&self, entry: &Entry) -> Result<(), ToolError> {
        let Some(token) = &entry.token else { return Ok(()) };
        let issuer = metadata::issuer(&self.web, &entry.issuer).await?;
        let asker = self.asker(&issuer, &entry.client, None);
        // The one that others can be got with first.
        for token in token.refresh.iter().chain([&token.access]) {
            asker.revoke(token).await?;
        }
        Ok(())
    }
}

/// Takes an entry as what is known.
fn adopt(state: &mut State, entry: Option<Entry>) {
    let is_bound = |entry: &Entry| entry.token.as_ref().is_some_and(|token| token.is_bound);
    let kept = entry.as_ref().filter(|entry| is_bound(entry)).and_then(|entry| entry.proof.as_ref());
    state.proof = kept.and_then(Proof::kept).map(Arc::new);
    state.entry = entry;
}

fn credentials(state: &State) -> Option<Credentials> {
    let token = state.entry.as_ref()?.token.as_ref()?;
    // One that is bound to a key which is not there is worth nothing.
    (!token.is_bound || state.proof.is_some())
        .then(|| Credentials { token: token.access.clone(), proof: state.proof.clone() })
}

/// All of the one, and what the other has besides.
fn union(one: &[String], other: &[String]) -> Vec<String> {
    words(&one.iter().chain(other).map(String::as_str).collect::<Vec<_>>().join(" "))
}

fn unauthorised(server: &Url, why: &str) -> ToolError {
    let mut shown = server.clone();
    shown.set_query(None);
    ToolError::permission(format!("the server at `{shown}` wants to know who asks: {why}"))
        .with("unauthorized", true)
        .with("server", shown.as_str())
}
