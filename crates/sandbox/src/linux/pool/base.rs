//! The settings and steps that all workers of a pool share.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::super::admission::Workspaces;
use super::super::cgroup::Group;
use super::super::child_steps::Step;
use super::super::files::Owner;
use super::super::interpreter::{Reach, is_system};
use super::super::landlock::Landlock;
use super::super::plan::{self, BackendRequest, Confinement, INSIDE, identity_map};
use super::super::prepare::{choose, program_owner, setup, visible};
use super::super::root::{self, OVERLAY, SCRATCH};
use super::super::{Facts, identity, links, network, template, toolchain};
use crate::pool::PoolSettings;
use crate::ready::Payload;
use crate::{Error, Host, Language, Level, Limits, Need, Program, Ready, Report, Sandbox};

/// Resolved settings of a pool.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) sandbox: Sandbox,
    pub(super) facts: Facts,
    pub(super) level: Level,
    degraded: bool,
    pub(super) limits: Limits,
    pub(super) language: Option<Language>,
    /// Whether workers attach host directories, and then apply Landlock.
    ///
    /// Not at level `standard`: a host directory is mounted at its own path there, which a worker's root
    /// lacks.
    pub(super) attaches: bool,
    /// The interpreter with its arguments, or an empty value without mounts.
    pub(super) ready: Ready,
}

impl Base {
    /// Resolves the level and the interpreter as a run does.
    pub(super) fn new(settings: &PoolSettings) -> Result<Self, Error> {
        let PoolSettings { sandbox, language, host_directories, .. } = settings;
        let language = *language;
        let host = sandbox.host.as_ref().unwrap_or_else(|| Host::probe());
        let (level, degraded) = choose(sandbox, host)?;
        let facts = host.facts.clone();
        let mut base = Self {
            sandbox: sandbox.clone(),
            level,
            degraded,
            limits: sandbox.limits_at(level),
            language,
            attaches: *host_directories && level == Level::Strict,
            ready: Ready {
                path: PathBuf::new(),
                needs: Vec::new(),
                arguments: Vec::new(),
                payload: None,
                language: None,
            },
            facts,
        };
        let refuse = |reason: &str| {
            setup("create a pool")(std::io::Error::new(std::io::ErrorKind::Unsupported, reason.to_owned()))
        };
        if !matches!(level, Level::Standard | Level::Strict) {
            return Err(refuse(&format!(
                "a pool supports the levels `standard` and `strict`, not `{level}`"
            )));
        }
        if let Err(refusal) = &base.facts.namespaces {
            return Err(refuse(&format!("a pool needs namespaces ({refusal})")));
        }
        if let Err(refusal) = &base.facts.process_files {
            return Err(refuse(&format!("a pool needs its own `/proc` ({refusal})")));
        }
        if !base.facts.calls.pidfd_open {
            return Err(refuse(
                "a pool needs pidfds: Linux 5.3 or later, and `pidfd_open` allowed in a container",
            ));
        }
        if let Some(language) = language {
            let program = Program::Code { language, source: String::new() };
            base.ready = toolchain::ready(sandbox, &program, &base.reach())?;
        }
        Ok(base)
    }

    pub(super) fn reach(&self) -> Reach {
        Reach {
            with_package: self.level < Level::Strict,
            as_other_user: false,
            is_confined: true,
            workspaces: Workspaces::from_sandbox(&self.sandbox),
        }
    }

    /// Whether the workers show all that a program needs.
    fn shows(&self, ready: &Ready) -> bool {
        let is_shown = |path: &Path| self.shown().any(|shown| path.starts_with(shown));
        ready.needs.iter().all(|need| {
            links::follow(need.path()).is_ok_and(|(path, links)| {
                is_shown(&path) && links.iter().all(|(link, _)| is_system(link) || is_shown(link))
            })
        })
    }

    /// The paths that the workers show, if the admission of each run agrees.
    fn shown(&self) -> impl Iterator<Item = &Path> {
        let needs = self.ready.needs.iter().chain(&self.sandbox.needs).map(Need::path);
        needs.chain(self.sandbox.read_only.iter().map(PathBuf::as_path))
    }

