//! The loopback server that receives the redirect of a login.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use toolpost_core::{Secret, ToolError, format_duration};

use super::key;
use crate::convert::inward::shortened;

/// The path of the redirect URI.
const PATH: &str = "/callback";
/// The longest request, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// The time that reading one request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most connections at once; further ones wait.
const MAX_CONNECTIONS: usize = 16;

/// A server that waits for the redirect of a browser.
pub(super) struct Callback {
    listener: TcpListener,
    redirect_uri: String,
}

/// The parameters of a redirect, not yet validated.
struct Redirect {
    /// The issuer of the code (RFC 9207).
    issuer: Option<String>,
    code: Option<Secret>,
    error: Option<String>,
}

impl Callback {
    /// Listens on loopback: at the configured port, else at the port of an earlier login, else at any.
    pub(super) async fn listen(configured: Option<u16>, earlier: Option<&str>) -> Result<Self, ToolError> {
        let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let earlier = earlier.and_then(|redirect| Url::parse(redirect).ok()?.port());
        let listener = match (configured, earlier) {
            (Some(port), _) => bind(port).await,
            (None, Some(port)) => match bind(port).await {
                Ok(listener) => Ok(listener),
                Err(_) => bind(0).await,
            },
            (None, None) => bind(0).await,
        };
        let listener = listener.map_err(|error| {
            let port = configured.map_or_else(|| "any port".to_owned(), |port| format!("port {port}"));
            ToolError::dependency(format!("cannot listen on {port} for the redirect: {error}"))
        })?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, redirect_uri: format!("http://127.0.0.1:{port}{PATH}") })
    }

    /// The redirect URI.
    pub(super) fn redirect_uri(&self) -> &str {
        &self.redirect_uri
    }

    /// Waits for a redirect with the right `state` and returns its code. Other requests get an error page.
    ///
    /// `issuer` must have issued the code; with `requires_issuer` the redirect must say so.
    pub(super) async fn code(
        &self,
        state: &str,
        issuer: &str,
        requires_issuer: bool,
        timeout: Duration,
    ) -> Result<Secret, ToolError> {
        let (sender, mut redirects) = mpsc::channel(1);
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut tasks = tokio::task::JoinSet::new();
        let work = async {
            loop {
                tokio::select! {
                    redirect = redirects.recv() => match redirect {
                        Some(redirect) => return code_of(redirect, issuer, requires_issuer),
                        None => return Err(ToolError::internal("the callback ended")),
                    },
                    accepted = self.listener.accept() => {
                        let Ok((stream, _)) = accepted else {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            continue;
                        };
                        // The semaphore is never closed.
                        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { continue };
                        let (sender, state) = (sender.clone(), state.to_owned());
                        let (issuer, requires_issuer) = (issuer.to_owned(), requires_issuer);
                        tasks.spawn(async move {
                            let _permit = permit;
                            let answered = answer(stream, &state, &issuer, requires_issuer);
                            if let Ok(Some(redirect)) = tokio::time::timeout(HEAD_TIMEOUT, answered).await {
                                // The receiver may have got a redirect already.
                                let _ = sender.send(redirect).await;
                            }
                        });
                        while tasks.try_join_next().is_some() {}
                    }
                }
            }
        };
        tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
            Err(ToolError::timeout(format!(
                "the login was not completed within {}",
                format_duration(timeout)
            )))
        })
    }
}

/// The code of a redirect. The issuer is checked first.
fn code_of(redirect: Redirect, issuer: &str, requires_issuer: bool) -> Result<Secret, ToolError> {
    match &redirect.issuer {
        Some(found) if found != issuer => {
            return Err(ToolError::permission(format!(
                "the redirect names the issuer `{}`, expected `{}`",
                shortened(found, 200),
                shortened(issuer, 200)
            )));
        }
        None if requires_issuer => {
            return Err(ToolError::permission(format!(
                "the redirect names no issuer, although `{}` promises to name it",
                shortened(issuer, 200)
            )));
        }
        _ => {}
    }
    if let Some(error) = redirect.error {
        return Err(ToolError::permission(format!(
            "the authorization server `{}` denied the login: {}",
            shortened(issuer, 200),
            shortened(&error, 300)
        )));
    }
    redirect.code.ok_or_else(|| ToolError::permission("the redirect has no code"))
}

/// Reads one request and answers it; returns the redirect if its `state` is right.
async fn answer(mut stream: TcpStream, state: &str, issuer: &str, requires_issuer: bool) -> Option<Redirect> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 2 << 10];
        let read = stream.read(&mut piece).await.ok()?;
        if read == 0 || head.len() + read > MAX_HEAD {
            return None;
        }
        head.extend_from_slice(piece.get(..read)?);
    }
    let redirect = parse(&head, state);
    let (status, page) = match &redirect {
        Ok(redirect) if redirect.error.is_none() && is_from(redirect, issuer, requires_issuer) => {
            ("200 OK", "You are logged in. You can close this window.")
        }
        Ok(_) => ("400 Bad Request", "The login failed. The terminal shows the reason."),
        Err(status) => (*status, "This address only accepts the redirect of an authorization server."),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
         Connection: close\r\n\r\n{page}",
        page.len()
    );
    // The redirect counts even if the browser is gone.
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
    redirect.ok()
}

