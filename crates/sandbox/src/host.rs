//! What this host can give, and what to do about the rest.

use std::sync::OnceLock;

use serde::Serialize;

use crate::Level;

/// One ability of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Capability {
    /// A stable name, for example `user_namespaces`.
    pub name: &'static str,
    /// Whether the host has it.
    pub available: bool,
    /// What was found: a version, a path, or the kernel's refusal.
    pub reason: String,
    /// What to do when it is missing.
    pub fix: Option<&'static str>,
}

/// Whether a level can be given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LevelAvailability {
    /// The level.
    pub level: Level,
    /// Whether the host can give it.
    pub available: bool,
    /// Why not.
    pub reason: Option<String>,
    /// What to do about it.
    pub fix: Option<String>,
}

/// The facts about this host on which the choice of levels and layers rests.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// The operating system and its release, for example `Linux 6.12.0`.
    pub system: String,
    /// The abilities.
    pub capabilities: Vec<Capability>,
    /// The levels, weakest first.
    pub levels: Vec<LevelAvailability>,
    #[serde(skip)]
    pub(crate) facts: crate::platform::Facts,
}

impl Host {
    /// Finds out what the host can give: once per process, in about two milliseconds, by starting one empty sandbox.
    pub fn probe() -> &'static Self {
        static HOST: OnceLock<Host> = OnceLock::new();
        HOST.get_or_init(|| Self::from_facts(crate::platform::Facts::probe()))
    }

    /// The same for a process of one run: a file in `directory` remembers that an earlier process of this user found
    /// that the host gives every layer. Nothing is tried then, and a run that is refused a layer removes the file, probes
    /// and starts again.
    ///
    /// The file can only claim everything, so that a forged or outdated one costs time and weakens nothing.
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

    /// Whether a level can be given.
    pub fn availability(&self, level: Level) -> Option<&LevelAvailability> {
        self.levels.iter().find(|entry| entry.level == level)
    }

    /// The level that a run gets which names none: `strict` if the host can give it, else `standard`. `maximum` has
    /// limits that not every program fits, and `minimal` promises nothing: both must be named.
    pub fn best(&self) -> Option<Level> {
        [Level::Strict, Level::Standard]
            .into_iter()
            .find(|level| self.availability(*level).is_some_and(|entry| entry.available))
    }

    /// Which languages this host runs: [`crate::Languages::detect`] with the search path of the programs, in the form of
    /// `PATH`, or [`crate::SYSTEM_SEARCH_PATH`].
    pub fn languages(&self, search_path: Option<&std::ffi::OsStr>) -> crate::Languages {
        let mut sandbox = crate::Sandbox::new().host(self.clone());
        sandbox.search_path = search_path.map(Into::into);
        crate::Languages::detect(&sandbox)
    }

    /// Whether `AppArmor` keeps programs without a profile from using user namespaces, as Ubuntu does since 23.10.
    pub fn apparmor_restricts(&self) -> bool {
        self.capabilities.iter().any(|entry| entry.name == "apparmor_userns" && !entry.available)
    }

    /// An `AppArmor` profile that lets a program use user namespaces and restricts nothing else. For a file in
    /// `/etc/apparmor.d`, loaded by `apparmor_parser -r FILE`.
    pub fn apparmor_profile(&self, program: &std::path::Path) -> String {
        let path = program.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
        format!(
            "abi <abi/4.0>,\ninclude <tunables/global>\n\nprofile toolpost \"{path}\" flags=(unconfined) {{\n  userns,\n  \
             include if exists <local/toolpost>\n}}\n"
        )
    }

    /// The same host without namespaces, as seen inside a default container. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn without_namespaces(&self) -> Self {
        Self::from_facts(self.facts.without_namespaces())
    }

    /// The same host with another Landlock version; 0 is none. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_landlock(&self, abi: u32) -> Self {
        Self::from_facts(self.facts.with_landlock(abi))
    }

    /// The same host that refuses to mount a `/proc` in a sandbox. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn without_process_files(&self) -> Self {
        Self::from_facts(self.facts.without_process_files())
    }

    /// The same host without any cgroup. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn without_cgroups(&self) -> Self {
        Self::from_facts(self.facts.without_cgroups())
    }
}
