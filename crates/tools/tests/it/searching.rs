//! `web_search` against engines on this machine.

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Code, Hint, Secret};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_tools::{HttpSettings, SearchEngine, SearchSettings};

use crate::support::Bench;

fn bench(engines: impl IntoIterator<Item = SearchEngine>) -> Bench {
    Bench::with(|builder| builder.provide(SearchSettings::new(engines)))
}

fn brave(server: &LoopbackProvider) -> SearchEngine {
    SearchEngine::brave(Secret::new("br4ve")).at(format!("{}/web", server.base_url()))
}

/// A page of results of `SearXNG`, numbered from `first`.
fn page(first: usize, count: usize) -> Reply {
    let results: Vec<Value> = (first..first + count)
        .map(|number| {
            json!({ "title": format!("Title {number}"), "url": format!("https://example.com/{number}"), "content": format!("Snippet\n {number}"), "engine": "x" })
        })
        .collect();
    Reply::json(200, json!({ "query": "q", "results": results }).to_string())
}

/// The parameters of a query.
fn parameters(path: &str) -> Vec<&str> {
    path.split_once('?').map(|(_, query)| query.split('&').collect()).unwrap_or_default()
}

#[tokio::test]
async fn a_missing_engine_has_a_hint() {
    for bench in [Bench::new(), bench([])] {
        let error = bench.error("web_search", json!({ "query": "a" })).await;
        assert_eq!(error.code(), Code::Precondition);
        assert!(error.hint() == Some(Hint::ConfigureSearch), "{error}");
    }
}

#[tokio::test]
async fn searxng_pages_are_requested_until_complete() {
    let server = LoopbackProvider::start(vec![page(1, 3), page(3, 3), page(6, 3)]).unwrap();
    let bench = bench([SearchEngine::searxng(format!("{}/", server.base_url()))]);
    let output = bench.run("web_search", json!({ "query": "ä b", "num_results": 4 })).await.unwrap();
    assert!(
        output
            .to_text()
            .starts_with("4 results of searxng\n\n1. Title 1\nhttps://example.com/1\nSnippet 1\n\n2.")
    );
    let value = output.structured.unwrap();
    assert_eq!((&value["query"], &value["engine"]), (&json!("ä b"), &json!("searxng")));
    let urls: Vec<&Value> =
        value["results"].as_array().unwrap().iter().map(|result| &result["url"]).collect();
    assert_eq!(urls, [1, 2, 3, 4].map(|number| format!("https://example.com/{number}")).each_ref());
    let requests = server.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[0].path.starts_with("/search?"));
    assert_eq!(parameters(&requests[0].path), ["q=%C3%A4+b", "format=json", "safesearch=2", "pageno=1"]);
    assert_eq!(parameters(&requests[1].path)[3], "pageno=2");
}

#[tokio::test]
async fn brave_gets_key_count_and_safety() {
    let body = json!({ "web": { "results": [
        { "title": "T", "url": "https://example.com/", "description": "D" },
        { "title": "no address" },
        { "title": "bad", "url": "javascript:alert(1)" },
    ] } });
    let server =
        LoopbackProvider::start(vec![Reply::json(200, body.to_string()), Reply::json(200, "{}")]).unwrap();
    let bench = bench([brave(&server)]);
    let value =
        bench.value("web_search", json!({ "query": "q", "num_results": 7, "safe_search": false })).await;
    let expected = json!({ "query": "q", "engine": "brave", "results": [{ "title": "T", "url": "https://example.com/", "snippet": "D" }] });
    assert_eq!(value, expected);
    let nothing = bench.value("web_search", json!({ "query": "q" })).await;
    assert_eq!(nothing["results"], json!([]));
    let requests = server.requests();
    assert_eq!(requests[0].header("x-subscription-token"), Some("br4ve"));
    assert_eq!(parameters(&requests[0].path), ["q=q", "count=7", "safesearch=off", "text_decorations=false"]);
    assert_eq!(parameters(&requests[1].path)[1..3], ["count=10", "safesearch=strict"]);
}

