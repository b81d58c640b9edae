//! The address of a server.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use toolpost_core::Secret;
use toolpost_sandbox::Level;

/// The address of a server and how to reach it.
#[derive(Clone)]
#[non_exhaustive]
pub enum Endpoint {
    /// Streamable HTTP.
    Http {
        /// The address, such as `https://example.com/mcp`.
        url: String,
        /// Headers of every request, such as `Authorization`. Values are never shown.
        headers: Vec<(String, Secret)>,
    },
    /// WebSocket, an extension of Toolpost servers. MCP itself does not define it.
    WebSocket {
        /// The address, such as `wss://example.com/ws`.
        url: String,
        /// Headers of the upgrade request, such as `Authorization`. Values are never shown.
        headers: Vec<(String, Secret)>,
    },
    /// A program that speaks MCP over stdio. The sandbox starts it.
    Program {
        /// The program and its arguments. A name without a slash is looked up in the search path.
        argv: Vec<OsString>,
        /// Environment variables; nothing is inherited. Values are never shown.
        env: Vec<(String, OsString)>,
        /// The writable working directory. Default: an empty one.
        dir: Option<PathBuf>,
        /// The sandbox level. [`Level::Standard`] and stricter levels block the network.
        level: Level,
    },
}

impl Endpoint {
    /// Streamable HTTP without headers.
    pub fn http(url: impl Into<String>) -> Self {
        Self::Http { url: url.into(), headers: Vec::new() }
    }

    /// WebSocket without headers.
    pub fn websocket(url: impl Into<String>) -> Self {
        Self::WebSocket { url: url.into(), headers: Vec::new() }
    }

    /// A program at [`Level::Standard`] with an empty working directory and environment.
    pub fn program<S: Into<OsString>>(argv: impl IntoIterator<Item = S>) -> Self {
        Self::Program {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            dir: None,
            level: Level::Standard,
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

impl fmt::Display for Endpoint {
    /// The URL without user and query, or the command. Headers and variables are never shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { url, .. } | Self::WebSocket { url, .. } => f.write_str(&shown(url)),
            Self::Program { argv, .. } => {
                let words: Vec<_> = argv.iter().map(|word| word.to_string_lossy()).collect();
                f.write_str(&words.join(" "))
            }
        }
    }
}

/// A URL without the parts that may hold secrets.
fn shown(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let plain = url.get(..end).unwrap_or_default();
    match plain.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            format!("{scheme}://{host}{path}")
        }
        None => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_has_no_secrets() {
        for (url, expected) in [
            ("https://a.example/mcp", "https://a.example/mcp"),
            ("https://me:hunter2@a.example/mcp?key=hunter2#hunter2", "https://a.example/mcp"),
            ("http://a.example?hunter2", "http://a.example"),
            ("hunter", "hunter"),
        ] {
            let headers = vec![("Authorization".to_owned(), Secret::new("hunter2"))];
            let endpoint = Endpoint::Http { url: url.into(), headers };
            assert_eq!(format!("{endpoint:?}"), format!("Endpoint({expected})"));
        }
        let program = Endpoint::Program {
            argv: vec!["a".into(), "b".into()],
            env: vec![("KEY".into(), "hunter2".into())],
            dir: None,
            level: Level::Minimal,
        };
        assert_eq!(format!("{program:?}"), "Endpoint(a b)");
    }
}
