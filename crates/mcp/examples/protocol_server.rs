//! A server made with the protocol's own library, over standard streams: what the tests of the client call.
//! `protocol_server legacy` knows only the older era.
#![expect(clippy::unwrap_used, reason = "it ends if anything is wrong")]

#[expect(
    deprecated,
    dead_code,
    clippy::wildcard_imports,
    clippy::unnecessary_wraps,
    clippy::needless_pass_by_value,
    clippy::disallowed_methods,
    reason = "a part of the tests, which also use it otherwise"
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
