//! Models of a command: names, defaults, routing, recording.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use toolpost_core::{Clock as _, SystemClock};
use toolpost_llm::{
    ExchangeSink, HttpOptions, Model, ModelCatalog, ModelInfo, ModelSpec, PROVIDERS, Provider,
    ProviderAccess, ProviderFiles, ProviderLimits, Recorder, Recording, RetryPolicy, Router, Secret,
};

use crate::args::AgentArgs;
use crate::config::Config;
use crate::defaults::MODELS;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;

/// The maximum size of a `models.file`, in bytes.
const MAX_MODELS: u64 = 16 << 20;

/// Opens the model of option, setting or default, with its fallbacks.
pub(crate) fn model(args: &AgentArgs, config: &Config) -> Result<(Arc<dyn Model>, ModelSpec), Failure> {
    let name = args.model.clone().map_or_else(|| model_name(config), Ok)?;
    let spec = spec_of(&name, config)?;
    Ok((router(config)?.open_with_fallbacks(&spec, &fallbacks(args, config)?)?, spec))
}

/// The fallback models.
pub(crate) fn fallbacks(args: &AgentArgs, config: &Config) -> Result<Vec<ModelSpec>, Failure> {
    let names = match args.fallback.as_slice() {
        [] => config.settings.models.fallback.clone(),
        named => named.to_vec(),
    };
    names.iter().map(|name| spec_of(name, config)).collect()
}

/// Claude Code's aliases of models.
const ALIASES: [&str; 3] = ["opus", "sonnet", "haiku"];

/// Parses the name of a model.
fn spec_of(name: &str, config: &Config) -> Result<ModelSpec, Failure> {
    ModelSpec::parse(name).map_err(|error| {
        let failure = Failure::from(error);
        if !ALIASES.contains(&name) {
            return failure;
        }
        let start = format!("claude-{name}-");
        let now = SystemClock.timestamp();
        let is_like = |model: &ModelInfo| model.id.name.starts_with(&start) && !model.is_retired(now);
        let newest = catalog(config).ok().and_then(|catalog| catalog.models().filter(is_like).last());
        let newest = newest.map(|model| format!("`--model {}`, or ", model.id)).unwrap_or_default();
        Failure { hints: Vec::new(), ..failure }
            .hint(format!("Use {newest}`--agent claude-code`, which knows the alias `{name}`."))
    })
}

fn default_model() -> Option<String> {
    let found = MODELS.iter().find(|(name, _)| Provider::find(name).is_some_and(|of| key(of).is_some()));
    found.map(|(_, model)| (*model).to_owned())
}

/// Opens the model of a name.
pub(crate) fn open_model(name: &str, config: &Config) -> Result<Arc<dyn Model>, Failure> {
    Ok(router(config)?.open(&spec_of(name, config)?)?)
}

/// The model of the setting, else the default of a provider with a key.
pub(crate) fn model_name(config: &Config) -> Result<String, Failure> {
    config.settings.model.clone().or_else(default_model).ok_or_else(no_model)
}

/// The files API of a provider.
pub(crate) fn provider_files(provider: &str, config: &Config) -> Result<ProviderFiles, Failure> {
    Ok(router(config)?.files(provider)?)
}

/// The catalog of models, with the file of the settings.
pub(crate) fn catalog(config: &Config) -> Result<Arc<ModelCatalog>, Failure> {
    let built_in = ModelCatalog::built_in();
    let Some(path) = config.settings.models.file.clone() else { return Ok(Arc::clone(built_in)) };
    let text = config.read_text("the models", &path, MAX_MODELS)?;
    Ok(Arc::new(built_in.with_file(&path.display().to_string(), &text)?))
}

/// The API key of a provider.
pub(crate) fn key(provider: &Provider) -> Option<Secret> {
    env::first(provider.key_variables).map(Secret::new)
}

