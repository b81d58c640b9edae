//! Models of all providers, scripted and replayed models.

use std::sync::Arc;

pub use toolpost_llm::*;

use crate::environment::{first, is_offline};

/// Opens a model by name, with credentials from the environment.
///
/// The name is `anthropic/claude-…`, `claude-…`, `script:FILE` or `replay:FILE`. Reads the API key and base URL of the
/// provider, such as `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`; `HTTPS_PROXY` and `NO_PROXY`; and
/// `TOOLPOST_NO_NETWORK`, which blocks connections to other hosts and is read before each request. Sends nothing.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use toolpost::llm::{self, Request};
///
/// let model = llm::from_env("anthropic/claude-sonnet-5-5")?;
/// let response = model.respond(&Request::new("Say hello.")).await?;
/// println!("{}", response.text());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// An unknown name or provider, a missing API key, an unreadable file.
pub fn from_env(name: &str) -> Result<Arc<dyn Model>, ModelError> {
    with_access(name, &ProviderAccess::default(), |http| http)
}

/// Opens a model as [`from_env`] does, with a key and a base URL that precede those of the environment, and with changed
/// HTTP options.
///
/// # Errors
/// Errors of [`from_env`].
pub fn with_access(
    name: &str,
    access: &ProviderAccess,
    http: impl FnOnce(HttpOptions) -> HttpOptions,
) -> Result<Arc<dyn Model>, ModelError> {
    let spec = ModelSpec::parse(name)?;
    let options = HttpOptions {
        is_offline: Some(is_offline),
        proxy: first(&["HTTPS_PROXY"]).map(Secret::new),
        no_proxy: first(&["NO_PROXY"]).unwrap_or_default(),
        ..HttpOptions::default()
    };
    let access = PROVIDERS.iter().map(|provider| {
        let access = ProviderAccess {
            key: access.key.clone().or_else(|| key(provider)),
            base_url: access.base_url.clone().or_else(|| first(provider.base_url_variables)),
            betas: access.betas.clone(),
        };
        (provider.name.to_owned(), access)
    });
    Router::new(http(options), access.collect()).open(&spec)
}

/// The API keys of the environment, which a [`Recording`] masks.
pub fn keys_from_env() -> Vec<Secret> {
    PROVIDERS.iter().filter_map(key).collect()
}

fn key(provider: &Provider) -> Option<Secret> {
    first(provider.key_variables).map(Secret::new)
}
