//! Renames tools of a source whose names are taken.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use toolpost_core::{ToolError, ToolSource, ToolSpec};
use toolpost_gateway::{Collisions, Gateway, Member, MergeSettings, Merged, Namespace, Rename, Renamed};

use crate::target_grammar::namespace;

/// A source with distinct tool names.
pub(crate) struct Distinct {
    pub(crate) source: Arc<dyn ToolSource>,
    pub(crate) listed: Vec<Arc<ToolSpec>>,
    /// The new names of renamed tools.
    pub(crate) warnings: Vec<String>,
}

impl Distinct {
    /// Puts a tool under its source's namespace if its name is taken; the earlier tool keeps the name.
    pub(crate) async fn new(
        source: Arc<dyn ToolSource>,
        name: &str,
        taken: &BTreeSet<String>,
    ) -> Result<Self, ToolError> {
        let listed = source.list().await?;
        if taken.is_empty() {
            return Ok(Self { source, listed, warnings: Vec::new() });
        }
        let own = listed.iter().flat_map(|spec| {
            let aliases = spec.aliases.iter().map(|alias| alias.name.as_str());
            std::iter::once(spec.name.as_str()).chain(aliases)
        });
        let known: HashSet<&str> = own.chain(taken.iter().map(String::as_str)).collect();
        let renames = renames(&namespace(name), taken, &known)?;
        let warnings = warnings(&renames, name, &listed);
        let source: Arc<dyn ToolSource> = Arc::new(Renamed::new(source, renames)?);
        Ok(Self { listed: source.list().await?, source, warnings })
    }
}

/// New names of taken ones, in a namespace.
fn renames(base: &str, taken: &BTreeSet<String>, known: &HashSet<&str>) -> Result<Vec<Rename>, ToolError> {
    let mut renames = Vec::with_capacity(taken.len());
    for inner in taken {
        let mut outer = Namespace::new(base)?.name_of(inner);
        for number in 2..known.len() + 2 {
            if !known.contains(outer.as_str()) {
                break;
            }
            outer = Namespace::new(&format!("{base}-{number}"))?.name_of(inner);
        }
        renames.push(Rename::new(inner).name(outer));
    }
    Ok(renames)
}

/// The warnings about renamed tools of a source.
fn warnings(renames: &[Rename], source: &str, listed: &[Arc<ToolSpec>]) -> Vec<String> {
    let clash = |rename: &&Rename| listed.iter().any(|spec| spec.name == rename.tool);
    let warning = |rename: &Rename| {
        let outer = rename.name.as_deref().unwrap_or_default();
        format!("the tool `{}` of `{source}` is called `{outer}`: another tool has its name", rename.tool)
    };
    renames.iter().filter(clash).map(warning).collect()
}

/// Gateways as one source with distinct tool names, while their upstreams start.
#[derive(Clone)]
pub(crate) struct Starting {
    pub(crate) source: Arc<dyn ToolSource>,
    /// The source before the renames.
    whole: Arc<dyn ToolSource>,
    renames: Vec<Rename>,
}

impl Starting {
    /// Merges gateways, of which the first keeps a name. A tool with a taken name is under their namespace.
    pub(crate) async fn new(gateways: &[Arc<Gateway>], taken: &[String]) -> Result<Option<Self>, ToolError> {
        let Some(first) = gateways.first() else { return Ok(None) };
        let whole = match gateways {
            [only] => only.source(),
            _ => {
                let member = |gateway: &Arc<Gateway>| {
                    let source = gateway.source();
                    Member::new(&namespace(source.name()), Arc::clone(&source))
                };
                let members = gateways.iter().map(member).collect::<Result<_, _>>()?;
                let mut settings = MergeSettings::default();
                settings.collisions = Collisions::Namespace;
                // Each gateway waits for its own upstreams.
                settings.member_timeout *= 2;
                let merged = Merged::of_starting("gateways", members, settings).await?;
                Arc::new(merged) as Arc<dyn ToolSource>
            }
        };
        // An upstream of this name has tools under this namespace.
        let upstreams: HashSet<String> =
            gateways.iter().flat_map(|gateway| gateway.status()).map(|status| status.name).collect();
        let base = namespace(first.source().name());
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let mut bases = std::iter::once(base.clone()).chain(numbered);
        let base = bases.find(|base| !upstreams.contains(base)).unwrap_or(base);
        let taken: BTreeSet<String> = taken.iter().cloned().collect();
        let known = taken.iter().map(String::as_str).collect();
        let renames = renames(&base, &taken, &known)?;
        let mut source = Arc::clone(&whole);
        if !renames.is_empty() {
            source = Arc::new(Renamed::new(source, renames.clone())?);
        }
        Ok(Some(Self { source, whole, renames }))
    }

    /// The warnings about renamed tools, after the upstreams have settled.
    pub(crate) async fn warnings(&self) -> Vec<String> {
        let listed = self.whole.list().await.unwrap_or_default();
        warnings(&self.renames, self.whole.name(), &listed)
    }
}
