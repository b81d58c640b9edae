//! Routes from names to members.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use toolpost_core::{HiddenDefinition, ToolError, ToolSpec};

use super::{Collisions, Seat};
use crate::listing::retain_aliases;
use crate::{Finding, inspect, shown};

/// The maximum number of remarks per member.
const MAX_REMARKS: usize = 20;

/// The routes of all names.
#[derive(Default)]
pub(super) struct Table {
    pub(super) versions: Vec<u64>,
    pub(super) specs: Vec<Arc<ToolSpec>>,
    /// From a name or an alias to its member and the name there.
    pub(super) routes: HashMap<String, Route>,
    pub(super) omitted: Vec<(Arc<str>, HiddenDefinition)>,
    /// The error of the first collision.
    pub(super) collision: Option<ToolError>,
    /// Findings across members; computed on first use.
    remarks: OnceLock<Vec<Finding>>,
}

#[derive(Clone)]
pub(super) struct Route {
    pub(super) seat: Arc<Seat>,
    /// The name in the member.
    pub(super) inner: String,
}

impl Table {
    pub(super) fn new(members: &[Arc<Seat>], versions: Vec<u64>, collisions: Collisions) -> Self {
        let mut table = Self { versions, ..Self::default() };
        // Names have precedence over the aliases of all members.
        let mut aliases: Vec<(Arc<Seat>, String, String)> = Vec::new();
        for seat in members {
            let Some((_, specs)) = seat.listed.borrow().read.clone() else { continue };
            for spec in specs.iter() {
                let Some(outer) = table.free_name(seat, spec, collisions) else { continue };
                for alias in &spec.aliases {
                    aliases.push((Arc::clone(seat), alias.name.clone(), outer.name.clone()));
                }
                let route = Route { seat: Arc::clone(seat), inner: spec.name.clone() };
                table.routes.insert(outer.name.clone(), route);
                table.specs.push(outer);
            }
        }
        let mut lost: HashSet<(String, String)> = HashSet::new();
        for (seat, alias, own) in aliases {
            if table.routes.contains_key(&alias) {
                lost.insert((own, alias));
            } else {
                table.routes.insert(alias.clone(), Route { seat, inner: alias });
            }
        }
        if !lost.is_empty() {
            for spec in &mut table.specs {
                let name = spec.name.clone();
                retain_aliases(spec, |alias| !lost.contains(&(name.clone(), alias.to_owned())));
            }
        }
        table
    }

    /// The tool under a free name. Otherwise it is recorded as omitted.
    fn free_name(
        &mut self,
        seat: &Arc<Seat>,
        spec: &Arc<ToolSpec>,
        collisions: Collisions,
    ) -> Option<Arc<ToolSpec>> {
        let mut outer = Arc::clone(spec);
        let mut owner = self.routes.get(&spec.name).map(|route| Arc::clone(&route.seat.member.name));
        if owner.is_some() && collisions == Collisions::Namespace {
            let mut renamed = ToolSpec::clone(spec);
            renamed.name = seat.member.namespace.name_of(&spec.name);
            renamed.meta.entry("original_name").or_insert_with(|| spec.name.as_str().into());
            owner = self.routes.get(&renamed.name).map(|route| Arc::clone(&route.seat.member.name));
            outer = Arc::new(renamed);
        }
        let member = &seat.member.name;
        let tool = shown(&spec.name);
        let reason = match (owner, outer.check()) {
            (Some(owner), _) => {
                let error =
                    ToolError::conflict(format!("`{owner}` and `{member}` both have a tool `{tool}`"))
                        .suggest("Use a namespace, rename the tool, or filter it out.");
                self.collision.get_or_insert(error);
                format!("`{owner}` has a tool of this name")
            }
            // One bad definition must not make the whole list fail.
            (None, Err(error)) => error.message,
            (None, Ok(())) => return Some(outer),
        };
        tracing::warn!("the tool `{tool}` of `{member}` is omitted: {reason}");
        self.omitted.push((Arc::clone(member), HiddenDefinition::new(tool, reason)));
        None
    }

    /// The findings in the definitions of a member, such as text about tools of others.
    pub(super) fn remarks(&self, member: &str) -> Vec<String> {
        let findings = self.remarks.get_or_init(|| {
            let mut by_member: Vec<(Arc<str>, Vec<Arc<ToolSpec>>)> = Vec::new();
            for spec in &self.specs {
                let Some(route) = self.routes.get(&spec.name) else { continue };
                let name = &route.seat.member.name;
                match by_member.iter_mut().find(|(known, _)| known == name) {
                    Some((_, specs)) => specs.push(Arc::clone(spec)),
                    None => by_member.push((Arc::clone(name), vec![Arc::clone(spec)])),
                }
            }
            inspect(by_member.iter().map(|(name, specs)| (&**name, &specs[..])))
        });
        let own = findings.iter().filter(|finding| *finding.source == *member);
        own.take(MAX_REMARKS).map(ToString::to_string).collect()
    }
}
