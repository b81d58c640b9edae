//! Tests of the features, and of names that a user needs without a further crate.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use toolpost::{Call, Tool, Toolbox, Value, json, tool};

/// The features of the façade, each with what it turns on.
fn features() -> BTreeMap<String, Vec<String>> {
    let manifest = include_str!("../../Cargo.toml");
    let section = manifest.split("[features]").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap();
    let lines =
        section.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(" = "));
    let list = |list: &str| list.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    lines.map(|(name, on)| (name.to_owned(), list(on))).collect()
}

#[test]
fn full_is_everything() {
    let features = features();
    let mut on = BTreeSet::new();
    let mut waiting = vec!["full".to_owned(), "default".to_owned()];
    while let Some(name) = waiting.pop() {
        if let Some(further) = features.get(&name)
            && on.insert(name)
        {
            waiting.extend(further.iter().cloned());
        }
    }
    let missing: Vec<&String> = features.keys().filter(|name| !on.contains(*name)).collect();
    // It takes minutes to build, for those who have a cluster.
    assert!(features.len() > 10 && missing == ["restate"], "{missing:?}");
}

/// Features that extend the module of another feature, or a type of the root.
const WITHOUT_MODULE: [&str; 3] = ["anyhow", "default", "full"];

#[test]
fn each_feature_is_a_module_of_its_name() {
    let root = include_str!("../../src/lib.rs");
    for feature in features().into_keys().filter(|name| !WITHOUT_MODULE.contains(&&**name)) {
        let module = feature.split('-').next().unwrap();
        let names = [feature.replace('-', "_"), module.to_owned()];
        let is_module = names.iter().any(|name| {
            [format!("pub mod {name}"), format!(" as {name};"), format!("toolpost_exec::{name};")]
                .iter()
                .any(|item| root.contains(item))
        });
        assert!(is_module, "the feature `{feature}` has no module of its name");
    }
}

/// Add two numbers.
#[tool]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// Each of the error types that applications use takes a [`CallError`](toolpost::CallError).
async fn application(toolbox: &Toolbox, b: Value) -> Result<Value, Box<dyn Error + Send + Sync>> {
    let output = toolbox.run("add", json!({ "a": 1, "b": b })).await?;
    toolbox.state("notes")?.state().await?;
    let reply = toolbox.call(Call::new("add", json!({ "a": 1, "b": 1 }))).await;
    reply.into_output()?;
    Ok(output.structured.unwrap_or_default())
}

#[tokio::test]
async fn an_application_returns_any_error() {
    let tools: Vec<std::sync::Arc<dyn Tool>> = vec![std::sync::Arc::new(add())];
    let toolbox = Toolbox::builder().tools(tools).build().unwrap();
    assert_eq!(application(&toolbox, json!(2)).await.unwrap(), json!(3));
    let error = application(&toolbox, json!("two")).await.unwrap_err();
    assert!(error.to_string().starts_with("INVALID_INPUT: /b: "), "{error}");
}
