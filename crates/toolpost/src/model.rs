//! A model in one line.

use std::sync::Arc;

use toolpost_llm::{HttpOptions, ModelError, ModelSpec, PROVIDERS, ProviderAccess, Router, Secret};

use crate::environment::{first, is_offline};

/// Opens models with keys from the environment.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use toolpost::{Model, llm::Request};
///
/// let model = Model::from_env("anthropic/claude-sonnet-5-5")?;
/// let response = model.respond(&Request::new("Say hello.")).await?;
/// println!("{}", response.text());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Model;

impl Model {
    /// Opens a model by its name: `anthropic/claude-…`, `claude-…`, `script:FILE` or `replay:FILE`.
    ///
    /// Reads the provider's variables for the key and the base URL, such as `ANTHROPIC_API_KEY` and
    /// `ANTHROPIC_BASE_URL`; `HTTPS_PROXY` and `NO_PROXY`; and `TOOLPOST_NO_NETWORK`, which forbids connections to other
    /// machines. Nothing is sent.
    ///
    /// # Errors
    /// An unknown name or provider, a missing key, a file that cannot be read.
    pub fn from_env(name: &str) -> Result<Arc<dyn toolpost_llm::Model>, ModelError> {
        let spec = ModelSpec::parse(name)?;
        let http = HttpOptions {
            no_network: is_offline(),
            proxy: first(&["HTTPS_PROXY"]).map(Secret::new),
            no_proxy: first(&["NO_PROXY"]).unwrap_or_default(),
            ..HttpOptions::default()
        };
        let access = PROVIDERS.iter().map(|provider| {
            let access = ProviderAccess {
                key: first(provider.key_variables).map(Secret::new),
                base_url: first(provider.base_url_variables),
                ..ProviderAccess::default()
            };
            (provider.name.to_owned(), access)
        });
        Router::new(http, access.collect()).open(&spec)
    }
}
