//! Every environment variable that the command reads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::OnceLock;

use toolpost_core::Secret;
use toolpost_llm::{PROVIDERS, Scrubber};

use crate::config::keys::KEYS;
use crate::failure::Failure;
use crate::regular_file;

/// The largest file of certificates, in bytes: fifty times what a system trusts.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// Name and meaning, as `toolpost help environment` prints them; the variables of settings stand in
/// [`KEYS`](crate::config::keys::KEYS), those of providers in [`PROVIDERS`] and in [`providers`].
pub(crate) const TABLE: [(&str, &str); 34] = [
    ("ANTHROPIC_API_KEY", "the key for `anthropic/…` models, and for Claude Code"),
    (
        "CLAUDE_CODE_OAUTH_TOKEN",
        "the token for Claude Code, made by `claude setup-token`; counts more than the key",
    ),
    ("ANTHROPIC_BASE_URL", "where the Messages API is, instead of https://api.anthropic.com"),
    ("NO_PROXY", "hosts that the proxy is not for, such as `localhost,.example.com`"),
    ("BRAVE_API_KEY", "the key of Brave Search, for `web_search`"),
    ("HTTPS_PROXY", "the proxy for connections to providers"),
    ("SSL_CERT_FILE", "a file with the certificates to trust, instead of the system's"),
    ("SSL_CERT_DIR", "a folder with the certificates to trust, instead of the system's"),
    ("NO_COLOR", "if it is set and not empty, nothing is coloured"),
    ("CLICOLOR_FORCE", "if it is set, not empty and not `0`, colours are used without a terminal too"),
    ("TERM", "`dumb`, or not set, means no colours unless they are forced"),
    ("COLUMNS", "how wide help is, where the terminal does not say it"),
    ("DOCKER_HOST", "where the Docker daemon is, instead of unix:///var/run/docker.sock"),
    ("DOCKER_TLS_VERIFY", "if it is set and not empty, the daemon of a tcp:// address is asked with TLS"),
    ("DOCKER_CERT_PATH", "the folder with ca.pem, cert.pem and key.pem for that"),
    ("DOCKER_CONFIG", "the folder with config.json, where `docker login` keeps logins, instead of ~/.docker"),
    ("PIP_INDEX_URL", "where Python packages are from, instead of https://pypi.org/simple"),
    ("PIP_CERT", "a file with the certificates that this index is known by"),
    ("PIP_FIND_LINKS", "a folder with Python packages, besides the index"),
    ("npm_config_registry", "where npm packages are from, instead of https://registry.npmjs.org"),
    ("TOOLPOST_SERVE_TOKEN", "the token of `serve` over HTTP, instead of a generated one"),
    ("PATH", "where interpreters for sandboxed code, and `claude`, are looked up"),
    ("PYENV_VERSION", "the Python version behind pyenv's launchers, instead of `.python-version`"),
    ("VIRTUAL_ENV", "the active Python environment, for `poetry run`"),
    ("UV_PROJECT_ENVIRONMENT", "the Python environment for `uv run`, instead of `.venv`"),
    ("POETRY_VIRTUALENVS_PATH", "where Poetry keeps environments, instead of ~/.cache/pypoetry/virtualenvs"),
    ("TMPDIR", "where fresh working folders are made"),
    ("USER", "whom a run works for, in its records"),
    ("HOME", "where the folders of the XDG_ variables are, if those are not set"),
    ("XDG_CONFIG_HOME", "where `toolpost/config.toml` is, instead of ~/.config"),
    ("XDG_DATA_HOME", "where environments of Python are, instead of ~/.local/share"),
    ("XDG_CACHE_HOME", "where what can be had again is kept, such as packages for code, instead of ~/.cache"),
    ("XDG_RUNTIME_DIR", "where the sockets of sessions are, instead of the folder of XDG_STATE_HOME"),
    ("XDG_STATE_HOME", "where trusted files and the state of tools are kept, instead of ~/.local/state"),
];