#[tokio::test]
async fn the_engine_is_chosen_by_its_name() {
    let first = LoopbackProvider::start_with(|_| page(1, 1)).unwrap();
    let second = LoopbackProvider::start_with(|_| Reply::json(200, "{}")).unwrap();
    let bench = bench([SearchEngine::searxng(first.base_url()).named("house"), brave(&second)]);
    for (engine, expected) in [("auto", "house"), ("house", "house"), ("brave", "brave")] {
        let value =
            bench.value("web_search", json!({ "query": "q", "engine": engine, "num_results": 1 })).await;
        assert_eq!(value["engine"], expected);
    }
    let error = bench.error("web_search", json!({ "query": "q", "engine": "brvae" })).await;
    assert_eq!((error.code(), error.suggestion()), (Code::Precondition, Some("Did you mean `brave`?")));
}

#[tokio::test]
async fn a_failed_engine_reports_no_key() {
    let hostile = json!({ "results": [{ "title": "t".repeat(5000), "url": "https://e.example/", "content": "\u{1b}[31mred\u{7}" }] });
    for (reply, code) in [
        (Reply::json(401, "{}"), Some(Code::Precondition)),
        (Reply::json(403, "{}"), Some(Code::Precondition)),
        (Reply::json(429, "{}"), Some(Code::Overloaded)),
        (Reply::json(500, "br4ve"), Some(Code::Dependency)),
        (Reply::json(302, "").header("location", "http://127.0.0.1:1/"), Some(Code::Dependency)),
        (Reply::json(200, "<html>"), Some(Code::Dependency)),
        (Reply::json(200, "[]"), Some(Code::Dependency)),
        (Reply::json(200, "{\"results\": 5}"), Some(Code::Dependency)),
        (Reply::json(200, vec![b' '; (4 << 20) + 1]), Some(Code::Limit)),
        (Reply::json(200, hostile.to_string()), None),
    ] {
        let server = LoopbackProvider::start_with(move |_| reply.clone()).unwrap();
        let engine = SearchEngine::searxng(server.base_url());
        let mut call = bench([engine]).call("web_search", json!({ "query": "q", "num_results": 1 }));
        call.options.retries = Some(0);
        let bench = bench([SearchEngine::searxng(server.base_url())]);
        match (bench.toolbox.call(call).await.result, code) {
            (Err(error), Some(code)) => {
                assert_eq!(error.code(), code, "{error}");
                assert!(!error.to_string().contains("br4ve"), "{error}");
            }
            (Ok(output), None) => {
                let result = output.structured.unwrap()["results"][0].clone();
                assert_eq!(result["title"].as_str().unwrap().chars().count(), 201);
                assert_eq!(result["snippet"], "[31mred");
            }
            (result, _) => panic!("{result:?}"),
        }
    }
}

#[tokio::test]
async fn a_slow_engine_or_blocked_network_fails_a_search() {
    let server = LoopbackProvider::start_with(|_| Reply::never()).unwrap();
    let mut settings = SearchSettings::new([SearchEngine::searxng(server.base_url())]);
    settings.timeout = Duration::from_millis(50);
    let bench = Bench::with(|builder| builder.provide(settings));
    let mut call = bench.call("web_search", json!({ "query": "q" }));
    call.options.retries = Some(0);
    assert_eq!(bench.toolbox.call(call).await.result.unwrap_err().code(), Code::Timeout);

    let mut http = HttpSettings::default();
    http.no_network = true;
    let settings = SearchSettings::new([
        SearchEngine::searxng("http://search.example"),
        SearchEngine::searxng("none").named("none"),
    ]);
    let bench = Bench::with(|builder| builder.provide(settings).provide(http));
    let error = bench.error("web_search", json!({ "query": "q" })).await;
    assert_eq!((error.code(), &error.context()["rule"]), (Code::Permission, &json!("no_network")));
    let error = bench.error("web_search", json!({ "query": "q", "engine": "none" })).await;
    assert_eq!(error.code(), Code::Precondition);
    for (arguments, pointer) in [
        (json!({ "query": "" }), "/query"),
        (json!({ "query": "q", "num_results": 21 }), "/num_results"),
        (json!({ "query": "q", "num_results": 0 }), "/num_results"),
        (json!({ "query": "q", "safe_search": "yes" }), "/safe_search"),
    ] {
        assert_eq!(bench.error("web_search", arguments).await.context()["pointer"], pointer);
    }
}
