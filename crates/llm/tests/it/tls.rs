//! TLS and proxies, with a private certificate authority.

use std::path::PathBuf;
use std::time::Duration;

use toolpost_llm::{
    ErrorKind, HostedModel, HttpClient, HttpOptions, Model as _, ModelError, NetworkStage, Provider,
    ProviderAccess, Request, Response, RetryPolicy, Secret,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_testkit::tls::TestAuthority;
use toolpost_testkit::tunnel::LoopbackTunnel;

const BODY: &str = r#"{"object":"response","status":"completed","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"safe"}]}]}"#;

const USER: &str = "me:canary-77aa";

async fn ask(base_url: String, options: HttpOptions) -> Result<Response, ModelError> {
    let access = ProviderAccess { base_url: Some(base_url), ..ProviderAccess::new(Secret::new("canary-1")) };
    let provider = Provider::find("openai").unwrap();
    let model = HostedModel::new(provider, "some-model", access, HttpClient::new(options)?)?;
    model.respond(&Request::new("hi")).await
}

fn options(ca_files: Vec<PathBuf>) -> HttpOptions {
    HttpOptions {
        no_network: true,
        ca_files,
        connect_timeout: Duration::from_secs(10),
        retry: RetryPolicy { max_retries: 0, ..RetryPolicy::default() },
        ..HttpOptions::default()
    }
}

/// A certificate authority for a host; prints a skip line and returns `None` without `openssl`.
fn authority(test: &str, host: &str) -> Option<(tempfile::TempDir, TestAuthority)> {
    let directory = tempfile::tempdir().unwrap();
    let Some(made) = TestAuthority::make(directory.path(), host) else {
        println!("SKIP {test}: there is no `openssl` to make certificates with");
        return None;
    };
    Some((directory, made))
}

#[tokio::test]
async fn a_named_certificate_authority_is_trusted() {
    let Some((_directory, made)) = authority("a_certificate_is_trusted", "localhost") else { return };
    let server = LoopbackProvider::start_tls(
        made.server().unwrap(),
        vec![
            Reply::json(200, BODY),
            Reply::events(format!("data: {{\"type\":\"response.completed\",\"response\":{BODY}}}\n\n")),
        ],
    )
    .unwrap();
    let trusted = options(vec![made.file()]);
    assert_eq!(ask(server.base_url(), trusted.clone()).await.unwrap().text(), "safe");
    // An unknown authority is not retried.
    let mut unknown = options(Vec::new());
    unknown.retry.max_retries = 3;
    let error = ask(server.base_url(), unknown).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Network(NetworkStage::Tls), "{error}");
    assert_eq!(error.details.attempts.len(), 1, "{error}");
    assert!(error.message.to_lowercase().contains("certificate"), "{error}");
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
    // A certificate of another host is not retried.
    let other = server.base_url().replace("localhost", "127.0.0.1");
    let error = ask(other, trusted).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Network(NetworkStage::Tls), "{error}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_proxy_tunnels_encrypted_connections() {
    let Some((_directory, made)) = authority("a_proxy_carries", "provider.example") else { return };
    let replies = || vec![Reply::json(200, BODY), Reply::json(200, BODY)];
    let server = LoopbackProvider::start_tls(made.server().unwrap(), replies()).unwrap();
    let tunnel = LoopbackTunnel::start(server.address()).unwrap();
    let through =
        HttpOptions { proxy: Some(Secret::new(tunnel.url(Some(USER)))), ..options(vec![made.file()]) };
    let provider = "https://provider.example".to_owned();
    assert_eq!(ask(provider.clone(), through.clone()).await.unwrap().text(), "safe");
    let head = tunnel.asked().remove(0);
    assert!(head.starts_with("CONNECT provider.example:443 HTTP/1.1\r\n"), "{head}");
    assert!(head.to_lowercase().contains("proxy-authorization: basic "), "{head}");
    assert!(!head.contains("canary-1"), "the proxy has seen the key: {head}");
    assert_eq!(server.requests()[0].header("authorization"), Some("Bearer canary-1"));
    // Without the proxy the name does not resolve.
    let past = HttpOptions { no_network: false, no_proxy: ".example".to_owned(), ..through.clone() };
    let error = ask(provider.clone(), past).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Network(NetworkStage::Dns), "{error}");
    assert_eq!(tunnel.asked().len(), 1);
    // A proxy that opens no tunnels.
    let refusing = LoopbackProvider::start(vec![Reply::new(407, "text/plain", "who are you?")]).unwrap();
    let proxy = refusing.base_url().replace("http://", &format!("http://{USER}@"));
    let error = ask(provider, HttpOptions { proxy: Some(Secret::new(proxy)), ..through }).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Network(NetworkStage::Connect)), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
}
