//! Test support: the modes of a sandbox on this host, and its processes.

use std::time::{Duration, Instant};

use toolpost_sandbox::{Cancel, Error, Host, Language, Level, Limits, Outcome, Program, Sandbox};

/// Paths directly in a host workspace that stay unchanged.
pub(crate) const PROTECTED_PATHS: [&str; 15] = [
    ".git/hooks",
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".git/modules",
    ".claude",
    ".codex",
    ".vscode",
    ".idea",
    ".mcp.json",
    ".bashrc",
    ".envrc",
    ".gitmodules",
    "CLAUDE.md",
    "AGENTS.md",
];

/// A way in which the sandbox works on some host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Level `strict`.
    Strict,
    /// Level `standard` with namespaces.
    Standard,
    /// Level `standard` on a host that denies namespaces.
    Shared,
}

impl Mode {
    pub(crate) const ALL: [Self; 3] = [Self::Strict, Self::Standard, Self::Shared];

    /// The modes that this host supports; others are skipped with a message.
    pub(crate) fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|mode| {
                let host = mode.host();
                let level = if *mode == Self::Strict { Level::Strict } else { Level::Standard };
                let entry = host.availability(level).unwrap();
                // Mode `Standard` needs namespaces.
                let namespaces =
                    *mode == Self::Shared || Host::probe().availability(Level::Strict).unwrap().available;
                if entry.available && namespaces {
                    return true;
                }
                println!("SKIP {mode:?}: {}", entry.reason.clone().unwrap_or_else(|| "no namespaces".into()));
                false
            })
            .collect()
    }

    pub(crate) fn host(self) -> Host {
        match self {
            Self::Strict | Self::Standard => Host::probe().clone(),
            Self::Shared => Host::probe().without_namespaces(),
        }
    }

    pub(crate) fn sandbox(self) -> Sandbox {
        let level = if self == Self::Strict { Level::Strict } else { Level::Standard };
        Sandbox::new().level(level).host(self.host()).limits(quick())
    }
}

/// Limits under which a hanging test ends soon.
pub(crate) fn quick() -> Limits {
    Limits::default().with_wall(Duration::from_secs(20))
}

pub(crate) fn run(sandbox: &Sandbox, program: &Program) -> Result<Outcome, Error> {
    sandbox.run(program, &Cancel::new(), &mut |_| {})
}

pub(crate) fn python(sandbox: &Sandbox, code: &str) -> Outcome {
    run(sandbox, &Program::code(Language::Python, code)).unwrap()
}

pub(crate) fn bash(sandbox: &Sandbox, code: &str) -> Outcome {
    run(sandbox, &Program::code(Language::Bash, code)).unwrap()
}

/// Whether this host denies the namespaces that a test needs; prints a message.
pub(crate) fn skip_without_namespaces(test: &str) -> bool {
    let has_none = !Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available);
    if has_none {
        println!("SKIP {test}: this host gives no namespaces");
    }
    has_none
}

/// Whether a host process has this text in its command line.
pub(crate) fn is_running(text: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
            && entry.file_name().to_string_lossy() != std::process::id().to_string()
    })
}

/// The time for a condition on a busy machine.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A host directory that everybody can enter and read.
pub(crate) fn open_directory() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::Builder::new().prefix("host-directory-").tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

/// Set for a test that another test starts as a separate program; without it such a test does nothing.
pub(crate) const HELPER: &str = "TOOLPOST_TEST_HELPER";

/// Whether this process was started by another test.
pub(crate) fn is_helper() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the test that starts this one says so")]
    std::env::var_os(HELPER).is_some()
}
