//! Environment variables that the command reads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Mutex, OnceLock, PoisonError};

use toolpost_core::Secret;
use toolpost_llm::{PROVIDERS, Scrubber};

use crate::config::keys::{FORMER, KEYS, variable as variable_of};
use crate::failure::Failure;
use crate::regular_file;

/// The maximum size of a certificate file, in bytes.
const MAX_CERTIFICATES: u64 = 16 << 20;

/// Name and meaning of each variable, as `toolpost help environment` prints them.
///
/// Variables of settings are in [`KEYS`](crate::config::keys::KEYS), those of providers in [`PROVIDERS`].
pub(crate) const TABLE: [(&str, &str); 36] = [
    ("ANTHROPIC_API_KEY", "the API key of `anthropic/…` models and of Claude Code"),
    ("CLAUDE_CODE_OAUTH_TOKEN", "the token of Claude Code from `claude setup-token`; overrides the key"),
    ("ANTHROPIC_BASE_URL", "the URL of the Messages API; defaults to https://api.anthropic.com"),
    ("NO_PROXY", "hosts without the proxy, such as `localhost,.example.com`"),
    ("BRAVE_API_KEY", "the API key of Brave Search, for `web_search`"),
    ("HTTPS_PROXY", "the proxy for connections to providers"),
    ("SSL_CERT_FILE", "a file with root certificates, instead of the system's"),
    ("SSL_CERT_DIR", "a directory with root certificates, instead of the system's"),
    ("NO_COLOR", "if not empty, no colors"),
    ("CLICOLOR_FORCE", "if not empty and not `0`, colors without a terminal too"),
    ("TERM", "`dumb` or unset: no colors unless forced"),
    ("COLUMNS", "the width of help, where the terminal reports none"),
    ("DOCKER_HOST", "the Docker daemon; defaults to unix:///var/run/docker.sock"),
    ("DOCKER_TLS_VERIFY", "if not empty, TLS for a daemon at tcp://"),
    ("DOCKER_CERT_PATH", "the directory with ca.pem, cert.pem and key.pem of that TLS"),
    ("DOCKER_CONFIG", "the directory of Docker's config.json with logins; defaults to ~/.docker"),
    ("PIP_INDEX_URL", "the Python package index; defaults to https://pypi.org/simple"),
    ("PIP_CERT", "a file with root certificates of the index"),
    ("PIP_FIND_LINKS", "a directory with Python packages, besides the index"),
    ("npm_config_registry", "the npm registry; defaults to https://registry.npmjs.org"),
    ("TOOLPOST_SERVE_TOKEN", "the token of `serve` over HTTP; defaults to a generated one"),
    ("PATH", "the search path of interpreters for sandboxed code, and of `claude`"),
    ("PYENV_VERSION", "the Python version of pyenv; overrides `.python-version`"),
    ("VIRTUAL_ENV", "the active Python environment, for `poetry run`"),
    ("UV_PROJECT_ENVIRONMENT", "the Python environment of `uv run`; defaults to `.venv`"),
    ("POETRY_VIRTUALENVS_PATH", "Poetry's environments; defaults to ~/.cache/pypoetry/virtualenvs"),
    (
        "GIT_CONFIG_GLOBAL",
        "git's configuration of the user; defaults to ~/.gitconfig and that of XDG_CONFIG_HOME",
    ),
    ("GIT_CONFIG_SYSTEM", "git's configuration of the system; defaults to /etc/gitconfig"),
    ("TMPDIR", "the parent of fresh working directories"),
    ("USER", "the owner of a run, in its record"),
    ("HOME", "the parent of the XDG_ defaults"),
    ("XDG_CONFIG_HOME", "the parent of `toolpost/config.toml`; defaults to ~/.config"),
    ("XDG_DATA_HOME", "the parent of Python environments; defaults to ~/.local/share"),
    ("XDG_CACHE_HOME", "the parent of caches, such as packages; defaults to ~/.cache"),
    ("XDG_RUNTIME_DIR", "the parent of session sockets; defaults to XDG_STATE_HOME"),
    ("XDG_STATE_HOME", "the parent of the store, trust and tokens; defaults to ~/.local/state"),
];

/// Name and meaning of provider variables that the table lacks.
pub(crate) fn providers() -> impl Iterator<Item = (&'static str, String)> {
    let all = PROVIDERS.iter().flat_map(|provider| {
        let address = match provider.base_url {
            Some(usual) => format!("the URL of `{}/…` models; defaults to {usual}", provider.name),
            None => format!("the URL of `{}/…` models", provider.name),
        };
        let key = format!("the API key of `{}/…` models", provider.name);
        in_order(provider.key_variables, key).chain(in_order(provider.base_url_variables, address))
    });
    all.filter(|(name, _)| TABLE.iter().all(|(known, _)| known != name))
}

