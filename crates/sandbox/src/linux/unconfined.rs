//! The plan of an unconfined program, which dies with everything that it started. Also the base of level
//! `minimal`, which drops its privileges.

use std::path::PathBuf;

use super::child_steps::Step;
use super::files::Owner;
use super::plan::{BackendRequest, Confinement, identity_map, start};
use super::root::path;
use super::seccomp::{self, Circumstances};
use super::{Facts, identity, kernel_files, tree};
use crate::{Layer, Level, MissingLayer};

/// Joins its cgroups, enters its directory and sets its limits, in a process namespace where possible.
pub(super) fn confinement(request: BackendRequest<'_>) -> Confinement {
    let BackendRequest { level, limits, facts, fresh, directory, group, .. } = request;
    let workspace = fresh.unwrap_or_else(|| PathBuf::from("/"));
    let own_namespaces = facts.namespaces.is_ok();
    let mut confinement = Confinement {
        has_sockets: false,
        level,
        namespaces: 0,
        steps: Vec::new(),
        layers: Vec::new(),
        missing: Vec::new(),
        workspace,
        own_namespaces,
        scoped_signals: false,
        egress_port: None,
    };
    let mut flags = 0;
    if let Err(refusal) = &facts.namespaces {
        confinement.missing.push(MissingLayer { layer: Layer::PidNamespace, reason: refusal.to_string() });
        if group.kills() {
            confinement.layers.push(Layer::TreeKill);
        } else {
            confinement.missing.push(MissingLayer {
                layer: Layer::TreeKill,
                reason:
                    "without a process namespace or a cgroup the first process ends the others when the host \
                         is gone, and a program could end it before"
                        .into(),
            });
        }
    } else {
        flags |= libc::CLONE_NEWPID;
        confinement.layers.extend([Layer::PidNamespace, Layer::TreeKill]);
        if !facts.is_root() {
            // An ordinary user can create another namespace only in a user namespace; its id stays the same
            // there.
            flags |= libc::CLONE_NEWUSER;
            let itself = Owner { user: facts.user, group: facts.group };
            confinement.steps.extend(identity_map(itself, facts.user, facts.group));
            if level == Level::Minimal && facts.quotas {
                confinement.steps.extend(identity::quotas());
            }
            confinement.layers.push(Layer::UserNamespace);
        }
    }
    if level == Level::Minimal && own_namespaces {
        flags |= libc::CLONE_NEWNS;
    }
    confinement.namespaces = flags as u64;
    for tasks in group.take_joins() {
        confinement.steps.push(Step::Join(tasks));
    }
    if level == Level::Minimal {
        confinement.kernel_files(facts);
    }
    let directory = start(&confinement.workspace, directory);
    confinement.steps.push(Step::Enter(path(&directory)));
    let counted = (!group.limits_processes()).then(|| {
        // In its own user namespace the kernel counts only this program's processes.
        if own_namespaces && !facts.is_root() { 0 } else { tree::count_of_user(facts.user) }
    });
    confinement.limits(facts, limits, group, counted);
    confinement.steps.push(Step::Session { dies_with_host: own_namespaces });
    if level == Level::Minimal {
        confinement.minimal(facts, !group.limits_memory());
    }
    confinement.finish(facts, limits);
    confinement
}

impl Confinement {
    /// Protects the files with which a program could leave its cgroups or control the kernel. They belong to
    /// root, some to the host's user.
    fn kernel_files(&mut self, facts: &Facts) {
        if !self.own_namespaces {
            self.missing.push(MissingLayer {
                layer: Layer::KernelFiles,
                reason: if facts.is_root() {
                    "without a mount namespace the program can leave its cgroups, and change settings and devices \
                     that belong to root"
                } else {
                    "without a mount namespace the program can leave cgroups of the host's user"
                }
                .into(),
            });
            return;
        }
        self.steps.extend(kernel_files::steps(facts.is_root()));
        self.layers.extend([Layer::MountNamespace, Layer::KernelFiles]);
    }

    /// The restrictions of level `minimal`.
    fn minimal(&mut self, facts: &Facts, watched_memory: bool) {
        self.lock_resources(facts);
        self.steps.push(Step::DropBounding);
        self.steps.push(Step::DropCapabilities);
        self.steps.push(Step::NoNewPrivileges);
        self.steps.push(Step::Seccomp(seccomp::filter(Circumstances {
            has_sockets: false,
            level: Level::Minimal,
            own_namespaces: self.own_namespaces,
            scoped_signals: true,
            tells: false,
            has_egress: false,
            truncates: false,
            watched_memory,
        })));
        self.layers.extend([Layer::NoCapabilities, Layer::NoNewPrivileges, Layer::Seccomp]);
        if facts.user == 0 {
            self.missing.push(MissingLayer {
                layer: Layer::UnprivilegedUser,
                reason: "level `minimal` keeps the host's user, which is root".into(),
            });
        } else {
            self.layers.push(Layer::UnprivilegedUser);
        }
    }
}
