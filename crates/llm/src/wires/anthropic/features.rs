//! Which beta header a feature asks for, and which version of a hosted tool is sent: data, with its source.
//!
//! The search for tools needs no header.
//!
//! Source: the provider's tool reference and release notes, and the official Python client 2.12.0; read on 2026-11-22.
//! Which versions a model takes is the catalog's to say.

use toolpost_core::{Clock as _, SystemClock};

use crate::catalog::{Catalog, Feature, ModelInfo};

/// Features that are asked for in the beta header: a tool's type or a member of the body, and the header's word.
const BETAS: &[(&str, &str)] = &[
    ("code_execution_20250522", "code-execution-2025-05-22"),
    ("advisor_20260301", "advisor-tool-2026-03-01"),
    ("computer_20241022", "computer-use-2024-10-22"),
    ("computer_20250124", "computer-use-2025-01-24"),
    ("computer_20251124", "computer-use-2025-11-24"),
    ("mcp_toolset", "mcp-client-2026-09-15"),
    ("mcp_servers", "mcp-client-2026-09-15"),
    ("compaction", "compact-2026-09-04"),
    ("context_management", "context-management-2025-06-27"),
    ("clear_tool_uses_20250919", "context-management-2025-06-27"),
    ("clear_thinking_20251015", "context-management-2025-06-27"),
    ("compact_20260112", "compact-2026-01-12"),
    ("fallbacks", "server-side-fallback-2026-07-01"),
    ("speed", "fast-mode-2026-02-01"),
];

/// The tool that searches deferred tools by words; the other one, `tool_search_tool_regex_20251119`, by patterns.
pub(super) const TOOL_SEARCH: &str = "tool_search_tool_bm25_20251119";

/// How the names of all tools begin that search deferred tools.
pub(super) const TOOL_SEARCHES: &str = "tool_search_tool_";

/// The change by which the provider sums up what was said.
pub(super) const COMPACT: &str = "compact_20260112";

/// The change by which the provider leaves old results of tools out.
pub(super) const CLEAR_TOOL_RESULTS: &str = "clear_tool_uses_20250919";

/// The most models that an error names.
const MOST_NAMED: usize = 8;

/// The header's word for a feature.
pub(super) fn beta(feature: &str) -> Option<&'static str> {
    BETAS.iter().find(|(name, _)| *name == feature).map(|(_, beta)| *beta)
}

/// The tools whose versions are chosen by the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Versioned {
    CodeExecution,
    WebSearch,
    WebFetch,
}

impl Versioned {
    /// The name that the tool has in a request.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CodeExecution => "code_execution",
            Self::WebSearch => "web_search",
            Self::WebFetch => "web_fetch",
        }
    }

    fn feature(self) -> Feature {
        match self {
            Self::CodeExecution => Feature::CodeExecution,
            Self::WebSearch => Feature::WebSearch,
            Self::WebFetch => Feature::WebFetch,
        }
    }

    /// The version that every model takes that takes the tool at all.
    fn safest(self) -> &'static str {
        match self {
            Self::CodeExecution => "code_execution_20250825",
            Self::WebSearch => "web_search_20250305",
            Self::WebFetch => "web_fetch_20250910",
        }
    }

    /// The first version that has to do with filtering by code: from it on web tools filter what they find with code,
    /// which must be of the first such version or later if the request has both.
    pub(super) fn first_filtering(self) -> &'static str {
        match self {
            Self::CodeExecution => "code_execution_20260120",
            Self::WebSearch => "web_search_20260209",
            Self::WebFetch => "web_fetch_20260209",
        }
    }
}

/// The newest version of a tool that a model takes, only of those before filtering if so asked; `None` if it takes none.
pub(super) fn newest(info: &ModelInfo, tool: Versioned, filtering: bool) -> Option<&str> {
    match info.hosted_versions.get(tool.name()) {
        Some(versions) => {
            let taken = versions.iter().map(String::as_str);
            taken.filter(|version| filtering || *version < tool.first_filtering()).max()
        }
        None if info.has(tool.feature()) == Some(false) => None,
        None => Some(tool.safest()),
    }
}

/// Whether a model takes a version of a tool, as far as is known. A version that no model of the catalog takes is newer
/// than the catalog, and the provider's to judge.
pub(super) fn takes(info: &ModelInfo, tool: Versioned, version: &str) -> bool {
    match info.hosted_versions.get(tool.name()) {
        Some(versions) => {
            versions.iter().any(|taken| taken == version) || models_with(info, tool, Some(version)).is_empty()
        }
        None => info.has(tool.feature()) != Some(false),
    }
}

/// Models of the same provider that take a version of a tool, or any version of it.
pub(super) fn models_with(info: &ModelInfo, tool: Versioned, version: Option<&str>) -> Vec<String> {
    let now = SystemClock.timestamp();
    let takes = |other: &ModelInfo| {
        let versions = other.hosted_versions.get(tool.name()).map(Vec::as_slice).unwrap_or_default();
        other.id.provider == info.id.provider
            && !other.is_retired(now)
            && versions.iter().any(|taken| version.is_none_or(|version| version == taken))
    };
    let mut names: Vec<String> =
        Catalog::built_in().models().filter(takes).map(|model| model.id.name).collect();
    // The last names are the newest as a rule.
    names.reverse();
    names.truncate(MOST_NAMED);
    names
}
