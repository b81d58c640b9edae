//! Where a browser comes back to with a code: a server on this machine, for one visit.

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

/// The path that a browser comes back to.
const PATH: &str = "/callback";
/// The longest request, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// How long one request may take.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How many connections there may be at once; more of them wait.
const MAX_CONNECTIONS: usize = 16;

/// A server that waits for a browser.
pub(super) struct Callback {
    listener: TcpListener,
    redirect: String,
}

/// What a browser brings back, before anybody has looked at it.
struct Visit {
    /// Who says that it has made the code (RFC 9207).
    issuer: Option<String>,
    code: Option<Secret>,
    error: Option<String>,
}

impl Callback {
    /// Listens on this machine: at the port that is wanted, or else at that of an earlier visit, or at any.
    pub(super) async fn listen(wanted: Option<u16>, earlier: Option<&str>) -> Result<Self, ToolError> {
        let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let earlier = earlier.and_then(|redirect| Url::parse(redirect).ok()?.port());
        let listener = match (wanted, earlier) {
            (Some(port), _) => bind(port).await,
            (None, Some(port)) => match bind(port).await {
                Ok(listener) => Ok(listener),
                Err(_) => bind(0).await,
            },
            (None, None) => bind(0).await,
        };
        let listener = listener.map_err(|error| {
            let port = wanted.map_or_else(|| "any port".to_owned(), |port| format!("the port {port}"));
            ToolError::dependency(format!(
                "{port} of this machine cannot be listened on for the browser: {error}"
            ))
        })?;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, redirect: format!("http://127.0.0.1:{port}{PATH}") })
    }

    /// The address that the browser is to come back to.
    pub(super) fn redirect(&self) -> &str {
        &self.redirect
    }

    /// Waits for a visit that knows the state, and gives its code. Who does not know it is told so, and nobody stops waiting.
    ///
    /// `issuer` is who must have made the code; `must_say` whether it must say so.
    pub(super) async fn code(
        &self,
        state: &str,
        issuer: &str,
        must_say: bool,
        patience: Duration,
    ) -> Result<Secret, ToolError> {
        let (sender, mut visits) = mpsc::channel(1);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut tasks = tokio::task::JoinSet::new();
        let work = async {
            loop {
                tokio::select! {
                    visit = visits.recv() => match visit {
                        Some(visit) => return judged(visit, issuer, must_say),
                        None => return Err(ToolError::internal("the callback ended")),
                    },
                    accepted = self.listener.accept() => {
                        let Ok((stream, _)) = accepted else {
                            tokio::time::sleep(Duration::from_millis(20)).await;
                            continue;
                        };
                        // The semaphore is never closed.
                        let Ok(place) = Arc::clone(&places).acquire_owned().await else { continue };
                        let (sender, state) = (sender.clone(), state.to_owned());
                        let (issuer, must_say) = (issuer.to_owned(), must_say);
                        tasks.spawn(async move {
                            let _place = place;
                            let answered = answer(stream, &state, &issuer, must_say);
                            if let Ok(Some(visit)) = tokio::time::timeout(HEAD_TIME, answered).await {
                                // Whoever waited may have one already.
                                let _ = sender.send(visit).await;
                            }
                        });
                        while tasks.try_join_next().is_some() {}
                    }
                }
            }
        };
        tokio::time::timeout(patience, work).await.unwrap_or_else(|_| {
            Err(ToolError::timeout(format!(
                "nobody came back from the browser within {}",
                format_duration(patience)
            )))
        })
    }
}

/// What a visit is worth. Who made the code counts before anything else that is said.
fn judged(visit: Visit, issuer: &str, must_say: bool) -> Result<Secret, ToolError> {
    match &visit.issuer {
        Some(said) if said != issuer => {
            return Err(ToolError::permission(format!(
                "the browser came back from `{}`: expected `{}`, which was asked",
                shortened(said, 200),
                shortened(issuer, 200)
            )));
        }
        None if must_say => {
            return Err(ToolError::permission(format!(
                "the browser came back without a word of who sent it: `{}` says that it always gives one",
                shortened(issuer, 200)
            )));
        }
        _ => {}
    }
    if let Some(error) = visit.error {
        return Err(ToolError::permission(format!(
            "the authorization server `{}` gives no code: {}",
            shortened(issuer, 200),
            shortened(&error, 300)
        )));
    }
    visit.code.ok_or_else(|| ToolError::permission("the browser came back without a code"))
}

