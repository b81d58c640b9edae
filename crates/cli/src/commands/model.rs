//! The model of a command.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use toolpost_llm::{HttpOptions, Model, ModelSpec, ProviderAccess, Recorder, Router, Secret};

use crate::args::AgentArgs;
use crate::config::Config;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;

/// The model when nobody names one and its provider's key is there.
pub(crate) const DEFAULT_MODEL: &str = "anthropic/claude-sonnet-5-5";

/// The model that the command or the settings name, else the default of the provider whose key is there.
pub(super) fn model(
    args: &AgentArgs,
    config: &Config,
    key: Option<&Secret>,
) -> Result<(Arc<dyn Model>, ModelSpec), Failure> {
    let name = args.model.clone().or_else(|| config.text("model"));
    let name = match name {
        Some(name) => name,
        None if key.is_some() => DEFAULT_MODEL.to_owned(),
        None => return Err(no_model()),
    };
    let spec = ModelSpec::parse(&name)?;
    Ok((router(config).open(&spec)?, spec))
}

/// The model of a name.
pub(crate) fn open_model(name: &str, config: &Config) -> Result<Arc<dyn Model>, Failure> {
    Ok(router(config).open(&ModelSpec::parse(name)?)?)
}

fn router(config: &Config) -> Router {
    let http = HttpOptions {
        no_network: config.flag("no_network"),
        proxy: env::get("HTTPS_PROXY").map(Secret::new),
        ..HttpOptions::default()
    };
    let access = ProviderAccess {
        key: env::get("ANTHROPIC_API_KEY").map(Secret::new),
        base_url: env::get("ANTHROPIC_BASE_URL"),
        ..ProviderAccess::default()
    };
    Router::new(http, BTreeMap::from([("anthropic".to_owned(), access)]))
}

/// The model as it is, or with a recording of what is said.
pub(super) fn recorded(
    args: &AgentArgs,
    model: Arc<dyn Model>,
    key: Option<Secret>,
) -> Result<Arc<dyn Model>, Failure> {
    let Some(path) = &args.record else { return Ok(model) };
    let file = File::options().write(true).create_new(true).open(path);
    let file = file.map_err(|error| Failure::file("the recording", path, &error))?;
    Ok(Arc::new(Recorder::new(model, file, key.into_iter().collect())))
}

fn no_model() -> Failure {
    Failure::new(Exit::Credentials, "AUTH", "no model is named, and no key is set")
        .hint(format!("With a key: set ANTHROPIC_API_KEY; the model is then {DEFAULT_MODEL}, or what `--model` names."))
        .hint("Without one, offline: `--model script:FILE`, where a file says what the model says; see `toolpost help scripts`.")
        .hint("Local servers (Ollama, llama.cpp, vLLM) speak a wire that this version does not have yet.")
}
