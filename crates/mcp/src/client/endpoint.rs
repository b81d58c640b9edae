//! Where a server is.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use toolpost_core::Secret;
use toolpost_sandbox::Level;

/// Where a server is, and how it is reached.
#[derive(Clone)]
#[non_exhaustive]
pub enum Endpoint {
    /// Streamable HTTP.
    Http {
        /// Such as `https://example.com/mcp`.
        url: String,
        /// Headers of every request, such as `Authorization`. Their values are shown by nothing.
        headers: Vec<(String, Secret)>,
    },
    /// WebSocket, as the servers of this project have it; the protocol itself has none.
    WebSocket {
        /// Such as `wss://example.com/ws`.
        url: String,
        /// Headers of the request that begins, such as `Authorization`. Their values are shown by nothing.
        headers: Vec<(String, Secret)>,
    },
    /// A program that speaks over its standard streams. It is started by the sandbox.
    Program {
        /// The program and its arguments. A name without a slash is looked up in the search path.
        argv: Vec<OsString>,
        /// Variables of its otherwise clean environment. Their values are shown by nothing.
        env: Vec<(String, OsString)>,
        /// The folder in which it works and which it may write; an empty one of its own if there is none.
        dir: Option<PathBuf>,
        /// How it is confined. [`Level::Standard`] and above give it no network.
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

    /// A program at [`Level::Standard`], in a folder of its own, with a clean environment.
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
    /// The address, or the command; no header, no variable, and of an address neither its user nor its query.
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

/// An address without what may be secret in it.
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
    fn what_is_shown_has_no_secret() {
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
