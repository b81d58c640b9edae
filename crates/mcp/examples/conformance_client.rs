//! The client that the protocol's conformance suite drives: `conformance client --command conformance_client …` appends
//! the address of a server. Whatever that server has is listed, called, read and rendered.
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
use toolpost_mcp::client::{Client, Endpoint, Enterprise, Identity, OAuth, TokenStore};

/// The document that the suite knows clients by.
const DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";

/// Somebody who agrees to everything.
struct Agreeable;

impl Port for Agreeable {
    fn ask<'a>(&'a self, _: CallId, _: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        Box::pin(async { Ok(Answer::Given { value: json!({}) }) })
    }

    fn sample<'a>(&'a self, _: CallId, _: &'a SampleRequest) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(async { Ok(Sample { content: "Well.".to_owned(), usage: None }) })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(url) = std::env::args().next_back() else { return ExitCode::from(2) };
    // For the browser: the client brings its own.
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
    let client = Client::builder(Endpoint::http(url))
        .name("suite")
        .port(Arc::clone(&port))
        .oauth(oauth(&context)?)
        .connect()
        .await?;
    let tools = client.list().await?;
    let asked: Vec<(String, Value)> = match context.get("toolCalls").and_then(Value::as_array) {
        Some(calls) => calls
            .iter()
            .filter_map(|call| Some((call.get("name")?.as_str()?.to_owned(), call.get("arguments")?.clone())))
            .collect(),
        None => tools.iter().map(|spec| (spec.name.clone(), arguments(spec, &tools))).collect(),
    };
    let calls = asked.into_iter().map(|(name, arguments)| {
        let mut call = Call::new(name, arguments);
        call.port = Arc::clone(&port);
        client.call(call)
    });
    for reply in futures_util::future::join_all(calls).await {
        if let Err(error) = reply.result {
            eprintln!("{}: {error}", reply.record.tool);
        }
    }
    for spec in client.resources().await? {
        if spec.uri_pattern.parameters().next().is_none() {
            client.read_resource(spec.uri_pattern.as_str()).await?;
        }
    }
    for spec in client.prompts().await? {
        let given: Map<String, Value> =
            spec.arguments.iter().map(|argument| (argument.name.clone(), "x".into())).collect();
        client.render_prompt(&spec.name, &given).await?;
    }
    client.disconnect().await;
    Ok(())
}

/// As whom the suite wants to be asked.
fn oauth(context: &Value) -> Result<OAuth, ToolError> {
    let text = |name: &str| context.get(name).and_then(Value::as_str);
    let secret = |name: &str| text(name).map(Secret::new);
    let mut oauth = OAuth::new(TokenStore::memory()).interactive(browse).metadata_document(DOCUMENT);
    let Some(id) = text("client_id") else { return Ok(oauth) };
    let mut identity = Identity::new(id);
    if let Some(secret) = secret("client_secret") {
        identity = identity.secret(secret);
    }
    if let Some(issuer) = text("issuer") {
        identity = identity.issuer(issuer);
    }
    if let Some(pem) = secret("private_key_pem") {
        identity = identity.private_key(&pem)?;
    }
    oauth = oauth.identity(identity);
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
    Ok(match (secret("valid_jwt"), secret("idp_id_token")) {
        (Some(assertion), _) => oauth.workload(assertion),
        (_, Some(id_token)) => oauth.enterprise(Enterprise {
            token_endpoint: text("idp_token_endpoint").unwrap_or_default().to_owned(),
            client_id: text("idp_client_id").unwrap_or_default().to_owned(),
            client_secret: None,
            id_token,
        }),
        _ if scenario.starts_with("auth/client-credentials") => oauth.client_credentials(),
        _ => oauth,
    })
}

/// A browser with somebody who agrees to everything.
fn browse(url: &str) {
    let url = url.to_owned();
    tokio::spawn(async move {
        if let Err(error) = reqwest::get(url).await {
            eprintln!("the browser: {error}");
        }
    });
}

/// Arguments that fit. One that is called `schema` is the schema of another tool, as it came.
fn arguments(spec: &ToolSpec, tools: &[Arc<ToolSpec>]) -> Value {
    let schema = spec.input_schema.as_value();
    let mut made = Map::new();
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
        made.insert(name.clone(), value);
    }
    Value::Object(made)
}
