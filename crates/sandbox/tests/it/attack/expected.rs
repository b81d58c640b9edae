//! The expected answers of a probe by level.

/// Any of these. `verdict:KIND` is a verdict, `error:KIND` an error of the crate; [`ANY`] is not compared.
pub(crate) type Answers = &'static [&'static str];

/// Allowed, and no guarantee of the level: the result is printed and not compared.
pub(crate) const ANY: Answers = &["*"];
pub(crate) const OK: Answers = &["ok"];
pub(crate) const REFUSED: Answers = &["EPERM", "EACCES"];
pub(crate) const INVISIBLE: Answers = &["ENOENT"];
pub(crate) const NO_CALL: Answers = &["EPERM", "ENOSYS"];
pub(crate) const NO_WRITE: Answers = &["EROFS", "EACCES", "EPERM", "ENOENT", "ETXTBSY"];
/// Additional answer of a level that kills for a blocked system call.
pub(crate) const KILLED: Answers = &["verdict:denied"];

/// The answers of each level; `shared` is `standard` without namespaces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) minimal: Answers,
    pub(crate) standard: Answers,
    pub(crate) shared: Answers,
    pub(crate) strict: Answers,
    pub(crate) maximum: Answers,
    /// At level `maximum` the policy may also kill for it.
    pub(crate) may_kill: bool,
    /// At level `minimal` as root, if different: the program has root's files.
    as_root: Option<Answers>,
    /// A variant on a host with namespaces.
    as_root_apart: Option<Answers>,
    /// From level `standard` upward in a container, if different.
    container: Option<Answers>,
    /// At level `maximum` in a container with its own kernel, if different.
    own_kernel: Option<Answers>,
}

/// Equal answers at every level; level `maximum` may also kill for a system call.
pub(crate) const fn all(answers: Answers) -> Expected {
    of(answers, answers, answers, answers)
}

/// The answers of the levels minimal, standard, standard without namespaces, and strict. Level `maximum`
/// answers as strict, or kills for a system call.
pub(crate) const fn of(minimal: Answers, standard: Answers, shared: Answers, strict: Answers) -> Expected {
    Expected {
        minimal,
        standard,
        shared,
        strict,
        maximum: strict,
        may_kill: true,
        as_root: None,
        as_root_apart: None,
        container: None,
        own_kernel: None,
    }
}

impl Expected {
    /// Other answers at level `minimal`.
    pub(crate) const fn minimal(mut self, answers: Answers) -> Self {
        self.minimal = answers;
        self
    }

    /// Other answers at level `minimal` if the host program is root: no capability, but root's files.
    pub(crate) const fn minimal_as_root(mut self, answers: Answers) -> Self {
        self.as_root = Some(answers);
        self
    }

    /// Other answers at level `minimal` if the host program is root and the host has namespaces.
    pub(crate) const fn minimal_as_root_apart(mut self, answers: Answers) -> Self {
        self.as_root_apart = Some(answers);
        self
    }

    /// Other answers from level `standard` upward in a container, which has files where others see none.
    pub(crate) const fn in_container(mut self, answers: Answers) -> Self {
        self.container = Some(answers);
        self
    }

    /// Other answers at level `maximum` in a container: with its own kernel, allowed calls do not reach the
    /// host.
    pub(crate) const fn in_own_kernel(mut self, answers: Answers) -> Self {
        self.own_kernel = Some(answers);
        self
    }

    /// The answers of a level on a backend; `namespaces` tells whether the host has them.
    pub(crate) fn at(&self, backend: &str, level: &str, namespaces: bool) -> Vec<&'static str> {
        let in_container = self.container.filter(|_| backend == "docker");
        let in_own_kernel = self.own_kernel.filter(|_| backend == "docker").or(in_container);
        let (answers, killed): (Answers, Answers) = match (level, namespaces) {
            ("minimal", true) if super::lines::user() == 0 => {
                (self.as_root_apart.or(self.as_root).unwrap_or(self.minimal), &[])
            }
            ("minimal", _) if super::lines::user() == 0 => (self.as_root.unwrap_or(self.minimal), &[]),
            ("minimal", _) => (self.minimal, &[]),
            ("standard" | "strict", _) if in_container.is_some() => (in_container.unwrap_or(OK), &[]),
            ("standard", false) => (self.shared, &[]),
            ("standard", true) => (self.standard, &[]),
            ("strict", _) => (self.strict, &[]),
            _ => (
                in_own_kernel.unwrap_or(self.maximum),
                if self.may_kill && self.maximum != OK { KILLED } else { &[] },
            ),
        };
        answers.iter().chain(killed).copied().collect()
    }
}
