//! The providers: where they answer, what they speak, how they take a key.

use std::net::{IpAddr, Ipv6Addr};

use crate::http::client::endpoint;
use crate::{ErrorKind, ModelError, Secret, Wire};

/// A provider of models.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provider {
    /// The name in front of `/` in a model's name.
    pub name: &'static str,
    /// Other names in front of `/`.
    pub aliases: &'static [&'static str],
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
    /// The environment variables that usually have its key; the first that is set counts. This crate does not read them.
    pub key_variables: &'static [&'static str],
    /// The environment variables that usually have another base URL, in the same way.
    pub base_url_variables: &'static [&'static str],
    /// The port that an address means which is a host alone, such as `0.0.0.0`; `None` if addresses are whole here.
    pub(crate) port: Option<u16>,
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
        // In the order of the official libraries.
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
        // What Ollama's own command reads: where its server listens.
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
    // Any server: its base URL has the version, as for the library of OpenAI.
    Provider {
        version_path: "",
        ..chat("openai-compatible", &["OPENAI_COMPATIBLE_API_KEY"], &["OPENAI_COMPATIBLE_BASE_URL"])
    },
];

/// A server of one's own that speaks Chat Completions: it may want a key, and its models have any names.
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
    /// The provider of a name or an alias.
    pub fn find(name: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| provider.name == name || provider.aliases.contains(&name))
    }

    /// The provider that a model's bare name belongs to.
    pub fn of_bare_name(model: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| {
            provider.bare_names.contains(&model)
                || provider.prefixes.iter().any(|prefix| model.starts_with(prefix))
        })
    }

    /// Where it is asked, without a final slash or version: at this address, which may be a host alone where that is usual,
    /// or at its own. An error if nobody says where, or not with an address.
    pub fn base(&self, base_url: Option<&str>) -> Result<String, ModelError> {
        let Some(base) = base_url.or(self.base_url) else {
            let message = format!(
                "`{}` has no address of its own. Expected a base URL in {} or in the configuration",
                self.name,
                self.base_url_variables.join(" or ")
            );
            return Err(ModelError::new(ErrorKind::Configuration, message));
        };
        let base = match self.port {
            Some(port) => address_of_host(base, port),
            None => base.to_owned(),
        };
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix(self.version_path).unwrap_or(base);
        endpoint(base)?;
        Ok(base.to_owned())
    }

    /// The key to ask it with. An error if it needs one and none was given.
    pub(crate) fn usable(&self, key: Option<Secret>) -> Result<Option<Secret>, ModelError> {
        let key = key.filter(|key| !key.expose().is_empty());
        if self.needs_key && key.is_none() {
            let variables = self.key_variables.join(" or ");
            let message = format!("no key was given. Expected one in {variables} or in the configuration");
            return Err(ModelError::new(ErrorKind::Auth, message));
        }
        Ok(key)
    }
}

/// The address of a server that may be named by its host alone, or by what it listens on: `0.0.0.0`, `:1234`, `[::1]`.
fn address_of_host(text: &str, usual_port: u16) -> String {
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
    // What listens everywhere is asked on this machine.
    let host = match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) if address.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(address)) if address.is_unspecified() => "[::1]".to_owned(),
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ if bare.is_empty() => "127.0.0.1".to_owned(),
        _ => bare.to_owned(),
    };
    // Without a scheme a port that cannot be one is the usual one, as the server itself reads it.
    let port = match (scheme, port) {
        (Some(_), port) => port.map(str::to_owned),
        (None, port) => Some(port.and_then(|port| port.parse().ok()).unwrap_or(usual_port).to_string()),
    };
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}{path}", scheme.unwrap_or("http"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_as_ollama_reads_it() {
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
            assert_eq!(ollama.base(Some(text)).unwrap(), expected, "{text}");
        }
        for wrong in ["unix:///tmp/ollama.sock", "http://user:secret@host"] {
            assert_eq!(ollama.base(Some(wrong)).unwrap_err().kind, ErrorKind::Configuration, "{wrong}");
        }
    }

    #[test]
    fn who_has_no_address_or_key_says_where_they_belong() {
        let error = Provider::find("openai-compatible").unwrap().base(None).unwrap_err();
        assert!(error.message.contains("OPENAI_COMPATIBLE_BASE_URL"), "{error}");
        let error = Provider::find("gemini").unwrap().usable(None).unwrap_err();
        assert!(error.message.contains("GOOGLE_API_KEY or GEMINI_API_KEY"), "{error}");
    }
}