    /// The program of a request; none if the workers do not show all that it needs.
    pub(super) fn ready(&self, sandbox: &Sandbox, program: &Program) -> Result<Option<Ready>, Error> {
        if let Program::Code { language, source } = program {
            let content = language.text(source).into_owned().into();
            let payload = Some(Payload { content, is_executable: false });
            return Ok(Some(Ready { payload, ..self.ready.clone() }));
        }
        let reach = Reach { workspaces: Workspaces::from_sandbox(sandbox), ..self.reach() };
        let ready = toolchain::ready(sandbox, program, &reach)?;
        Ok(self.shows(&ready).then_some(ready))
    }

    pub(super) fn owner(&self) -> Option<Owner> {
        program_owner(&self.facts, self.level)
    }

    /// Whether forks of a zygote serve this pool.
    pub(super) fn forks(&self) -> bool {
        self.language == Some(Language::Python)
    }

    /// Whether the interpreter starts ahead, because it starts much slower than its sandbox.
    pub(super) fn begins(&self) -> bool {
        self.language == Some(Language::JavaScript)
    }

    /// The plan of a cold run with these settings. `shows` means that it has a private root.
    fn confinement(&self, group: &mut Group, shows: bool, is_ready: bool) -> Result<Confinement, Error> {
        let (visible, _) = if shows {
            visible(&self.sandbox, &self.ready.needs, self.reach().workspaces, &self.facts)?
        } else {
            (Vec::new(), Vec::new())
        };
        let template = (is_ready && plan::fits_template(self.level, &self.facts, false, &visible))
            .then(|| template::namespace(&self.facts))
            .flatten();
        Ok(plan::confinement(BackendRequest {
            level: self.level,
            limits: &self.limits,
            facts: &self.facts,
            host: None,
            original: None,
            home: None,
            directory: None,
            fresh: None,
            visible,
            writable: Vec::new(),
            waits: false,
            hands_over: false,
            group,
            egress_port: None,
            network: (is_ready && self.facts.is_root()).then(network::take).flatten(),
            code: None,
            template,
        }))
    }

    /// The plan of a cold run without its program.
    pub(super) fn waiting(&self, group: &mut Group) -> Result<Confinement, Error> {
        self.confinement(group, true, true)
    }

    /// The plan of a zygote: the mounts of a cold run, no Landlock, full capabilities in its own user
    /// namespace.
    pub(super) fn zygote(&self, group: &mut Group) -> Result<Confinement, Error> {
        let mut confinement = self.confinement(group, true, false)?;
        let mut steps = Vec::new();
        let mut is_own = !self.facts.is_root();
        for step in std::mem::take(&mut confinement.steps) {
            match step {
                Step::EnterUser(_) => {
                    let inside = Owner { user: INSIDE, group: INSIDE };
                    let fresh = identity::fresh_namespace(inside, self.facts.unprivileged)
                        .map_err(setup("create user namespace"))?;
                    steps.push(Step::EnterUser(fresh));
                    is_own = true;
                }
                // Each fork mounts its own overlays of the system, which include later installs of the host.
                Step::Mount { kind, target, .. }
                    if kind == OVERLAY && is_system(Path::new(OsStr::from_bytes(target.as_bytes()))) => {}
                Step::SendDirectory(_)
                | Step::Landlock(_)
                | Step::Seccomp(_)
                | Step::DropBounding
                | Step::DropCapabilities
                | Step::Limit { .. } => {}
                Step::NoNewPrivileges => steps.extend([Step::KeepCapabilities, Step::NoNewPrivileges]),
                other => steps.push(other),
            }
        }
        if !is_own {
            // Without a user namespace it would have the host root's permissions.
            let error = std::io::Error::other("this host refuses user namespaces, which a zygote needs");
            return Err(setup("create user namespace")(error));
        }
        confinement.steps = steps;
        Ok(confinement)
    }