fn is_from(redirect: &Redirect, issuer: &str, requires_issuer: bool) -> bool {
    redirect.issuer.as_deref().map_or(!requires_issuer, |found| found == issuer)
}

/// The redirect in a request, or the status of the error page.
fn parse(head: &[u8], state: &str) -> Result<Redirect, &'static str> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| "400 Bad Request")?;
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" {
        return Err("405 Method Not Allowed");
    }
    let url =
        Url::parse("http://127.0.0.1").and_then(|base| base.join(target)).map_err(|_| "400 Bad Request")?;
    if url.path() != PATH || !target.starts_with('/') {
        return Err("404 Not Found");
    }
    let field = |name: &str| {
        let mut found = url.query_pairs().filter(|(key, _)| key == name).map(|(_, value)| value.into_owned());
        let first = found.next();
        // A duplicate parameter is ambiguous.
        if found.next().is_some() { None } else { first }
    };
    // Comparing hashes leaks nothing through timing.
    if field("state").is_none_or(|given| key::sha256(&given) != key::sha256(state)) {
        return Err("400 Bad Request");
    }
    let error = field("error").map(|code| match field("error_description") {
        Some(description) => format!("{code} ({description})"),
        None => code,
    });
    Ok(Redirect {
        issuer: field("iss"),
        code: field("code").filter(|code| !code.is_empty()).map(Secret::new),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUER: &str = "https://login.example";

    async fn get(callback: &str, query: &str) -> String {
        let url = Url::parse(callback).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", url.port().unwrap())).await.unwrap();
        let head = format!("GET {}{query} HTTP/1.1\r\nHost: x\r\n\r\n", url.path());
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn a_redirect_without_the_state_is_rejected() {
        let callback = Callback::listen(None, None).await.unwrap();
        let redirect = callback.redirect_uri().to_owned();
        let requests = async {
            for wrong in
                ["", "?code=evil", "?code=evil&state=other", "?code=evil&state=abc&state=abc", "/x?state=abc"]
            {
                let answer = get(&redirect, wrong).await;
                assert!(answer.contains("400") || answer.contains("404"), "{wrong}: {answer}");
            }
            // A silent connection does not block others.
            let silent = TcpStream::connect(("127.0.0.1", Url::parse(&redirect).unwrap().port().unwrap()))
                .await
                .unwrap();
            let answer = get(&redirect, "?code=good&state=abc").await;
            assert!(answer.contains("200"), "{answer}");
            drop(silent);
        };
        let waits = callback.code("abc", ISSUER, false, Duration::from_secs(20));
        let (code, ()) = tokio::join!(waits, requests);
        assert_eq!(code.unwrap().expose(), "good");
    }

    #[tokio::test]
    async fn the_issuer_is_checked_before_the_code() {
        for (query, requires_issuer, is_good) in [
            ("code=a&state=s", false, true),
            ("code=a&state=s", true, false),
            ("code=a&state=s&iss=https://login.example", true, true),
            ("code=a&state=s&iss=https://login.example", false, true),
            ("code=a&state=s&iss=https://login.example/", false, false),
            ("code=a&state=s&iss=https://evil.example", false, false),
            ("error=access_denied&state=s", false, false),
            ("state=s", false, false),
        ] {
            let callback = Callback::listen(None, None).await.unwrap();
            let (redirect, query) = (callback.redirect_uri().to_owned(), format!("?{query}"));
            let waits = callback.code("s", ISSUER, requires_issuer, Duration::from_secs(20));
            let (code, _) = tokio::join!(waits, get(&redirect, &query));
            assert_eq!(code.is_ok(), is_good, "{query}: {code:?}");
        }
    }

    #[tokio::test]
    async fn the_wait_has_a_timeout_and_the_port_is_reused() {
        let callback = Callback::listen(None, None).await.unwrap();
        let redirect = callback.redirect_uri().to_owned();
        let error = callback.code("s", ISSUER, false, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.code(), toolpost_core::Code::Timeout);
        let port = Url::parse(&redirect).unwrap().port().unwrap();
        let error = Callback::listen(Some(port), None).await.err().unwrap();
        assert!(error.message().contains(&port.to_string()), "{error}");
        assert_ne!(Callback::listen(None, Some(&redirect)).await.unwrap().redirect_uri(), redirect);
        drop(callback);
        assert_eq!(Callback::listen(None, Some(&redirect)).await.unwrap().redirect_uri(), redirect);
    }
}
