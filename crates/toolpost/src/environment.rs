//! What the entries of the façade read of the environment.

/// Whether `TOOLPOST_NO_NETWORK` is set, whatever it says.
pub(crate) fn is_offline() -> bool {
    get("TOOLPOST_NO_NETWORK").is_some()
}

/// What is logged.
pub(crate) fn log() -> Option<String> {
    let asked = get("TOOLPOST_LOG").or_else(|| get("RUST_LOG"))?;
    asked.into_string().ok()
}

/// The first of these variables that is set and not empty.
#[cfg(feature = "llm")]
pub(crate) fn first(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| get(name)?.into_string().ok())
}

fn get(name: &str) -> Option<std::ffi::OsString> {
    #[expect(clippy::disallowed_methods, reason = "the entries stand where the command line stands")]
    std::env::var_os(name).filter(|value| !value.is_empty())
}