/// Reads one request and answers it; gives the visit if the request knows the state.
async fn answer(mut stream: TcpStream, state: &str, issuer: &str, must_say: bool) -> Option<Visit> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut piece = [0; 2 << 10];
        let read = stream.read(&mut piece).await.ok()?;
        if read == 0 || head.len() + read > MAX_HEAD {
            return None;
        }
        head.extend_from_slice(piece.get(..read)?);
    }
    let visit = visit(&head, state);
    let (status, told) = match &visit {
        Ok(visit) if visit.error.is_none() && is_from(visit, issuer, must_say) => {
            ("200 OK", "You are logged in. You can close this window and go back to where you came from.")
        }
        Ok(_) => ("400 Bad Request", "You are not logged in. The place where you came from says why."),
        Err(why) => (*why, "This address is for a browser that comes back from an authorization server."),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
         Connection: close\r\n\r\n{told}",
        told.len()
    );
    // The browser may be gone: what it has brought counts.
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.shutdown().await;
    visit.ok()
}

fn is_from(visit: &Visit, issuer: &str, must_say: bool) -> bool {
    visit.issuer.as_deref().map_or(!must_say, |said| said == issuer)
}

/// The visit of a request, or the status that it is answered with.
fn visit(head: &[u8], state: &str) -> Result<Visit, &'static str> {
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
        // Said twice it is not clear which counts.
        if found.next().is_some() { None } else { first }
    };
    // Compared by what is made of it, which tells nothing by the time that it takes.
    if field("state").is_none_or(|given| key::hashed(&given) != key::hashed(state)) {
        return Err("400 Bad Request");
    }
    let error = field("error").map(|code| match field("error_description") {
        Some(description) => format!("{code} ({description})"),
        None => code,
    });
    Ok(Visit {
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
    async fn only_who_knows_the_state_is_listened_to() {
        let callback = Callback::listen(None, None).await.unwrap();
        let redirect = callback.redirect().to_owned();
        let visits = async {
            for wrong in
                ["", "?code=evil", "?code=evil&state=other", "?code=evil&state=abc&state=abc", "/x?state=abc"]
            {
                let answer = get(&redirect, wrong).await;
                assert!(answer.contains("400") || answer.contains("404"), "{wrong}: {answer}");
            }
            // One that says nothing keeps nobody else waiting.
            let silent = TcpStream::connect(("127.0.0.1", Url::parse(&redirect).unwrap().port().unwrap()))
                .await
                .unwrap();
            let answer = get(&redirect, "?code=good&state=abc").await;
            assert!(answer.contains("200"), "{answer}");
            drop(silent);
        };
        let waits = callback.code("abc", ISSUER, false, Duration::from_secs(20));
        let (brought, ()) = tokio::join!(waits, visits);
        assert_eq!(brought.unwrap().expose(), "good");
    }

    #[tokio::test]
    async fn who_made_the_code_counts_before_all_else() {
        for (query, must_say, is_good) in [
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
            let (redirect, asked) = (callback.redirect().to_owned(), format!("?{query}"));
            let waits = callback.code("s", ISSUER, must_say, Duration::from_secs(20));
            let (brought, _) = tokio::join!(waits, get(&redirect, &asked));
            assert_eq!(brought.is_ok(), is_good, "{query}: {brought:?}");
        }
    }

    #[tokio::test]
    async fn nobody_is_waited_for_longer_than_said_and_a_port_is_used_again() {
        let callback = Callback::listen(None, None).await.unwrap();
        let redirect = callback.redirect().to_owned();
        let error = callback.code("s", ISSUER, false, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.code(), toolpost_core::Code::Timeout);
        let port = Url::parse(&redirect).unwrap().port().unwrap();
        let error = Callback::listen(Some(port), None).await.err().unwrap();
        assert!(error.message().contains(&port.to_string()), "{error}");
        assert_ne!(Callback::listen(None, Some(&redirect)).await.unwrap().redirect(), redirect);
        drop(callback);
        assert_eq!(Callback::listen(None, Some(&redirect)).await.unwrap().redirect(), redirect);
    }
}
