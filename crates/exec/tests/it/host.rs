//! The host: its processes and its sandbox.

/// Reports that the running test is skipped.
pub(crate) fn skip(reason: impl std::fmt::Display) {
    println!("SKIP {}: {reason}", std::thread::current().name().unwrap_or_default());
}

/// Whether this host confines programs at level strict; `None` skips the test.
#[cfg(any(feature = "client", feature = "command"))]
pub(crate) fn sandbox_or_skip() -> Option<()> {
    let entry = toolpost_sandbox::Host::probe().availability(toolpost_sandbox::Level::Strict).cloned()?;
    if !entry.available {
        skip(entry.reason.unwrap_or_default());
    }
    entry.available.then_some(())
}

/// Whether another process has this text on its command line.
pub(crate) fn is_running(mark: &str) -> bool {
    let own = std::process::id().to_string();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        entry.file_name().to_string_lossy() != own && String::from_utf8_lossy(&line).contains(mark)
    })
}

/// Whether this process has a child that it has not reaped.
#[cfg(feature = "worker")]
pub(crate) fn has_children() -> bool {
    let own = std::process::id().to_string();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // After the name in parentheses: state and parent.
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)) == Some(own.as_str())
    })
}
