//! OAuth 2.1 tokens for servers at `https` addresses.
//!
//! | the server or the authorization server | this client |
//! |---|---|
//! | answers 401 | discovers the authorization server and requests a token there |
//! | answers 403 with scopes | requests a token with these scopes and the former ones, at most three times in ten minutes |
//! | names another authorization server | registers there again and sends it no former credential |
//! | names a loopback or private address | blocks the address, except the address and port of the server's own URL |
//! | has an `issuer` that differs from the requested one | sends nothing to it |
//! | does not announce PKCE with S256 | starts no login |
//! | binds tokens to keys (`DPoP`) | sends a proof with each request |

mod authorized;
mod callback;
mod challenge;
mod key;
mod metadata;
#[cfg(test)]
mod mutations;
mod session;
mod store;
mod tokens;
mod web;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{CallError, Secret, ToolError};

pub(super) use self::authorized::{AuthFailure, AuthorizedClient};
pub use self::session::Login;
pub(super) use self::session::Session;
pub use self::store::TokenStore;

/// The default time for a login in the browser.
const DEFAULT_LOGIN_TIMEOUT: Duration = Duration::from_mins(5);

/// The scopes that a challenge names, separated by spaces.
pub(super) fn scope_of(header: &str) -> Option<String> {
    let scopes = challenge::Challenge::read(header, true).scopes;
    (!scopes.is_empty()).then(|| scopes.join(" "))
}

/// The token source of a client for a server.
#[derive(Clone)]
pub struct OAuth {
    store: TokenStore,
    show: Option<Show>,
    identity: Option<Arc<Identity>>,
    metadata_document: Option<String>,
    scopes: Vec<String>,
    callback_port: Option<u16>,
    hosts: Vec<String>,
    login_timeout: Duration,
}

type Show = Arc<dyn Fn(&str) + Send + Sync>;

/// A client that an operator registered at the authorization server.
#[derive(Debug)]
pub struct Identity {
    id: String,
    secret: Option<Secret>,
    issuer: Option<String>,
}

impl Identity {
    /// A public client: one without a secret.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), secret: None, issuer: None }
    }

    /// Sets the client secret.
    #[must_use]
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Sets the authorization server of this client, exactly as its metadata spells `issuer`. Default: the
    /// first one that the server names; another one never receives this client.
    #[must_use]
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OAuth")
            .field("store", &self.store)
            .field("interactive", &self.show.is_some())
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl OAuth {
    /// Uses stored tokens and refreshes them, without a login.
    pub fn new(store: TokenStore) -> Self {
        Self {
            store,
            show: None,
            identity: None,
            metadata_document: None,
            scopes: Vec::new(),
            callback_port: None,
            hosts: Vec::new(),
            login_timeout: DEFAULT_LOGIN_TIMEOUT,
        }
    }

    /// Allows logins: `show` receives the URL that the user opens in a browser of this machine.
    #[must_use]
    pub fn interactive(mut self, show: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.show = Some(Arc::new(show));
        self
    }

    /// Sets the registered client. Default: none; the client then uses its [metadata
    /// document](Self::metadata_document) or registers itself.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(Arc::new(identity));
        self
    }

    /// Sets the `https` URL of the client ID metadata document. Default: none. Only an authorization server
    /// that supports such documents uses it.
    #[must_use]
    pub fn metadata_document(mut self, url: impl Into<String>) -> Self {
        self.metadata_document = Some(url.into());
        self
    }

    /// Adds a scope to request instead of those that the server names. Default: none.
    #[must_use]
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// Sets the loopback port of the redirect URI. Default: any free port.
    #[must_use]
    pub fn callback_port(mut self, port: u16) -> Self {
        self.callback_port = Some(port);
        self
    }

    /// Allows a host with a loopback or private address in OAuth metadata. Default: none. Metadata services
    /// of clouds stay blocked.
    #[must_use]
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// Sets the time for a login in the browser. Default: 5 min.
    #[must_use]
    pub fn login_timeout(mut self, timeout: Duration) -> Self {
        self.login_timeout = timeout;
        self
    }

    /// Obtains and stores a token for a server, even if one is stored. `no_network` is that of
    /// [`ClientBuilder`](super::ClientBuilder::no_network).
    ///
    /// # Errors
    /// `PRECONDITION` if the server requires no token, `PERMISSION` if the token request or an address is
    /// rejected, `TIMEOUT`, `DEPENDENCY`.
    pub async fn login(&self, url: &str, no_network: bool) -> Result<Login, CallError> {
        Ok(Session::new(self.clone(), url, no_network)?.login().await?)
    }

    /// Deletes the tokens of a server and revokes them where possible. Returns whether there were any.
    ///
    /// # Errors
    /// `PRECONDITION` if the store cannot be used. A failed revocation is only logged.
    pub async fn logout(&self, url: &str, no_network: bool) -> Result<bool, CallError> {
        Ok(Session::new(self.clone(), url, no_network)?.logout().await?)
    }

    pub(super) fn session(self, url: &str, no_network: bool) -> Result<Arc<Session>, ToolError> {
        Session::new(self, url, no_network).map(Arc::new)
    }

    /// The time that a connection may take in addition, for a login.
    pub(super) fn extra_time(&self) -> Duration {
        if self.show.is_some() { self.login_timeout } else { Duration::ZERO }
    }
}

/// The distinct words of a text, split at white space.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_ascii_whitespace().take(200) {
        if !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    }
    words
}
