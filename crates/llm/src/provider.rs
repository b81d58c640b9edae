//! The providers: addresses, wires, API keys.

use std::net::{IpAddr, Ipv6Addr};

use crate::error::ModelSetting;
use crate::http::client::endpoint;
use crate::{ErrorKind, ModelError, Secret, Wire};

/// A provider of models.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provider {
    /// The prefix of a model's name before `/`.
    pub name: &'static str,
    /// Other prefixes before `/`.
    pub aliases: &'static [&'static str],
    /// The wire.
    pub wire: Wire,
    /// The base URL without the wire's path; `None` if the caller must set one.
    pub base_url: Option<&'static str>,
    /// The suffix of a base URL that is ignored, because the wire's paths begin with it.
    pub(crate) version_path: &'static str,
    /// The header of the API key.
    pub(crate) key: KeyHeader,
    /// The header for beta features.
    pub(crate) beta_header: Option<&'static str>,
    /// Whether requests need an API key.
    pub needs_key: bool,
    /// The usual environment variables of the API key; the first one that is set wins. This crate does not read them.
    pub key_variables: &'static [&'static str],
    /// The usual environment variables of another base URL; the first one that is set wins.
    pub base_url_variables: &'static [&'static str],
    /// The default port of an address without scheme, such as `0.0.0.0`; `None` if addresses need a scheme.
    pub(crate) port: Option<u16>,
    /// The prefixes of its models' bare names.
    pub prefixes: &'static [&'static str],
    /// Bare names without such a prefix.
    pub bare_names: &'static [&'static str],
}

/// The header of an API key.
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

/// Every provider, in display order.
pub const PROVIDERS: &[Provider] = &[
    Provider {
        name: "anthropic",
        aliases: &[],
        wire: Wire::Messages,
        base_url: Some("https://api.anthropic.com"),
        version_path: "/v1",
        key: KeyHeader::ApiKey,
        beta_header: Some("anthropic-beta"),
        needs_key: true,
        key_variables: &["ANTHROPIC_API_KEY"],
        base_url_variables: &["ANTHROPIC_BASE_URL"],
        port: None,
        prefixes: &["claude-"],
        bare_names: &[],
    },
    Provider {
        name: "gemini",
        aliases: &["google"],
        wire: Wire::GenerateContent,
        base_url: Some("https://generativelanguage.googleapis.com"),
        version_path: "/v1beta",
        key: KeyHeader::GoogleApiKey,
        beta_header: None,
        needs_key: true,
        // The order of the official client libraries.
        key_variables: &["GOOGLE_API_KEY", "GEMINI_API_KEY"],
        base_url_variables: &["GEMINI_BASE_URL", "GOOGLE_GEMINI_BASE_URL"],
        port: None,
        prefixes: &["gemini-"],
        bare_names: &[],
    },
    Provider {
        name: "openai",
        aliases: &[],
        wire: Wire::Responses,
        base_url: Some("https://api.openai.com"),
        version_path: "/v1",
        key: KeyHeader::Bearer,
        beta_header: Some("openai-beta"),
        needs_key: true,
        key_variables: &["OPENAI_API_KEY"],
        base_url_variables: &["OPENAI_BASE_URL"],
        port: None,
        prefixes: &["gpt-", "chatgpt-", "o1-", "o3-", "o4-"],
        bare_names: &["o1", "o3", "o4"],
    },
    Provider {
        name: "xai",
        aliases: &[],
        wire: Wire::XaiResponses,
        base_url: Some("https://api.x.ai"),
        version_path: "/v1",
        key: KeyHeader::Bearer,
        beta_header: None,
        needs_key: true,
        key_variables: &["XAI_API_KEY"],
        base_url_variables: &["XAI_BASE_URL"],
        port: None,
        prefixes: &["grok-"],
        bare_names: &[],
    },
    Provider {
        base_url: Some("http://127.0.0.1:11434"),
        // Ollama's own client reads `OLLAMA_HOST`.
        port: Some(11434),
        ..chat("ollama", &["OLLAMA_API_KEY"], &["OLLAMA_BASE_URL", "OLLAMA_HOST"])
    },
    Provider {
        base_url: Some("http://127.0.0.1:8080"),
        ..chat("llamacpp", &["LLAMACPP_API_KEY"], &["LLAMACPP_BASE_URL"])
    },
    Provider {
        base_url: Some("http://127.0.0.1:8000"),
        ..chat("vllm", &["VLLM_API_KEY"], &["VLLM_BASE_URL"])
    },
    // The base URL includes the version, as in OpenAI's client library.
    Provider {
        version_path: "",
        ..chat("openai-compatible", &["OPENAI_COMPATIBLE_API_KEY"], &["OPENAI_COMPATIBLE_BASE_URL"])
    },
];

/// A self-hosted server with the Chat Completions API, an optional API key and any model names.
const fn chat(
    name: &'static str,
    key_variables: &'static [&'static str],
    base_url_variables: &'static [&'static str],
) -> Provider {
    Provider {
        name,
        aliases: &[],
        wire: Wire::ChatCompletions,
        base_url: None,
        version_path: "/v1",
        key: KeyHeader::Bearer,
        beta_header: None,
        needs_key: false,
        key_variables,
        base_url_variables,
        port: None,
        prefixes: &[],
        bare_names: &[],
    }
}

