//! The arguments of `login` and `logout`.

use std::time::Duration;

use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct LoginArgs {
    /// The address of the server, as it is named elsewhere.
    pub(crate) url: String,
    /// A scope to ask for, instead of those that the server names. May be repeated.
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Vec<String>,
    /// The client as it was registered by hand; without it, this program registers itself.
    #[arg(long, value_name = "ID", help_heading = "Client")]
    pub(crate) client_id: Option<String>,
    /// The variable with the secret of that client.
    #[arg(long, value_name = "NAME", help_heading = "Client", requires = "client_id")]
    pub(crate) client_secret_env: Option<String>,
    /// The authorization server that knows that client; without it, the one that the server names.
    #[arg(long, value_name = "URL", help_heading = "Client", requires = "client_id")]
    pub(crate) issuer: Option<String>,
    /// The address of a document that says who this client is, for authorization servers that read such.
    #[arg(long, value_name = "URL", help_heading = "Client", conflicts_with = "client_id")]
    pub(crate) client_document: Option<String>,
    /// The port of this machine that the browser comes back to; without it, any that is free.
    #[arg(long, value_name = "PORT", help_heading = "Client")]
    pub(crate) callback_port: Option<u16>,
    /// How long the browser is waited for; 5m unless it is said otherwise.
    #[arg(long, value_name = "D", value_parser = super::duration)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct LogoutArgs {
    /// The address of the server, as it was logged in to.
    pub(crate) url: String,
}
