//! What is sought in a catalog, and what is found.

use std::sync::Arc;

use super::CatalogEntry;

/// How much of a query a tool must answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// At least half of its words.
    #[default]
    Majority,
    /// At least one word: for whole sentences.
    Any,
}

/// What is sought. Filters go together: a tool must pass all of them.
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
    /// Seeks words in names, descriptions, tags, categories and groups. An empty query is none. At most the first
    /// 8 KiB and 32 different words of it count.
    pub fn new(query: impl Into<String>) -> Self {
        Self { query: Some(query.into()), ..Self::default() }
    }

    /// Seeks all tools, in the order of their coming.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only tools of this category, whatever the case of its letters.
    #[must_use]
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = Some(category.into());
        self
    }

    /// Only tools of this group or of one below it: `crm` has those of `crm` and of `crm.contacts`. A tool without a
    /// group is sought by its category instead.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Only tools that have one of these tags, whatever the case of their letters.
    #[must_use]
    pub fn tags(mut self, tags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// How many are returned at most. Default: 10.
    #[must_use]
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// How many of the best to skip, for the next page. Default: 0.
    #[must_use]
    pub fn offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Only tools with this score or a better one, from 0 to 1; 1 is the exact name alone. Without a query it has no
    /// effect. Default: 0.
    #[must_use]
    pub fn min_score(mut self, score: f64) -> Self {
        self.min_score = score;
        self
    }

    /// How much of the query a tool must answer. Default: at least half of its words.
    #[must_use]
    pub fn matching(mut self, matching: Matching) -> Self {
        self.matching = matching;
        self
    }

    /// Whether a tool passes the filters.
    pub(super) fn filters_pass(&self, entry: &CatalogEntry) -> bool {
        let same = |one: &str, other: &str| one.to_lowercase() == other.to_lowercase();
        let own_category = entry.category().unwrap_or_default();
        let category =
            self.category.as_deref().is_none_or(|sought| sought.is_empty() || same(own_category, sought));
        category
            && self.group.as_deref().is_none_or(|sought| {
                sought.is_empty()
                    || match entry.group().filter(|group| !group.is_empty()) {
                        Some(group) => is_below(group, sought),
                        None => same(own_category, sought),
                    }
            })
            && (self.tags.is_empty()
                || entry.tags().iter().any(|tag| self.tags.iter().any(|sought| same(tag, sought))))
    }
}

/// Whether a group is another one or below it.
pub(super) fn is_below(group: &str, above: &str) -> bool {
    group.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A tool that was found.
#[derive(Clone, Debug)]
pub struct Hit {
    /// The tool.
    pub entry: Arc<CatalogEntry>,
    /// How well it fits the query, from 0 to 1; 0 without a query.
    pub score: f64,
}

/// What a search has found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// A page of it: the best first, equal ones in the order of their coming.
    pub hits: Vec<Hit>,
    /// How many there are on all pages.
    pub total: usize,
}

impl Found {
    /// The names, in order.
    pub fn names(&self) -> Vec<&str> {
        self.hits.iter().map(|hit| hit.entry.name()).collect()
    }
}