    /// The steps of a fork: those of a cold run, without the root, which it inherits.
    ///
    /// The Landlock rules are separate if a host directory may be attached first.
    pub(super) fn child(&self, group: &mut Group) -> Result<(Confinement, Option<Landlock>), Error> {
        let mut confinement = self.confinement(group, false, false)?;
        let all = std::mem::take(&mut confinement.steps);
        let entered = all.iter().rposition(|step| matches!(step, Step::Enter(_)));
        let own: Vec<&[u8]> = vec![b"/tmp", b"/dev/shm", b"/proc", plan::WORKSPACE.as_bytes()];
        let mut has_root = false;
        let mut late = None;
        let mut steps = Vec::new();
        if group.take_born().is_some() {
            // The host moves the fork to its cgroup meanwhile.
            steps.push(Step::Await { host: None });
        }
        for (index, step) in all.into_iter().enumerate() {
            match step {
                Step::Write { .. }
                | Step::EnterNetwork(_)
                | Step::EnterUser(_)
                | Step::EnterMounts(_)
                | Step::HostName(_)
                | Step::PrivateMounts
                | Step::Directory { .. }
                | Step::File { .. }
                | Step::Link { .. }
                | Step::Bind { .. }
                | Step::Attach { .. }
                | Step::Verify { .. }
                | Step::Attributes { .. }
                | Step::Pivot { .. }
                | Step::DetachOld { .. }
                | Step::Identity { .. } => {}
                Step::Mount { kind, .. } if kind == OVERLAY => steps.push(step),
                Step::Mount { target, kind, options, flags } => {
                    if has_root && own.contains(&target.to_bytes()) {
                        if target.to_bytes() == b"/proc" {
                            steps.extend(self.shown_again()?);
                        }
                        let options = self.options(&options);
                        steps.push(Step::Mount { kind, target, options, flags });
                    }
                    // The first mount is the root itself.
                    has_root = true;
                }
                Step::Enter(path) => {
                    if Some(index) == entered {
                        // This drops the rights over the mounts.
                        steps.push(Step::Unshare(libc::CLONE_NEWUSER));
                        let inside = Owner { user: INSIDE, group: INSIDE };
                        steps.extend(identity_map(inside, INSIDE, INSIDE));
                        steps.push(Step::Enter(path));
                    }
                }
                // The interpreter used processor time before the program starts; the limit is set then.
                Step::Limit { resource, soft, hard } if resource == libc::RLIMIT_CPU => {
                    steps.push(Step::Limit { resource, soft: soft + WARM_UP, hard: hard + WARM_UP });
                }
                // A Landlock rule holds for the directory that exists when the rule is created.
                Step::Landlock(landlock) if self.attaches => late = Some(landlock),
                Step::Unshare(flags) => steps.push(Step::Unshare(flags & !libc::CLONE_NEWNS)),
                other => steps.push(other),
            }
        }
        confinement.steps = steps;
        confinement.namespaces = (libc::CLONE_NEWPID
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWNET) as u64;
        Ok((confinement, late))
    }

    /// Mounts shown paths in temporary directories again, because the fork's own directory hides them.
    fn shown_again(&self) -> Result<Vec<Step>, Error> {
        let mut steps = Vec::new();
        let (mut made, mut bound): (Vec<PathBuf>, Vec<PathBuf>) = (Vec::new(), Vec::new());
        for shown in self.shown() {
            let shown = shown.canonicalize().map_err(setup("show path"))?;
            let Some(scratch) = SCRATCH
                .iter()
                .map(|(directory, _)| *directory)
                .find(|directory| shown.starts_with(directory))
            else {
                continue;
            };
            if bound.iter().any(|above| shown.starts_with(above)) {
                continue;
            }
            bound.push(shown.clone());
            if !shown.is_dir() {
                let error = std::io::Error::other(format!("{}: not a directory", shown.display()));
                return Err(setup("show file in temporary directory")(error));
            }
            let mut above: Vec<_> =
                shown.ancestors().take_while(|directory| *directory != Path::new(scratch)).collect();
            above.reverse();
            for directory in above {
                if !made.iter().any(|made| made == directory) {
                    steps.push(Step::Directory { path: root::path(directory), mode: 0o111 });
                    made.push(directory.to_owned());
                }
            }
            let path = root::path(&shown);
            steps.push(Step::Bind { source: path.clone(), target: path, attributes: 0 });
        }
        Ok(steps)
    }

    /// Mount options without the host's user ids: the fork has the user's own id.
    fn options(&self, options: &std::ffi::CStr) -> std::ffi::CString {
        let user = format!(",uid={0},gid={0}", self.facts.unprivileged);
        super::super::launch::c_string(options.to_string_lossy().replace(&user, ""))
    }

    /// The parts of a run's report that are known in advance.
    pub(super) fn report(&self, confinement: &Confinement) -> Report {
        Report {
            degraded: self.degraded,
            layers: confinement.layers.clone(),
            missing: confinement.missing.clone(),
            notes: plan::notes(self.level, &self.facts, &self.limits),
            ..Report::new("pool", self.sandbox.level, self.level)
        }
    }
}

/// Processor seconds of an interpreter before its program starts.
const WARM_UP: u64 = 60;
