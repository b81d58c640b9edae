//! The model of a command.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use toolpost_core::{Clock as _, SystemClock};
use toolpost_llm::{
    Catalog, ExchangeSink, HttpOptions, Model, ModelInfo, ModelSpec, PROVIDERS, Provider, ProviderAccess,
    ProviderFiles, ProviderLimits, Recorder, Recording, RetryPolicy, Router, Secret,
};

use crate::args::AgentArgs;
use crate::config::Config;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;

/// The largest file with facts of models, in bytes.
const MAX_MODELS: u64 = 16 << 20;

/// The models when nobody names one: that of the first provider whose key is there.
pub(crate) const DEFAULT_MODELS: [(&str, &str); 4] = [
    ("anthropic", "anthropic/claude-sonnet-5-5"),
    ("openai", "openai/gpt-6.1-sol"),
    ("gemini", "gemini/gemini-3.8-flash"),
    ("xai", "xai/grok-4.7"),
];

/// The model that the command or the settings name, with those that are asked when it cannot be had; else the default of
/// a provider whose key is there.
pub(super) fn model(args: &AgentArgs, config: &Config) -> Result<(Arc<dyn Model>, ModelSpec), Failure> {
    let name = args.model.clone().map_or_else(|| usual_model(config), Ok)?;
    let spec = spec_of(&name, config)?;
    Ok((router(config)?.open_with_fallbacks(&spec, &fallbacks(args, config)?)?, spec))
}

/// The models that are asked when the first cannot be had.
pub(super) fn fallbacks(args: &AgentArgs, config: &Config) -> Result<Vec<ModelSpec>, Failure> {
    let names = match args.tuning.fallback.as_slice() {
        [] => config.texts("models.fallback"),
        named => named.to_vec(),
    };
    names.iter().map(|name| spec_of(name, config)).collect()
}

/// The names that Claude Code has for models.
const ALIASES: [&str; 3] = ["opus", "sonnet", "haiku"];

/// Reads the name of a model.
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
            .hint(format!("Give {newest}`--agent claude-code`, which has the alias `{name}`."))
    })
}

fn default_model() -> Option<String> {
    let found =
        DEFAULT_MODELS.iter().find(|(name, _)| Provider::find(name).is_some_and(|of| key(of).is_some()));
    found.map(|(_, model)| (*model).to_owned())
}

/// The model of a name.
pub(crate) fn open_model(name: &str, config: &Config) -> Result<Arc<dyn Model>, Failure> {
    Ok(router(config)?.open(&spec_of(name, config)?)?)
}

/// The name of the model that the settings name, else the default of a provider whose key is there.
pub(super) fn usual_model(config: &Config) -> Result<String, Failure> {
    config.text("model").or_else(default_model).ok_or_else(no_model)
}

/// The files that a provider keeps.
pub(super) fn provider_files(provider: &str, config: &Config) -> Result<ProviderFiles, Failure> {
    Ok(router(config)?.files(provider)?)
}

/// What is known of models, with the file of the settings.
pub(crate) fn catalog(config: &Config) -> Result<Arc<Catalog>, Failure> {
    let built_in = Catalog::built_in();
    let Some(path) = config.path("models.file") else { return Ok(Arc::clone(built_in)) };
    let text = config.read_text("the models", &path, MAX_MODELS)?;
    Ok(Arc::new(built_in.with_file(&path.display().to_string(), &text)?))
}

/// The key of a provider.
pub(crate) fn key(provider: &Provider) -> Option<Secret> {
    env::first(provider.key_variables).map(Secret::new)
}

fn router(config: &Config) -> Result<Router, Failure> {
    let usual = HttpOptions::default();
    let ca_file = config.path("models.ca_file");
    ca_file.iter().try_for_each(|path| config.check_pinned("the file of certificates", path))?;
    let time = |name: &'static str, usual: std::time::Duration| config.duration(name).unwrap_or(usual);
    let http = HttpOptions {
        no_network: config.flag("no_network"),
        proxy: env::get("HTTPS_PROXY").map(Secret::new),
        no_proxy: env::get("NO_PROXY").unwrap_or_default(),
        ca_files: ca_file.into_iter().collect(),
        connect_timeout: time("models.connect_timeout", usual.connect_timeout),
        first_byte_timeout: time("models.first_byte_timeout", usual.first_byte_timeout),
        event_timeout: time("models.event_timeout", usual.event_timeout),
        total_timeout: time("models.total_timeout", usual.total_timeout),
        retry: RetryPolicy {
            max_retries: config.number("models.retries")?.unwrap_or(usual.retry.max_retries),
            first_wait: time("models.retry_wait", usual.retry.first_wait),
            ..usual.retry
        },
        ..usual
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
        .with_secrets(env::secrets());
    let limits = ProviderLimits {
        requests_per_minute: config.number("models.requests_per_minute")?,
        tokens_per_minute: config.number("models.tokens_per_minute")?,
        concurrency: config.number("models.concurrency")?,
        ..ProviderLimits::default()
    };
    for provider in PROVIDERS {
        router = router.with_limits(provider.name, limits.clone());
    }
    Ok(router)
}

/// The file that is named for what all models of a run are asked and answer, if one is.
#[derive(Clone)]
pub(super) struct Tape(Option<Arc<Recording>>);

impl Tape {
    pub(super) fn open(args: &AgentArgs) -> Result<Self, Failure> {
        let Some(path) = &args.record else { return Ok(Self(None)) };
        Ok(Self(Some(Arc::new(Recording::new(new_recording(path)?, env::secrets())))))
    }

    /// The model as it is, or with a recording of what is said.
    pub(super) fn of(&self, model: Arc<dyn Model>) -> Arc<dyn Model> {
        match &self.0 {
            Some(recording) => {
                Arc::new(Recorder::with_sink(model, Arc::clone(recording) as Arc<dyn ExchangeSink>))
            }
            None => model,
        }
    }

    pub(super) fn is_recording(&self) -> bool {
        self.0.is_some()
    }
}

/// A new file for a recording.
pub(super) fn new_recording(path: &Path) -> Result<File, Failure> {
    let mut options = File::options();
    options.write(true).create_new(true);
    // What is said to a model is for nobody else's eyes.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| Failure::file("the recording", path, &error))
}

fn no_model() -> Failure {
    let keys =
        PROVIDERS.iter().filter(|provider| provider.needs_key).flat_map(|provider| provider.key_variables);
    let keys = keys.copied().collect::<Vec<_>>().join(" or ");
    let failure = Failure::new(Exit::Credentials, "AUTH", "no model is named, and no key is set")
        .hint(format!("With a key: set {keys}; the model is then what `toolpost help models` says, or what `--model` names."))
        .hint("Without one, offline: `--model script:FILE`, where a file says what the model says; see `toolpost help scripts`.");
    let local = PROVIDERS.iter().filter(|provider| !provider.needs_key).map(|provider| provider.name);
    match local.collect::<Vec<_>>().as_slice() {
        [] => failure.hint("Servers on this machine (Ollama, llama.cpp, vLLM) speak a wire that this version does not have."),
        names => failure.hint(format!(
            "With a server on this machine (Ollama, llama.cpp, vLLM): `--model {}/NAME`; see `toolpost help models`.",
            names.join("/NAME` or `")
        )),
    }
}
