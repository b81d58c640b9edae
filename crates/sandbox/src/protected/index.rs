//! Finds the rows of the table that match names of a path.

use std::sync::OnceLock;

use super::Part;
use super::table::{DENIED, MARKED, Row, Verdict};

/// One name of a pattern.
#[derive(Debug, Clone, Copy)]
enum Name {
    Whole(&'static str),
    /// The beginning and the end around a `*`.
    Ends(&'static str, &'static str),
}

impl Name {
    fn from_text(text: &'static str) -> Self {
        text.split_once('*').map_or(Self::Whole(text), |(begin, end)| Self::Ends(begin, end))
    }

    /// Whether a folded name matches.
    fn matches(self, part: &Part<'_>) -> bool {
        let name = &*part.folded;
        match self {
            Self::Whole(text) => text == name || part.short().is_some_and(|short| short.can_be(text)),
            Self::Ends(begin, end) => {
                let is_long = name.len() >= begin.len() + end.len();
                is_long && name.starts_with(begin) && name.ends_with(end)
                    || part.short().is_some_and(|short| short.can_begin_and_end(begin, end))
            }
        }
    }
}

/// A row with the names of its pattern.
#[derive(Debug)]
pub(super) struct Pattern {
    names: Vec<Name>,
    pub(super) row: &'static Row,
}

impl Pattern {
    /// The number of names.
    pub(super) fn length(&self) -> usize {
        self.names.len()
    }

    /// The number of matching names, from the first on.
    pub(super) fn matching(&self, parts: &[Part<'_>]) -> usize {
        self.names.iter().zip(parts).take_while(|(name, part)| name.matches(part)).count()
    }
}

/// The number of buckets: one for each first byte, and for each second byte after a dot.
const BUCKETS: usize = 512;

/// The rows of a table by the first bytes of their first name.
#[derive(Debug)]
pub(super) struct Index {
    all: Vec<Pattern>,
    every: Vec<usize>,
    buckets: Vec<Vec<usize>>,
    /// Patterns without first bytes, such as `*.pth`.
    others: Vec<usize>,
}

impl Index {
    /// The rows of names that code may not write, or may only create.
    pub(super) fn denied() -> &'static Self {
        static DENIED_ROWS: OnceLock<Index> = OnceLock::new();
        DENIED_ROWS.get_or_init(|| Self::new(DENIED.iter()))
    }

    /// The rows of names that the report marks.
    pub(super) fn marked() -> &'static Self {
        static MARKED_ROWS: OnceLock<Index> = OnceLock::new();
        let created = DENIED.iter().filter(|row| matches!(row.verdict, Verdict::NewOnly(..)));
        MARKED_ROWS.get_or_init(|| Self::new(created.chain(MARKED)))
    }

    fn new(rows: impl Iterator<Item = &'static Row>) -> Self {
        let mut index = Self {
            all: Vec::new(),
            every: Vec::new(),
            buckets: vec![Vec::new(); BUCKETS],
            others: Vec::new(),
        };
        for row in rows {
            let names: Vec<Name> = row.pattern.split('/').map(Name::from_text).collect();
            let Some(Name::Whole(begin) | Name::Ends(begin, _)) = names.first() else { continue };
            let bucket = bucket(begin).and_then(|bucket| index.buckets.get_mut(bucket));
            bucket.unwrap_or(&mut index.others).push(index.all.len());
            index.every.push(index.all.len());
            index.all.push(Pattern { names, row });
        }
        index
    }

    /// The patterns whose first name can match a name.
    pub(super) fn candidates(&self, part: &Part<'_>) -> impl Iterator<Item = &Pattern> {
        let own = || {
            bucket(&part.folded).and_then(|bucket| self.buckets.get(bucket)).map_or(&[][..], Vec::as_slice)
        };
        let (some, others) = match part.short() {
            // A short name has no leading dot.
            Some(_) => (self.every.as_slice(), &[][..]),
            None => (own(), self.others.as_slice()),
        };
        some.iter().chain(others).filter_map(|number| self.all.get(*number))
    }
}

/// The bucket of names with this beginning; none if it is too short.
fn bucket(begin: &str) -> Option<usize> {
    match begin.as_bytes() {
        [b'.', second, ..] => Some(256 + usize::from(*second)),
        [b'.'] | [] => None,
        [first, ..] => Some(usize::from(*first)),
    }
}
