//! From a model's name to the model.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::{
    Catalog, Detail, ErrorKind, FallbackModel, HostedModel, HttpClient, HttpOptions, LimitedModel, Limiter,
    Model, ModelError, PROVIDERS, Provider, ProviderAccess, ProviderFiles, ProviderLimits, ReplayModel,
    SchemaModel, ScriptModel, Secret,
};
use toolpost_core::did_you_mean;

/// Which model to open: `anthropic/claude-…`, `claude-…`, `script:FILE` or `replay:FILE`.
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
    /// A [`SchemaModel`].
    Schema(Detail),
}

impl ModelSpec {
    /// Reads a name. An unknown provider or prefix is an error that says what was expected.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let wrong =
            |what: String| Err(ModelError::new(ErrorKind::Configuration, format!("model `{text}`: {what}")));
        let text = text.trim();
        if let Some(detail) = text.strip_prefix("schema:") {
            return match detail {
                "" | "all" => Ok(Self::Schema(Detail::All)),
                "required" => Ok(Self::Schema(Detail::Required)),
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
        if let Some(provider) = Provider::of_bare_name(text) {
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

/// Opens models. All of them share one HTTP client, which is made when the first of them needs it.
#[derive(Debug, Default)]
pub struct Router {
    http: HttpOptions,
    access: BTreeMap<String, ProviderAccess>,
    client: Mutex<Option<HttpClient>>,
    catalog: Option<Arc<Catalog>>,
    /// The limits of each provider; models of one share them.
    limiters: BTreeMap<String, Arc<Limiter>>,
    /// What recordings have masked, beside the providers' keys.
    secrets: Vec<Secret>,
}

impl Router {
    /// A router. `access` has the providers' keys by provider: `anthropic`.
    pub fn new(http: HttpOptions, access: BTreeMap<String, ProviderAccess>) -> Self {
        Self { http, access, ..Self::default() }
    }

    /// The same, with what a catalog of the caller knows of models, instead of the built-in one.
    #[must_use]
    pub fn with_catalog(mut self, catalog: Arc<Catalog>) -> Self {
        self.catalog = Some(catalog);
        self
    }

    /// The same, asking a provider, such as `anthropic`, no faster than this. All models that the router opens share the
    /// limits of their provider.
    #[must_use]
    pub fn with_limits(mut self, provider: impl Into<String>, limits: ProviderLimits) -> Self {
        if !limits.is_unlimited() {
            self.limiters.insert(provider.into(), Limiter::new(limits));
        }
        self
    }

    /// The same, with what recordings have masked beside the providers' keys: what a recorder was told too.
    #[must_use]
    pub fn with_secrets(mut self, secrets: Vec<Secret>) -> Self {
        self.secrets = secrets;
        self
    }

    /// Opens a model and those that are asked when it cannot be had, in order: see [`FallbackModel`].
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

    /// Opens a model. Nothing is sent; a script or recording is read.
    pub fn open(&self, spec: &ModelSpec) -> Result<Arc<dyn Model>, ModelError> {
        match spec {
            ModelSpec::Script(path) => Ok(Arc::new(ScriptModel::load(path)?)),
            ModelSpec::Schema(detail) => Ok(Arc::new(SchemaModel::new(*detail))),
            ModelSpec::Replay(path) => {
                let keys = self.access.values().filter_map(|access| access.key.clone());
                let secrets = keys.chain(self.secrets.iter().cloned()).collect();
                let model = ReplayModel::load(path, secrets)?;
                Ok(Arc::new(match &self.catalog {
                    Some(catalog) => model.with_catalog(Arc::clone(catalog)),
                    None => model,
                }))
            }
            ModelSpec::Hosted { provider, name } => {
                let Some(known) = Provider::find(provider) else {
                    let message = format!("model `{spec}`: unknown provider `{provider}`");
                    return Err(ModelError::new(ErrorKind::Configuration, message));
                };
                let access = self.access.get(provider).cloned().unwrap_or_default();
                let catalog = Arc::clone(self.catalog.as_ref().unwrap_or_else(|| Catalog::built_in()));
                let model: Arc<dyn Model> =
                    Arc::new(HostedModel::with_catalog(known, name, access, self.client()?, catalog)?);
                Ok(match self.limiters.get(provider) {
                    Some(limiter) => Arc::new(LimitedModel::new(model, Arc::clone(limiter))),
                    None => model,
                })
            }
        }
    }

    /// The files that a provider, such as `anthropic`, keeps for the account whose key the router has. Nothing is sent. An
    /// error if the provider is not known or keeps no files, or if its address or the key is missing or cannot be used.
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
    fn names_are_understood() {
        let hosted =
            |provider: &str, name: &str| ModelSpec::Hosted { provider: provider.into(), name: name.into() };
        for (text, spec) in [
            ("anthropic/claude-x", hosted("anthropic", "claude-x")),
            ("claude-sonnet-5-5", hosted("anthropic", "claude-sonnet-5-5")),
            ("google/gemini-3.8-flash", hosted("gemini", "gemini-3.8-flash")),
            ("script:a/b c.yaml", ModelSpec::Script("a/b c.yaml".into())),
            ("replay:x.jsonl", ModelSpec::Replay("x.jsonl".into())),
            ("schema:", ModelSpec::Schema(Detail::All)),
            ("schema:required", ModelSpec::Schema(Detail::Required)),
        ] {
            assert_eq!(ModelSpec::parse(text).unwrap(), spec);
            assert_eq!(ModelSpec::parse(&spec.to_string()).unwrap(), spec);
        }
    }

    #[test]
    fn a_wrong_name_says_what_was_expected() {
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
    fn a_missing_key_is_named() {
        let error = Router::default().open(&ModelSpec::parse("claude-x").unwrap()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Auth);
        assert!(error.message.contains("ANTHROPIC_API_KEY"), "{error}");
    }
}
