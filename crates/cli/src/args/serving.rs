//! What a server of tools is told of its tasks and of the tokens of its clients.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use toolpost_core::parse_duration;

/// How calls outlive their requests.
#[derive(Args, Debug)]
#[expect(clippy::struct_field_names, reason = "each is named as its option")]
pub(crate) struct TaskArgs {
    /// A file that keeps tasks, so that they outlive this server; without it, they end with it.
    #[arg(long, value_name = "FILE")]
    pub(crate) task_store: Option<PathBuf>,
    /// How long a call may keep its request open before it becomes a task, such as `30s`, if the client knows tasks;
    /// without it, 10 s.
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    pub(crate) task_after: Option<Duration>,
    /// How long a task lives, such as `2h`; without it, 1 h.
    #[arg(long, value_name = "D", value_parser = super::duration)]
    pub(crate) task_ttl: Option<Duration>,
}

/// Whose tokens are taken, as OAuth 2.1 and RFC 9728 say it.
#[derive(Args, Debug)]
#[expect(clippy::struct_field_names, reason = "each is named as its option")]
pub(crate) struct OauthArgs {
    /// The authorization server whose tokens are taken, exactly as they name it.
    #[arg(long, value_name = "URL", requires_all = ["address", "oauth_keys", "oauth_resource"])]
    pub(crate) oauth_issuer: Option<String>,
    /// A file with its keys, as a JWK set; read again when it changes.
    #[arg(long, value_name = "FILE", requires = "oauth_issuer")]
    pub(crate) oauth_keys: Option<PathBuf>,
    /// What tokens for this server name as their audience, such as `https://tools.example/mcp`.
    #[arg(long, value_name = "URL", requires = "oauth_issuer")]
    pub(crate) oauth_resource: Option<String>,
    /// What a token must be good for. May be repeated.
    #[arg(long, value_name = "SCOPE", requires = "oauth_issuer")]
    pub(crate) oauth_scope: Vec<String>,
}