/// Name and meaning of the variables of providers that the table does not have.
pub(crate) fn providers() -> impl Iterator<Item = (&'static str, String)> {
    let all = PROVIDERS.iter().flat_map(|provider| {
        let address = match provider.base_url {
            Some(usual) => format!("where `{}/…` models are asked, instead of {usual}", provider.name),
            None => format!("where `{}/…` models are asked", provider.name),
        };
        let key = format!("the key for `{}/…` models", provider.name);
        in_order(provider.key_variables, key).chain(in_order(provider.base_url_variables, address))
    });
    all.filter(|(name, _)| TABLE.iter().all(|(known, _)| known != name))
}

/// Variables of one meaning, of which the first that is set counts.
fn in_order(names: &'static [&'static str], meaning: String) -> impl Iterator<Item = (&'static str, String)> {
    names.iter().enumerate().map(move |(place, name)| match names[..place].last() {
        None => (*name, meaning.clone()),
        Some(before) => (*name, format!("the same, if {before} is not set")),
    })
}

/// The value of the first of these variables that is set.
pub(crate) fn first(names: &[&'static str]) -> Option<String> {
    names.iter().find_map(|name| get(name))
}

/// Variables of files, for what the environment itself leaves unset.
static FILES: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Adds the variables of files. They override nothing, and no program that is started gets them.
pub(crate) fn fill(variables: BTreeMap<String, String>) {
    // There is one command in a process, and it reads its settings once.
    let _ = FILES.set(variables);
}

/// The value of a variable of the table; `None` if it is unset, empty, or not text.
pub(crate) fn get(name: &'static str) -> Option<String> {
    get_os(name)?.into_string().ok()
}

/// The value of a variable that the operator names in a policy; `None` if it is unset, empty, or not text.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub(crate) fn secret(name: &str) -> Option<String> {
    let own = std::env::var(name).ok().filter(|value| !value.is_empty());
    own.or_else(|| FILES.get()?.get(name).filter(|value| !value.is_empty()).cloned())
}

/// The keys and tokens that are set: what must not be kept anywhere.
pub(crate) fn secrets() -> Vec<Secret> {
    let is_secret = |name: &str| ["KEY", "TOKEN", "SECRET"].iter().any(|end| name.ends_with(end));
    let names = TABLE.iter().map(|(name, _)| *name).chain(providers().map(|(name, _)| name));
    names.filter(|name| is_secret(name)).filter_map(get).map(Secret::new).collect()
}

/// What masks the keys and tokens that are set.
pub(crate) fn scrubber() -> &'static Scrubber {
    // Nothing is printed or logged of a model before all files with variables are read.
    static SCRUBBER: OnceLock<Scrubber> = OnceLock::new();
    SCRUBBER.get_or_init(|| Scrubber::new(secrets()))
}

/// Looks at the file of certificates before those who encrypt read it as a whole.
///
/// # Errors
/// It has no end, or is larger than 16 MiB. One that is not there is told when somebody needs it.
pub(crate) fn check_certificates() -> Result<(), Failure> {
    let Some(path) = get_os("SSL_CERT_FILE").map(std::path::PathBuf::from) else { return Ok(()) };
    let Ok(metadata) = path.metadata() else { return Ok(()) };
    let opened = match metadata.len() {
        size if size > MAX_CERTIFICATES => Err(std::io::ErrorKind::FileTooLarge.into()),
        _ => regular_file::open(&path).map(drop),
    };
    opened.map_err(|error| Failure::file("the certificates of SSL_CERT_FILE,", &path, &error))
}

/// The value of a variable of the table, text or not; `None` if it is unset or empty.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub(crate) fn get_os(name: &'static str) -> Option<OsString> {
    debug_assert!(
        TABLE.iter().any(|(known, _)| *known == name)
            || KEYS.iter().any(|key| key.variable == name)
            || providers().any(|(known, _)| known == name),
        "`{name}` is not in the table"
    );
    let own = std::env::var_os(name).filter(|value| !value.is_empty());
    own.or_else(|| FILES.get()?.get(name).filter(|value| !value.is_empty()).map(OsString::from))
}