/// Variables of one meaning; the first that is set counts.
fn in_order(names: &'static [&'static str], meaning: String) -> impl Iterator<Item = (&'static str, String)> {
    names.iter().enumerate().map(move |(place, name)| match names[..place].last() {
        None => (*name, meaning.clone()),
        Some(before) => (*name, format!("the same, if {before} is not set")),
    })
}

/// The value of the first variable that is set.
pub(crate) fn first(names: &[&'static str]) -> Option<String> {
    names.iter().find_map(|name| get(name))
}

/// Variables of files that the environment lacks.
static FILES: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// Adds the variables of files, which override nothing and reach no child process.
pub(crate) fn fill(variables: BTreeMap<String, String>) {
    // A process runs one command, which reads its settings once.
    let _ = FILES.set(variables);
}

/// The value of a variable; `None` if it is unset, empty or not UTF-8.
pub(crate) fn get(name: &str) -> Option<String> {
    get_os(name)?.into_string().ok()
}

/// The value of a variable that a file or an option names; `None` if it is unset, empty or not UTF-8.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub(crate) fn variable(name: &str) -> Option<String> {
    let own = std::env::var(name).ok().filter(|value| !value.is_empty());
    own.or_else(|| FILES.get()?.get(name).filter(|value| !value.is_empty()).cloned())
}

/// The value of a variable with a secret, which is masked in all output from now on.
pub(crate) fn secret(name: &str) -> Option<String> {
    let value = variable(name)?;
    learn(Secret::new(&value));
    Some(value)
}

/// Masks a secret in all output from now on.
pub(crate) fn learn(secret: Secret) {
    scrubber().learn([secret.clone()]);
    let mut learned = LEARNED.lock().unwrap_or_else(PoisonError::into_inner);
    if !learned.contains(&secret) {
        learned.push(secret);
    }
}

/// The secrets of policies, grants and options.
static LEARNED: Mutex<Vec<Secret>> = Mutex::new(Vec::new());

/// The keys and tokens of the environment, and the secrets of policies, grants and options so far.
pub(crate) fn secrets() -> Vec<Secret> {
    let mut secrets = keys();
    secrets.extend_from_slice(&LEARNED.lock().unwrap_or_else(PoisonError::into_inner));
    secrets
}

/// The keys and tokens of the environment.
fn keys() -> Vec<Secret> {
    let is_secret = |name: &str| ["KEY", "TOKEN", "SECRET"].iter().any(|end| name.ends_with(end));
    let names = TABLE.iter().map(|(name, _)| *name).chain(providers().map(|(name, _)| name));
    names.filter(|name| is_secret(name)).filter_map(get).map(Secret::new).collect()
}

/// The scrubber that masks keys, tokens and [learned](learn) secrets. Its clones mask later ones too.
pub(crate) fn scrubber() -> &'static Scrubber {
    // All files with variables are read before the first use.
    static SCRUBBER: OnceLock<Scrubber> = OnceLock::new();
    SCRUBBER.get_or_init(|| Scrubber::new(keys()))
}

/// Checks the size and type of `SSL_CERT_FILE` before a TLS library reads the file.
///
/// # Errors
/// The file is not a regular file or larger than 16 MiB. A missing file is reported at its first use.
pub(crate) fn check_certificates() -> Result<(), Failure> {
    let Some(path) = get_os("SSL_CERT_FILE").map(std::path::PathBuf::from) else { return Ok(()) };
    let Ok(metadata) = path.metadata() else { return Ok(()) };
    let opened = match metadata.len() {
        size if size > MAX_CERTIFICATES => Err(std::io::ErrorKind::FileTooLarge.into()),
        _ => regular_file::open(&path).map(drop),
    };
    opened.map_err(|error| Failure::file("the certificates of SSL_CERT_FILE,", &path, &error))
}

/// The value of a variable as bytes; `None` if it is unset or empty.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
pub(crate) fn get_os(name: &str) -> Option<OsString> {
    debug_assert!(
        TABLE.iter().any(|(known, _)| *known == name)
            || KEYS.iter().any(|key| key.variable() == name)
            || FORMER.iter().any(|(former, _)| variable_of(former) == name)
            || providers().any(|(known, _)| known == name),
        "the table lacks `{name}`"
    );
    let own = std::env::var_os(name).filter(|value| !value.is_empty());
    own.or_else(|| FILES.get()?.get(name).filter(|value| !value.is_empty()).map(OsString::from))
}
