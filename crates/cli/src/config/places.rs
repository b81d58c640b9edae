//! Where the command keeps what it keeps, after the XDG base directory specification.

use std::path::{Path, PathBuf};

use crate::env;
use crate::failure::Failure;

/// The file of this machine.
const SYSTEM: &str = "/etc/toolpost/config.toml";
/// The name of a project's file.
pub(crate) const PROJECT: &str = "toolpost.toml";

fn folder_of(variable: &'static str, below_home: &str) -> Option<PathBuf> {
    // The specification: a relative path is to be ignored.
    let named = env::get_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env::get_os("HOME").map(|home| Path::new(&home).join(below_home));
    named.or_else(home).map(|folder| folder.join("toolpost"))
}

/// The settings of this machine.
pub(crate) fn system() -> PathBuf {
    SYSTEM.into()
}

/// The settings of the user.
pub(crate) fn user() -> Option<PathBuf> {
    folder_of("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("config.toml"))
}

/// The settings of the project: of this folder, or of the nearest above it that has some.
pub(crate) fn project() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join(PROJECT)).find(|path| path.is_file())
}

/// The files that the operator trusts.
pub(crate) fn trust() -> Option<PathBuf> {
    folder_of("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("trust.json"))
}

/// The definitions of tools behind gateways that the operator has approved.
pub(crate) fn pins() -> Option<PathBuf> {
    folder_of("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("approved-tools.json"))
}

/// The tokens of servers that somebody has logged in to.
pub(crate) fn tokens() -> Option<PathBuf> {
    folder_of("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("tokens.json"))
}

/// The generated token of a server: the same file for the same name and address.
pub(crate) fn serve_token(name: &str, address: std::net::SocketAddr) -> Option<PathBuf> {
    // Two names never become one, and none leads out of the directory.
    let name = name.bytes().fold(String::new(), |file, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => file + &char::from(byte).to_string(),
        _ => file + &format!("%{byte:02x}"),
    });
    let states = folder_of("XDG_STATE_HOME", ".local/state")?;
    Some(states.join("serve-tokens").join(format!("{name}@{address}")))
}

/// The private layers of working directories, and what runs left in them.
pub(crate) fn layers() -> Option<PathBuf> {
    folder_of("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("layers"))
}

/// What tools keep, unless `--store` says otherwise.
pub(crate) fn store() -> Option<PathBuf> {
    folder_of("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("store.db"))
}

/// The file with what was said in conversations of this project: of the folder with its settings, else of this one.
pub(crate) fn history() -> Option<PathBuf> {
    use sha2::{Digest as _, Sha256};
    let here = std::env::current_dir().ok()?;
    let folder = project().and_then(|file| Some(file.parent()?.to_owned())).unwrap_or(here);
    let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
    let name = digest.iter().take(16).fold(String::new(), |name, byte| name + &format!("{byte:02x}"));
    let states = folder_of("XDG_STATE_HOME", ".local/state")?;
    Some(states.join("history").join(format!("{name}.jsonl")))
}

/// The sockets of sessions.
pub(crate) fn sessions() -> Option<PathBuf> {
    let runtime = env::get_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = runtime.map(|folder| folder.join("toolpost"));
    folder.or_else(|| folder_of("XDG_STATE_HOME", ".local/state")).map(|folder| folder.join("sessions"))
}

/// The environments of Python that `image build` makes.
pub(crate) fn environments() -> Option<PathBuf> {
    folder_of("XDG_DATA_HOME", ".local/share").map(|folder| folder.join("environments"))
}

/// What can be found out again.
pub(crate) fn cache() -> Option<PathBuf> {
    folder_of("XDG_CACHE_HOME", ".cache")
}

/// Why there is no place.
pub(crate) fn no_home() -> Failure {
    Failure::usage("there is no home folder to keep anything in")
        .hint("Set HOME, or name a file with `--store`.")
}
