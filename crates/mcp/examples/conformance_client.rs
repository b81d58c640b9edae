//! The client that the MCP conformance suite drives: `conformance client --command conformance_client …`
//! appends the URL of a server. The client lists, calls, reads and renders everything that the server has.
#![expect(
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "the suite speaks through the environment and shows standard error"
)]

use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolpost_core::{
    Answer, BoxFuture, Call, CallId, Port, Question, Sample, SampleRequest, Secret, ToolError,
    ToolSource as _, ToolSpec,
};
use toolpost_mcp::client::{Client, Endpoint, Identity, OAuth, TokenStore};

/// The metadata document of the client in the suite.
const METADATA_DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";

/// A user who accepts every question.
struct Agreeable;

impl Port for Agreeable {
    fn ask<'a>(&'a self, _: CallId, _: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(async { Ok(Answer::Given { value: json!({}) }) })
    }

    fn sample<'a>(&'a self, _: CallId, _: &'a SampleRequest) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(async { Ok(Sample { content: "Done.".to_owned(), usage: None }) })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(url) = std::env::args().next_back() else { return ExitCode::from(2) };
    // For `reqwest::get` below: `Client` brings its own provider.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        return ExitCode::FAILURE;
    }
    match run(&url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#?}");
            ExitCode::FAILURE
        }
    }
}

async fn run(url: &str) -> Result<(), ToolError> {
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    let port: Arc<dyn Port> = Arc::new(Agreeable);
    let client = Client::builder(Endpoint::http(url)).name("suite").oauth(oauth(&context)).connect().await?;
    let tools = client.list().await?;
    let planned: Vec<(String, Value)> = match context.get("toolCalls").and_then(Value::as_array) {
        Some(calls) => calls
            .iter()
            .filter_map(|call| Some((call.get("name")?.as_str()?.to_owned(), call.get("arguments")?.clone())))
            .collect(),
        None => tools.iter().map(|spec| (spec.name.clone(), arguments(spec, &tools))).collect(),
    };
    let with_port = |name: &str, arguments| Call::new(name, arguments).with_port(Arc::clone(&port));
    let calls = planned.into_iter().map(|(name, arguments)| client.call(with_port(&name, arguments)));
    for reply in futures_util::future::join_all(calls).await {
        if let Err(error) = reply.result {
            eprintln!("{}: {error}", reply.record.tool);
        }
    }
    for spec in client.resources().await? {
        if spec.uri_pattern.parameters().next().is_none() {
            client.read(with_port(spec.uri_pattern.as_str(), Value::Null)).await?;
        }
    }
    for spec in client.prompts().await? {
        let given: Map<String, Value> =
            spec.arguments.iter().map(|argument| (argument.name.clone(), "x".into())).collect();
        client.render(with_port(&spec.name, given.into())).await?;
    }
    client.disconnect().await;
    Ok(())
}

/// The OAuth client that the scenario provides.
fn oauth(context: &Value) -> OAuth {
    let text = |name: &str| context.get(name).and_then(Value::as_str);
    // The suite's authorization servers have other ports of this machine.
    let oauth = OAuth::new(TokenStore::memory()).interactive(browse).metadata_document(METADATA_DOCUMENT);
    let oauth = ["localhost", "127.0.0.1"].into_iter().fold(oauth, OAuth::allow_host);
    let Some(id) = text("client_id") else { return oauth };
    let mut identity = Identity::new(id);
    if let Some(secret) = text("client_secret") {
        identity = identity.secret(Secret::new(secret));
    }
    if let Some(issuer) = text("issuer") {
        identity = identity.issuer(issuer);
    }
    oauth.identity(identity)
}

/// A browser whose user accepts every login.
fn browse(url: &str) {
    let url = url.to_owned();
    tokio::spawn(async move {
        if let Err(error) = reqwest::get(url).await {
            eprintln!("the browser: {error}");
        }
    });
}

/// Arguments that match the schema. An argument `schema` is the schema of another tool.
fn arguments(spec: &ToolSpec, tools: &[Arc<ToolSpec>]) -> Value {
    let schema = spec.input_schema.as_value();
    let mut arguments = Map::new();
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let value = match (name.as_str(), property.get("type").and_then(Value::as_str)) {
            ("schema", _) => match tools.iter().find(|other| other.name != spec.name) {
                Some(other) => other.input_schema.as_value().clone(),
                None => continue,
            },
            (_, Some("integer" | "number")) => json!(5),
            (_, Some("boolean")) => json!(true),
            (_, Some("string")) => json!("text"),
            _ => continue,
        };
        arguments.insert(name.clone(), value);
    }
    Value::Object(arguments)
}
