//! Renames tools of a source whose names are taken.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use toolpost_core::{ToolError, ToolSource, ToolSpec};
use toolpost_gateway::{Namespace, Rename, Renamed};

use crate::target::grammar::namespace;

/// A source with distinct tool names.
pub(crate) struct Distinct {
    pub(crate) source: Arc<dyn ToolSource>,
    pub(crate) listed: Vec<Arc<ToolSpec>>,
    /// The new names of renamed tools.
    pub(crate) warnings: Vec<String>,
}

impl Distinct {
    /// Puts a tool under its source's namespace if its name is taken; the earlier tool keeps the name.
    pub(crate) async fn of(
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
        let base = namespace(name);
        let mut renames = Vec::with_capacity(taken.len());
        for inner in taken {
            let mut outer = Namespace::new(&base)?.name_of(inner);
            for number in 2..known.len() + 2 {
                if !known.contains(outer.as_str()) {
                    break;
                }
                outer = Namespace::new(&format!("{base}-{number}"))?.name_of(inner);
            }
            renames.push(Rename::of(inner).name(outer));
        }
        let clash = |rename: &&Rename| listed.iter().any(|spec| spec.name == rename.tool);
        let warnings = renames.iter().filter(clash).map(|rename| {
            let outer = rename.name.as_deref().unwrap_or_default();
            format!("the tool `{}` of `{name}` is called `{outer}`: another tool has its name", rename.tool)
        });
        let warnings = warnings.collect();
        let source: Arc<dyn ToolSource> = Arc::new(Renamed::new(source, renames)?);
        Ok(Self { listed: source.list().await?, source, warnings })
    }
}
