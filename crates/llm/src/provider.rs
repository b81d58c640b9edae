//! The providers: where they answer, what they speak, how they take a key.

use crate::{Secret, Wire};

/// A provider of models.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provider {
    /// The name in front of `/` in a model's name.
    pub name: &'static str,
    /// What it speaks.
    pub wire: Wire,
    /// Where it answers, without the wire's path; `None` if the caller must say.
    pub base_url: Option<&'static str>,
    /// The end of a base URL that is understood and means nothing, since the wire's paths begin with it.
    pub(crate) version_path: &'static str,
    /// How it takes the key.
    pub(crate) key: KeyHeader,
    /// The header in which features are asked for that are not yet general.
    pub(crate) beta_header: Option<&'static str>,
    /// Whether it answers without a key.
    pub needs_key: bool,
    /// The environment variable that usually has its key. This crate does not read it.
    pub key_variable: &'static str,
    /// The environment variable that usually has another base URL. This crate does not read it.
    pub base_url_variable: &'static str,
    /// How its models' bare names begin.
    pub prefixes: &'static [&'static str],
    /// Bare names that have no such beginning.
    pub bare_names: &'static [&'static str],
}

/// The header that a key is sent in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyHeader {
    /// `x-api-key: KEY`
    ApiKey,
    /// `x-goog-api-key: KEY`
    GoogleApiKey,
    /// `authorization: Bearer KEY`
    Bearer,
}

impl KeyHeader {
    /// The header's name and value.
    pub(crate) fn header(self, key: &Secret) -> (&'static str, String) {
        match self {
            Self::ApiKey => ("x-api-key", key.expose().to_owned()),
            Self::GoogleApiKey => ("x-goog-api-key", key.expose().to_owned()),
            Self::Bearer => ("authorization", format!("Bearer {}", key.expose())),
        }
    }
}

/// Every provider, in the order in which they are listed to users.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        name: "anthropic",
        wire: Wire::Messages,
        base_url: Some("https://api.anthropic.com"),
        version_path: "/v1",
        key: KeyHeader::ApiKey,
        beta_header: Some("anthropic-beta"),
        needs_key: true,
        key_variable: "ANTHROPIC_API_KEY",
        base_url_variable: "ANTHROPIC_BASE_URL",
        prefixes: &["claude-"],
        bare_names: &[],
    },
    Provider {
        name: "gemini",
        wire: Wire::GenerateContent,
        base_url: Some("https://generativelanguage.googleapis.com"),
        version_path: "/v1beta",
        key: KeyHeader::GoogleApiKey,
        beta_header: None,
        needs_key: true,
        key_variable: "GEMINI_API_KEY",
        base_url_variable: "GEMINI_BASE_URL",
        prefixes: &["gemini-"],
        bare_names: &[],
    },
    Provider {
        name: "openai",
        wire: Wire::Responses,
        base_url: Some("https://api.openai.com"),
        version_path: "/v1",
        key: KeyHeader::Bearer,
        beta_header: Some("openai-beta"),
        needs_key: true,
        key_variable: "OPENAI_API_KEY",
        base_url_variable: "OPENAI_BASE_URL",
        prefixes: &["gpt-", "chatgpt-", "o1-", "o3-", "o4-"],
        bare_names: &["o1", "o3", "o4"],
    },
    Provider {
        name: "xai",
        wire: Wire::XaiResponses,
        base_url: Some("https://api.x.ai"),
        version_path: "/v1",
        key: KeyHeader::Bearer,
        beta_header: None,
        needs_key: true,
        key_variable: "XAI_API_KEY",
        base_url_variable: "XAI_BASE_URL",
        prefixes: &["grok-"],
        bare_names: &[],
    },
    Provider {
        base_url: Some("http://127.0.0.1:11434"),
        ..chat("ollama", "OLLAMA_API_KEY", "OLLAMA_BASE_URL")
    },
    Provider {
        base_url: Some("http://127.0.0.1:8080"),
        ..chat("llamacpp", "LLAMACPP_API_KEY", "LLAMACPP_BASE_URL")
    },
    Provider { base_url: Some("http://127.0.0.1:8000"), ..chat("vllm", "VLLM_API_KEY", "VLLM_BASE_URL") },
    // Any server: its base URL has the version, as for the library of OpenAI.
    Provider {
        version_path: "",
        ..chat("openai-compatible", "OPENAI_COMPATIBLE_API_KEY", "OPENAI_COMPATIBLE_BASE_URL")
    },
];

/// A server of one's own that speaks Chat Completions: it may want a key, and its models have any names.
const fn chat(name: &'static str, key_variable: &'static str, base_url_variable: &'static str) -> Provider {
    Provider {
        name,
        wire: Wire::ChatCompletions,
        base_url: None,
        version_path: "/v1",
        key: KeyHeader::Bearer,
        beta_header: None,
        needs_key: false,
        key_variable,
        base_url_variable,
        prefixes: &[],
        bare_names: &[],
    }
}

impl Provider {
    /// The provider of a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| provider.name == name)
    }

    /// The provider that a model's bare name belongs to.
    pub fn of_bare_name(model: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| {
            provider.bare_names.contains(&model)
                || provider.prefixes.iter().any(|prefix| model.starts_with(prefix))
        })
    }
}

/// How to reach one provider.
#[derive(Clone, Debug, Default)]
pub struct ProviderAccess {
    /// The key. Without one, opening a model of a provider that needs it is an error.
    pub key: Option<Secret>,
    /// Another address than the provider's own; a final `/v1` or the like is understood.
    pub base_url: Option<String>,
    /// Beta features for every request, where the wire has such.
    pub betas: Vec<String>,
}

impl ProviderAccess {
    /// The provider's own address, with this key and no beta features.
    pub fn new(key: Secret) -> Self {
        Self { key: Some(key), ..Self::default() }
    }
}
