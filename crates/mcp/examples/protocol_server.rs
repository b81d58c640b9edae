//! The fixture of the client tests over stdio: a server built with rmcp. `protocol_server legacy` supports only
//! versions with `initialize`.
#![expect(clippy::unwrap_used, reason = "a test program exits on any error")]

#[expect(
    deprecated,
    dead_code,
    clippy::wildcard_imports,
    clippy::unnecessary_wraps,
    clippy::disallowed_methods,
    reason = "a module of the tests, which use more of it"
)]
#[path = "../tests/it/client/fixture.rs"]
mod fixture;

use rmcp::ServiceExt as _;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let is_legacy = std::env::args().nth(1).as_deref() == Some("legacy");
    let streams = (tokio::io::stdin(), tokio::io::stdout());
    fixture::Fixture::new(is_legacy).serve(streams).await.unwrap().waiting().await.unwrap();
}
