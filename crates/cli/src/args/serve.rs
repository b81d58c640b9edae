//! The arguments of `serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use toolpost_core::parse_duration;
use toolpost_sandbox::Level;

use super::grants::GrantArgs;
use super::permission::DirectoryArgs;
use crate::parse::duration;

/// The clients that get the search tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SearchFor {
    /// Clients without a search of their own.
    Auto,
    /// All clients.
    Always,
}

#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("address").args(["http", "ws"]))]
pub(crate) struct ServeArgs {
    /// The tools. `NAME=TARGET` chooses a namespace, `=TARGET` has none.
    #[arg(value_name = "TARGET", default_value = "builtin")]
    pub(crate) targets: Vec<String>,
    /// Start a target on its first call; list its cached manifest.
    #[arg(long)]
    pub(crate) lazy: bool,
    /// Offer search tools instead of all tools; `always` to all clients.
    #[arg(long, value_name = "FOR", num_args = 0..=1, default_missing_value = "auto", require_equals = true)]
    pub(crate) search: Option<SearchFor>,
    /// A tool to list besides the search tools. May be repeated.
    #[arg(long, hide = true, value_name = "TOOL", requires = "search")]
    pub(crate) core_tool: Vec<String>,
    /// The server's name.
    #[arg(long, hide = true, value_name = "NAME", default_value = "toolpost")]
    pub(crate) name: String,
    /// Serve over HTTP, such as `127.0.0.1:8080`; port 0 is any.
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Address", conflicts_with = "ws")]
    pub(crate) http: Option<SocketAddr>,
    /// Serve over HTTP and WebSocket, and print the WebSocket URL.
    #[arg(long, value_name = "ADDRESS:PORT", help_heading = "Address")]
    pub(crate) ws: Option<SocketAddr>,
    /// A PEM file with the TLS certificate chain.
    #[arg(long, hide = true, value_name = "FILE", help_heading = "Address", requires_all = ["address", "tls_key"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// A PEM file with the certificate's private key.
    #[arg(long, hide = true, value_name = "FILE", help_heading = "Address", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Allow addresses beyond this machine; needs a token.
    #[arg(long, help_heading = "Address", requires = "address")]
    pub(crate) beyond_loopback: bool,
    /// Accept a further `Host` header, such as `tools.example:8080`. May be repeated.
    #[arg(long, hide = true, value_name = "HOST", help_heading = "Address", requires = "address")]
    pub(crate) host: Vec<String>,
    /// Accept a web origin, such as `https://app.example`. May be repeated.
    #[arg(long, hide = true, value_name = "ORIGIN", help_heading = "Address", requires = "address")]
    pub(crate) origin: Vec<String>,
    /// A file with client tokens, one a line, after an optional client name.
    #[arg(long, value_name = "FILE", help_heading = "Permission", requires = "address")]
    pub(crate) token_file: Option<PathBuf>,
    /// Serve every user of this machine, without a token.
    #[arg(long, help_heading = "Permission", requires = "address", conflicts_with_all = ["token_file", "oauth_issuer"])]
    pub(crate) no_token: bool,
    /// Offer only these tools: names or patterns. May be repeated.
    #[arg(long, value_name = "TOOL", help_heading = "Permission")]
    pub(crate) allow: Vec<String>,
    /// Hide these tools, even if `--allow` names them. May be repeated.
    #[arg(long, value_name = "TOOL", help_heading = "Permission")]
    pub(crate) deny: Vec<String>,
    /// Replace `--allow` for one client, such as `token-2=read_*`. May be repeated.
    #[arg(long, hide = true, value_name = "CLIENT=TOOL", help_heading = "Permission")]
    pub(crate) allow_for: Vec<String>,
    /// Hide tools from one client. May be repeated.
    #[arg(long, hide = true, value_name = "CLIENT=TOOL", help_heading = "Permission")]
    pub(crate) deny_for: Vec<String>,
    /// Approve every call of a tool. May be repeated.
    #[arg(long, value_name = "TOOL", help_heading = "Permission")]
    pub(crate) approve: Vec<String>,
    /// Show the client's user an approval prompt before each tool call.
    #[arg(long, help_heading = "Permission")]
    pub(crate) ask: bool,
    /// Sandbox level of tools that run code; defaults to the host's best.
    #[arg(long, value_name = "LEVEL", help_heading = "Permission")]
    pub(crate) level: Option<Level>,
    /// The tools' working directory.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) workdir: PathBuf,
    /// Share the working directory among several clients.
    #[arg(long, hide = true, requires = "address")]
    pub(crate) shared_workdir: bool,
    #[command(flatten)]
    pub(crate) directory: DirectoryArgs,
    #[command(flatten)]
    pub(crate) grants: GrantArgs,
    #[command(flatten, next_help_heading = "Permission")]
    pub(crate) oauth: OauthArgs,
    #[command(flatten, next_help_heading = "Tasks")]
    pub(crate) tasks: TaskArgs,
}

impl ServeArgs {
    /// The address to listen on; none serves over stdio.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.http.or(self.ws)
    }
}

/// Tasks: calls that outlive their requests.
#[derive(Args, Debug)]
#[expect(clippy::struct_field_names, reason = "each is named as its option")]
pub(crate) struct TaskArgs {
    /// A file that persists tasks across restarts.
    #[arg(long, value_name = "FILE")]
    pub(crate) task_store: Option<PathBuf>,
    /// When a slow call becomes a task; defaults to 10s.
    #[arg(long, hide = true, value_name = "D", value_parser = parse_duration)]
    pub(crate) task_after: Option<Duration>,
    /// The time that the result of a task stays; defaults to 1h.
    #[arg(long, hide = true, value_name = "D", value_parser = duration)]
    pub(crate) task_ttl: Option<Duration>,
}

/// OAuth 2.1 access tokens of clients (RFC 9728).
#[derive(Args, Debug)]
#[expect(clippy::struct_field_names, reason = "each is named as its option")]
pub(crate) struct OauthArgs {
    /// The authorization server of accepted tokens: their `iss` claim.
    #[arg(long, hide = true, value_name = "URL", requires_all = ["address", "oauth_keys", "oauth_resource"])]
    pub(crate) oauth_issuer: Option<String>,
    /// A file with the issuer's JWK set, reloaded on change.
    #[arg(long, hide = true, value_name = "FILE", requires = "oauth_issuer")]
    pub(crate) oauth_keys: Option<PathBuf>,
    /// The audience of accepted tokens, such as `https://tools.example/mcp`.
    #[arg(long, hide = true, value_name = "URL", requires = "oauth_issuer")]
    pub(crate) oauth_resource: Option<String>,
    /// A required scope. May be repeated.
    #[arg(long, hide = true, value_name = "SCOPE", requires = "oauth_issuer")]
    pub(crate) oauth_scope: Vec<String>,
}
