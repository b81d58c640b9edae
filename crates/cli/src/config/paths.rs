//! Paths of the command's files, by the XDG base directory specification.

use std::path::{Path, PathBuf};

use crate::env;
use crate::failure::Failure;

/// The system's settings file.
const SYSTEM: &str = "/etc/toolpost/config.toml";
/// The name of a project's settings file.
pub(crate) const PROJECT: &str = "toolpost.toml";

fn directory_of(variable: &'static str, below_home: &str) -> Option<PathBuf> {
    // The specification ignores relative paths.
    let named = env::get_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env::get_os("HOME").map(|home| Path::new(&home).join(below_home));
    named.or_else(home).map(|directory| directory.join("toolpost"))
}

/// The home directory of the operator, whose toolchains programs may use.
pub(crate) fn home() -> Option<PathBuf> {
    env::get_os("HOME").map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The user's and the system's configuration files of git, which govern every repository.
pub(crate) fn git_config() -> Vec<PathBuf> {
    let global = env::get_os("GIT_CONFIG_GLOBAL").map(|path| vec![PathBuf::from(path)]);
    let home = home();
    let global = global.unwrap_or_else(|| {
        let xdg = env::get_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
        let xdg = xdg.or_else(|| home.as_ref().map(|home| home.join(".config")));
        xdg.map(|xdg| xdg.join("git/config"))
            .into_iter()
            .chain(home.map(|home| home.join(".gitconfig")))
            .collect()
    });
    let system = env::get_os("GIT_CONFIG_SYSTEM").map_or_else(|| "/etc/gitconfig".into(), PathBuf::from);
    global.into_iter().chain([system]).filter(|path| path.is_absolute()).collect()
}

/// The system's settings.
pub(crate) fn system() -> PathBuf {
    SYSTEM.into()
}

/// The user's settings.
pub(crate) fn user() -> Option<PathBuf> {
    directory_of("XDG_CONFIG_HOME", ".config").map(|directory| directory.join("config.toml"))
}

/// The project's settings: of this directory, or of the nearest parent.
pub(crate) fn project() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|directory| directory.join(PROJECT)).find(|path| path.is_file())
}

/// The trusted files.
pub(crate) fn trust() -> Option<PathBuf> {
    directory_of("XDG_STATE_HOME", ".local/state").map(|directory| directory.join("trust.json"))
}

/// The approved definitions of tools behind gateways.
pub(crate) fn pins() -> Option<PathBuf> {
    directory_of("XDG_STATE_HOME", ".local/state").map(|directory| directory.join("approved-tools.json"))
}

/// The tokens of logins to servers.
pub(crate) fn tokens() -> Option<PathBuf> {
    directory_of("XDG_STATE_HOME", ".local/state").map(|directory| directory.join("tokens.json"))
}

/// The generated token of a server, one file per name and address.
pub(crate) fn serve_token(name: &str, address: std::net::SocketAddr) -> Option<PathBuf> {
    // Different names have different files, and none leaves the directory.
    let name = name.bytes().fold(String::new(), |file, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => file + &char::from(byte).to_string(),
        _ => file + &format!("%{byte:02x}"),
    });
    let states = directory_of("XDG_STATE_HOME", ".local/state")?;
    Some(states.join("serve-tokens").join(format!("{name}@{address}")))
}

/// The private layers of working directories, and held changes.
pub(crate) fn layers() -> Option<PathBuf> {
    directory_of("XDG_STATE_HOME", ".local/state").map(|directory| directory.join("layers"))
}

/// The default store.
pub(crate) fn store() -> Option<PathBuf> {
    directory_of("XDG_STATE_HOME", ".local/state").map(|directory| directory.join("store.db"))
}

/// The chat history of this project: of the directory with its settings, else of this one.
pub(crate) fn history() -> Option<PathBuf> {
    use sha2::{Digest as _, Sha256};
    let here = std::env::current_dir().ok()?;
    let directory = project().and_then(|file| Some(file.parent()?.to_owned())).unwrap_or(here);
    let digest = Sha256::digest(directory.as_os_str().as_encoded_bytes());
    let name = digest.iter().take(16).fold(String::new(), |name, byte| name + &format!("{byte:02x}"));
    let states = directory_of("XDG_STATE_HOME", ".local/state")?;
    Some(states.join("history").join(format!("{name}.jsonl")))
}

/// The sockets of sessions.
pub(crate) fn sessions() -> Option<PathBuf> {
    let runtime = env::get_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = runtime.map(|directory| directory.join("toolpost"));
    directory
        .or_else(|| directory_of("XDG_STATE_HOME", ".local/state"))
        .map(|directory| directory.join("sessions"))
}

/// The Python environments of `image build`.
pub(crate) fn environments() -> Option<PathBuf> {
    directory_of("XDG_DATA_HOME", ".local/share").map(|directory| directory.join("environments"))
}

/// The cache.
pub(crate) fn cache() -> Option<PathBuf> {
    directory_of("XDG_CACHE_HOME", ".cache")
}

/// The directories of settings, state, data and cache.
pub(crate) fn own() -> Vec<(&'static str, PathBuf)> {
    let settings = user().and_then(|file| Some(file.parent()?.to_owned()));
    let state = directory_of("XDG_STATE_HOME", ".local/state");
    let data = directory_of("XDG_DATA_HOME", ".local/share");
    let named = [
        ("the settings directory", settings),
        ("the state directory", state),
        ("the data directory", data),
        ("the cache", cache()),
    ];
    named.into_iter().filter_map(|(name, path)| Some((name, path?))).collect()
}

/// The failure without a home directory.
pub(crate) fn no_home() -> Failure {
    Failure::usage("there is no home directory for state").hint("Set HOME, or name a file with `--store`.")
}
