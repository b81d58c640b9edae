//! Beta headers of features and versions of hosted tools.
//!
//! Tool search needs no beta header.
//!
//! Source: the provider's tool reference and release notes, and the official Python client 2.12.0; read on 2026-11-22.
//! The catalog has the supported versions of each model.

use toolpost_core::{Clock as _, SystemClock};

use crate::catalog::{Feature, ModelCatalog, ModelInfo};

/// Beta features: a tool's type or a member of the body, with the value of the beta header.
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

/// The tool search by words. `tool_search_tool_regex_20251119` searches by patterns.
pub(super) const TOOL_SEARCH: &str = "tool_search_tool_bm25_20251119";

/// The prefix of all tool search types.
pub(super) const TOOL_SEARCH_PREFIX: &str = "tool_search_tool_";

/// The context edit for compaction.
pub(super) const COMPACT: &str = "compact_20260112";

/// The context edit that clears tool results.
pub(super) const CLEAR_TOOL_RESULTS: &str = "clear_tool_uses_20250919";

/// Maximum number of models that an error names.
const MAX_NAMED: usize = 8;

/// The beta header of a feature.
pub(super) fn beta(feature: &str) -> Option<&'static str> {
    BETAS.iter().find(|(name, _)| *name == feature).map(|(_, beta)| *beta)
}

/// Hosted tools whose version depends on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Versioned {
    CodeExecution,
    WebSearch,
    WebFetch,
}

impl Versioned {
    /// The tool's name in a request.
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

    /// The version that every model with the tool supports.
    fn baseline(self) -> &'static str {
        match self {
            Self::CodeExecution => "code_execution_20250825",
            Self::WebSearch => "web_search_20250305",
            Self::WebFetch => "web_fetch_20250910",
        }
    }

    /// The first version with dynamic filtering: web tools filter results with code.
    ///
    /// If a request has both, code execution must have its first filtering version too.
    pub(super) fn first_filtering(self) -> &'static str {
        match self {
            Self::CodeExecution => "code_execution_20260120",
            Self::WebSearch => "web_search_20260209",
            Self::WebFetch => "web_fetch_20260209",
        }
    }
}

/// The newest supported version of a tool, with or without filtering; `None` if there is none.
pub(super) fn newest(info: &ModelInfo, tool: Versioned, filtering: bool) -> Option<&str> {
    match info.hosted_versions.get(tool.name()) {
        Some(versions) => {
            let supported = versions.iter().map(String::as_str);
            supported.filter(|version| filtering || *version < tool.first_filtering()).max()
        }
        None if info.has(tool.feature()) == Some(false) => None,
        None => Some(tool.baseline()),
    }
}

/// Whether a model supports a version of a tool. A version that the catalog does not know is left to the provider.
pub(super) fn supports(info: &ModelInfo, tool: Versioned, version: &str) -> bool {
    match info.hosted_versions.get(tool.name()) {
        Some(versions) => {
            versions.iter().any(|known| known == version) || models_with(info, tool, Some(version)).is_empty()
        }
        None => info.has(tool.feature()) != Some(false),
    }
}

/// Models of the same provider that support a version of a tool, or any version.
pub(super) fn models_with(info: &ModelInfo, tool: Versioned, version: Option<&str>) -> Vec<String> {
    let now = SystemClock.timestamp();
    let supports = |other: &ModelInfo| {
        let versions = other.hosted_versions.get(tool.name()).map(Vec::as_slice).unwrap_or_default();
        other.id.provider == info.id.provider
            && !other.is_retired(now)
            && versions.iter().any(|known| version.is_none_or(|version| version == known))
    };
    let mut names: Vec<String> =
        ModelCatalog::built_in().models().filter(supports).map(|model| model.id.name).collect();
    // Later names are usually newer.
    names.reverse();
    names.truncate(MAX_NAMED);
    names
}