impl Provider {
    /// Finds a provider by name or alias.
    pub fn find(name: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| provider.name == name || provider.aliases.contains(&name))
    }

    /// Finds the provider of a model's bare name.
    pub(crate) fn for_bare_name(model: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| {
            provider.bare_names.contains(&model)
                || provider.prefixes.iter().any(|prefix| model.starts_with(prefix))
        })
    }

    /// The base URL to use, without a trailing slash and version: the given one, or the provider's own.
    ///
    /// # Errors
    /// [`ErrorKind::Configuration`] if there is no base URL, or an invalid one.
    pub fn resolve_base_url(&self, base_url: Option<&str>) -> Result<String, ModelError> {
        let Some(base) = base_url.or(self.base_url) else {
            let message = format!(
                "`{}` needs a base URL: set {} or the configuration",
                self.name,
                self.base_url_variables.join(" or ")
            );
            return Err(ModelError::new(ErrorKind::Configuration, message));
        };
        let base = match self.port {
            Some(port) => expand_host(base, port),
            None => base.to_owned(),
        };
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix(self.version_path).unwrap_or(base);
        endpoint(base)?;
        Ok(base.to_owned())
    }

    /// The API key to use. A missing key that the provider needs is an error.
    pub(crate) fn resolve_key(&self, key: Option<Secret>) -> Result<Option<Secret>, ModelError> {
        let key = key.filter(|key| !key.expose().is_empty());
        if self.needs_key && key.is_none() {
            let variables = self.key_variables.join(" or ");
            let message = format!("set {variables}");
            return Err(ModelError::new(ErrorKind::Auth, message).with_setting(ModelSetting::Key));
        }
        Ok(key)
    }
}

/// Completes an address of a host only, or a listening address: `0.0.0.0`, `:1234`, `[::1]`.
fn expand_host(text: &str, default_port: u16) -> String {
    let text = text.trim().trim_matches(['"', '\'']).trim();
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, text),
    };
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    let is_bare_v6 = authority.parse::<Ipv6Addr>().is_ok();
    let (host, port) = match authority.rsplit_once(':').filter(|_| !is_bare_v6) {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    // A server that listens on all interfaces is reached over loopback.
    let host = match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) if address.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(address)) if address.is_unspecified() => "[::1]".to_owned(),
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ if bare.is_empty() => "127.0.0.1".to_owned(),
        _ => bare.to_owned(),
    };
    // Without a scheme, an invalid port means the default port, as in Ollama.
    let port = match (scheme, port) {
        (Some(_), port) => port.map(str::to_owned),
        (None, port) => Some(port.and_then(|port| port.parse().ok()).unwrap_or(default_port).to_string()),
    };
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}{path}", scheme.unwrap_or("http"))
}

/// The credentials and address for one provider.
#[derive(Clone, Debug, Default)]
pub struct ProviderAccess {
    /// The API key. A provider that needs one cannot be opened without it.
    pub key: Option<Secret>,
    /// A base URL instead of the provider's own, with or without a final `/v1`.
    pub base_url: Option<String>,
    /// Beta features for every request, for wires that have them.
    pub betas: Vec<String>,
}

impl ProviderAccess {
    /// Access with this API key, to the provider's own address, without beta features.
    pub fn new(key: Secret) -> Self {
        Self { key: Some(key), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_parsed_as_ollama_does() {
        let ollama = Provider::find("ollama").unwrap();
        for (text, expected) in [
            ("1.2.3.4", "http://1.2.3.4:11434"),
            (":1234", "http://127.0.0.1:1234"),
            ("1.2.3.4:1234", "http://1.2.3.4:1234"),
            ("example.com", "http://example.com:11434"),
            ("example.com:1234", "http://example.com:1234"),
            (":66000", "http://127.0.0.1:11434"),
            (":-1", "http://127.0.0.1:11434"),
            ("0.0.0.0", "http://127.0.0.1:11434"),
            ("0.0.0.0:8000", "http://127.0.0.1:8000"),
            ("http://0.0.0.0:8000", "http://127.0.0.1:8000"),
            ("[::1]", "http://[::1]:11434"),
            ("[::]", "http://[::1]:11434"),
            ("::1", "http://[::1]:11434"),
            ("[::1]:1337", "http://[::1]:1337"),
            (" \" 1.2.3.4 \" ", "http://1.2.3.4:11434"),
            ("'1.2.3.4'", "http://1.2.3.4:11434"),
            ("http://1.2.3.4", "http://1.2.3.4"),
            ("http://1.2.3.4:4321", "http://1.2.3.4:4321"),
            ("https://1.2.3.4", "https://1.2.3.4"),
            ("https://example.com/ollama", "https://example.com/ollama"),
            ("https://example.com/v1/", "https://example.com"),
        ] {
            assert_eq!(ollama.resolve_base_url(Some(text)).unwrap(), expected, "{text}");
        }
        for wrong in ["unix:///tmp/ollama.sock", "http://user:secret@host"] {
            assert_eq!(
                ollama.resolve_base_url(Some(wrong)).unwrap_err().kind,
                ErrorKind::Configuration,
                "{wrong}"
            );
        }
    }

    #[test]
    fn errors_name_the_variables_of_a_missing_address_or_key() {
        let error = Provider::find("openai-compatible").unwrap().resolve_base_url(None).unwrap_err();
        assert!(error.message.contains("OPENAI_COMPATIBLE_BASE_URL"), "{error}");
        let error = Provider::find("gemini").unwrap().resolve_key(None).unwrap_err();
        assert!(error.message.contains("GOOGLE_API_KEY or GEMINI_API_KEY"), "{error}");
    }
}
