//! Search queries and their results.

use std::sync::Arc;

use super::CatalogEntry;

/// The number of words of a query that a tool must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// At least half of its words.
    #[default]
    Majority,
    /// At least one word: for whole sentences.
    Any,
}

/// A search query with filters. A tool must pass all filters.
#[derive(Clone, Debug)]
pub struct Search {
    pub(super) query: Option<String>,
    pub(super) category: Option<String>,
    pub(super) group: Option<String>,
    pub(super) tags: Vec<String>,
    pub(super) limit: usize,
    pub(super) offset: usize,
    pub(super) min_score: f64,
    pub(super) matching: Matching,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            query: None,
            category: None,
            group: None,
            tags: Vec::new(),
            limit: 10,
            offset: 0,
            min_score: 0.0,
            matching: Matching::default(),
        }
    }
}

impl Search {
    /// Searches names, descriptions, tags, categories and groups for words. An empty query matches all tools.
    /// Only the first 8 KiB and 32 different words count.
    pub fn new(query: impl Into<String>) -> Self {
        Self { query: Some(query.into()), ..Self::default() }
    }

    /// Matches all tools, in the order of registration.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only tools of this category, case-insensitive.
    #[must_use]
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = Some(category.into());
        self
    }

    /// Only tools of this group and its subgroups: `crm` includes `crm.contacts`. For a tool without a group,
    /// its category counts.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Only tools with one of these tags, case-insensitive.
    #[must_use]
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the maximum number of results. Default: 10.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Skips results, for the next page. Default: 0.
    #[must_use]
    pub fn offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Only tools with at least this score, from 0 to 1; only an exact name has 1. No effect without a query.
    /// Default: 0.
    #[must_use]
    pub fn min_score(mut self, score: f64) -> Self {
        self.min_score = score;
        self
    }

    /// Sets how many words of the query a tool must match. Default: at least half.
    #[must_use]
    pub fn matching(mut self, matching: Matching) -> Self {
        self.matching = matching;
        self
    }

    /// Whether a tool passes the filters.
    pub(super) fn filters_pass(&self, entry: &CatalogEntry) -> bool {
        let same = |one: &str, other: &str| one.to_lowercase() == other.to_lowercase();
        let own_category = entry.category().unwrap_or_default();
        let category = self
            .category
            .as_deref()
            .is_none_or(|expected| expected.is_empty() || same(own_category, expected));
        category
            && self.group.as_deref().is_none_or(|expected| {
                expected.is_empty()
                    || match entry.group().filter(|group| !group.is_empty()) {
                        Some(group) => is_below(group, expected),
                        None => same(own_category, expected),
                    }
            })
            && (self.tags.is_empty()
                || entry.tags().iter().any(|tag| self.tags.iter().any(|expected| same(tag, expected))))
    }
}

/// Whether a group is another group or its subgroup.
pub(super) fn is_below(group: &str, above: &str) -> bool {
    group.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A result of a search.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The tool.
    pub entry: Arc<CatalogEntry>,
    /// The score, from 0 to 1; 0 without a query.
    pub score: f64,
}

/// The results of a search.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// One page of results, the best first; ties in the order of registration.
    pub hits: Vec<Hit>,
    /// The number of results on all pages.
    pub total: usize,
}

impl Found {
    /// The names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.hits.iter().map(|hit| hit.entry.name()).collect()
    }
}