fn router(config: &Config) -> Result<Router, Failure> {
    let default = HttpOptions::default();
    let ca_file = config.settings.models.ca_file.clone();
    ca_file.iter().try_for_each(|path| config.check_pinned("the file of certificates", path))?;
    let own = &config.settings.models;
    let http = HttpOptions {
        no_network: config.settings.no_network,
        proxy: env::get("HTTPS_PROXY").map(Secret::new),
        no_proxy: env::get("NO_PROXY").unwrap_or_default(),
        ca_files: ca_file.into_iter().collect(),
        connect_timeout: own.connect_timeout.unwrap_or(default.connect_timeout),
        first_byte_timeout: own.first_byte_timeout.unwrap_or(default.first_byte_timeout),
        event_timeout: own.event_timeout.unwrap_or(default.event_timeout),
        total_timeout: own.total_timeout.unwrap_or(default.total_timeout),
        retry: RetryPolicy {
            max_retries: own.retries.unwrap_or(default.retry.max_retries),
            first_wait: own.retry_wait.unwrap_or(default.retry.first_wait),
            ..default.retry
        },
        ..default
    };
    let access = PROVIDERS.iter().map(|provider| {
        let access = ProviderAccess {
            key: key(provider),
            base_url: env::first(provider.base_url_variables),
            ..ProviderAccess::default()
        };
        (provider.name.to_owned(), access)
    });
    let mut router = Router::new(http, access.collect::<BTreeMap<_, _>>())
        .with_catalog(catalog(config)?)
        .with_secrets(env::scrubber().clone());
    let limits = ProviderLimits {
        requests_per_minute: own.requests_per_minute,
        tokens_per_minute: own.tokens_per_minute,
        concurrency: own.concurrency,
        ..ProviderLimits::default()
    };
    for provider in PROVIDERS {
        router = router.with_limits(provider.name, limits.clone());
    }
    Ok(router)
}

/// The recording of `--record`, if it is set.
#[derive(Clone)]
pub(crate) struct Tape(Option<Arc<Recording>>);

impl Tape {
    pub(crate) fn open(args: &AgentArgs) -> Result<Self, Failure> {
        let Some(path) = &args.record else { return Ok(Self(None)) };
        Ok(Self(Some(Arc::new(Recording::new(new_recording(path)?, env::scrubber().clone())))))
    }

    /// Wraps a model with the recording.
    pub(crate) fn record(&self, model: Arc<dyn Model>) -> Arc<dyn Model> {
        match &self.0 {
            Some(recording) => {
                Arc::new(Recorder::with_sink(model, Arc::clone(recording) as Arc<dyn ExchangeSink>))
            }
            None => model,
        }
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.0.is_some()
    }
}

/// Creates the file of a recording.
pub(crate) fn new_recording(path: &Path) -> Result<File, Failure> {
    let mut options = File::options();
    options.write(true).create_new(true);
    // Conversations are private.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| Failure::file("the recording", path, &error))
}

fn no_model() -> Failure {
    let keys =
        PROVIDERS.iter().filter(|provider| provider.needs_key).flat_map(|provider| provider.key_variables);
    let keys = keys.copied().collect::<Vec<_>>().join(" or ");
    let failure = Failure::new(Exit::Credentials, "AUTH", "no model is named, and no key is set")
        .hint(format!("With a key: set {keys}. `toolpost help models` lists the default models; `--model` names another."))
        .hint("Without a key: `--model script:FILE` has scripted answers; see `toolpost help scripts`.");
    let local = PROVIDERS.iter().filter(|provider| !provider.needs_key).map(|provider| provider.name);
    match local.collect::<Vec<_>>().as_slice() {
        [] => failure.hint("This version supports no local servers (Ollama, llama.cpp, vLLM)."),
        names => failure.hint(format!(
            "With a local server (Ollama, llama.cpp, vLLM): `--model {}/NAME`; see `toolpost help models`.",
            names.join("/NAME` or `")
        )),
    }
}
