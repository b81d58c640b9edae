//! Who asks: tokens of authorization servers (OAuth 2.1), for servers at `https` addresses.
//!
//! | what a server or an authorization server does | what comes of it |
//! |---|---|
//! | answers with 401 | it is asked where its authorization server is, and a token is got there |
//! | answers with 403 and scopes | a token with these and the former ones is got, three times in ten minutes at most |
//! | names another authorization server than before | this client is registered there anew; nothing of the former is sent to it |
//! | names an address inside of this machine or a private network | the address is refused, unless the server itself is there by its address |
//! | calls itself by another name than it was asked by | nothing is sent to it |
//! | says nothing of PKCE with S256 | nobody is sent to it |
//! | binds tokens to keys (`DPoP`) | each request proves that it has the key |

mod callback;
mod challenge;
mod key;
mod metadata;
#[cfg(test)]
mod mutated;
mod session;
mod store;
mod tokens;
mod web;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Secret, ToolError};

use self::key::Key;

pub use self::session::Login;
pub(super) use self::session::Session;
pub use self::store::TokenStore;
pub(super) use self::wire::{Refusal, Wire};

/// How long a person has, unless it is said otherwise.
const PATIENCE: Duration = Duration::from_mins(5);

/// How a client gets tokens for a server.
#[derive(Clone)]
pub struct OAuth {
    store: TokenStore,
    grant: Grant,
    show: Option<Show>,
    identity: Option<Arc<Identity>>,
    document: Option<String>,
    scopes: Vec<String>,
    callback_port: Option<u16>,
    hosts: Vec<String>,
    patience: Duration,
}

type Show = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Clone)]
enum Grant {
    /// A person, at a browser.
    Code,
    /// This client itself.
    Client,
    /// A signed word of whoever runs this client.
    Workload(Secret),
    /// A person, by the identity provider of their enterprise.
    Enterprise(Enterprise),
}

/// What an identity provider says of a person, and where it says more.
#[derive(Clone, Debug)]
pub struct Enterprise {
    /// The token endpoint of the identity provider.
    pub token_endpoint: String,
    /// How the identity provider knows this client.
    pub client_id: String,
    /// The secret for that, if there is one.
    pub client_secret: Option<Secret>,
    /// Who the person is, as the identity provider has signed it.
    pub id_token: Secret,
}

/// A client that was registered by hand.
#[derive(Debug)]
pub struct Identity {
    id: String,
    secret: Option<Secret>,
    key: Option<Key>,
    issuer: Option<String>,
}

impl Identity {
    /// A client without a secret.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), secret: None, key: None, issuer: None }
    }

    /// Its secret.
    #[must_use]
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// The private key that it proves itself with instead of a secret (`private_key_jwt`), as PEM in the form PKCS #8.
    ///
    /// # Errors
    /// `INVALID_INPUT` if it is none of P-256, Ed25519 or RSA.
    pub fn private_key(mut self, pem: &Secret) -> Result<Self, ToolError> {
        self.key = Some(Key::read(pem)?);
        Ok(self)
    }

    /// The authorization server that knows it, exactly as it names itself. Without it, the first one that the server
    /// names; a later one gets nothing.
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
    /// Uses the tokens of a store, and gets new ones as far as no person is needed.
    pub fn new(store: TokenStore) -> Self {
        Self {
            store,
            grant: Grant::Code,
            show: None,
            identity: None,
            document: None,
            scopes: Vec::new(),
            callback_port: None,
            hosts: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// Asks a person, who opens the address that `show` is given in a browser of this machine.
    #[must_use]
    pub fn interactive(mut self, show: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.show = Some(Arc::new(show));
        self
    }

    /// Asks as the client itself, which needs no person (the grant `client_credentials`). Needs an [`identity`](Self::identity).
    #[must_use]
    pub fn client_credentials(mut self) -> Self {
        self.grant = Grant::Client;
        self
    }

    /// Asks with a signed word of whoever runs this client, such as a cloud (the grant `jwt-bearer`). Needs an
    /// [`identity`](Self::identity).
    #[must_use]
    pub fn workload(mut self, assertion: Secret) -> Self {
        self.grant = Grant::Workload(assertion);
        self
    }

    /// Asks for a person whom the identity provider of an enterprise knows. Needs an [`identity`](Self::identity).
    #[must_use]
    pub fn enterprise(mut self, enterprise: Enterprise) -> Self {
        self.grant = Grant::Enterprise(enterprise);
        self
    }

    /// The client as it was registered by hand. Default: none; then a [document](Self::metadata_document) says who it is,
    /// or it registers itself.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = Some(Arc::new(identity));
        self
    }

    /// The `https` address of a document that says who this client is (Client ID Metadata Document). It counts where an
    /// authorization server knows such documents. Default none.
    #[must_use]
    pub fn metadata_document(mut self, url: impl Into<String>) -> Self {
        self.document = Some(url.into());
        self
    }

    /// Adds a scope that is asked for in place of those that the server names. Default none.
    #[must_use]
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// The port of this machine that browsers come back to. Default any that is free.
    #[must_use]
    pub fn callback_port(mut self, port: u16) -> Self {
        self.callback_port = Some(port);
        self
    }

    /// Allows a host that a server names although it is this machine or in a private network. Default none. Where clouds
    /// keep credentials is never asked.
    #[must_use]
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// How long a person at a browser is waited for. Default 5 min.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Gets a token for a server and keeps it, also if there is one already. `no_network` is that of
    /// [`ClientBuilder`](super::ClientBuilder::no_network).
    ///
    /// # Errors
    /// `PRECONDITION` if the server wants no token, `PERMISSION` if none is given or an address is refused, `TIMEOUT`,
    /// `DEPENDENCY`.
    pub async fn login(&self, url: &str, no_network: bool) -> Result<Login, ToolError> {
        Session::new(self.clone(), url, no_network)?.login().await
    }

    /// Forgets the tokens of a server, and gives them back where that is possible. Says whether there were any.
    ///
    /// # Errors
    /// `PRECONDITION` if the store cannot be used. That a token could not be given back is only logged.
    pub async fn logout(&self, url: &str, no_network: bool) -> Result<bool, ToolError> {
        Session::new(self.clone(), url, no_network)?.logout().await
    }

    pub(super) fn session(self, url: &str, no_network: bool) -> Result<Arc<Session>, ToolError> {
        Session::new(self, url, no_network).map(Arc::new)
    }

    /// How much longer than else a connection may take, because a person is asked.
    pub(super) fn longer(&self) -> Duration {
        if self.show.is_some() { self.patience } else { Duration::ZERO }
    }
}

/// The words of a text that are separated by white space, each once.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_ascii_whitespace().take(200) {
        if !words.iter().any(|known| known == word) {
            words.push(word.to_owned());
        }
    }
    words
}
