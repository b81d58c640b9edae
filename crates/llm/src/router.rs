//! Opens models by name.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::offline::schema::SchemaModel;
use crate::{
    ErrorKind, FallbackModel, HostedModel, HttpClient, HttpOptions, Model, ModelCatalog, ModelError,
    PROVIDERS, Provider, ProviderAccess, ProviderFiles, ProviderLimits, RateLimitedModel, RateLimiter,
    ReplayModel, SchemaDetail, ScriptModel, Scrubber,
};
use toolpost_core::did_you_mean;

/// The name of a model to open: `anthropic/claude-…`, `claude-…`, `script:FILE` or `replay:FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSpec {
    /// A provider's model.
    Hosted {
        /// The provider's name.
        provider: String,
        /// The provider's name for the model.
        name: String,
    },
    /// A script file.
    Script(PathBuf),
    /// A recording.
    Replay(PathBuf),
    /// A model that calls every tool with arguments generated from its schema.
    Schema(SchemaDetail),
}

impl ModelSpec {
    /// Parses a name. The error of an unknown provider or prefix lists the valid ones.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let wrong = |what: String| Err(ModelError::invalid_name(format!("model `{text}`: {what}")));
        let text = text.trim();
        if let Some(detail) = text.strip_prefix("schema:") {
            return match detail {
                "" | "all" => Ok(Self::Schema(SchemaDetail::All)),
                "required" => Ok(Self::Schema(SchemaDetail::Required)),
                other => wrong(format!("expected `schema:all` or `schema:required`, found `{other}`")),
            };
        }
        for (scheme, of) in [("script:", Self::Script as fn(PathBuf) -> Self), ("replay:", Self::Replay)] {
            match text.strip_prefix(scheme) {
                Some("") => return wrong(format!("expected a file after `{scheme}`")),
                Some(path) => return Ok(of(path.into())),
                None => {}
            }
        }
        if let Some((provider, name)) = text.split_once('/') {
            if name.is_empty() {
                return wrong("expected the model's name after `/`".to_owned());
            }
            let Some(known) = Provider::find(provider) else {
                let names: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
                let near = did_you_mean(provider, names.iter().copied()).unwrap_or_default();
                return wrong(format!(
                    "unknown provider `{provider}`. Expected one of {}. {near}",
                    names.join(", ")
                ));
            };
            return Ok(Self::Hosted { provider: known.name.to_owned(), name: name.to_owned() });
        }
        if let Some(provider) = Provider::for_bare_name(text) {
            return Ok(Self::Hosted { provider: provider.name.to_owned(), name: text.to_owned() });
        }
        let start = text.split_once('-').map_or(text, |(start, _)| start);
        let prefixes = PROVIDERS.iter().flat_map(|provider| provider.prefixes);
        let starts = prefixes.map(|prefix| prefix.trim_end_matches('-'));
        let near = did_you_mean(start, starts.chain(["script", "replay", "schema"])).unwrap_or_default();
        wrong(format!(
            "expected PROVIDER/NAME, script:FILE, replay:FILE, schema:, or a name with a known prefix. {near}"
        ))
    }
}

impl FromStr for ModelSpec {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Self::parse(text)
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosted { provider, name } => write!(f, "{provider}/{name}"),
            Self::Script(path) => write!(f, "script:{}", path.display()),
            Self::Replay(path) => write!(f, "replay:{}", path.display()),
            Self::Schema(detail) => write!(f, "schema:{}", detail.as_str()),
        }
    }
}

/// Opens models, which share one HTTP client. The client is created on first use.
#[derive(Debug, Default)]
pub struct Router {
    http: HttpOptions,
    access: BTreeMap<String, ProviderAccess>,
    client: Mutex<Option<HttpClient>>,
    catalog: Option<Arc<ModelCatalog>>,
    /// The limiter of each provider, shared by its models.
    limiters: BTreeMap<String, Arc<RateLimiter>>,
    /// Secrets that recordings mask, in addition to the API keys.
    secrets: Scrubber,
}

impl Router {
    /// A router with the access to each provider, by name.
    pub fn new(http: HttpOptions, access: BTreeMap<String, ProviderAccess>) -> Self {
        Self { http, access, ..Self::default() }
    }

    /// Replaces the built-in catalog.
    #[must_use]
    pub fn with_catalog(mut self, catalog: Arc<ModelCatalog>) -> Self {
        self.catalog = Some(catalog);
        self
    }

    /// Limits the requests to a provider, such as `anthropic`. All models of the router share the limits.
    #[must_use]
    pub fn with_limits(mut self, provider: impl Into<String>, limits: ProviderLimits) -> Self {
        if !limits.is_unlimited() {
            self.limiters.insert(provider.into(), RateLimiter::new(limits));
        }
        self
    }

