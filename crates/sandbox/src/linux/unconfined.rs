//! The plan of a program that is trusted: nothing is hidden from it, but it dies with all that it started.

use std::path::PathBuf;

use super::files::Owner;
use super::plan::{Confinement, Request, identity_map, start};
use super::root::path;
use super::steps::Step;
use super::tree;
use crate::{Layer, MissingLayer};

/// Joins its groups, enters its folder and gets its limits; a process namespace holds it together where the host gives
/// one.
pub(super) fn confinement(request: Request<'_>) -> Confinement {
    let Request { limits, facts, fresh, directory, group, .. } = request;
    let workspace = fresh.unwrap_or_else(|| PathBuf::from("/"));
    let own_namespaces = facts.namespaces.is_ok();
    let mut confinement = Confinement {
        namespaces: 0,
        steps: Vec::new(),
        layers: Vec::new(),
        missing: Vec::new(),
        workspace,
        own_namespaces,
        scoped_signals: false,
    };
    let mut flags = 0;
    if let Err(refusal) = &facts.namespaces {
        confinement.missing.push(MissingLayer { layer: Layer::PidNamespace, reason: refusal.to_string() });
        confinement.missing.push(MissingLayer {
            layer: Layer::TreeKill,
            reason: "without a process namespace an orphan could outlive the host program's own sudden end"
                .into(),
        });
    } else {
        flags |= libc::CLONE_NEWPID;
        confinement.layers.extend([Layer::PidNamespace, Layer::TreeKill]);
        if !facts.is_root() {
            // Only in a user namespace may an ordinary user make another; there it stays who it is.
            flags |= libc::CLONE_NEWUSER;
            let itself = Owner { user: facts.user, group: facts.group };
            confinement.steps.extend(identity_map(itself, facts.user, facts.group));
            confinement.layers.push(Layer::UserNamespace);
        }
    }
    confinement.namespaces = flags as u64;
    for tasks in group.take_joins() {
        confinement.steps.push(Step::Join(tasks));
    }
    let folder = start(&confinement.workspace, directory);
    confinement.steps.push(Step::Enter(path(&folder)));
    let counted = (!group.limits_processes()).then(|| {
        // In a user namespace of its own the kernel counts the processes of this program alone.
        if own_namespaces && !facts.is_root() { 0 } else { tree::count_of_user(facts.user) }
    });
    confinement.limits(facts, limits, group, counted);
    confinement.steps.push(Step::Session { dies_with_host: own_namespaces });
    confinement.finish(facts, limits);
    confinement
}
