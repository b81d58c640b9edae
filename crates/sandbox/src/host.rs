//! `Host`: the levels that this host supports, and fixes for the others.

use std::sync::OnceLock;

use serde::Serialize;

use crate::Level;

/// A feature of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capability {
    /// A stable name, for example `user_namespaces`.
    pub name: &'static str,
    /// Whether the host has it.
    pub available: bool,
    /// The finding: a version, a path or the kernel's error.
    pub reason: String,
    /// The fix, if it is missing.
    pub fix: Option<&'static str>,
}

/// Whether the host supports a level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LevelAvailability {
    /// The level.
    pub level: Level,
    /// Whether the host supports it.
    pub available: bool,
    /// The reason, if not.
    pub reason: Option<String>,
    /// The fix, if not.
    pub fix: Option<String>,
}

impl LevelAvailability {
    /// A supported level.
    pub fn available(level: Level) -> Self {
        Self { level, available: true, reason: None, fix: None }
    }

    /// An unsupported level, with the reason and the fix.
    pub fn unavailable(level: Level, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level, available: false, reason: Some(reason.into()), fix: Some(fix.into()) }
    }
}

/// The host facts that decide levels and layers.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// The operating system and its release, for example `Linux 6.12.0`.
    pub system: String,
    /// The features.
    pub capabilities: Vec<Capability>,
    /// The levels, weakest first.
    pub levels: Vec<LevelAvailability>,
    #[serde(skip)]
    pub(crate) facts: crate::platform::Facts,
}

impl Host {
    /// Probes the host once per process: starts an empty sandbox, in about two milliseconds.
    pub fn probe() -> &'static Self {
        static HOST: OnceLock<Host> = OnceLock::new();
        HOST.get_or_init(|| Self::from_facts(crate::platform::Facts::probe()))
    }

    /// Returns the host, with the result of [`Host::probe`] cached in `directory` across processes.
    ///
    /// A file there records that the host supports every layer for this user, and no probe runs. If a later
    /// run is denied a layer, the file is removed and the run probes and retries.
    ///
    /// The file can only claim full support, so a forged or outdated one costs time and weakens nothing.
    pub fn remembered(directory: &std::path::Path) -> Self {
        crate::platform::remember::host(directory)
    }

    pub(crate) fn from_facts(facts: crate::platform::Facts) -> Self {
        Self {
            system: facts.system(),
            capabilities: facts.capabilities(),
            levels: Level::ALL.into_iter().map(|level| facts.availability(level)).collect(),
            facts,
        }
    }

    /// Returns whether the host supports a level.
    pub fn availability(&self, level: Level) -> Option<&LevelAvailability> {
        self.levels.iter().find(|entry| entry.level == level)
    }

    /// The default level: `strict` if the host supports it, else `standard`.
    ///
    /// `maximum` and `minimal` must be named: the limits of one are too small for some programs, the other is
    /// no boundary.
    pub fn best(&self) -> Option<Level> {
        [Level::Strict, Level::Standard]
            .into_iter()
            .find(|level| self.availability(*level).is_some_and(|entry| entry.available))
    }

    /// Whether `AppArmor` denies user namespaces to programs without a profile, as Ubuntu does since 23.10.
    pub fn apparmor_restricts(&self) -> bool {
        self.capabilities.iter().any(|entry| entry.name == "apparmor_userns" && !entry.available)
    }

    /// An `AppArmor` profile that allows user namespaces for a program and restricts nothing.
    ///
    /// Save it in `/etc/apparmor.d` and load it with `apparmor_parser -r FILE`.
    pub fn apparmor_profile(&self, program: &std::path::Path) -> String {
        let path = program.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
        format!(
            "abi <abi/4.0>,\ninclude <tunables/global>\n\nprofile toolpost \"{path}\" flags=(unconfined) {{\n  userns,\n  \
             include if exists <local/toolpost>\n}}\n"
        )
    }

    /// This host without namespaces, as in a default container. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn without_namespaces(&self) -> Self {
        Self::from_facts(self.facts.without_namespaces())
    }

    /// This host with another Landlock version; 0 means none. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_landlock(&self, abi: u32) -> Self {
        Self::from_facts(self.facts.with_landlock(abi))
    }

    /// This host without mounts of `/proc` in a sandbox. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn without_process_files(&self) -> Self {
        Self::from_facts(self.facts.without_process_files())
    }

    /// This host as if the kernel denied overlays. For tests.
    #[must_use]
    pub fn without_overlays(&self) -> Self {
        Self::from_facts(self.facts.without_overlays())
    }

    /// This host without cgroups. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn without_cgroups(&self) -> Self {
        Self::from_facts(self.facts.without_cgroups())
    }
}