    /// Adds secrets that recordings mask, in addition to the API keys. A recorder needs the same secrets.
    #[must_use]
    pub fn with_secrets(mut self, secrets: impl Into<Scrubber>) -> Self {
        self.secrets = secrets.into();
        self
    }

    /// Opens a model and its fallbacks, in order: see [`FallbackModel`].
    pub fn open_with_fallbacks(
        &self,
        spec: &ModelSpec,
        fallbacks: &[ModelSpec],
    ) -> Result<Arc<dyn Model>, ModelError> {
        let first = self.open(spec)?;
        if fallbacks.is_empty() {
            return Ok(first);
        }
        let others = fallbacks.iter().map(|spec| self.open(spec)).collect::<Result<_, _>>()?;
        Ok(Arc::new(FallbackModel::new(first, others)))
    }

    /// Opens a model. Sends nothing, but reads a script or recording.
    pub fn open(&self, spec: &ModelSpec) -> Result<Arc<dyn Model>, ModelError> {
        match spec {
            ModelSpec::Script(path) => Ok(Arc::new(ScriptModel::load(path)?)),
            ModelSpec::Schema(detail) => Ok(Arc::new(SchemaModel::new(*detail))),
            ModelSpec::Replay(path) => {
                self.secrets.learn(self.access.values().filter_map(|access| access.key.clone()));
                let model = ReplayModel::load(path, self.secrets.clone())?;
                Ok(Arc::new(match &self.catalog {
                    Some(catalog) => model.with_catalog(Arc::clone(catalog)),
                    None => model,
                }))
            }
            ModelSpec::Hosted { provider, name } => {
                let Some(known) = Provider::find(provider) else {
                    let message = format!("model `{spec}`: unknown provider `{provider}`");
                    return Err(ModelError::invalid_name(message));
                };
                let access = self.access.get(provider).cloned().unwrap_or_default();
                let catalog = Arc::clone(self.catalog.as_ref().unwrap_or_else(|| ModelCatalog::built_in()));
                let model: Arc<dyn Model> =
                    Arc::new(HostedModel::with_catalog(known, name, access, self.client()?, catalog)?);
                Ok(match self.limiters.get(provider) {
                    Some(limiter) => Arc::new(RateLimitedModel::new(model, Arc::clone(limiter))),
                    None => model,
                })
            }
        }
    }

    /// The file storage of a provider, such as `anthropic`. Sends nothing.
    ///
    /// # Errors
    /// The provider is unknown or has no file storage, or its address or API key is missing or invalid.
    pub fn files(&self, provider: &str) -> Result<ProviderFiles, ModelError> {
        let Some(known) = Provider::find(provider) else {
            let names: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
            let near = did_you_mean(provider, names.iter().copied()).unwrap_or_default();
            let message =
                format!("unknown provider `{provider}`. Expected one of {}. {near}", names.join(", "));
            return Err(ModelError::new(ErrorKind::Configuration, message.trim_end()));
        };
        ProviderFiles::new(known, self.access.get(provider).cloned().unwrap_or_default(), self.client()?)
    }

    fn client(&self) -> Result<HttpClient, ModelError> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        Ok(client.insert(HttpClient::new(self.http.clone())?).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let hosted =
            |provider: &str, name: &str| ModelSpec::Hosted { provider: provider.into(), name: name.into() };
        for (text, spec) in [
            ("anthropic/claude-x", hosted("anthropic", "claude-x")),
            ("claude-sonnet-5-5", hosted("anthropic", "claude-sonnet-5-5")),
            ("google/gemini-3.8-flash", hosted("gemini", "gemini-3.8-flash")),
            ("script:a/b c.yaml", ModelSpec::Script("a/b c.yaml".into())),
            ("replay:x.jsonl", ModelSpec::Replay("x.jsonl".into())),
            ("schema:", ModelSpec::Schema(SchemaDetail::All)),
            ("schema:required", ModelSpec::Schema(SchemaDetail::Required)),
        ] {
            assert_eq!(ModelSpec::parse(text).unwrap(), spec);
            assert_eq!(ModelSpec::parse(&spec.to_string()).unwrap(), spec);
        }
    }

    #[test]
    fn an_invalid_name_has_a_helpful_error() {
        for (text, expected) in [
            ("antropic/claude-x", "Did you mean `anthropic`?"),
            ("anthropic/", "expected the model's name"),
            ("cloude-x", "Did you mean `claude`?"),
            ("scrpt:a", "expected PROVIDER/NAME"),
            ("script:", "expected a file"),
            ("schema:some", "`schema:required`"),
            ("", "expected PROVIDER/NAME"),
        ] {
            let error = ModelSpec::parse(text).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Configuration);
            assert!(error.message.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_error_names_the_variable_of_a_missing_key() {
        let error = Router::default().open(&ModelSpec::parse("claude-x").unwrap()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Auth);
        assert!(error.message.contains("ANTHROPIC_API_KEY"), "{error}");
    }
}
