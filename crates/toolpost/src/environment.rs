//! Environment variables that the entry points of the façade read.

/// Whether `TOOLPOST_NO_NETWORK` is set to any non-empty value.
pub(crate) fn is_offline() -> bool {
    get("TOOLPOST_NO_NETWORK").is_some()
}

/// The log filter of `TOOLPOST_LOG`, else of `RUST_LOG`.
pub(crate) fn log() -> Option<String> {
    let filter = get("TOOLPOST_LOG").or_else(|| get("RUST_LOG"))?;
    filter.into_string().ok()
}

/// The value of the first variable that is set and not empty.
#[cfg(feature = "llm")]
pub(crate) fn first(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| get(name)?.into_string().ok())
}

/// The search path for programs.
#[cfg(feature = "client")]
pub(crate) fn search_path() -> Option<std::ffi::OsString> {
    get("PATH")
}

/// The home directory, whose toolchains programs may use.
#[cfg(feature = "client")]
pub(crate) fn home() -> Option<std::ffi::OsString> {
    get("HOME")
}

fn get(name: &str) -> Option<std::ffi::OsString> {
    #[expect(clippy::disallowed_methods, reason = "an entry point of a program, like the command line")]
    std::env::var_os(name).filter(|value| !value.is_empty())
}
