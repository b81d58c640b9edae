//! The arguments of `login` and `logout`.

use std::time::Duration;

use clap::Args;

use crate::parse::duration;

#[derive(Args, Debug)]
pub(crate) struct LoginArgs {
    /// The server's URL.
    pub(crate) url: String,
    /// A scope to request instead of the server's. May be repeated.
    #[arg(long, value_name = "SCOPE")]
    pub(crate) scope: Vec<String>,
    /// The ID of a registered client; defaults to dynamic registration.
    #[arg(long, value_name = "ID", help_heading = "Client")]
    pub(crate) client_id: Option<String>,
    /// The variable with the client's secret.
    #[arg(long, value_name = "NAME", help_heading = "Client", requires = "client_id")]
    pub(crate) client_secret_env: Option<String>,
    /// The client's authorization server; defaults to the MCP server's.
    #[arg(long, value_name = "URL", help_heading = "Client", requires = "client_id")]
    pub(crate) issuer: Option<String>,
    /// The URL of a client ID metadata document.
    #[arg(long, value_name = "URL", help_heading = "Client", conflicts_with = "client_id")]
    pub(crate) client_document: Option<String>,
    /// The local port of the redirect URI; defaults to a free one.
    #[arg(long, value_name = "PORT", help_heading = "Client")]
    pub(crate) callback_port: Option<u16>,
    /// Time limit for the browser login; defaults to 5m.
    #[arg(long, value_name = "D", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct LogoutArgs {
    /// The URL of the login.
    pub(crate) url: String,
}
